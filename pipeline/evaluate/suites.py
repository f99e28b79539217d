"""The step `evaluate suites`: benchmarks of one checkpoint with lm-eval, offline."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.full_disk_errors import remove_path
from pipeline.core.lock_owner import die_with_parent
from pipeline.core.output_lease import Lease
from pipeline.evaluate.checkpoint_and_baseline_answers import read_baseline_answers
from pipeline.evaluate.dataset_mirror import MirrorFolders
from pipeline.evaluate.finished_tasks import FinishedTasks, SuiteAnswers, decode_answers, encode_answers
from pipeline.evaluate.item_results import write_items
from pipeline.evaluate.lm_eval_scoring import add_baselines, run_lm_eval
from pipeline.evaluate.sandbox import EXECUTED, require_permission
from pipeline.evaluate.settings import RequestSettings, SuiteSettings, SuitesSettings
from pipeline.evaluate.task_failures import (
    ProcessFailure,
    SharedFailure,
    blame_task,
    gather_values_across_processes,
    wrap_scoring_with_item_errors,
)
from pipeline.evaluate.task_loader import (
    TaskSource,
    failed_task_entry,
    find_task_sources,
    print_skipped_task,
    sample_items,
    too_long_entry,
)
from pipeline.evaluate.task_protocol_hash import describe_protocol
from pipeline.pretrain import failed_training_milestone
from pipeline.pretrain.processes.launch_command import (
    build_command,
    count_processes,
    launcher_name,
    set_platform_variables,
)

if TYPE_CHECKING:
    import torch
    from lm_eval.api.task import Task

    from pipeline.evaluate.lm_eval_model import LmEvalModel


Result = TypeVar("Result")
WATCHING = ("pipeline.energy",)  # changes no answer
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")


def run(
    settings: SuitesSettings,
    *,
    milestone: Path,
    tasks: list[Path],
    index: Path,
    baselines: list[Path],
    results: Path,
    answers: Path,
    scratch: Path | None = None,
    versions: list[str] | None = None,
    owner: Lease | None = None,
    launch: str | None = None,
    platform: str | None = None,
) -> dict[str, Any]:
    """Evaluate the model in `milestone`/huggingface on every suite and write results.json and items.parquet.

    Args:
        settings: the suites, the batch size and the seed that draws the examples of a limited suite.
        milestone: a checkpoint's directory.
        tasks: every file that the suites read: task files, what they include, data files.
        index: that of the tokens that the model was trained on.
        baselines: the same two files of each model to compare with.
        results: the file of the scores.
        answers: the file of the answers to the items.
        scratch: a folder that keeps the results of finished tasks until the step is done; None keeps nothing.
        versions: those of the code and of the environment, which kept results depend on.
        owner: removes the scratch when the step has its record.
        launch: the command that starts several processes, if they are to share the work.
        platform: the name of a file of workflow/platforms, whose variables are set.

    Returns:
        The number of evaluated tasks and examples.

    Raises:
        InputError: for an unknown task, data that are missing, malformed or not as listed, or a model that does not
            load.
    """
    if ended := failed_training_milestone.read_failure(milestone):
        return write_failed_cell_results(settings.model, settings.step, ended, results, answers)
    given: dict[str, Any] = {"milestone": milestone, "tasks": tasks, "index": index, "baselines": baselines}
    given |= {"results": results, "answers": answers, "scratch": scratch}
    if owner and scratch:
        owner.afterwards = partial(remove_path, scratch)
    if launch and count_processes(launch) > 1:
        shared = {"settings": settings.model_dump(mode="json"), "platform": platform}
        paths = {name: _absolute(path) for name, path in given.items() if path is not None}
        return run_processes(launch, shared | paths | {"versions": versions}, results)
    prepare_process(platform, settings.seed, deterministic=settings.deterministic)
    return evaluate_checkpoint(settings, versions=versions, **given)


def _absolute(paths: Path | list[Path]) -> str | list[str]:
    return [str(path.absolute()) for path in paths] if isinstance(paths, list) else str(paths.absolute())


def evaluate_checkpoint(
    settings: SuitesSettings,
    *,
    milestone: Path,
    tasks: list[Path],
    index: Path,
    baselines: list[Path],
    results: Path,
    answers: Path,
    scratch: Path | None = None,
    versions: list[str] | None = None,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """Evaluate in this process; the first of several processes writes the files."""
    from pipeline.evaluate.lm_eval_model import load_model
    from pipeline.model.compilation_and_precision import is_deterministic

    others = read_baseline_answers(baselines)
    model = load_model(milestone / layout.CHECKPOINT_MODEL, settings.batch_size, device)
    collected = answer_suites(
        settings,
        model,
        tasks,
        open_finished_tasks(settings, model, milestone / layout.CHECKPOINT_MODEL, scratch, versions),
    )
    if model.process_index > 0:
        return {}
    failed = add_baselines(model, index, collected.measured, others)
    collected.not_asked.extend(failed)
    for entry in failed:
        print_skipped_task(entry)
    require_any_answered_task(collected)
    write_items(answers, collected.measured)
    counts = write_results(results, settings.model, settings.step, collected)
    return {**counts, "deterministic": is_deterministic()}


def prepare_process(platform: str | None, seed: int, *, deterministic: bool) -> None:
    """Set the variables that the libraries read at import; they are imported here."""
    # Tokenizing in threads would fork after they have started.
    os.environ |= dict.fromkeys(OFFLINE_VARIABLES, "1") | {"TOKENIZERS_PARALLELISM": "false", "TQDM_MININTERVAL": "60"}
    # Standard errors are drawn in this process: others would fork after the threads of torch have started.
    os.environ["DISABLE_MULTIPROC"] = "1"
    if deterministic:  # on a CPU the last bit of a product may else depend on the number of threads
        os.environ["MKL_CBWR"] = "AUTO,STRICT"
    import datasets
    import torch

    from pipeline.model.compilation_and_precision import set_determinism

    set_platform_variables(platform)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    torch.manual_seed(seed)
    set_determinism(deterministic)


def open_finished_tasks(
    settings: RequestSettings, model: LmEvalModel, folder: Path, scratch: Path | None, versions: list[str] | None
) -> FinishedTasks:
    """Open the results of tasks that this model finished before the evaluation was killed."""
    conditions = settings.model_dump(mode="json", include={"batch_size", "seed", "deterministic"})
    return FinishedTasks(
        scratch if model.process_index == 0 else None, folder, [conditions, versions, model.device.type]
    )


def answer_suites(
    settings: RequestSettings, model: LmEvalModel, given: Sequence[Path], finished: FinishedTasks | None = None
) -> SuiteAnswers:
    """Let a model answer the suites from the given files; the first of several processes returns all results.

    A failing task does not stop the others.

    Raises:
        InputError: all tasks failed.
    """
    import datasets
    import torch.distributed as dist

    collected, finished = SuiteAnswers([], [], {}), finished or FinishedTasks()
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    with tempfile.TemporaryDirectory() as temporary:
        datasets.config.HF_DATASETS_CACHE = Path(temporary) / "cache"
        given = [path.absolute() for path in given]
        mirrors = MirrorFolders(given)
        sources = [(suite, find_task_sources(suite, given, Path(temporary))) for suite in settings.suites]
        for suite, of_suite in sources:
            answers = [_answer_source(settings, suite, source, model, mirrors, finished) for source in of_suite]
            measured = {one.task: one for each in answers for one in each.measured}
            collected.measured.extend(measured[name] for name in sorted(measured))
            for each in answers:
                collected.data_sets.update(each.data_sets)
            failed = _merge_group_failures(of_suite, answers)
            collected.not_asked.extend(failed)
            examples = sum(len(one.items) for one in measured.values())
            if is_first:
                for entry in failed:
                    print_skipped_task(entry)
                print(f"{suite.name}: {len(measured)} tasks, {examples} examples", flush=True)
    if is_first:
        require_any_answered_task(collected)
    return collected


def _merge_group_failures(sources: Sequence[TaskSource], answers: Sequence[SuiteAnswers]) -> list[dict[str, Any]]:
    """Return the skipped tasks of a suite; a group whose tasks all fail for one reason is listed once."""
    entries: list[dict[str, Any]] = []
    for _, pairs in groupby(zip(sources, answers, strict=True), lambda pair: pair[0].group or pair[0].name):
        of_group = [*pairs]
        failed = [entry for _, each in of_group for entry in each.not_asked]
        reasons = [entry.get("reason", "").replace(entry["task"], of_group[0][0].group) for entry in failed]
        if len(failed) == len(of_group) > 1 and len({*reasons}) == 1 and reasons[0]:
            failed = [failed[0] | {"task": of_group[0][0].group, "reason": reasons[0]}]
        entries += failed
    return entries


def require_any_answered_task(collected: SuiteAnswers) -> None:
    """Raise InputError with the first reason if all tasks failed."""
    if not collected.measured and (reasons := [one["reason"] for one in collected.not_asked if "reason" in one]):
        raise InputError(reasons[0])


def _answer_source(
    settings: RequestSettings,
    suite: SuiteSettings,
    source: TaskSource,
    model: LmEvalModel,
    mirrors: MirrorFolders,
    finished: FinishedTasks,
) -> SuiteAnswers:
    """Return a model's answers to the tasks of a source, from an earlier attempt if they were kept."""
    collected = SuiteAnswers([], [], {})

    def compute_verified_task_key() -> str | None:
        collected.data_sets.update(mirrors.verify_data_sets(source.name, source.data_sets(), suite))
        conditions = [
            suite.model_dump(mode="json", include={"name", "language", "limit"}),
            source.name,
            collected.data_sets,
        ]
        return finished.compute_key(conditions, source.files()) if finished.folder else None

    def load() -> dict[str, Task]:
        set_seed(settings.seed)
        return source.load()

    from transformers import set_seed

    try:
        key = _run_in_all_processes(source.name, "reading its data", compute_verified_task_key)
        kept = finished.read(key) if key else None
        if gather_values_across_processes(kept is not None)[0]:
            if kept:
                print(f"{suite.name}: {source.name} was finished in an earlier attempt", flush=True)
            return kept or collected
        tasks = _run_in_all_processes(source.name, "loading it", load)
    except InputError as error:
        return SuiteAnswers([], [failed_task_entry(suite.name, source.name, error)], {})
    for name, task in tasks.items():
        try:
            answers = _run_in_all_processes(
                name, "asking or scoring it", partial(_answer_task, settings, suite, name, task, model)
            )
        except InputError as error:
            collected.not_asked.append(failed_task_entry(suite.name, name, error))
            continue
        collected.measured.extend(answers.measured)
        collected.not_asked.extend(answers.not_asked)
    if key and not collected.not_asked:
        finished.write(key, encode_answers(collected))
    return collected


