"""`polder new` writes working parts: their tests pass, and a run can be planned with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.scaffold import new_parts
from pipeline.scaffold.new_parts import NewPart
from pipeline.scaffold.project_edits import NewFile, apply_edits

ROOT = Path(__file__).parents[2]
PARTS = {
    "filter": lambda: new_parts.filter_edits("capital_letters"),
    "step": lambda: new_parts.step_edits("corpus.lengths"),
    "task": lambda: new_parts.task_edits("polder_nl_proef", "dutch"),
    "task of a new suite": lambda: new_parts.task_edits("polder_nl_nieuw", "nieuw"),
    "platform": lambda: new_parts.platform_edits("dune"),
    "architecture": lambda: new_parts.architecture_edits("my_llama"),
}
ALSO = ["tests/corpus/test_removal_explanations.py", "tests/workflow/test_steps.py"]


def added_files(part: NewPart) -> list[str]:
    return [edit.path for edit in part.edits if isinstance(edit, NewFile)]


def test_tests_of_all_scaffolded_parts_pass_in_one_project(tmp_path: Path) -> None:
    for folder in ("pipeline", "tests", "config", "workflow", "envs"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    parts = [make() for make in PARTS.values()]
    for part in parts:
        apply_edits(tmp_path, part.edits)
    files = [file for part in parts for file in added_files(part)]
    tests = [file for file in files if file.startswith("tests/")]
    assert len(tests) == len(parts)
    python = [file for file in files if file.endswith(".py")]
    for words in (["check"], ["format", "--check"]):
        subprocess.run([sys.executable, "-m", "ruff", *words, *python], cwd=tmp_path, check=True)
    words = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", *tests, *ALSO]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("texts", [{}, {'config/corpus/nl "x".jsonl': "nl", "config/corpus/en_guide.jsonl.gz": "en"}])
def test_new_run_has_a_valid_configuration(texts: dict[str, str]) -> None:
    described = ("CC-BY-4.0", 'Somebody "quoted"') if texts else ("", "")
    (edit,) = new_parts.run_edits("own", texts, *described).edits
    assert isinstance(edit, NewFile) and edit.path == "config/own.yaml"
    config = parse_configuration(yaml.safe_load(edit.content))
    assert config.run.name == "own"
    if texts:
        assert {source.path: source.language for source in config.sources} == texts
        assert {source.license for source in config.sources} == {"CC-BY-4.0"}
        assert {source.rights.holder for source in config.sources} == {'Somebody "quoted"'}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda name: new_parts.run_edits(name, {}, "", ""), "My Run"),
        (new_parts.filter_edits, "capital-letters"),
        (new_parts.step_edits, "report.page"),
        (new_parts.step_edits, "corpus.Lengths"),
        (lambda name: new_parts.task_edits(name, "dutch"), "../escape"),
        (lambda name: new_parts.task_edits("fine", name), "../escape"),
        (new_parts.platform_edits, "Dune"),
        (new_parts.architecture_edits, "2net"),
    ],
)
def test_invalid_name_is_refused_in_one_sentence(make: object, name: str) -> None:
    with pytest.raises(InputError, match="use ") as error:
        make(name)  # type: ignore[operator]
    assert repr(name) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["minimum_words", "total_word_count", "text", "model_dump"])
def test_filter_with_the_name_of_a_rule_or_measure_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is a rule or a measure already: use another name"):
        new_parts.filter_edits(name)


@pytest.mark.parametrize(("license_id", "holder"), [("", "Somebody"), ("CC-BY-4.0", "")])
def test_text_without_license_or_holder_is_refused(license_id: str, holder: str) -> None:
    with pytest.raises(InputError, match=r"letters/\*.txt needs a license and a holder"):
        new_parts.run_edits("own", {"letters/*.txt": "nl"}, license_id, holder)


@pytest.mark.parametrize(("license_id", "holder"), [("CC-BY-4.0", ""), ("", "Somebody")])
def test_license_or_holder_without_text_is_refused(license_id: str, holder: str) -> None:
    with pytest.raises(InputError, match="add --text, or leave them out"):
        new_parts.run_edits("own", {}, license_id, holder)
