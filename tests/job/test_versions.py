"""The code version changes with the code that a step runs, and with nothing else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pipeline.job import installed, reach, versions
from pipeline.workflow.steps import STEPS
from tests.conftest import rewrite

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


# Print the versions of all steps, first for its folder, then after each edit that it reads as a line: a
# file and its text. Other files of the package are cached between edits.
VERSIONS = """
import json, sys
from pathlib import Path
from pipeline.job import reach, versions
from pipeline.workflow.steps import STEPS

modules = {}

def module_of(file):
    if file not in modules:
        modules[file] = reach.Module(file)
    return modules[file]

def tell():
    reach.reach.cache_clear()
    versions.code_version.cache_clear()
    print(json.dumps({step: versions.code_version(f"pipeline.{step}") for step in STEPS}), flush=True)

reach.module_of = module_of
tell()
for line in sys.stdin:
    name, text = json.loads(line)
    file = Path(name)
    before = file.read_text()
    file.write_text(text)
    modules.pop(file, None)
    tell()
    file.write_text(before)
    modules.pop(file, None)
"""
Changed = Callable[[str, str], set[str]]
FILTERING = {"corpus.filter", "opt_out.reserved"}


@pytest.fixture(scope="module")
def changed_by(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changed]:
    """Return a function that edits a file of the package and returns the steps with changed versions."""
    folder, pipe = tmp_path_factory.mktemp("package"), subprocess.PIPE
    shutil.copytree(ROOT / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    with subprocess.Popen([sys.executable, "-c", VERSIONS], cwd=folder, stdin=pipe, stdout=pipe, text=True) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin and stdout
        unedited = json.loads(stdout.readline())

        def changed(name: str, text: str) -> set[str]:
            print(json.dumps([str(folder / "pipeline" / name), text]), file=stdin, flush=True)
            after = json.loads(stdout.readline())
            return {step for step in unedited if unedited[step] != after[step]}

        yield changed
        stdin.close()


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("corpus/filter.py", "\n", "\n# a comment\n", set()),
        ("corpus/filter.py", '"""', '"""Another docstring. ', set()),
        ("corpus/filter.py", FUTURE, f"{FUTURE}X = 1\n", set()),
        ("corpus/rules/settings.py", "class C4(Settings):", "class C4(Settings):\n    x: int | None = None", FILTERING),
        ("corpus/rules/presets.py", "PRESETS", "ELSE = 1\nPRESETS", set()),
        ("job/job_execution.py", "SMALL_BYTES = 1_000_000", "SMALL_BYTES = 2_000_000", set()),
    ],
)
def test_code_edit_changes_the_versions_of_the_steps_that_run_it(
    changed_by: Changed, file: str, old: str, new: str, changed: set[str]
) -> None:
    text = (ROOT / "pipeline" / file).read_text()
    assert old in text
    assert changed_by(file, text.replace(old, new, 1)) == changed


@pytest.mark.parametrize(
    ("file", "function", "changed"),
    [
        ("corpus/filter.py", "run", {"corpus.filter"}),
        ("plan/training_cost_formulas.py", "model_state_bytes", {"plan.estimate"}),
        ("pretrain/monitors/watchdog.py", "Watchdog.beat", set()),
        ("pretrain/monitors/metrics.py", "read_metrics", {"pretrain.export"}),
        ("pretrain/checkpoints/recovery.py", "prune", set()),
        ("pretrain/checkpoints/recovery.py", "select_newest_valid", {"pretrain.segment"}),
        ("pretrain/processes/worker.py", "main", {"pretrain.segment"}),
        ("pretrain/processes/trainer.py", "Trainer.run", {"pretrain.segment"}),
        ("pretrain/learning_rate.py", "learning_rate_at", {"pretrain.segment"}),
        ("pretrain/parallel/optimizer.py", "set_learning_rate", {"pretrain.segment"}),
        ("energy/meter_recorder.py", "NodeMeter.end", set()),
        ("tokens/sampler.py", "data_step_after_skips", {"pretrain.segment"}),
        ("tokens/validation_reader.py", "ValidationSet.summarize_counts", set()),
        ("report/page.py", "run", {"report.page"}),
    ],
)
def test_replaced_function_changes_the_versions_of_the_steps_that_run_it(
    changed_by: Changed, tmp_path: Path, file: str, function: str, changed: set[str]
) -> None:
    edited = Path(shutil.copy(ROOT / "pipeline" / file, tmp_path))
    rewrite(edited, function)
    assert changed_by(file, edited.read_text()) == changed


@pytest.mark.parametrize(
    ("distributions", "changed"),
    [
        (["loguru", "tqdm", "rich"], set()),
        (["pillow", "markdown", "grpcio", "werkzeug"], set()),
        (
            ["jinja2"],
            {*("corpus.publish", "evaluate.baselines", "evaluate.suites"), "interleaved.assemble", "report.page"},
        ),
        (["tensorboard"], {"pretrain.export"}),
        (
            ["sympy"],
            {
                *("corpus.perplexity", "pretrain.adopt", "pretrain.segment"),
                *("evaluate.baselines", "evaluate.samples", "evaluate.suites"),
            },
        ),
    ],
)
def test_drawing_and_logging_code_changes_no_other_version(
    monkeypatch: pytest.MonkeyPatch, distributions: list[str], changed: set[str]
) -> None:
    before = {step: versions.environment_version(f"pipeline.{step}", "cpu") for step in STEPS}
    counted = installed.Closure.counted

    def newer(self: installed.Closure) -> dict[str, str]:
        return {name: f"{here}.post9" if name in distributions else here for name, here in counted(self).items()}

    monkeypatch.setattr(installed.Closure, "counted", newer)
    after = {step: versions.environment_version(f"pipeline.{step}", "cpu") for step in STEPS}
    assert {step for step in before if before[step] != after[step]} == changed


def test_data_file_next_to_a_module_changes_its_version(copy: Path) -> None:
    before = version(copy, "code_version", "pipeline.report.page")
    template = next((copy / "pipeline/report").glob("page.html*"))
    template.write_text(template.read_text() + " ")
    assert version(copy, "code_version", "pipeline.report.page") != before


@pytest.mark.parametrize(("module", "changes"), [("pipeline.tokenizer.train", True), ("pipeline.plan.estimate", False)])
def test_locked_library_changes_the_environment_of_steps_that_import_it(copy: Path, module: str, changes: bool) -> None:
    before = version(copy, "environment_version", module, "cpu")
    lock = copy / "envs/cpu.lock"
    assert "tokenizers==" in lock.read_text()
    lock.write_text(lock.read_text().replace("tokenizers==", "tokenizers==9"))
    assert (version(copy, "environment_version", module, "cpu") != before) is changes


def test_dependency_of_a_library_changes_the_environment_version(copy: Path) -> None:
    before = version(copy, "environment_version", "pipeline.report.page", "cpu")
    lock = copy / "envs/cpu.lock"
    lock.write_text(lock.read_text().replace("markupsafe==", "markupsafe==9"))
    assert version(copy, "environment_version", "pipeline.report.page", "cpu") != before


def test_distributions_provide_the_imported_modules() -> None:
    provided = metadata.packages_distributions()
    imported = {name for step in STEPS for name in reach.reach(f"pipeline.{step}").foreign}
    assert {"yaml", "stdnum", "fasttext", "torch"} <= imported
    for name in (imported & provided.keys()) - {"PIL"}:  # a setting of interleaved.extract
        result = versions.DISTRIBUTIONS.get(name, installed.canonical(name))
        assert {result} == {installed.canonical(distribution) for distribution in provided[name]}


@pytest.mark.parametrize("distribution", ["torch", "spacy", "lm-eval", "pydantic", "datasets"])
def test_requirements_equal_the_installed_metadata(distribution: str) -> None:
    required = [entry for entry in metadata.requires(distribution) or [] if "extra ==" not in entry]
    result = installed.find_distribution(distribution)
    assert result is not None and result.version == metadata.version(distribution)
    assert [name for name, _ in result.requires] == [installed.canonical(Requirement(entry).name) for entry in required]


def test_every_data_file_in_the_package_is_part_of_a_step_version() -> None:
    counted = {
        path
        for step in STEPS
        for file, statements in reach.reach(f"pipeline.{step}").statements()
        for path in reach.data_files(file, statements)
    }
    kinds = (".jinja", ".css", ".js", ".json", ".yaml", ".txt", ".tsv")
    data_files = {path for path in reach.PACKAGE.rglob("*") if path.suffix in kinds}
    data_files -= {*(reach.PACKAGE / "scaffold").rglob("*")}  # no step reads them
    of_a_command = {reach.PACKAGE / "evaluate" / name for name in ("items.css", "items.html.jinja")}
    of_a_command |= {reach.PACKAGE / "report" / name for name in ("plan_page.html.jinja", "papers/criteria.yaml")}
    assert data_files - counted == of_a_command, "editing them reruns nothing"
