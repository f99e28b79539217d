"""HumanEval and MBPP: the prompts and programs of lm-eval, on rows of our own in their layout."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from lm_eval.api.task import Task
from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.evaluate.sandbox import require_sandbox
from pipeline.evaluate.settings import KNOWN_SUITES, Evaluation, Suite
from pipeline.evaluate.task_file_reader import list_suite_files
from pipeline.evaluate.task_loader import find_task_sources
from pipeline.evaluate.text_metrics import find_missing_field, render_program
from tests.conftest import is_lacking
from tests.evaluate.test_public_suites import scored, tasks_of, write_data_set

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

NAMES = ("humaneval", "mbpp")


def human_rows() -> list[dict[str, Any]]:
    return [
        {
            "task_id": f"HumanEval/{n}",
            "prompt": f'def add_{n}(a, b):\n    """Return the sum and {n}.\n    >>> add(1, 1)\n    {2 + n}\n    """\n',
            "canonical_solution": f"    return a + b + {n}\n",
            "test": f"def check(candidate):\n    assert candidate(1, 2) == {3 + n}\n",
            "entry_point": f"add_{n}",
        }
        for n in range(3)
    ]


def basic_rows(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "task_id": n,
            "text": f"Write a function to add {n}.",
            "code": f"def add(a):\r\n    return a + {n} ",
            "test_list": [f"assert add({k}) == {k + n}" for k in range(3)],
            "test_setup_code": "",
            "challenge_test_list": [],
        }
        for n in range(first, first + count)
    ]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "mirror"
    write_data_set(folder, "openai/openai_humaneval", {"test": human_rows()}, "openai_humaneval")
    write_data_set(
        folder, "google-research-datasets/mbpp", {"test": basic_rows(11, 3), "prompt": basic_rows(1, 10)}, "full"
    )
    return folder


@pytest.fixture
def tasks(mirror: Path, tmp_path: Path) -> dict[str, Task]:
    return tasks_of("code", mirror, tmp_path / "scratch")


@pytest.fixture
def sandbox() -> None:
    try:
        require_sandbox()
    except InputError as error:
        is_lacking(str(error))


def test_prompts_and_programs_equal_those_of_lm_eval(
    mirror: Path, tasks: dict[str, Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval's own tasks write the prompts and hand the programs to `evaluate`, here a substitute that keeps them."""
    executed: list[str] = []

    def compute(references: list[str], predictions: list[list[str]], k: list[int]) -> Any:
        executed.append(f"{predictions[0][0]}\n{references[0]}")  # as code_eval joins them
        return {"pass@1": 0.0}, {}

    monkeypatch.setattr("evaluate.load", lambda _: SimpleNamespace(compute=compute))
    suite = Suite(name="shipped", language="en", tasks=[*NAMES], data=str(mirror))
    given = [path.absolute() for path in list_suite_files(suite)]
    shipped = {one.name: one.load()[one.name] for one in find_task_sources(suite, given, tmp_path / "other")}
    # The published examples, of which lm-eval has the text, are rows of the data set.
    rows = shipped["mbpp"].config.fewshot_config.samples()
    for row, own in zip(rows, basic_rows(2, 3), strict=True):
        row.update(own)
    shipped["mbpp"].sampler.replace_df(rows)
    for name, task in tasks.items():
        theirs = shipped[name]
        shots = task.get_config("num_fewshot")
        assert shots == theirs.get_config("num_fewshot")
        for doc in task.eval_docs:
            assert task.fewshot_context(doc, num_fewshot=shots) == theirs.fewshot_context(doc, num_fewshot=shots), name
        wanted = {"max_gen_toks": 256} | theirs.config.generation_kwargs  # lm-eval's default
        assert task.config.generation_kwargs == wanted
        for answer in ("    return a + b", "\n\nx = '{{ a }}'\n"):
            for doc in task.eval_docs:
                executed.clear()
                predictions = [[answer]]
                if name == "humaneval":
                    (made,) = theirs._filters
                    predictions = [*made.filters[0]().apply([[answer]], [doc])]
                theirs.process_results(doc, predictions[0] if name == "mbpp" else predictions)
                assert executed == [render_program(answer, doc, task.config.metadata["program"])], name


@pytest.mark.usefixtures("sandbox")
def test_right_programs_pass_and_wrong_ones_do_not(tasks: dict[str, Task]) -> None:
    for name, field in (("humaneval", "canonical_solution"), ("mbpp", "code")):
        task = tasks[name]
        for doc in task.eval_docs:
            right = doc[field]
            answers = {right: 1.0, f"{right}\n1 / 0": 0.0, right.replace("+", "-"): 0.0, "    pass": 0.0, "": 0.0}
            for answer, verdict in answers.items():
                assert task.process_results(doc, [answer]) == {"pass_at_1": verdict}, (name, answer)


@pytest.mark.usefixtures("sandbox")
def test_suite_is_executed_only_where_the_run_allows_it(mirror: Path, long_milestone: Path, tmp_path: Path) -> None:
    suite = KNOWN_SUITES["code"].model_copy(update={"data": str(mirror)})

    def right(_: object, requests: list[Instance]) -> list[str]:
        return [request.doc.get("canonical_solution") or "def add(a): return a + 11" for request in requests]

    def evaluate(**permission: bool) -> Any:
        with mock.patch("lm_eval.models.huggingface.HFLM.generate_until", right):
            return scored(suite, long_milestone, tmp_path, **permission)

    with pytest.raises(InputError, match=r"^task humaneval: it executes the programs .*`execute_code: true`"):
        evaluate()
    content = evaluate(execute_code=True)
    assert content["not_asked"] == []
    rows = {row["task"]: row for row in content["tasks"]}
    assert {name: (row["metric"], row["value"]) for name, row in rows.items()} == {
        "humaneval": ("pass_at_1", 1.0),
        "mbpp": ("pass_at_1", pytest.approx(1 / 3)),
    }
    for name, row in rows.items():
        assert (row["baselines"], row["verdict"] is not None) == ({"nothing": 0.0}, True), name
        assert (row["protocol"]["version"], len(row["protocol"]["sha256"])) == (1.0, 64)
    assert len({row["protocol"]["sha256"] for row in rows.values()}) == 2


def test_configuration_with_the_suite_needs_the_permission() -> None:
    with pytest.raises(ValidationError, match="'code' executes the programs that models write; write `execute_code"):
        Evaluation(suites=["code"])
    assert Evaluation(suites=["code"], execute_code=True).execute_code
    assert "execute_code" not in Evaluation().model_dump() and not Evaluation().execute_code


def test_task_without_a_program_is_refused() -> None:
    problem = find_missing_field({"prompt": "x"}, ["pass_at_1"], {})
    assert problem == "metadata: {program: TEMPLATE} is missing: the `answer` with the tests of the item"
    assert find_missing_field({"prompt": "x"}, ["pass_at_1"], {"program": "{{answer}}"}) is None
