"""The step `evaluate suites`: benchmarks of one checkpoint with lm-eval, offline."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.evaluate.answers import read_baselines
from pipeline.evaluate.draw import draw
from pipeline.evaluate.draw import not_asked as why_not
from pipeline.evaluate.items import Measured, write_items
from pipeline.evaluate.processes import answered
from pipeline.evaluate.scores import add_baselines, measure
from pipeline.evaluate.settings import AskedSettings, SuitesSettings
from pipeline.evaluate.tasks import loaders
from pipeline.ground.errors import InputError
from pipeline.pretrain import outcome
from pipeline.pretrain.processes.launch import set_variables, world_size

if TYPE_CHECKING:
    import torch
    from lm_eval.api.task import Task
    from lm_eval.models.huggingface import HFLM

WATCHING = ("pipeline.energy",)  # changes no answer
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")


def run(
    settings: SuitesSettings,
    *,
    milestone: Path,
    tasks: list[Path],
    index: Path,
    baselines: list[Path],
    results: Path,
    answers: Path,
    launch: str | None = None,
    platform: str | None = None,
) -> dict[str, Any]:
    """Evaluate the model in `milestone`/huggingface on every suite and write results.json and items.parquet.

    Args:
        settings: the suites, the batch size and the seed that draws the examples of a limited suite.
        milestone: a checkpoint's directory.
        tasks: every file that the suites read: task files, what they include, data files.
        index: that of the tokens that the model was trained on.
        baselines: the same two files of each model that this one is compared with.
        results: the file of the scores.
        answers: the file of the answers to the items.
        launch: how several processes are started that share the work, if they are to.
        platform: the name of a file of workflow/platforms, whose variables are set.

    Returns:
        The number of tasks that were asked and of evaluated examples.

    Raises:
        InputError: for an unknown task, data that are missing, malformed or not as listed, or a model that does not
            load.
    """
    if ended := outcome.read(milestone):
        return write_none(settings.model, settings.step, ended, results, answers)
    given: dict[str, Any] = {"milestone": milestone, "tasks": tasks, "index": index, "baselines": baselines}
    given |= {"results": results, "answers": answers}
    if launch and world_size(launch) > 1:
        told = {"settings": settings.model_dump(mode="json"), "platform": platform}
        return answered(launch, told | {name: _absolute(path) for name, path in given.items()}, results)
    prepared(platform, settings.seed, deterministic=settings.deterministic)
    return evaluate(settings, **given)


def _absolute(paths: Path | list[Path]) -> str | list[str]:
    return [str(path.absolute()) for path in paths] if isinstance(paths, list) else str(paths.absolute())


def evaluate(
    settings: SuitesSettings,
    *,
    milestone: Path,
    tasks: list[Path],
    index: Path,
    baselines: list[Path],
    results: Path,
    answers: Path,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """Do the same in this process, which may be one of several: then the first one writes."""
    from pipeline.evaluate.scorer import load_model
    from pipeline.model.determinism import is_deterministic

    others = read_baselines(baselines)
    model = load_model(milestone / "huggingface", settings.batch_size, device)
    asked = ask(settings, model, tasks)
    if model.place > 0:
        return {}
    add_baselines(model, index, asked.measured, others)
    write_items(answers, asked.measured)
    counts = write_results(results, settings.model, settings.step, asked)
    return {**counts, "deterministic": is_deterministic()}


def prepared(platform: str | None, seed: int, *, deterministic: bool) -> None:
    """Set what the libraries read once: they are imported behind this."""
    # Tokenising in threads would fork after they have started.
    os.environ |= dict.fromkeys(OFFLINE, "1") | {"TOKENIZERS_PARALLELISM": "false", "TQDM_MININTERVAL": "60"}
    # Standard errors are drawn in this process: others would fork after the threads of torch have started.
    os.environ["DISABLE_MULTIPROC"] = "1"
    import datasets
    import torch

    from pipeline.model.determinism import set_determinism

    set_variables(platform)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    torch.manual_seed(seed)
    set_determinism(deterministic)


class Asked(NamedTuple):
    """What a model answered, by task, the tasks that it could not be asked, and the revisions of mirrored data sets."""

    measured: list[Measured]
    not_asked: list[dict[str, Any]]
    data_sets: dict[str, str]


def ask(settings: AskedSettings, model: HFLM, given: Sequence[Path]) -> Asked:
    """Ask a model the suites, from the files that are given.

    A task that is not known, or whose data are missing, malformed or not as listed, keeps no other from being asked.

    Raises:
        InputError: there is such a task, and no other.
    """
    import datasets

    given = [path.absolute() for path in given]
    measured: list[Measured] = []
    not_asked: list[dict[str, Any]] = []
    data_sets: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        datasets.config.HF_DATASETS_CACHE = Path(scratch) / "cache"
        for suite in settings.suites:
            suite_tasks: dict[str, Task] = {}
            for name, load in loaders(suite, given, Path(scratch), data_sets):
                try:
                    suite_tasks |= load()
                except InputError as error:
                    not_asked.append(why_not(suite, name, error))
            drawn = draw(model, suite, suite_tasks, settings.seed)
            asked = {name: suite_tasks[name] for name in drawn.examples}
            for found in measure(model, suite, asked, drawn.examples, settings.seed):
                for row in found.rows:
                    row["examples_too_long"] = drawn.too_long[found.task]
                measured.append(found)
            not_asked += drawn.not_asked
            print(f"{suite.name}: {len(asked)} tasks, {sum(map(len, drawn.examples.values()))} examples", flush=True)
    if not measured and (reasons := [one["reason"] for one in not_asked if "reason" in one]):
        raise InputError(reasons[0])
    return Asked(measured, not_asked, data_sets)


def write_none(model: str, step: int | None, ended: outcome.Outcome, results: Path, answers: Path) -> dict[str, int]:
    """Write that a cell which did not reach its end was asked nothing, and why."""
    write_items(answers, [])
    return write_results(results, model, step, Asked([], [{"task": "all", "reason": ended.reason}], {}))


def write_results(path: Path, model: str, step: int | None, asked: Asked) -> dict[str, int]:
    """Write the scores of a model; return the number of tasks and of examples."""
    import lm_eval

    content = {
        "model": model,
        "step": step,
        "tasks": [row for found in asked.measured for row in found.rows],
        "not_asked": asked.not_asked,
        "lm_eval_version": lm_eval.__version__,
        "data_sets": asked.data_sets,
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"tasks": len(asked.measured), "examples": sum(len(found.items) for found in asked.measured)}
