"""The same inputs, settings, code and environment give the same bytes, whatever the workers and the order of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.conftest import Project, new_project

# Times, hosts and energy differ between runs: records, attempts, logs, metrics (tokens per second) and their views.
NOT_COMPARED = ("provenance", "logs", "report", "scratch", "ro-crate-metadata.json", "metrics.jsonl", "tensorboard")


def hashes(results: Path) -> dict[str, str]:
    """Return the sha256 of every artifact with reproducible bytes."""
    files = (path for path in results.rglob("*") if path.is_file() and path.name != ".snakemake_timestamp")
    return {
        path.relative_to(results).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if not set(path.relative_to(results).parts) & set(NOT_COMPARED)
    }


def reverse_files(project: Project) -> None:
    """Write the raw files, and the sources of the configuration, in the reverse order."""
    letters = project.path("config/corpus/nl_brieven")
    files = {path.name: path.read_bytes() for path in letters.iterdir()}
    for name in files:
        (letters / name).unlink()
    for name in sorted(files, reverse=True):
        (letters / name).write_bytes(files[name])
    configuration = project.path("config/micro.yaml").read_text()
    head, sources = configuration.split("sources:\n")
    sources, tail = sources.split("\ncorpus:")
    first, *others = sources.splitlines()
    rights = first[first.index("&rights ") : first.rindex("}")]
    lines = [line.replace("*rights", rights) for line in reversed(others)] + [first.replace(rights, "*rights")]
    lines = [line if number == 0 else line.replace(rights, "*rights") for number, line in enumerate(lines)]
    project.path("config/micro.yaml").write_text(head + "sources:\n" + "\n".join(lines) + "\n\ncorpus:" + tail)


@pytest.mark.slow
@pytest.mark.thorough  # test_killed.py compares the same for a run with killed jobs
def test_results_do_not_depend_on_cores_or_file_order(finished: Project, tmp_path: Path) -> None:
    other = new_project(tmp_path / "elsewhere")
    other.warm = False
    reverse_files(other)
    other.run("--cores", "1")
    assert hashes(other.results) == hashes(finished.results)
