"""The entry points: a job of a rule starts without the command line, and a mistyped command is one sentence."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from pipeline.cli.entry_point import RULE_COMMANDS, main


def test_a_mistyped_command_or_option_names_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    for words, meant in ((["vrify", "results/demo"], "verify"), (["verify", "x", "--recomptue"], "--recompute")):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: No such ") and meant in said and said.count("\n") == 1


@pytest.mark.parametrize("words", ["corpus filter --settings {}", "provenance attest missing", "accounting missing"])
def test_a_job_of_a_rule_does_not_load_the_command_line(words: str) -> None:
    code = (
        "import atexit, sys; atexit.register(lambda: print('typer' in sys.modules));"
        f"from pipeline.cli.entry_point import main; sys.exit(main({words.split()}))"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert done.stdout == "False\n", done.stderr


def test_the_commands_that_rules_call_are_there() -> None:
    for module, function in RULE_COMMANDS.values():
        assert callable(getattr(importlib.import_module(module), function)), f"{module}.{function}"
