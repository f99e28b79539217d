"""Sample the examples of a suite that a model is asked, by the seed, and leave out those too long for it."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.core.errors import InputError
from pipeline.evaluate.item_answers import rule_answers
from pipeline.evaluate.items import aim_of, field_of
from pipeline.evaluate.settings import SuiteSettings
from pipeline.evaluate.task_outcomes import blame_task

if TYPE_CHECKING:
    from lm_eval.api.task import Task

    from pipeline.evaluate.scorer import Scorer


class ItemSample(NamedTuple):
    """The examples of a task that are asked, how many others are too long, and the tokens that the shortest needs."""

    examples: list[int]
    too_long: int
    tokens_needed: int


def sample_items(model: Scorer, suite: SuiteSettings, name: str, task: Task, seed: int) -> ItemSample:
    """Return which examples of a task are asked.

    Raises:
        InputError: the task has no example, or one of them is wrong.
    """
    indices = _indices(task, suite.limit, f"{seed}.{name}")
    if not indices:
        raise InputError(f"task {name}: its data hold no example; correct the task or its data")
    check(task, indices)
    needed: dict[int, int] = {}
    for index in indices:
        with blame_task(name, "rendering it", index):
            needed[index] = _tokens_needed(model, task, index)
    fitting = [index for index, tokens in needed.items() if tokens <= model.max_length]
    return ItemSample(fitting, len(needed) - len(fitting), min(needed.values()))


def too_long(model: Scorer, suite: str, task: str, drawn: ItemSample) -> dict[str, Any]:
    """Return that a task is not asked because each of its examples is too long."""
    return {
        "suite": suite,
        "task": task,
        "tokens_needed": drawn.tokens_needed,
        "sequence_length": model.max_length,
    }


def not_asked(suite: str, task: str, error: InputError) -> dict[str, Any]:
    """Return that a task is not asked, and why."""
    return {"suite": suite, "task": task, "reason": str(error)}


def print_not_asked(entry: dict[str, Any]) -> None:
    """Print why a task is not asked."""
    reason = entry.get("reason") or (
        f"each of its examples needs {entry['tokens_needed']} tokens or more, and the model's sequence length is "
        f"{entry['sequence_length']}"
    )
    print(f"{entry['suite']}: the task {entry['task']} is not asked: {reason}", file=sys.stderr, flush=True)


def check(task: Task, drawn: Sequence[int]) -> None:
    """Check the examples of a task.

    Raises:
        InputError: the answer of one is none of its choices, or what the task's metadata say is not so.
    """
    aim_of(task)
    rule_answers(task, [task.eval_docs[index] for index in drawn])
    for index in drawn:
        example = task.eval_docs[index]
        for kind in ("cluster", "parts"):
            field_of(task, kind, example)
        with blame_task(task.config.task, "rendering it", index):
            task.doc_to_text(example)
            target = task.doc_to_target(example)
            choices = task.doc_to_choice(example) if task.OUTPUT_TYPE == "multiple_choice" else []
        if task.OUTPUT_TYPE != "multiple_choice":
            continue
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


def _tokens_needed(model: Scorer, task: Task, index: int) -> int:
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
    if task.OUTPUT_TYPE == "loglikelihood":
        return 2 + len(model.tok_encode(str(task.doc_to_target(example)), add_special_tokens=False))
    return 0
