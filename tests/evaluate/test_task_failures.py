"""A failing task is named with its reason, and does not change the results of the others."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from pipeline.core.errors import DiskFull, InputError
from pipeline.evaluate import lm_eval_scoring, suites
from pipeline.evaluate.settings import Suite
from pipeline.evaluate.task_failures import is_task_error
from tests import warm_python
from tests.evaluate.test_suites import PAIRS, QUESTIONS, evaluate

BAD = """task: bad
dataset_path: json
dataset_kwargs: {data_files: {test: bad.jsonl}}
output_type: multiple_choice
doc_to_text: "Hoeveel is {{number}}?"
doc_to_choice: ["een", "twee"]
doc_to_target: 0
metric_list: [{metric: acc}]
"""
WRITES = """task: bad
dataset_path: json
dataset_kwargs: {data_files: {test: bad.jsonl}}
output_type: generate_until
doc_to_text: "{{number}}"
doc_to_target: "x"
generation_kwargs: {until: ["."], max_gen_toks: 4, do_sample: false}
metric_list: [{metric: exact_match}]
"""
REGEX = "filter_list: [{name: strict, filter: [{function: regex, regex_pattern: '(unclosed'}]}]\n"
TOO_FEW = "filter_list: [{name: strict, filter: [{function: majority_vote}, {function: take_first_k, k: 9}]}]\n"
ROWS = [{"number": number} for number in (4, 3, 2, 1, 0, 5)]


def add_task(folder: Path, text: str, rows: Any = ROWS) -> None:
    (folder / "bad.yaml").write_text(text, encoding="utf-8")
    (folder / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


CASES = {
    "a template at an item": (
        BAD.replace("{{number}}", "{{100 // number}}"), "item 4 (line 5 of its data)", "ZeroDivisionError"),
    "choices at an item": (
        BAD.replace('["een", "twee"]', '"{{[(1 // number) | string, \'b\']}}"'), "item 4", "ZeroDivisionError"),
    "a target at an item": (
        BAD.replace("doc_to_target: 0", 'doc_to_target: "{{1 // number}}"'), "item 4", "ZeroDivisionError"),
    "a template at the first item": (BAD.replace("{{number}}", "{{1 // (number - 4)}}"), "", "ZeroDivisionError"),
    "an unknown filter of Jinja": (BAD.replace("{{number}}", "{{number | nothing}}"), "", "nothing"),
    "a regex": (WRITES + REGEX, "", "missing ), unterminated subpattern"),
    "a metric that lm-eval does not know": (BAD.replace("metric: acc", "metric: wisdom"), "", "bad.yaml"),
    "an aggregation that lm-eval does not know": (
        BAD.replace("metric: acc", "metric: acc, aggregation: wisest, higher_is_better: true"), "", "is not callable"),
    "no YAML": ("task: [", "", "is not valid YAML"),
    "no task": ("dataset_path: json\n", "", "the key task is missing"),
    "an output that lm-eval does not know": (BAD.replace("multiple_choice", "essay"), "", "essay"),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(milestone: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, bytes]:
    """The results of the two tasks alone, and the bytes of their items."""
    folder = tmp_path_factory.mktemp("plain")
    result = evaluate(milestone, folder / "results.json", own_suite(folder))
    return result, (folder / "results.parquet").read_bytes()


def own_suite(folder: Path) -> Suite:
    tasks = folder / "own"
    tasks.mkdir()
    source = Path(__file__).parents[2] / "config" / "tasks" / "dutch"
    for name, rows in (("polder_nl_kennis", QUESTIONS), ("polder_nl_grammatica", PAIRS)):
        shutil.copy(source / f"{name}.yaml", tasks)
        (tasks / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Suite(name="own", language="nl", folder=str(tasks))


@pytest.mark.parametrize("case", CASES)
def test_failing_task_is_named_and_other_tasks_have_equal_results(
    milestone: Path, tmp_path: Path, plain: tuple[Any, bytes], case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, item, reason = CASES[case]
    own = own_suite(tmp_path)
    good = [file for file in Path(str(own.folder)).iterdir()]
    add_task(Path(str(own.folder)), text)
    files = [*good, *(Path(str(own.folder)) / name for name in ("bad.yaml", "bad.jsonl"))]
    result = evaluate(milestone, tmp_path / "results.json", own, files=files)
    assert result["tasks"] == plain[0]["tasks"] and (tmp_path / "results.parquet").read_bytes() == plain[1]
    (entry,) = result["not_asked"]
    assert (entry["suite"], entry["task"]) == ("own", "bad")
    assert "bad" in entry["reason"] and item in entry["reason"] and reason in entry["reason"]
    assert "\n" not in entry["reason"] and "own: the task bad is not asked: " in capsys.readouterr().err


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def failing(task: str, place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a method of one task raise, as a task's own code may; at its sixth item when scoring items."""
    from lm_eval.api.task import ConfigurableTask  # not earlier: it imports what checks for a network

    plain, calls = getattr(ConfigurableTask, place), []

    def method(self: Any, *given: Any, **named: Any) -> Any:
        if self.config.task == task:
            calls.append(given)
            if place != "process_results" or len(calls) == 6:
                raise error
        return plain(self, *given, **named)

    monkeypatch.setattr(ConfigurableTask, place, method)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("process_results", "polder_nl_kennis, item 5 (line 6 of its data): scoring it raises LookupError: lost"),
        ("apply_filters", "polder_nl_kennis: asking or scoring it raises LookupError: lost"),
        ("aggregation", "polder_nl_kennis: asking or scoring it raises LookupError: lost"),
        ("construct_requests", "polder_nl_kennis: asking or scoring it raises LookupError: lost"),
    ],
)
def test_exception_in_task_code_fails_only_that_task(
    milestone: Path, tmp_path: Path, plain: tuple[Any, bytes], monkeypatch: pytest.MonkeyPatch, place: str, reason: str
) -> None:
    failing("polder_nl_kennis", place, LookupError("lost"), monkeypatch)
    result = evaluate(milestone, tmp_path / "results.json", own_suite(tmp_path))
    assert [entry["reason"] for entry in result["not_asked"]] == [f"task {reason}; correct the task or its data"]
    own = [row for row in plain[0]["tasks"] if row["task"] == "polder_nl_grammatica"]
    corrected = ("p_value_corrected", "verdict")  # over fewer scores
    assert [{**row, **dict.fromkeys(corrected)} for row in result["tasks"]] == [
        {**row, **dict.fromkeys(corrected)} for row in own
    ]


