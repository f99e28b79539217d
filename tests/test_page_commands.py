"""The commands `polder …` of the pages: those that only read are run on a finished run; all others are listed here.

`tests/test_docs.py` parses every command of the pages.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from typer.exceptions import TyperException

from pipeline.cli.entry_point import main
from tests.architecture import ROOT
from tests.conftest import Project
from tests.test_docs import COMMANDS, DOCS, PAGES, name_of, parse_polder

READS = {
    *("plan", "run -n", "run -n platform=dune", "follow", "energy", "doctor", "environment"),
    *("runs", "compare", "scores", "items", "verify", "trace", "audit", "corpus lineage", "corpus removed"),
    *("provenance quote", "provenance pack", "provenance keygen", "papers check"),
    *("model import", "model export", "schema"),
}
"""Commands that are run: they change no results. Each has the words of the command and of options that matter."""

ELSEWHERE = {
    "run": "starts a training: tests/rules/test_tutorials.py::test_tutorial_trains_on_own_text_and_forgets_a_document",
    "plan --data": "needs texts that are not part of the repository: "
    "tests/experiment/test_ladder_scaling_law.py::test_shipped_ladder_has_twelve_models_that_determine_a_law",
    "accounting": "asks Slurm: "
    "tests/slurm/test_accounting.py::test_every_job_of_the_run_is_accounted_with_all_allocations",
    "platform check": "needs Slurm: "
    "tests/slurm/test_platform.py::test_platform_check_tests_slurm_one_node_and_two_nodes",
    "platform measure": "computes for minutes: "
    "tests/slurm/test_platform_measurement.py::test_measurement_output_is_valid_platform_yaml",
    "new platform": "writes into the checkout: "
    "tests/cli/test_new_commands.py::test_platform_file_is_commented_out_where_slurm_does_not_answer",
    "new run": "writes into the checkout: tests/test_docs.py::test_tutorial_command_writes_a_configuration",
    **{
        f"new {part}": "writes into the checkout: "
        "tests/scaffold/test_new_parts.py::test_tests_of_all_scaffolded_parts_pass_in_one_project"
        for part in ("filter", "step", "task", "architecture")
    },
    "mirror": "asks a remote service: "
    "tests/evaluate/test_dataset_mirror.py::test_mirror_copies_data_and_records_revision_license_and_hashes",
    "reservations": "reads the files of a crawl: tests/opt_out/test_opt_out_list_from_reservations.py::"
    "test_list_is_written_to_a_file_that_the_run_reads",
    "model gguf": "needs a model with another tokenizer: "
    "tests/pretrain/test_gguf_export.py::test_transformers_reads_the_same_logits_from_the_file",
    "profile": "needs a running training: "
    "tests/pretrain/monitors/test_profiler.py::test_running_training_is_traced_without_restart",
    "ladder": "needs several models: "
    "tests/experiment/test_ladder_scaling_law.py::test_largest_model_is_predicted_by_the_others_and_each_row_has_joules",
    "scaling": "needs the same training on several numbers of devices: "
    "tests/experiment/test_device_scaling.py::test_fixed_batch_is_strong_scaling_and_growing_batch_is_weak_scaling",
    "reproduce": "runs steps again: "
    "tests/audit/test_reproduce.py::test_reproducing_each_step_is_identical_and_leaves_the_run_unchanged",
    "reproduce --sample": "runs steps again: "
    "tests/audit/test_reproduce.py::test_sampled_jobs_are_reproducible_from_the_seed",
    "verify --recompute": "runs steps again: tests/audit/test_reproduce.py::test_verification_repeats_all_conclusions",
    "verify --key": "needs a signed run: tests/rules/test_signed_start.py::test_invocation_with_a_key_is_signed",
    "provenance export": "needs a signed run: "
    "tests/provenance/test_attestation_export.py::test_command_names_the_tools_that_read_its_output",
    "environment --deep": "reads every installed file for seconds: "
    "tests/job/test_installed.py::test_deep_reports_changed_and_missing_files_and_editable_installs",
}
"""Commands that are not run: the reason, and the test that runs them."""

NAMES = {
    **dict.fromkeys(("results/RUN", "results/mine", "results/demo", "results/A", "results/B"), "results/micro"),
    **dict.fromkeys(("RUN", "/projects/PROJECT/results/mine"), "results/micro"),
    **dict.fromkeys(("CONFIG", "config/mine.yaml", "config/dutch.yaml", "config/faster.yaml"), "config/micro.yaml"),
    **dict.fromkeys(("STEP", "120", "1200"), "8"),  # the demo has step 120
    **dict.fromkeys(("ID", "story-001"), "guide-019"),
    "SOURCE/FILE/ID": "en_guide/en_guide.jsonl.gz/guide-019",
    "MODEL": "base",
    "laws": "nl_gids",
    "HUGGINGFACE_FOLDER": "results/micro/models/base/final",
    "cuda": "cpu",
}
"""Words of the pages, and what they are in the micro run."""

NEW = {("model export", "HUGGINGFACE_FOLDER"), ("provenance pack", "FOLDER")}
"""Folders that a command makes."""
ADDED = {"follow": ["--once"]}
"""Options without which a command would not end."""
CODES = {"doctor": {0, 1}, "environment": {0, 1}, "run -n platform=dune": {2}}
"""Exit codes but 0: two commands end with 1 where this machine lacks something; a page says that one is refused."""


def inline_commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each complete command in the text of a page: `polder trace` is only the name of one."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for command in re.findall(r"`(polder [a-z][^`]*)`", text):
        words = shlex.split(command)
        try:
            parse_polder([NAMES.get(word, word) for word in words[1:]])
        except (AssertionError, TyperException):  # a group, or an argument is missing
            continue
        yield words


def entry_of(words: list[str]) -> str:
    """Return the entry of READS or ELSEWHERE for a command without its first word: the one with most of its words."""
    given = {"-n" if word == "--dry-run" else word for word in words}
    entries = [name for name in (*READS, *ELSEWHERE) if name.split()[0] == words[0] and {*name.split()} <= given]
    return max(entries, key=lambda name: len(name.split()), default="")


def on_micro_run(words: list[str], folder: Path) -> list[str]:
    """Return the command of a page for the micro run; what it makes is in `folder`."""
    entry = entry_of(words)
    results = [str(folder / word) if (entry, word) in NEW else NAMES.get(word, word) for word in words]
    return results + [word for word in ADDED.get(entry, ()) if word not in results]


# Each page with its commands, in order, without `polder`; and with the folders that it makes.
ON_PAGES = {
    page: [
        *(words for one, words in COMMANDS if one == page and words[0] in ("polder", "mkdir")),
        *inline_commands(page),
    ]
    for page in PAGES
}
POLDER = [(page, words[1:]) for page, commands in ON_PAGES.items() for words in commands if words[0] == "polder"]
READING = [page for page in PAGES if any(one == page and entry_of(words) in READS for one, words in POLDER)]


def run_snakemake(program: str, words: list[str]) -> NoReturn:
    """Run in a process of its own what `polder run` would become."""
    done = subprocess.run([program, *words[1:]], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout)
    sys.exit(done.returncode)


def state(results: Path) -> dict[str, tuple[int, int]]:
    """Return sizes and times of the files of a run, without the curves that `polder follow` writes."""
    files = (path for path in results.rglob("*") if path.is_file() and "scratch/live-" not in str(path))
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@pytest.fixture(scope="module")
def shared(finished: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a clone of the finished project for all pages, with the platform file on a page."""
    project = finished.clone(tmp_path_factory.mktemp("pages") / "polder")
    page = (DOCS / "howto/add-a-platform.md").read_text(encoding="utf-8")
    (file,) = re.findall(r"```yaml\n(# Dune.*?)```", page, flags=re.DOTALL)
    project.path("workflow/platforms/dune.yaml").write_text(file, encoding="utf-8")
    return project