def _run_in_all_processes(task: str, action: str, do: Callable[[], Result]) -> Result:
    """Call a function in all processes; return its result in this one.

    Raises:
        InputError: it raised in one of them; every process gets that.
    """
    failure: str | None = None
    try:
        with blame_task(task, action):
            result = do()
    except SharedFailure:
        raise
    except InputError as error:
        failure = str(error)
    try:
        gather_values_across_processes(None, failure)
    except ProcessFailure as error:
        raise SharedFailure(str(error)) from None
    return result


def _answer_task(
    settings: RequestSettings, suite: SuiteSettings, name: str, task: Task, model: LmEvalModel
) -> SuiteAnswers:
    """Return a model's answers to a task, or the reason why it is skipped."""
    from transformers import set_seed

    seed = settings.seed
    if EXECUTED in {one["metric"] for one in task.config.metric_list or ()}:
        require_permission(name, settings.execute_code)
    set_seed(seed)  # independently of earlier tasks in this or in an earlier attempt
    drawn = sample_items(model, suite, name, task, seed)
    if not drawn.examples:
        return SuiteAnswers([], [too_long_entry(model, suite.name, name, drawn)], {})
    wrap_scoring_with_item_errors(name, task, drawn.examples)
    protocol = describe_protocol(task, drawn.examples, seed)
    (measured,) = run_lm_eval(model, suite, {name: task}, {name: drawn.examples}, seed)
    for row in measured.rows:
        row |= {"examples_too_long": drawn.too_long, "protocol": protocol}
    truncated = measured.rows[0]["examples_truncated"] if measured.rows else 0
    if (truncated or drawn.too_long) and model.process_index == 0:
        print(
            f"{suite.name}: {name}: the prompts of {truncated} of {len(drawn.examples)} examples are truncated to the "
            f"model's sequence length {model.max_length}, and {drawn.too_long} more examples are not asked",
            flush=True,
        )
    return decode_answers(encode_answers(SuiteAnswers([measured], [], {})))


