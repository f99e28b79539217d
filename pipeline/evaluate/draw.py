"""Which examples of a suite a model is asked: drawn by the seed, and short enough for it to read."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.evaluate.items import aim_of, field_of
from pipeline.evaluate.settings import SuiteSettings
from pipeline.evaluate.trivial import answers
from pipeline.ground.errors import InputError

if TYPE_CHECKING:
    from lm_eval.api.task import Task
    from lm_eval.models.huggingface import HFLM


class Drawn(NamedTuple):
    """The examples of each task that is asked, how many more are too long, and why the other tasks are not asked."""

    examples: dict[str, list[int]]
    too_long: dict[str, int]
    not_asked: list[dict[str, Any]]


def draw(model: HFLM, suite: SuiteSettings, tasks: dict[str, Task], seed: int) -> Drawn:
    """Return what of a suite is asked; a task that cannot be asked is told, and keeps no other from being asked."""
    drawn = Drawn({}, {}, [])
    for name, task in tasks.items():
        indices = _indices(task, suite.limit, f"{seed}.{name}")
        try:
            check(task, indices)
        except InputError as error:
            drawn.not_asked.append(not_asked(suite, name, error))
            continue
        needed = {index: _tokens_needed(model, task, index) for index in indices}
        fitting = [index for index, tokens in needed.items() if tokens <= model.max_length]
        if fitting:
            drawn.examples[name], drawn.too_long[name] = fitting, len(needed) - len(fitting)
            continue
        least = min(needed.values())
        print(
            f"{suite.name}: the task {name} is not asked: each of its examples needs {least} tokens or more, and the "
            f"model's sequence length is {model.max_length}",
            flush=True,
        )
        drawn.not_asked.append(
            {"suite": suite.name, "task": name, "tokens_needed": least, "sequence_length": model.max_length}
        )
    return drawn


def not_asked(suite: SuiteSettings, task: str, error: InputError) -> dict[str, Any]:
    """Say, and return, why a task is not asked."""
    print(f"{suite.name}: the task {task} is not asked: {error}", file=sys.stderr, flush=True)
    return {"suite": suite.name, "task": task, "reason": str(error)}


def check(task: Task, drawn: Sequence[int]) -> None:
    """Check the examples of a task.

    Raises:
        InputError: the answer of one is none of its choices, or what the task's metadata say is not so.
    """
    aim_of(task)
    answers(task, [task.eval_docs[index] for index in drawn])
    for index in drawn:
        example = task.eval_docs[index]
        for kind in ("cluster", "parts"):
            field_of(task, kind, example)
        if task.OUTPUT_TYPE != "multiple_choice":
            continue
        target, choices = task.doc_to_target(example), task.doc_to_choice(example)
        empty = [number for number, choice in enumerate(choices) if not f"{task.config.target_delimiter}{choice}"]
        if empty and not task.multiple_input:
            raise InputError(
                f"task {task.config.task}, line {index + 1} of its data: the choice {empty[0]} is empty, which every "
                "model finds certain; write its text, or leave the line out"
            )
        if isinstance(target, int) and not 0 <= target < len(choices):
            raise InputError(
                f"task {task.config.task}, line {index + 1} of its data: the answer {target} is not the index "
                f"of one of its {len(choices)} choices, which count from 0; mend the line"
            )


def _indices(task: Task, limit: int | None, seed: str) -> list[int]:
    """Return the indices of the examples to evaluate: all, or `limit` of them drawn over the whole file."""
    count = len(task.eval_docs)
    if limit is None or limit >= count:
        return list(range(count))
    return sorted(random.Random(seed).sample(range(count), limit))


def _tokens_needed(model: HFLM, task: Task, index: int) -> int:
    """Return the sequence length without which an example is not asked.

    An answer to choose has to fit whole: lm-eval cuts contexts, but no answers. Where the model writes, the prompt has
    to fit with all that may be written, since a cut one asks something else; and where the task says so in its
    metadata, as `whole_prompt: true`, the prompt of a choice too.
    """
    from lm_eval.models.utils import normalize_gen_kwargs

    example = task.eval_docs[index]

    def prompt() -> str:
        return str(task.fewshot_context(example, num_fewshot=task.get_config("num_fewshot") or 0))

    if task.OUTPUT_TYPE == "multiple_choice":
        before = prompt() if (task.config.metadata or {}).get("whole_prompt") else ""
        texts = [f"{before}{task.config.target_delimiter}{choice}" for choice in task.doc_to_choice(example)]
        # One token is the context's last, and where context and answer meet a token may be cut in two.
        return 2 + max(len(model.tok_encode(text, add_special_tokens=False)) for text in texts)
    if task.OUTPUT_TYPE == "generate_until":
        written = normalize_gen_kwargs(task.config.generation_kwargs or {}, model.max_gen_toks)["max_gen_toks"]
        return int(written) + len(model.tok_encode(prompt()))
    return 0
