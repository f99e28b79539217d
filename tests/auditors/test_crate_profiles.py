"""The crate of a run in third-party tools: rocrate-validator and runcrate's report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from pipeline import layout
from tests.provenance.conftest import build

FILL = Path(__file__).with_name("fill_cache.py")
Run = Callable[..., "CompletedProcess[str]"]
NAMED = {"provider": "Institute", "provider_url": "https://example.org/"}
# One check requires a web URL of every workflow, and another one that the main workflow is a file of the crate.
CONTRADICTION = ("process-run-crate-0.5_5.1", "provenance/workflow/Snakefile")


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a known provider, with a failed attempt and an earlier killed one."""
    run = build(tmp_path_factory.mktemp("run") / "run")
    unit = {"corpus": "main", "source": "laws", "unit": "0"}
    run.attempt("corpus.filter", unit, "failed", error="the disk is full", ended="2026-01-05T09:59:59.000+00:00")
    run.attempt("corpus.ngrams", {"corpus": "main"}, "running", snakemake="snakemake.20260105T095900.41..test")
    run.crate(**NAMED)
    return run.folder


@pytest.fixture(scope="module")
def findings(auditor: Run, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], set[tuple[str, str]]]:
    """Return the REQUIRED or RECOMMENDED findings of the validator without a network: check and entity."""
    folder = tmp_path_factory.mktemp("cache")
    filled = auditor("python", FILL, folder / "cache")
    assert filled.returncode == 0, filled.stderr

    def list_findings(crate: Path, profile: str) -> set[tuple[str, str]]:
        output = folder / f"{profile}.json"
        options = ["-p", profile, "-l", "recommended", "-f", "json", "-o", output, "--no-paging", "--offline"]
        done = auditor("rocrate-validator", "-y", "validate", *options, "--cache-path", folder / "cache", crate)
        assert output.is_file(), done.stdout + done.stderr
        report: dict[str, Any] = json.loads(output.read_text())
        assert report["skipped_checks"] == 0
        output.unlink()
        return {(str(issue["check"]["identifier"]), _entity(issue)) for issue in report["issues"]}

    return list_findings


def _entity(issue: dict[str, Any]) -> str:
    """The entity of a finding; for a class, the wrong instance of the class."""
    value = str(issue.get("violatingPropertyValue") or "")
    return value.split("/run/", 1)[1] if "/run/" in value else str(issue.get("violatingEntity"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "profile",
    [
        *(pytest.param(f"{kind}-run-crate-0.5", marks=pytest.mark.thorough) for kind in ("process", "workflow")),
        "provenance-run-crate-0.5",  # it requires what the other two and WorkflowHub's workflow-ro-crate-1.0 require
    ],
)
def test_crate_conforms_to_its_profiles(described: Path, findings: Callable[..., Any], profile: str) -> None:
    assert findings(described, profile) - {CONTRADICTION} == set()


@pytest.mark.slow
def test_crate_without_provider_lacks_only_the_provider_page(tmp_path: Path, findings: Callable[..., Any]) -> None:
    run = build(tmp_path / "run")
    run.crate()
    result = findings(run.folder, "provenance-run-crate-0.5") - {CONTRADICTION}
    assert {entity for _, entity in result} == {"./#agent/not-stated"}


@pytest.mark.slow
def test_validator_detects_removed_entities(described: Path, findings: Callable[..., Any]) -> None:
    whole = (described / layout.CRATE).read_text()
    crate = json.loads(whole)
    for entity in crate["@graph"]:
        if entity["@type"] == "PropertyValue":
            entity.pop("propertyID", None)
    (described / layout.CRATE).write_text(json.dumps(crate))
    try:
        assert len(findings(described, "provenance-run-crate-0.5") - {CONTRADICTION}) > 5
    finally:
        (described / layout.CRATE).write_text(whole)


def test_runcrate_report_lists_every_job_with_its_step(described: Path, auditor: Run) -> None:
    done = auditor("runcrate", "report", described)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("action: #run")
    assert "action: #job/corpus.filter.main.laws.0\n  step: #step/corpus.filter\n" in done.stdout
