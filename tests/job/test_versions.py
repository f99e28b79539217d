"""The code version changes with what a step runs, and with nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pipeline.job import versions

FUTURE = "from __future__ import annotations\n"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for part in ("pipeline", "envs"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def version(folder: Path, kind: str, *arguments: str) -> str:
    code = f"from pipeline.job import versions; print(versions.{kind}(*{arguments!r}))"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, check=True, text=True, capture_output=True
    ).stdout.strip()


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("corpus/filter.py", "\n", "\n# a comment\n", False),
        ("corpus/filter.py", '"""', '"""Another docstring. ', False),
        (
            "corpus/filter.py",
            "from __future__ import annotations\n",
            "from __future__ import annotations\nX = 1\n",
            True,
        ),
        (
            "corpus/text/words.py",
            "from __future__ import annotations\n",
            "from __future__ import annotations\nX = 1\n",
            True,
        ),
        ("ground/errors.py", "class InputError", "X = 1\n\n\nclass InputError", True),
        ("job/contract.py", "SMALL_BYTES = 1_000_000", "SMALL_BYTES = 2_000_000", False),
        (
            "report/page.py",
            "from __future__ import annotations\n",
            "from __future__ import annotations\nX = 1\n",
            False,
        ),
    ],
)
def test_the_filters_code_version(copy: Path, file: str, old: str, new: str, changes: bool) -> None:
    before = version(copy, "code_version", "pipeline.corpus.filter")
    path = copy / "pipeline" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    assert (version(copy, "code_version", "pipeline.corpus.filter") != before) is changes


def test_a_module_started_as_a_program_counts(copy: Path) -> None:
    before = version(copy, "code_version", "pipeline.pretrain.segment")
    worker = copy / "pipeline/pretrain/processes/worker.py"
    worker.write_text(worker.read_text() + "\nX = 1\n")
    assert version(copy, "code_version", "pipeline.pretrain.segment") != before


def test_a_data_file_beside_the_module_counts(copy: Path) -> None:
    before = version(copy, "code_version", "pipeline.report.page")
    template = next((copy / "pipeline/report").glob("page.html*"))
    template.write_text(template.read_text() + " ")
    assert version(copy, "code_version", "pipeline.report.page") != before


@pytest.mark.parametrize(("module", "changes"), [("pipeline.tokenizer.train", True), ("pipeline.plan.estimate", False)])
def test_a_library_in_the_lock_concerns_those_that_import_it(copy: Path, module: str, changes: bool) -> None:
    before = version(copy, "environment_version", module, "cpu")
    lock = copy / "envs/cpu.lock"
    assert "tokenizers==" in lock.read_text()
    lock.write_text(lock.read_text().replace("tokenizers==", "tokenizers==9"))
    assert (version(copy, "environment_version", module, "cpu") != before) is changes


def test_a_dependency_of_a_library_counts(copy: Path) -> None:
    before = version(copy, "environment_version", "pipeline.report.page", "cpu")
    lock = copy / "envs/cpu.lock"
    lock.write_text(lock.read_text().replace("markupsafe==", "markupsafe==9"))
    assert version(copy, "environment_version", "pipeline.report.page", "cpu") != before


def test_distributions_are_those_that_provide_what_the_modules_import() -> None:
    provided = metadata.packages_distributions()
    modules = [f"pipeline.{file.parent.name}.{file.stem}" for file in versions.PACKAGE.glob("*/*.py")]
    imported = {
        name for module in modules for file in versions.module_files(module) for name in versions._read(file).foreign
    }
    assert {"yaml", "stdnum", "fasttext", "torch"} <= imported
    for name in imported & provided.keys():
        found = versions.DISTRIBUTIONS.get(name, versions._canonical(name))
        assert [found] == [versions._canonical(distribution) for distribution in provided[name]]


@pytest.mark.parametrize("distribution", ["torch", "spacy", "lm-eval", "pydantic", "datasets"])
def test_requirements_are_those_of_the_metadata(distribution: str) -> None:
    required = [entry for entry in metadata.requires(distribution) or [] if "extra ==" not in entry]
    assert [*versions._requirements(distribution)] == [
        versions._canonical(Requirement(entry).name) for entry in required
    ]
