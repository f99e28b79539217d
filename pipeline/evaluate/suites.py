"""The step `evaluate suites`: benchmarks of one checkpoint with lm-eval, offline."""

from __future__ import annotations

import json
import logging
import os
import random
import tempfile
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.evaluate.items import write_items
from pipeline.evaluate.mirror import checked
from pipeline.evaluate.scores import Measured, add_baselines, measure
from pipeline.evaluate.settings import SuiteSettings, SuitesSettings
from pipeline.evaluate.shipped import shipped_index
from pipeline.evaluate.task_files import data_file, given_data_file, read_rows, read_task
from pipeline.ground.errors import InputError
from pipeline.pretrain.processes.launch import set_variables

if TYPE_CHECKING:
    from lm_eval.api.task import Task
    from lm_eval.models.huggingface import HFLM

OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")


def run(
    settings: SuitesSettings,
    *,
    milestone: Path,
    tasks: list[Path],
    index: Path,
    results: Path,
    answers: Path,
    platform: str | None = None,
) -> dict[str, Any]:
    """Evaluate the model in `milestone`/huggingface on every suite and write results.json and items.parquet.

    Args:
        settings: the suites, the batch size and the seed that draws the examples of a limited suite.
        milestone: a checkpoint's directory.
        tasks: every file that the suites read: task files, what they include, data files.
        index: that of the tokens that the model was trained on.
        results: the file of the scores.
        answers: the file of the answers to the items of tasks with choices.
        platform: the name of a file of workflow/platforms, whose variables are set.

    Returns:
        The number of tasks and of evaluated examples.

    Raises:
        InputError: for an unknown task, data that are missing, malformed or not as listed, or a model that does not
            load.
    """
    # Before the imports below: the libraries read these once. Tokenising in threads would fork after they have started.
    os.environ |= dict.fromkeys(OFFLINE, "1") | {"TOKENIZERS_PARALLELISM": "false", "TQDM_MININTERVAL": "60"}
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import datasets
    import lm_eval
    import torch

    set_variables(platform)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    torch.manual_seed(settings.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    given = [path.absolute() for path in tasks]
    measured: list[Measured] = []
    examples = 0
    data_sets: dict[str, str] = {}
    for suite in settings.suites:
        data_sets |= checked(suite.tasks, given) if suite.tasks else {}
    with tempfile.TemporaryDirectory() as scratch:
        datasets.config.HF_DATASETS_CACHE = Path(scratch) / "cache"
        loaded = [
            (suite, _folder_tasks(suite, given) if suite.folder else _shipped_tasks(suite, given, Path(scratch)))
            for suite in settings.suites
        ]
        model = _load_model(milestone / "huggingface", settings.batch_size)
        for suite, suite_tasks in loaded:
            drawn = {name: _draw(task, suite.limit, f"{settings.seed}.{name}") for name, task in suite_tasks.items()}
            fitting = {name: _fitting(model, task, drawn[name]) for name, task in suite_tasks.items()}
            too_long = {name: len(drawn[name]) - len(fitting[name]) for name in suite_tasks}
            drawn = fitting
            for found in measure(model, suite, suite_tasks, drawn, settings.seed):
                for row in found.rows:
                    row["examples_too_long"] = too_long[found.task]
                measured.append(found)
            examples += sum(map(len, drawn.values()))
            print(f"{suite.name}: {len(suite_tasks)} tasks, {sum(map(len, drawn.values()))} examples", flush=True)
        add_baselines(model, index, measured)
    rows = [row for found in measured for row in found.rows]
    write_items(answers, ((found.suite, found.task, found.items) for found in measured))
    content = {
        "model": settings.model,
        "step": settings.step,
        "tasks": rows,
        "lm_eval_version": lm_eval.__version__,
        "data_sets": data_sets,
    }
    results.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"tasks": sum(len(suite_tasks) for _, suite_tasks in loaded), "examples": examples}


