"""The snapshot of a run is written once, compared, and refused if altered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.job import invocation_snapshots

VERSIONS = {"code": "c0de", "environment": "cpu-1"}


def content(rate: float = 0.004, **versions: Any) -> dict[str, Any]:
    """Return the content of a snapshot."""
    training = {"models": {"base": {"training": {"learning_rate": rate}}}}
    git = {"commit": "1" * 40, "dirty": False}
    return {"configuration": training, "versions": {"pretrain.segment": VERSIONS, **versions}, "git": git}


def test_unchanged_snapshot_is_not_rewritten(tmp_path: Path) -> None:
    first = invocation_snapshots.write_snapshot(tmp_path, content())
    assert invocation_snapshots.write_snapshot(tmp_path, content()) == first
    second = invocation_snapshots.write_snapshot(tmp_path, content(rate=0.04))
    assert second != first and invocation_snapshots.read_newest_snapshot(tmp_path) == content(rate=0.04)
    names = sorted(path.name for path in (tmp_path / layout.FROZEN).iterdir())
    assert names == ["1.json", "2.json"]
    assert json.loads((tmp_path / layout.FROZEN / "1.json").read_text()) == content()


def test_reverted_configuration_is_a_third_snapshot(tmp_path: Path) -> None:
    for rate in (0.004, 0.04, 0.004):
        invocation_snapshots.write_snapshot(tmp_path, content(rate))
    assert (
        len([*(tmp_path / layout.FROZEN).iterdir()]) == 3
        and invocation_snapshots.read_newest_snapshot(tmp_path) == content()
    )


def test_tenth_snapshot_is_newer_than_the_ninth(tmp_path: Path) -> None:
    for number in range(11):
        invocation_snapshots.write_snapshot(tmp_path, content(rate=number / 1000))
    assert invocation_snapshots.read_newest_snapshot(tmp_path) == content(rate=0.01)


def test_run_without_snapshots_has_none_to_compare(tmp_path: Path) -> None:
    assert invocation_snapshots.read_newest_snapshot(tmp_path) is None


def test_changes_are_listed_by_key() -> None:
    now = content(rate=0.04, **{"corpus.filter": VERSIONS})
    assert [*invocation_snapshots.list_changes(content(), now)] == [
        "configuration.models.base.training.learning_rate: 0.004 → 0.04",
        'versions.corpus.filter: not there → {"code": "c0de", "environment": "cpu-1"}',
    ]


def test_changes_in_a_list_are_listed_by_name() -> None:
    sources = [{"name": "laws", "license": "CC0-1.0"}, {"name": "letters", "license": "CC0-1.0"}]
    now = [{"license": "CC-BY-4.0", "name": "letters"}, sources[0]]
    assert [*invocation_snapshots.list_changes({"sources": sources}, {"sources": now})] == [
        'sources.letters.license: "CC0-1.0" → "CC-BY-4.0"'
    ]


def test_list_with_an_unnamed_item_is_shown_completely() -> None:
    assert [*invocation_snapshots.list_changes({"suites": ["nl"]}, {"suites": ["nl", {"name": "en"}]})] == [
        'suites: ["nl"] → ["nl", {"name": "en"}]'
    ]


def variables(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a job."""
    return {invocation_snapshots.SNAPSHOT_VARIABLE: invocation_snapshots.write_snapshot(tmp_path, content())}


def test_job_records_the_snapshot_it_was_planned_with(tmp_path: Path) -> None:
    job_plan = invocation_snapshots.verify_planning_snapshot(
        "pretrain.segment", **VERSIONS, variables=variables(tmp_path)
    )
    assert job_plan is not None and job_plan.file.path == "provenance/frozen/1.json" and len(job_plan.file.sha256) == 64
    assert job_plan.git == {"commit": "1" * 40, "dirty": False}


def test_manually_executed_step_has_no_snapshot() -> None:
    assert invocation_snapshots.verify_planning_snapshot("pretrain.segment", **VERSIONS, variables={}) is None


def test_job_refuses_code_that_differs_from_the_plan(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"plans pretrain\.segment with .* run snakemake again"):
        invocation_snapshots.verify_planning_snapshot(
            "pretrain.segment", code="other", environment="cpu-1", variables=variables(tmp_path)
        )


def test_job_refuses_an_altered_or_missing_plan(tmp_path: Path) -> None:
    given = variables(tmp_path)
    path = tmp_path / layout.FROZEN / "1.json"
    path.write_text(path.read_text().replace("0.004", "0.005"))
    with pytest.raises(InputError, match="was altered since"):
        invocation_snapshots.verify_planning_snapshot("pretrain.segment", **VERSIONS, variables=given)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        invocation_snapshots.verify_planning_snapshot("pretrain.segment", **VERSIONS, variables=given)
