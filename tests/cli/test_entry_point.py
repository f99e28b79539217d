"""The entry points: a rule's job starts without the command line, and a mistyped command is one sentence."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.entry_point import RULE_COMMANDS, main, stop_on_sigterm
from pipeline.core.errors import Stopped
from pipeline.job import attempt


def test_mistyped_command_or_option_suggests_the_closest_one(capsys: pytest.CaptureFixture[str]) -> None:
    for words, meant in ((["vrify", "results/demo"], "verify"), (["verify", "x", "--recomptue"], "--recompute")):
        assert main(words) == 2
        output = capsys.readouterr().err
        assert output.startswith("error: No such ") and meant in output and output.count("\n") == 1


@pytest.mark.parametrize("words", ["corpus filter --settings {}", "provenance attest missing", "accounting missing"])
def test_rule_job_does_not_import_the_command_line(words: str) -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print('typer' in sys.modules));"
        f"from pipeline.cli.entry_point import main; sys.exit(main({words.split()}))"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("words", [["--help"], ["verify", "--help"], ["schema"]])
def test_closed_output_ends_a_command_without_a_traceback(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-m", "pipeline", *words], stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_commands_called_by_rules_exist() -> None:
    for module, function in RULE_COMMANDS.values():
        assert callable(getattr(importlib.import_module(module), function)), f"{module}.{function}"


def test_second_sigterm_still_records_the_attempt_as_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both srun and slurmstepd send SIGTERM; the second one must not interrupt the handling of the first."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    measured = attempt.peak_memory_bytes_of_process_tree

    def measure_and_be_asked_again() -> int:
        signal.raise_signal(signal.SIGTERM)
        return measured()

    before = signal.getsignal(signal.SIGTERM)
    try:
        stop_on_sigterm()
        with pytest.raises(Stopped), attempt.RunningAttempt("sources.listing", {"source": "laws"}, tmp_path):
            monkeypatch.setattr(attempt, "peak_memory_bytes_of_process_tree", measure_and_be_asked_again)
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    (file,) = (tmp_path / "provenance/attempts").glob("*.json")
    assert json.loads(file.read_text())["status"] == "stopped"