def _folder_tasks(suite: SuiteSettings, given: Sequence[Path]) -> dict[str, Task]:
    """Return the tasks of the given files that lie in the suite's folder, by name, in the order of their files."""
    from datasets import Dataset
    from jinja2 import TemplateError
    from lm_eval.api.task import ConfigurableTask

    folder = Path(suite.folder or "").absolute()
    tasks: dict[str, Task] = {}
    for path in sorted(file for file in given if file.parent == folder and file.suffix == ".yaml"):
        configuration = read_task(path)
        name = configuration["task"]
        if name in tasks:
            raise InputError(f"task file {path}: another file of the suite {suite.name} is named {name}; rename one")
        data = given_data_file(path, data_file(path, configuration), given)
        # The rows are read here and not by the data-set library: a bad line is named, and nothing is cached on disk.
        try:
            test = Dataset.from_list(read_rows(data))
            local = {"dataset_kwargs": None, "custom_dataset": lambda test=test, **_: {"test": test}}
            task = ConfigurableTask(config={"test_split": "test", **configuration, **local})
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, TemplateError) as error:
            raise InputError(
                f"task file {path} does not fit its data file {data.name} ({type(error).__name__}: {error}); "
                "compare the fields that its templates name with those of the data"
            ) from None
        tasks[name] = task
    if not tasks:
        raise InputError(f"suite {suite.name}: no task file of {suite.folder} is given; give them with --input tasks")
    return tasks


def _shipped_tasks(suite: SuiteSettings, given: Sequence[Path], scratch: Path) -> dict[str, Task]:
    """Return tasks that lm-eval ships, by name, reading their data from the given mirror of data sets.

    A shipped task names its data set `NAMESPACE/DATASET`, which is also a relative path: they load from a folder in
    which that path leads to the mirror.
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
            tasks: dict[str, Task] = shipped_index().load(list(suite.tasks))["tasks"]
        except (OSError, ValueError, KeyError) as error:
            problem = " ".join(str(error).split()).replace(str(scratch), "")
            raise InputError(
                f"suite {suite.name}: the data of {', '.join(suite.tasks)} do not load ({type(error).__name__}: "
                f"{problem}); put their data sets below the suite's data folder as NAMESPACE/DATASET"
            ) from None
    return tasks


def _load_model(folder: Path, batch_size: int) -> HFLM:
    import torch
    from lm_eval.models.huggingface import HFLM
    from safetensors import SafetensorError

    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json: give a milestone that holds a model in Hugging Face layout")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        # The softmax in fp32: in bf16 the likelihoods of two choices are often the same number.
        return HFLM(
            pretrained=str(folder), backend="causal", device=device, batch_size=batch_size, softmax_dtype="float32"
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        problem = " ".join(str(error).split())[:300]
        raise InputError(f"the model in {folder} does not load ({problem}); make the milestone again") from None


def _draw(task: Task, limit: int | None, seed: str) -> list[int]:
    """Return the indices of the examples to evaluate: all, or `limit` of them drawn over the whole file."""
    count = len(task.eval_docs)
    if limit is None or limit >= count:
        return list(range(count))
    return sorted(random.Random(seed).sample(range(count), limit))


def _fitting(model: HFLM, task: Task, drawn: Sequence[int]) -> list[int]:
    """Return the examples of which the model can read every answer whole: lm-eval cuts contexts, but no answers.

    Raises:
        InputError: when that is none of them.
    """
    if task.OUTPUT_TYPE != "multiple_choice":
        return list(drawn)
    delimiter = task.config.target_delimiter
    # One token is the context's last, and where context and answer meet a token may be cut in two.
    longest = model.max_length - 2
    fitting = [
        index
        for index in drawn
        if all(
            len(model.tok_encode(f"{delimiter}{choice}")) <= longest
            for choice in task.doc_to_choice(task.eval_docs[index])
        )
    ]
    if not fitting:
        raise InputError(
            f"task {task.config.task}: every example has an answer that is longer than the model's sequence length of "
            f"{model.max_length} tokens; leave the task out, or train with a greater sequence_length"
        )
    return fitting
