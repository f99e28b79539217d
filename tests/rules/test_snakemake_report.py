"""Content of Snakemake's own report of a finished run."""

from __future__ import annotations

import zipfile

import pytest

from tests.conftest import Project


@pytest.mark.slow
def test_snakemake_report_contains_pages_and_cards(finished: Project) -> None:
    finished.run("--report", "report.zip")
    with zipfile.ZipFile(finished.path("report.zip")) as made:
        names = {name.rpartition("/")[2] for name in made.namelist()}
    finished.path("report.zip").unlink()
    assert {"index.html", "model-card.md", "training-content-summary.nl.html", "dataset.html", "report.html"} <= names
