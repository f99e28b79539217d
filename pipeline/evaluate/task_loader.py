"""Load the tasks of a suite: from task files with their items and examples, or from lm-eval."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pipeline.core.errors import InputError
from pipeline.core.unicode_normalization import normalize_nfc_recursively
from pipeline.evaluate.baseline_answers import render_rule_answers
from pipeline.evaluate.dataset_mirror import find_data_sets, list_group_members, load_shipped_index
from pipeline.evaluate.item_results import BITS, read_metadata_field, read_target_share
from pipeline.evaluate.settings import SuiteSettings, TextSettings
from pipeline.evaluate.task_errors import blame_task
from pipeline.evaluate.task_file_reader import (
    find_data_file,
    find_includes,
    read_data_file_name,
    read_data_rows,
    read_fewshot_file_name,
    read_task_config,
)
from pipeline.evaluate.text_metrics import OWN_METRICS, find_missing_field, score_text

if TYPE_CHECKING:
    from lm_eval.api.task import Task
if TYPE_CHECKING:
    from lm_eval.api.task import Task

    from pipeline.evaluate.lm_eval_model import LmEvalModel


@dataclass(frozen=True)
class TaskSource:
    """The source of a task: its name, the files that it reads, and the function that loads it, perhaps with others.

    `group` is the suite's name for a group or tag that contains the task.
    """

    name: str
    files: Callable[[], list[Path]]
    load: Callable[[], dict[str, Task]]
    group: str = ""


def find_task_sources(suite: SuiteSettings, given: Sequence[Path], scratch: Path) -> list[TaskSource]:
    """Return the sources of a suite's tasks, each task separately if possible.

    Raises:
        InputError: two tasks have one name, or a folder holds none.
    """
    if suite.texts:
        return [
            TaskSource(name, partial(find_text_files, text, given), partial(make_text_task, name, text, given))
            for name, text in sorted(suite.texts.items())
        ]
    if suite.folder is None:
        groups: dict[str, str] = {}
        for group in suite.tasks:
            groups = dict.fromkeys(list_group_members(group), group) | groups
        return [
            TaskSource(
                one, partial(_list_mirrored_files, one, given), partial(_load_shipped_tasks, one, given, scratch), group
            )
            for one, group in groups.items()
        ]
    folder = Path(suite.folder).absolute()
    files = sorted(file for file in given if file.parent == folder and file.suffix == ".yaml")
    if not files:
        raise InputError(f"suite {suite.name}: no task file of {folder} is given; give them with --input tasks")
    sources: dict[str, TaskSource] = {}
    for path in files:
        try:
            with blame_task(path.stem, "reading its file"):
                configuration = read_task_config(path)
        except InputError as error:
            sources[path.stem] = TaskSource(path.stem, lambda: [], partial(_raise, error))
            continue
        name = configuration["task"]
        if name in sources:
            raise InputError(f"task file {path}: another file of the suite {suite.name} is named {name}; rename one")
        load = partial(load_file_task, path, configuration, given)
        sources[name] = TaskSource(name, partial(list_task_files, path, configuration, given), load)
    return [*sources.values()]


def _raise(error: InputError) -> NoReturn:
    raise error


def _list_mirrored_files(name: str, given: Sequence[Path]) -> list[Path]:
    """Return the files of the data sets that a shipped task reads; all, if the task chooses by code."""
    wanted = {data_set for _, data_set in find_data_sets([name])}
    return [path for path in given if "" in wanted or any(f"/{one}/" in path.as_posix() for one in wanted)]


def _load_shipped_tasks(name: str, given: Sequence[Path], scratch: Path) -> dict[str, Task]:
    """Load a task that lm-eval ships, or those of a group, with data from the given mirrors; return them by name.

    A shipped task names its data set `NAMESPACE/DATASET`, which is also a relative path: tasks are loaded in a folder
    where that path links to the mirror.
    """
    hub = scratch / "hub"
    for readme in (path for path in given if path.name == "README.md"):
        link = hub / readme.parent.parent.name / readme.parent.name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(readme.parent)
        elif link.resolve() != readme.parent.resolve():
            raise InputError(f"the data set {link.relative_to(hub)} is given twice, as {readme.parent} too; give one")
    hub.mkdir(exist_ok=True)
    with chdir(hub):
        try:
            tasks: dict[str, Task] = load_shipped_index().load([name])["tasks"]
        except (OSError, ValueError, KeyError) as error:
            problem = " ".join(str(error).split()).replace(str(scratch), "")
            raise InputError(
                f"the data of {name} do not load ({type(error).__name__}: {problem}); put its data set below the "
                "suite's data folder as NAMESPACE/DATASET"
            ) from None
    return tasks


def list_task_files(path: Path, configuration: dict[str, Any], given: Sequence[Path]) -> list[Path]:
    """Return the files of a task: its own, included files, and data.

    Raises:
        InputError: one of them is not given.
    """
    names = [read_data_file_name(path, configuration), read_fewshot_file_name(path, configuration)]
    return [path, *find_includes(path), *(find_data_file(path, name, given) for name in names if name is not None)]


def load_file_task(path: Path, configuration: dict[str, Any], given: Sequence[Path]) -> dict[str, Task]:
    """Load the task of a file with data from the given files; return it by its name.

    Raises:
        InputError: file and data do not fit, or few-shot examples are too few or among the items.
    """
    from datasets import Dataset
    from jinja2 import TemplateError
    from lm_eval.api.task import ConfigurableTask

    data = find_data_file(path, read_data_file_name(path, configuration), given)
    rows = {"test": read_data_rows(data)}
    if (examples := read_fewshot_file_name(path, configuration)) is not None:
        rows["fewshot"] = read_data_rows(find_data_file(path, examples, given))
        configuration = {**configuration, "fewshot_split": "fewshot"}
        asked = normalize_nfc_recursively(rows["test"])
        if repeated := [
            number for number, row in enumerate(rows["fewshot"], 1) if normalize_nfc_recursively(row) in asked
        ]:
            raise InputError(f"task file {path}: {examples}, line {repeated[0]}, is one of the items; write another")
    # Reading the rows here, not with the datasets library, names a bad line and caches nothing on disk.
    try:
        splits = {name: Dataset.from_list(found) for name, found in rows.items()}
        local: dict[str, Any] = {"dataset_kwargs": None, "custom_dataset": lambda **_: splits}
        metrics = [one["metric"] for one in configuration.get("metric_list") or ()]
        if {*metrics} & {*OWN_METRICS}:
            metadata = configuration.get("metadata") or {}
            local["process_results"] = lambda fields, results: score_text(results[0], fields, metrics, metadata)
            for number, row in enumerate(rows["test"], start=1):
                if lack := find_missing_field(row, metrics, metadata):
                    raise InputError(f"task file {path}, line {number} of {data.name}: {lack}")
        task = ConfigurableTask(config={"test_split": "test", **configuration, **local})
        _check_fewshot_examples(path, task, examples)
        return {configuration["task"]: task}
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, TemplateError) as error:
        raise InputError(
            f"task file {path} does not fit its data file {data.name} ({type(error).__name__}: {error}); "
            "compare the fields that its templates name with those of the data"
        ) from None


def _check_fewshot_examples(path: Path, task: Task, examples: str | None) -> None:
    """Check that there are enough few-shot examples, and that none of them is an item.

    Raises:
        InputError: they are too few, or lm-eval would take them from the items.
    """
    shots = task.get_config("num_fewshot") or 0
    if not shots:
        return
    if examples is None and not task.get_config("fewshot_config").samples:
        raise InputError(
            f"task file {path}: num_fewshot: {shots} would take its examples from the items: name a file of them, "
            "`dataset_kwargs: {data_files: {test: …, fewshot: NAME.jsonl}}`"
        )
    if shots > len(task.sampler.df):
        raise InputError(
            f"task file {path}: num_fewshot: {shots}, and {examples or 'fewshot_config: samples'} has "
            f"{len(task.sampler.df)} examples; write more of them or ask for fewer"
        )


# Suites of texts: bits per byte compare models with any tokenizers and corpora.
#
# Each text is read in windows of the model's sequence length: the first after begin-of-text, each other one after the
# last token before it, and the last one after as many tokens as fit. Begin-of-text itself is not predicted.


GENRE = "genre"


def find_text_files(text: TextSettings, given: Sequence[Path]) -> list[Path]:
    """Return the given files with the name of a file of texts."""
    return sorted({file for file in given if file.name == text.path})


def make_text_task(name: str, text: TextSettings, given: Sequence[Path]) -> dict[str, Task]:
    """Make the task that measures the probability of each text of a file, with genres as parts; return it by name.

    Raises:
        InputError: the file is not among the given ones, or a line has no text.
    """
    from datasets import Dataset
    from lm_eval.api.task import ConfigurableTask

    files = find_text_files(text, given)
    if len(files) != 1:
        problem = f"may be any of {', '.join(map(str, files))}" if files else "is not among the inputs"
        raise InputError(f"evaluation.texts.{name}: its file {text.path} {problem}; give it once, under its own name")
    rows = read_data_rows(files[0])
    for number, row in enumerate(rows, start=1):
        if not isinstance(row.get("text"), str) or not row["text"].strip():
            raise InputError(f"{files[0]}, line {number}: the field text holds no text; mend or delete the line")
    kept = Dataset.from_list([{key: str(row[key]) for key in ("text", GENRE) if key in row} for row in rows])
    metadata: dict[str, Any] = {"version": 1.0, "language": text.language}
    task = ConfigurableTask(
        config={
            "task": name,
            "custom_dataset": lambda **_: {"test": kept},
            "test_split": "test",
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": BITS, "aggregation": BITS, "higher_is_better": False}],
            "metadata": metadata | ({"parts": GENRE} if GENRE in rows[0] else {}),
        }
    )
    return {name: task}


class ItemSample(NamedTuple):
    """The drawn examples of a task, the number of others that are too long, and the tokens that the shortest needs."""

    examples: list[int]
    too_long: int
    tokens_needed: int


def sample_items(model: LmEvalModel, suite: SuiteSettings, name: str, task: Task, seed: int) -> ItemSample:
    """Draw the examples of a task.

    Raises:
        InputError: the task has no example, or one of them is wrong.
    """
    indices = _draw_items(task, suite.limit, f"{seed}.{name}")
    if not indices:
        raise InputError(f"task {name}: its data hold no example; correct the task or its data")
    check_items(task, indices)
    needed: dict[int, int] = {}
    for index in indices:
        with blame_task(name, "rendering it", index):
            needed[index] = _count_needed_tokens(model, task, index)
    fitting = [index for index, tokens in needed.items() if tokens <= model.max_length]
    return ItemSample(fitting, len(needed) - len(fitting), min(needed.values()))


def too_long_entry(model: LmEvalModel, suite: str, task: str, drawn: ItemSample) -> dict[str, Any]:
    """Return the entry of a task that is skipped as all its examples are too long."""
    return {
        "suite": suite,
        "task": task,
        "tokens_needed": drawn.tokens_needed,
        "sequence_length": model.max_length,
    }


def failed_task_entry(suite: str, task: str, error: InputError) -> dict[str, Any]:
    """Return the entry of a skipped task with its reason."""
    return {"suite": suite, "task": task, "reason": str(error)}


def print_skipped_task(entry: dict[str, Any]) -> None:
    """Print the reason why a task is skipped."""
    reason = entry.get("reason") or (
        f"each of its examples needs {entry['tokens_needed']} tokens or more, and the model's sequence length is "
        f"{entry['sequence_length']}"
    )
    print(f"{entry['suite']}: the task {entry['task']} is not asked: {reason}", file=sys.stderr, flush=True)


def check_items(task: Task, drawn: Sequence[int]) -> None:
    """Check the examples of a task.

    Raises:
        InputError: the answer of one is none of its choices, or the task's metadata do not fit.
    """
    read_target_share(task)
    render_rule_answers(task, [task.eval_docs[index] for index in drawn])
    for index in drawn:
        example = task.eval_docs[index]
        for kind in ("cluster", "parts"):
            read_metadata_field(task, kind, example)
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


def _draw_items(task: Task, limit: int | None, seed: str) -> list[int]:
    """Return the indices of all examples, or of `limit` of them drawn from the whole file."""
    count = len(task.eval_docs)
    if limit is None or limit >= count:
        return list(range(count))
    return sorted(random.Random(seed).sample(range(count), limit))


def _count_needed_tokens(model: LmEvalModel, task: Task, index: int) -> int:
    """Return the sequence length that an example needs.

    A choice has to fit completely: lm-eval truncates contexts, but no answers. For generated text the prompt has to fit
    with the longest answer, as a truncated prompt is another question. With `whole_prompt: true` in the task's
    metadata, so does the prompt of a choice.
    """
    from lm_eval.models.utils import normalize_gen_kwargs

    example = task.eval_docs[index]

    def prompt() -> str:
        return str(task.fewshot_context(example, num_fewshot=task.get_config("num_fewshot") or 0))

    if task.OUTPUT_TYPE == "multiple_choice":
        before = prompt() if (task.config.metadata or {}).get("whole_prompt") else ""
        texts = [f"{before}{task.config.target_delimiter}{choice}" for choice in task.doc_to_choice(example)]
        # One token is the context's last; where context and answer meet, a token may be split in two.
        return 2 + max(len(model.tok_encode(text, add_special_tokens=False)) for text in texts)
    if task.OUTPUT_TYPE == "generate_until":
        written = normalize_gen_kwargs(task.config.generation_kwargs or {}, model.max_gen_toks)["max_gen_toks"]
        return int(written) + len(model.tok_encode(prompt()))
    if task.OUTPUT_TYPE == "loglikelihood":
        return 2 + len(model.tok_encode(str(task.doc_to_target(example)), add_special_tokens=False))
    return 0
