"""The crate of a run as tools of others see it: three profiles of rocrate-validator, and the report of runcrate."""

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
# One check asks of every workflow an address of the web, and another one that the main workflow is a file of the crate.
CONTRADICTION = ("process-run-crate-0.5_5.1", "provenance/workflow/Snakefile")


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with a failed attempt and an earlier one that was killed, whose provider is known."""
    run = build(tmp_path_factory.mktemp("run") / "run")
    unit = {"corpus": "main", "source": "laws", "unit": "0"}
    run.attempt("corpus.filter", unit, "failed", error="the disk is full", ended="2026-01-05T09:59:59.000+00:00")
    run.attempt("corpus.ngrams", {"corpus": "main"}, "running", snakemake="snakemake.20260105T095900.41..test")
    run.crate(**NAMED)
    return run.folder


@pytest.fixture(scope="module")
def findings(auditor: Run, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], set[tuple[str, str]]]:
    """What the validator finds, REQUIRED or RECOMMENDED, without a network: check and entity."""
    folder = tmp_path_factory.mktemp("cache")
    filled = auditor("python", FILL, folder / "cache")
    assert filled.returncode == 0, filled.stderr

    def found(crate: Path, profile: str) -> set[tuple[str, str]]:
        output = folder / f"{profile}.json"
        options = ["-p", profile, "-l", "recommended", "-f", "json", "-o", output, "--no-paging", "--offline"]
        done = auditor("rocrate-validator", "-y", "validate", *options, "--cache-path", folder / "cache", crate)
        assert output.is_file(), done.stdout + done.stderr
        told: dict[str, Any] = json.loads(output.read_text())
        assert told["skipped_checks"] == 0
        output.unlink()
        return {(str(issue["check"]["identifier"]), _entity(issue)) for issue in told["issues"]}

    return found


def _entity(issue: dict[str, Any]) -> str:
    """The entity of a finding; of one about a class it is what of the class is wrong."""
    value = str(issue.get("violatingPropertyValue") or "")
    return value.split("/run/", 1)[1] if "/run/" in value else str(issue.get("violatingEntity"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "profile",
    [
        *(pytest.param(f"{kind}-run-crate-0.5", marks=pytest.mark.thorough) for kind in ("process", "workflow")),
        "provenance-run-crate-0.5",  # which asks for what the other two ask for
    ],
)
def test_the_profiles_are_fulfilled(described: Path, findings: Callable[..., Any], profile: str) -> None:
    assert findings(described, profile) - {CONTRADICTION} == set()


@pytest.mark.slow
def test_a_run_of_nobody_lacks_the_page_of_its_provider_and_nothing_else(
    tmp_path: Path, findings: Callable[..., Any]
) -> None:
    run = build(tmp_path / "run")
    run.crate()
    found = findings(run.folder, "provenance-run-crate-0.5") - {CONTRADICTION}
    assert {entity for _, entity in found} == {"./#agent/not-stated"}


@pytest.mark.slow
def test_the_validator_finds_what_was_taken_out(described: Path, findings: Callable[..., Any]) -> None:
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


def test_runcrate_tells_every_job_with_its_step(described: Path, auditor: Run) -> None:
    done = auditor("runcrate", "report", described)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("action: #run")
    assert "action: #job/corpus.filter.main.laws.0\n  step: #step/corpus.filter\n" in done.stdout
