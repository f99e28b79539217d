"""Load the tasks of a suite: from task files with their items and examples, or from lm-eval."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pipeline.core.errors import InputError
from pipeline.core.unicode_normalization import normalize_nfc_recursively
from pipeline.evaluate.bits_per_byte_tasks import find_text_files, make_text_task
from pipeline.evaluate.checkpoint_and_baseline_answers import render_rule_answers
from pipeline.evaluate.dataset_mirror import find_data_sets, list_group_members, load_lm_eval_task_index
from pipeline.evaluate.entity_scores import serialize_entities
from pipeline.evaluate.fewshot_draws import choose_examples
from pipeline.evaluate.item_results import read_metadata_named_field, read_target_first_choice_share
from pipeline.evaluate.settings import SuiteSettings
from pipeline.evaluate.task_failures import blame_task
from pipeline.evaluate.task_file_reader import (
    find_data_file,
    find_includes,
    read_data_file_name,
    read_data_rows,
    read_data_set_name,
    read_fewshot_file_name,
    read_task_config,
)
from pipeline.evaluate.text_metrics import (
    OWN_METRICS,
    find_missing_field,
    register_aggregations,
    rename_fields,
    score_text,
)

if TYPE_CHECKING:
    from lm_eval.api.task import Task

    from pipeline.evaluate.lm_eval_model import LmEvalModel


@dataclass(frozen=True)
class TaskSource:
    """The source of a task: its name, the files that it reads, and the function that loads it, perhaps with others.

    `group` is the suite's name for a group or tag that contains the task, `data_sets` returns those of a mirror.
    """

    name: str
    files: Callable[[], list[Path]]
    load: Callable[[], dict[str, Task]]
    group: str = ""
    data_sets: Callable[[], set[str]] = set


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
                one,
                partial(_list_mirrored_files, one, given),
                partial(_load_shipped_tasks, one, given, scratch),
                group,
                partial(_find_shipped_data_sets, one),
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
        load = partial(load_file_task, path, configuration, given, scratch)
        own_files = partial(list_files_of_task, path, configuration, given)
        sources[name] = TaskSource(name, own_files, load, data_sets=partial(_find_data_sets, configuration))
    return [*sources.values()]


def _raise(error: InputError) -> NoReturn:
    raise error


def _find_data_sets(configuration: dict[str, Any]) -> set[str]:
    name = read_data_set_name(configuration)
    return {name} if name else set()


def _find_shipped_data_sets(name: str) -> set[str]:
    return {data_set for _, data_set in find_data_sets([name]) if data_set}


def _list_mirrored_files(name: str, given: Sequence[Path]) -> list[Path]:
    """Return the files of the data sets that a shipped task reads; all, if the task chooses by code."""
    wanted = {data_set for _, data_set in find_data_sets([name])}
    return [path for path in given if "" in wanted or any(f"/{one}/" in path.as_posix() for one in wanted)]


def _load_shipped_tasks(name: str, given: Sequence[Path], scratch: Path) -> dict[str, Task]:
    """Load a task that lm-eval ships, or those of a group, with data from the given mirrors; return them by name."""
    with chdir(_link_mirrors(given, scratch)):
        try:
            tasks: dict[str, Task] = load_lm_eval_task_index().load([name])["tasks"]
        except (OSError, ValueError, KeyError) as error:
            raise _unloaded_data(name, error, scratch) from None
    return tasks


def _unloaded_data(task: str, error: Exception, scratch: Path) -> InputError:
    problem = " ".join(str(error).split()).replace(str(scratch), "")
    return InputError(
        f"the data of {task} do not load ({type(error).__name__}: {problem}); put its data set below the suite's data "
        "folder as NAMESPACE/DATASET"
    )


def _link_mirrors(given: Sequence[Path], scratch: Path) -> Path:
    """Return a folder with links to the data sets of the given mirrors.

    A task names its data set `NAMESPACE/DATASET`, which is also a relative path: tasks are loaded in this folder.
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
    return hub


