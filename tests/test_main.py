"""What a person types: a command that there is not is one sentence, with those that there are."""

import pytest

from pipeline.__main__ import COMMANDS, main


def test_a_mistyped_command_names_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vrify", "results/demo"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: there is no command 'vrify': one of ") and said.count("\n") == 1
    assert all(command in said for command in COMMANDS) and "usage" not in said
