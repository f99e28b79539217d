"""Which items are decontaminated, which are only counted, and which of their fields are searched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.configuration import Config, parse_configuration
from pipeline.config.evaluation_item_paths import list_count_only_item_files, list_decontamination_item_files
from pipeline.core.errors import InputError
from pipeline.evaluate.task_file_reader import ItemFile
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import STEPS, step_settings
from pipeline.workflow.steps.report_and_provenance import ARTEFACTS

RIGHTS = {"basis": "license", "holder": "someone"}
SOURCE = {"name": "s", "path": "config/corpus/*.jsonl", "language": "nl", "license": "CC0-1.0", "rights": RIGHTS}


def counts_read(config: Config) -> list[str]:
    """Return the counts of later suites that the report reads."""
    paths = [path for files in ARTEFACTS for path in files(Dag(config), {})]
    return [path for path in paths if path.endswith("later_suites.json")]


def tasks(files: list[ItemFile]) -> list[str]:
    return [file.task for file in files]


def config_of(evaluated: list[Any], **decontamination: Any) -> Any:
    raw = {"run": {"name": "x"}, "sources": [SOURCE], "evaluation": {"suites": evaluated}}
    return parse_configuration({**raw, "corpus": {"main": {"decontamination": decontamination}}})


def own_suite(folder: Path, **keys: Any) -> dict[str, Any]:
    """Return a suite of one task, `mine`, with these keys."""
    (folder / "mine.jsonl").write_text(json.dumps({"q": "a", "choices": ["b"], "answer": 0, "why": "c"}) + "\n")
    content = {"task": "mine", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "mine.jsonl"}}}
    (folder / "mine.yaml").write_text(json.dumps(content | keys))
    return {"name": "own", "language": "nl", "folder": str(folder)}


def test_evaluation_items_are_decontaminated_by_default() -> None:
    config = config_of(["dutch"])
    assert tasks(list_decontamination_item_files(config, "main")) == ["polder_nl_grammatica", "polder_nl_kennis"]
    assert (
        list_count_only_item_files(config, "main") == []
        and list_decontamination_item_files(config_of(["dutch"], enabled=False), "main") == []
    )
    assert list_count_only_item_files(config_of(["dutch"], enabled=False, suites=[]), "main") == []
    named = step_settings(config, "corpus.ngrams", {"corpus": "main"}).model_dump()["items"]
    name = "polder_nl_grammatica"
    assert named[0] == {"task": name, "name": f"{name}.jsonl", "fields": ["bad", "good"], "named": False}
    assert named[1]["fields"] == ["answer", "choices", "question"]


def test_added_suite_with_pinned_suites_changes_only_the_item_count() -> None:
    before, after = (config_of(["dutch", *more], suites=["dutch"]) for more in ([], ["english"]))
    assert (
        list_decontamination_item_files(before, "main") == list_decontamination_item_files(after, "main")
        and list_count_only_item_files(before, "main") == []
    )
    assert tasks(list_count_only_item_files(after, "main")) == ["polder_en_grammar", "polder_en_knowledge"]
    for step in ("corpus.ngrams", "corpus.find_items", "corpus.decontaminate", "corpus.statistics"):
        job = {"corpus": "main", "source": "s", "unit": "0"}
        assert step_settings(before, step, job) == step_settings(after, step, job)
    jobs = STEPS["corpus.count_items"].instances.jobs
    assert jobs(before) == [] and jobs(after) == [("main",)]
    assert counts_read(before) == []
    assert counts_read(after) == ["results/x/corpus/main/later_suites.json"]
    dumped = step_settings(after, "corpus.count_items", {"corpus": "main"}).model_dump()
    assert [entry["task"] for entry in dumped["items"]] == tasks(list_count_only_item_files(after, "main"))


def test_decontamination_suites_need_not_be_evaluated() -> None:
    config = config_of(["dutch"], suites=["english", "use_cases"])
    assert (
        "polder_en_reading" in tasks(list_decontamination_item_files(config, "main"))
        and "dutch" in config.evaluation.suite_names
    )
    assert tasks(list_count_only_item_files(config, "main")) == ["polder_nl_grammatica", "polder_nl_kennis"]


def test_missing_suite_or_source_is_named() -> None:
    with pytest.raises(InputError, match=r"suites: there is no suite 'DUTSH': did you mean 'dutch'\?"):
        list_decontamination_item_files(config_of(["dutch"], suites=["DUTSH"]), "main")
    with pytest.raises(InputError) as missing:
        list_decontamination_item_files(config_of(["dutch"], suites=["reasoning_open"]), "main")
    assert str(missing.value).startswith(
        "corpus.main.decontamination.suites: reasoning_open: its path {data}/eval needs"
    )
    with pytest.raises(
        InputError, match=r"decontamination\.suites: there is no suite 'nederlands': choose one of code"
    ):
        list_decontamination_item_files(config_of(["dutch"], suites=["nederlands"]), "main")
    with pytest.raises(InputError, match=r"decontamination\.cannot_hold_items: there is no source 'novels'"):
        config_of(["dutch"], cannot_hold_items=["novels"])


def test_user_defined_suite_is_decontaminated_by_name(tmp_path: Path) -> None:
    config = config_of([own_suite(tmp_path), "dutch"], suites=["own"])
    assert [file.task for file in list_decontamination_item_files(config, "main")] == ["mine"] and "mine" not in tasks(
        list_count_only_item_files(config, "main")
    )


def test_sources_that_cannot_hold_items_are_limited_to_the_corpus() -> None:
    corpus = {"exclude_sources": ["t"], "decontamination": {"cannot_hold_items": ["t", "s"], "suites": []}}
    config = parse_configuration(
        {"run": {"name": "x"}, "sources": [SOURCE, {**SOURCE, "name": "t"}], "corpus": {"main": corpus}}
    )
    for step in ("corpus.find_items", "corpus.count_items"):
        assert step_settings(config, step, {"corpus": "main"}).model_dump()["cannot_hold_items"] == ["s"]


@pytest.mark.parametrize(
    ("keys", "fields", "named"),
    [
        ({}, None, False),
        ({"doc_to_text": "{{q}}\nA:", "doc_to_choice": "choices", "doc_to_target": "a"}, "a choices q", False),
        ({"doc_to_choice": "{{[bad, good]}}", "doc_to_text": "", "doc_to_target": 1}, "bad good", False),
        ({"doc_to_text": "{% for p in parts %}{{p}}{% endfor %}", "doc_to_choice": ["a b", "c/d"]}, "parts", False),
        ({"doc_to_text": "{{q}}", "metadata": {"searched": ["why"]}}, "why", True),
    ],
)
def test_item_fields_come_from_templates_or_task_settings(
    keys: dict[str, Any], fields: str | None, named: bool, tmp_path: Path
) -> None:
    expected = ItemFile("mine", tmp_path / "mine.jsonl", fields and tuple(fields.split()), named)
    suite = own_suite(tmp_path, **keys)
    assert list_decontamination_item_files(config_of([suite]), "main") == [expected]
    of_run = list_decontamination_item_files(config_of([suite], fields={"mine": ["q", "choices"]}), "main")
    assert of_run == [ItemFile("mine", tmp_path / "mine.jsonl", ("choices", "q"), True)]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"metadata": {"searched": "q"}}, "metadata.searched is no list of fields"),
        ({"metadata": {"searched": []}}, "metadata.searched is no list of fields"),
        ({"doc_to_text": "{{q"}, "doc_to_text is no Jinja template"),
    ],
)
def test_invalid_item_fields_of_a_task_are_refused(keys: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=problem):
        list_decontamination_item_files(config_of([own_suite(tmp_path, **keys)]), "main")


def test_mirror_of_shipped_tasks_is_read_per_data_set(tmp_path: Path) -> None:
    data = tmp_path / "facebook" / "belebele" / "data"
    data.mkdir(parents=True)
    (data.parent / "README.md").write_text("x")
    (data / "nld.parquet").write_bytes(b"")
    suite = {"name": "b", "language": "nl", "tasks": ["belebele_nld_Latn"], "data": str(tmp_path)}
    read = [ItemFile("facebook/belebele", data / "nld.parquet")]
    assert list_decontamination_item_files(config_of([suite]), "main") == read
    shared = config_of([suite, {**suite, "name": "c"}], suites=["b"])
    assert (
        list_decontamination_item_files(shared, "main") == read and list_count_only_item_files(shared, "main") == []
    ), "decontaminated items are not counted again"