def list_files_of_task(path: Path, configuration: dict[str, Any], given: Sequence[Path]) -> list[Path]:
    """Return the files of a task: its own, included files, and data.

    Raises:
        InputError: one of them is not given.
    """
    if data_set := read_data_set_name(configuration):
        return [path, *find_includes(path), *(file for file in given if f"/{data_set}/" in file.as_posix())]
    names = [read_data_file_name(path, configuration), read_fewshot_file_name(path, configuration)]
    return [path, *find_includes(path), *(find_data_file(path, name, given) for name in names if name is not None)]


def load_file_task(path: Path, configuration: dict[str, Any], given: Sequence[Path], scratch: Path) -> dict[str, Task]:
    """Load the task of a file with data from the given files, or from a data set of a mirror; return it by its name.

    Raises:
        InputError: file and data do not fit, or few-shot examples are too few or among the items.
    """
    from datasets import Dataset
    from jinja2 import TemplateError

    if read_data_set_name(configuration):
        return _load_mirrored_task(path, configuration, given, scratch)
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
        splits = {name: Dataset.from_list(split_rows) for name, split_rows in rows.items()}
        local: dict[str, Any] = {"dataset_kwargs": None, "custom_dataset": lambda **_: splits}
        task = _make_task(path, {"test_split": "test", **configuration}, local, rows["test"], data.name)
        _check_fewshot_examples(path, task, examples)
        return {configuration["task"]: task}
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, TemplateError) as error:
        raise InputError(
            f"task file {path} does not fit its data file {data.name} ({type(error).__name__}: {error}); "
            "compare the fields that its templates name with those of the data"
        ) from None


def _make_task(
    path: Path, configuration: dict[str, Any], local: dict[str, Any], rows: Iterable[dict[str, Any]] | None, data: str
) -> Task:
    """Make a task; one with Polder's metrics is scored by these, and checked in its rows: by default its own ones."""
    from lm_eval.api.task import ConfigurableTask

    register_aggregations()
    metrics = [one["metric"] for one in configuration.get("metric_list") or ()]
    metadata = configuration.get("metadata") or {}
    is_own = bool({*metrics} & {*OWN_METRICS})
    if is_own:
        local["process_results"] = lambda fields, results: score_text(
            results[0], rename_fields(fields, metadata), metrics, metadata
        )
    if names := metadata.get("entities"):
        local["process_docs"] = lambda rows: rows.map(
            lambda row: {"entities": serialize_entities(row["tokens"], row["labels"], names)}
        )
    task = ConfigurableTask(config={**configuration, **local})
    for number, row in enumerate(task.eval_docs if rows is None else rows, start=1) if is_own else ():
        if lack := find_missing_field(rename_fields(row, metadata), metrics, metadata):
            raise InputError(f"task file {path}, line {number} of {data}: {lack}")
    return task


def _load_mirrored_task(
    path: Path, configuration: dict[str, Any], given: Sequence[Path], scratch: Path
) -> dict[str, Task]:
    """Load the task of a file whose data are a data set of a given mirror; return it by its name."""
    from jinja2 import TemplateError

    name = configuration["task"]
    with chdir(_link_mirrors(given, scratch)):
        try:
            task = _make_task(path, configuration, {}, None, configuration["dataset_path"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, TemplateError) as error:
            raise _unloaded_data(name, error, scratch) from None
    if (configuration.get("fewshot_config") or {}).get("samples"):
        _check_fewshot_examples(path, task, None)
    elif task.get_config("num_fewshot") and configuration.get("fewshot_split") in (
        None,
        configuration.get("test_split"),
    ):
        raise InputError(
            f"task file {path}: num_fewshot needs a fewshot_split that is not the test_split, or examples in "
            "fewshot_config: {samples: …}: name one"
        )
    choose_examples(task)
    return {name: task}


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
    read_target_first_choice_share(task)
    render_rule_answers(task, [task.eval_docs[index] for index in drawn])
    for index in drawn:
        example = task.eval_docs[index]
        for kind in ("cluster", "parts"):
            read_metadata_named_field(task, kind, example)
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
