"""Help, versions, errors and shell completion of `polder`: the first contact of a user."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pipeline.cli.application import OTHER_NAMES, VERSION, app, main
from pipeline.core.errors import InputError

COLUMNS, LINES = 80, 24


def commands(group: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command and group."""
    yield path
    for name, one in getattr(group, "commands", {}).items():
        if not one.hidden:
            yield from commands(one, *path, name)


ALL = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_of_each_command_fits_one_screen(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*words, "--help"], prog_name="polder", terminal_width=COLUMNS)
    lines = shown.stdout.splitlines()
    assert shown.exit_code == 0
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS, shown.stdout
    assert "Raises" not in shown.stdout and "Args:" not in shown.stdout


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_example_of_each_command_is_accepted(words: tuple[str, ...]) -> None:
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    if not words:
        return
    example = command.epilog.removeprefix("Example: ").partition(" > ")[0]
    first, *given = shlex.split(example)
    assert [first, *given[: len(words)]] == ["polder", *words]
    if hasattr(command, "commands"):
        command, words = command.commands[given[len(words)]], (*words, given[len(words)])
    command.make_context("polder", given[len(words) :])


def test_top_level_help_lists_every_command_with_purpose_and_exit_codes() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    for name, *_ in filter(None, ALL):
        command: Any = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
        assert f"  {name:<13}{command.short_help}" in shown
    assert all(code in shown for code in ("0 done", "1 a check failed", "2 a mistake", "74 ", "75 "))


def test_missing_command_or_subcommand_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2 and "Usage: polder" in capsys.readouterr().out
    assert CliRunner().invoke(app, ["model"]).exit_code == 2
    for words in (["new"], ["new", "model"]):
        with pytest.raises(InputError, match=r"command.*: choose one of run, filter, step, task, "):
            main(words)


def test_version_option_prints_the_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"polder {VERSION}\n"


def test_shell_completion_completes_commands() -> None:
    environment = {**os.environ, "_POLDER_COMPLETE": "complete_bash", "COMP_WORDS": "polder ver", "COMP_CWORD": "1"}
    words = [sys.executable, "-m", "pipeline"]
    assert subprocess.run(words, env=environment, text=True, capture_output=True).stdout.split() == ["verify"]


def test_command_of_another_tool_is_answered_with_a_command_of_polder() -> None:
    known = {words[0] for words in ALL if words}
    for name, advice in OTHER_NAMES.items():
        with pytest.raises(InputError, match=f"^there is no command {name!r}: polder"):
            main([name, "config/micro.yaml"])
        assert {*re.findall(r"polder (\w+)", advice)} <= known and name not in known
    assert OTHER_NAMES["train"].startswith("polder run ")


def test_renamed_command_error_shows_the_new_name(capsys: pytest.CaptureFixture[str]) -> None:
    from pipeline.cli.entry_point import main as start

    assert start(["corpus", "why", "results/demo", "laws/a/0"]) == 2
    assert "polder corpus lineage" in capsys.readouterr().err
