"""Arguments and options that several commands share, and how a command is added to its group."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

Function = TypeVar("Function", bound=Callable[..., Any])

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", readable=False, help="The folder of a run, such as results/demo.")
]
ResultsFolder = Annotated[Path, typer.Argument(metavar="RESULTS", readable=False, help="A run, or a folder of runs.")]
ConfigurationFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", readable=False, help="A file such as config/micro.yaml.")
]
DataFolder = Annotated[str | None, typer.Option(metavar="FOLDER", help="The folder for {data} in CONFIG.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="The name of a model of the run.")]
RawFolder = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="The raw files, if they are outside of the project.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class PlainCommand(TyperCommand):
    """A command whose usage line shows required arguments without braces."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]


def make_group(name: str | None = None, summary: str | None = None, example: str | None = None) -> typer.Typer:
    """Return an empty group of commands; without a name its commands join the group that it is added to."""
    epilog = example and f"Example: {example}"
    return typer.Typer(name=name, help=summary, short_help=summary, epilog=epilog, rich_markup_mode=None)


def command(
    app: typer.Typer, panel: str, summary: str, example: str, **settings: Any
) -> Callable[[Function], Function]:
    """Return a decorator that adds a command to a group.

    Args:
        panel: its heading on the first help screen.
        summary: its words there, at most 24 characters.
        example: a command line that works in a project with a finished run.
    """
    settings = {"cls": PlainCommand, **settings}
    return app.command(short_help=summary, epilog=f"Example: {example}", rich_help_panel=panel, **settings)


def print_json(content: Any) -> None:
    """Print a value as JSON, with sorted keys."""
    print(json.dumps(content, indent=2, sort_keys=True, default=str, ensure_ascii=False))