@pytest.fixture(scope="module")
def done() -> set[str]:
    """Return the commands that other pages had."""
    return set()


@pytest.mark.slow
@pytest.mark.parametrize("page", READING, ids=name_of)
def test_reading_commands_of_a_page_run_and_change_no_results(
    page: Path,
    shared: Project,
    done: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(shared.folder)
    monkeypatch.setattr(os, "execv", run_snakemake)
    before = state(shared.results)
    for number, (program, *words) in enumerate(ON_PAGES[page]):
        if program == "mkdir":
            subprocess.run([program, *words], check=True)
        elif entry_of(words) in READS and (command := shlex.join(on_micro_run(words, Path("new")))) not in done:
            done.add(command)
            try:
                code = main(on_micro_run(words, tmp_path / str(number)))
            except SystemExit as end:  # of Snakemake
                code = int(str(end.code))
            shown = capsys.readouterr()
            text = f"{command} ended with {code}:\n{shown.out}\n{shown.err}"
            assert code in CODES.get(entry_of(words), {0}) and "Traceback" not in text, text
    assert state(shared.results) == before


def test_each_command_of_a_page_is_run_or_has_a_reason() -> None:
    entries = [(name_of(page), shlex.join(words), entry_of(words)) for page, words in POLDER]
    assert [(page, command) for page, command, entry in entries if not entry] == [], "add it to READS or ELSEWHERE"
    assert {entry for *_, entry in entries} == READS | ELSEWHERE.keys(), "no page has the others any more"


def test_each_substituted_word_is_on_a_page() -> None:
    words = {word for _, command in POLDER for word in command if entry_of(command) in READS}
    assert NAMES.keys() <= words
    assert {word for _, word in NEW} <= words


@pytest.mark.parametrize("command", ELSEWHERE)
def test_reason_names_an_existing_test(command: str) -> None:
    ((file, name),) = re.findall(r"(tests/\S+\.py)::(test_\w+)$", ELSEWHERE[command])
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
