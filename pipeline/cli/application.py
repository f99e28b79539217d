"""The application `polder`: all commands, its first help screen, and its exit codes."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from pipeline.cli import audit_commands, comparison_commands, run_commands, setup_commands
from pipeline.core.errors import InputError

VERSION = "0.1.0"
PURPOSE = "Train a language model from openly licensed text, with proof of how it was made."
EXIT_CODES = """\
Exit codes: 0 done; 1 a check failed or something differs; 2 a mistake in the
input or the command; 74 the disk is full; 75 stopped when asked, run it again."""
OTHER_NAMES = {
    **dict.fromkeys(("train", "start", "pretrain"), "polder run CONFIG runs all stages, the training too"),
    **dict.fromkeys(("resume", "restart", "continue"), "polder run CONFIG goes on where the run stopped"),
    **dict.fromkeys(("evaluate", "eval"), "polder run CONFIG evaluate runs the stages up to the evaluation"),
    "report": "polder run CONFIG writes it, and names its page at the end",
    **dict.fromkeys(("status", "progress", "watch"), "polder follow RUN --once shows the progress of a run"),
    "list": "polder runs lists runs",
    "validate": "polder plan CONFIG checks a configuration, and polder verify RUN a run",
    "check": "polder plan CONFIG checks a configuration, polder verify RUN a run, and polder doctor this machine",
    **dict.fromkeys(("init", "create"), "polder new run NAME writes a configuration"),
    **dict.fromkeys(
        ("graph", "dag"), "polder run CONFIG -n lists the jobs, and polder trace RUN FILE where a file is from"
    ),
}
"""What users of other tools type, and the command of Polder for it."""
COLUMN = 40
"""Characters of each of the two columns of the first help screen."""


class FirstScreen(TyperGroup):
    """The group of all commands, whose help is one screen of 80 x 24."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is named.

        Raises:
            InputError: it has another name here.
        """
        if advice := OTHER_NAMES.get(args[0]):
            raise InputError(f"there is no command {args[0]!r}: {advice}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write all commands in two columns: Run above Audit, Inspect above Extend."""
        formatter.write(f"Usage: {ctx.command_path} COMMAND [OPTIONS]\n\n{PURPOSE}\n\n")
        left, right = (
            [line for name in names for line in _format_panel(name, self)] for names in (GROUPS_LEFT, GROUPS_RIGHT)
        )
        for number in range(max(len(left), len(right))):
            texts = (column[number] if number < len(column) else "" for column in (left, right))
            formatter.write(f"{next(texts):<{COLUMN}}{next(texts)}".rstrip() + "\n")
        formatter.write(f"\n{EXIT_CODES}\n")
        formatter.write("More: polder COMMAND --help, polder --version, polder --install-completion.\n")


GROUPS_LEFT, GROUPS_RIGHT = ("Run", "Audit"), ("Inspect", "Extend")


def _format_panel(name: str, group: FirstScreen) -> list[str]:
    lines = [f"{name}:"]
    for command in group.commands.values():
        if getattr(command, "rich_help_panel", None) == name and not command.hidden:
            lines.append(f"  {command.name:<13}{command.short_help}")
    return lines


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"polder {VERSION}")
        raise typer.Exit


app = typer.Typer(
    name="polder",
    cls=FirstScreen,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


@app.callback()
def root_callback(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Train a language model from openly licensed text, with proof of how it was made."""


for module in (run_commands, comparison_commands, audit_commands, setup_commands):
    app.add_typer(module.commands)


def main(arguments: list[str]) -> int:
    """Run a command and return its exit code.

    Raises:
        InputError: the command line has a mistake, or the command was given something that it cannot use.
    """
    try:
        if not arguments:
            app(["--help"], prog_name="polder", standalone_mode=False)
            return 2
        return int(app(arguments, prog_name="polder", standalone_mode=False) or 0)
    except SystemExit as error:  # so Typer ends where nobody reads what is printed any more
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        raise
    except TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "polder"
        message, group = error.format_message().rstrip("."), getattr(context, "command", None)
        if context and context.parent and isinstance(group, TyperGroup) and "Did you mean" not in message:
            message += f": choose one of {', '.join(name for name, one in group.commands.items() if not one.hidden)}"
        if "unexpected extra argument" in message and sum(map(os.path.exists, arguments)) > 1:
            message += ": the shell has replaced a pattern by the names of files, so put it in quotation marks"
        raise InputError(f"{message} (see {path} --help)") from None
