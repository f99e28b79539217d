"""The progress of a run replaces Snakemake's output, which is complete in its log file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNAKEFILE = """
from pathlib import Path
from types import SimpleNamespace

from pipeline.workflow.snakemake_internals import SnakemakeWorkflow
from pipeline.workflow.snakemake_output import replace_snakemake_output

run_config = SimpleNamespace(run_directory=Path("results"), run=SimpleNamespace(name="small"), models={})
snakemake_workflow = SnakemakeWorkflow(workflow)
run_output = replace_snakemake_output(snakemake_workflow, executes=not snakemake_workflow.is_dry_run)
if run_output and not snakemake_workflow.is_dry_run:
    run_output.start_progress_display(run_config, snakemake_workflow)


rule all:
    input:
        "plan.txt",


rule sources_listing:
    output:
        "listing.txt",
    shell:
        "touch {output}"


rule corpus_ngrams:
    input:
        "listing.txt",
    output:
        "ngrams.txt",
    log:
        "ngrams.log",
    shell:
        "COMMAND"


rule plan_estimate:
    input:
        "ngrams.txt",
    output:
        "plan.txt",
    shell:
        "touch {output}"
"""


def run_snakemake(folder: Path, *options: str, command: str = "touch {output}") -> tuple[int, str]:
    """Run the three rules; return the exit code and the output."""
    (folder / "results/scratch").mkdir(parents=True, exist_ok=True)
    (folder / "Snakefile").write_text(SNAKEFILE.replace("COMMAND", command))
    words = [sys.executable, "-m", "snakemake", "--cores=1", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.returncode, done.stdout


def test_run_prints_progress_and_logs_the_rest(tmp_path: Path) -> None:
    code, printed = run_snakemake(tmp_path)
    assert code == 0, printed
    for stage in ("sources", "corpus", "plan"):
        assert f"stage {stage} is complete; small: " in printed
    assert "small: 3 of 3 jobs done, 3 of them in " in printed
    assert "rule corpus_ngrams" not in printed and "Execute 1 jobs" not in printed
    (log,) = (tmp_path / ".snakemake/log").glob("*.log")
    assert "rule corpus_ngrams" in log.read_text()
    assert "Nothing to be done" in run_snakemake(tmp_path)[1]


def test_failed_job_shows_the_error_of_its_log(tmp_path: Path) -> None:
    code, printed = run_snakemake(tmp_path, command="echo 'error: x.txt is empty: remove it' > {log}; exit 2")
    assert code == 1 and "FAILED corpus.ngrams" in printed and "    error: x.txt is empty: remove it\n" in printed
    assert "small: 1 of 3 jobs done, 1 of them in " in printed and "stopped: 1 job failed" in printed
    assert "Exiting because" not in printed and "command exited with non-zero" not in printed


@pytest.mark.parametrize("options", [["-p"], ["-p", "-n"]])
def test_snakemake_output_is_shown_on_request(tmp_path: Path, options: list[str]) -> None:
    code, printed = run_snakemake(tmp_path, *options)
    assert code == 0 and "touch ngrams.txt" in printed and "This was a dry-run" not in printed


def test_progress_can_be_disabled(tmp_path: Path) -> None:
    code, printed = run_snakemake(tmp_path, "--quiet")
    assert code == 0 and "jobs done" not in printed


def test_dry_run_summary_replaces_the_snakemake_table_and_advice(tmp_path: Path) -> None:
    code, printed = run_snakemake(tmp_path, "-n")
    assert code == 0 and "Job stats" not in printed and "dry-run" not in printed


def test_failed_job_shows_its_cause_instead_of_its_command(tmp_path: Path) -> None:
    code, printed = run_snakemake(tmp_path, command="echo error: no such text >{log}; exit 3 # a very long command")
    assert code == 1 and "FAILED corpus.ngrams" in printed and "error: no such text" in printed
    assert "RuleException" not in printed and "a very long command" not in printed