def test_exception_in_a_baseline_comparison_is_attributed_to_its_task(
    milestone: Path, tmp_path: Path, plain: tuple[Any, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = lm_eval_scoring.compare_with_baselines

    def other(items: Any, *given: Any) -> Any:
        return {}[0] if len(items) == len(QUESTIONS) else compared(items, *given)

    monkeypatch.setattr(lm_eval_scoring, "compare_with_baselines", other)
    result = evaluate(milestone, tmp_path / "results.json", own_suite(tmp_path))
    assert [entry["task"] for entry in result["not_asked"]] == ["polder_nl_kennis"]
    assert "comparing it with baselines raises KeyError: 0" in result["not_asked"][0]["reason"]
    assert {row["task"] for row in result["tasks"]} == {"polder_nl_grammatica"}
    items = pq.read_table(tmp_path / "results.parquet").column("task").to_pylist()
    assert {*items} == {"polder_nl_grammatica"}


def wrapped(cause: BaseException) -> RuntimeError:
    error = RuntimeError("the data set does not load")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(143),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        OSError(errno.ENOSPC, "No space left on device"),
        DiskFull("the disk is full"),
        OSError(errno.EMFILE, "Too many open files"),
        wrapped(OSError(errno.ENOSPC, "No space left on device")),
        wrapped(MemoryError()),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:40],
)
def test_errors_outside_a_task_end_the_evaluation(
    milestone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    assert not isinstance(error, Exception) or not is_task_error(error)
    monkeypatch.setattr(suites, "run_lm_eval", raising(error))
    with pytest.raises(type(error)) as caught:
        evaluate(milestone, tmp_path / "results.json", own_suite(tmp_path))
    assert not isinstance(caught.value, InputError) and not (tmp_path / "results.json").exists()


def test_nothing_is_written_if_every_task_fails(milestone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    add_task(folder, CASES["a template at an item"][0])
    with pytest.raises(InputError, match=r"task bad, item 4 .* raises ZeroDivisionError"):
        evaluate(milestone, tmp_path / "results.json", Suite(name="own", language="nl", folder=str(folder)))
    assert not (tmp_path / "results.json").exists()


def test_processes_agree_on_the_failed_task(tmp_path: Path) -> None:
    python, variables = warm_python.start()
    words = [python, "-m", "tests.evaluate.agreeing"]
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([*words, str(rank), str(tmp_path / "meeting")], stdout=pipe, env=environment)
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=300)[0].decode() for process in started]
    raised = "task quiz{}: asking it raises ZeroDivisionError: integer division or modulo by zero"
    expected = [f"{number} {raised.format(number)}; correct the task or its data" for number in range(3)]
    assert printed == ["\n".join([*expected, "3 [6, 4, 2, 0]", "[0, 1]", ""])] * 2
    assert [process.returncode for process in started] == [0, 0]