def write_failed_cell_results(
    model: str, step: int | None, ended: failed_training_milestone.TrainingFailure, results: Path, answers: Path
) -> dict[str, int]:
    """Write empty results of a cell that did not reach its end, with the reason."""
    write_items(answers, [])
    return write_results(results, model, step, SuiteAnswers([], [{"task": "all", "reason": ended.reason}], {}))


def write_results(path: Path, model: str, step: int | None, collected: SuiteAnswers) -> dict[str, int]:
    """Write the scores of a model; return the number of tasks and of examples."""
    import lm_eval

    content = {
        "model": model,
        "step": step,
        "tasks": [row for task in collected.measured for row in task.rows],
        "not_asked": collected.not_asked,
        "lm_eval_version": lm_eval.__version__,
        "data_sets": collected.data_sets,
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"tasks": len(collected.measured), "examples": sum(len(task.items) for task in collected.measured)}


WORKER = "pipeline.evaluate.evaluation_worker"


def run_processes(launch: str, given: dict[str, Any], results: Path) -> dict[str, Any]:
    """Evaluate in the processes that a launch command starts; return the counts of the first one.

    Each process answers a share of the batches and gets the answers of the others. Batches do not depend on the number
    of processes, so neither do the answers.

    Args:
        launch: the command.
        given: the keyword arguments of `evaluate_checkpoint`, in the types of JSON.
        results: a file in a folder that all nodes see.

    Raises:
        InputError: the command cannot be started, or a process refused its input.
        RuntimeError: the processes ended otherwise before they were done.
    """
    # The next start removes files with this name after a kill.
    prefix, suffix = f".partial-{os.getpid()}.", f"-{results.name.rpartition('-')[2]}"
    with tempfile.TemporaryDirectory(dir=results.parent, prefix=prefix, suffix=suffix) as folder:
        file, outcome_file = Path(folder, "arguments.json"), Path(folder, "outcome.json")
        arguments = {"given": given, "outcome": str(outcome_file.absolute()), "launcher": launcher_name(launch)}
        file.write_text(json.dumps(arguments), encoding="utf-8")
        words = build_command(launch, WORKER, [str(file.absolute())])
        try:
            ended = subprocess.run(words, preexec_fn=die_with_parent, check=False)
        except OSError as error:
            problem = f"launch: {words[0]} cannot be started ({error.strerror}): install it or correct it"
            raise InputError(problem) from None
        if not outcome_file.exists():
            raise RuntimeError(f"the evaluation ended with exit code {ended.returncode} before it was done")
        outcome: dict[str, Any] = json.loads(outcome_file.read_text(encoding="utf-8"))
    if "refused" in outcome:
        raise InputError(outcome["refused"])
    return outcome
