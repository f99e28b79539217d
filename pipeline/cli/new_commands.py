"""The commands `polder new`: parts of a project, written from templates and ready to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.parameters import command, make_group

if TYPE_CHECKING:
    from pipeline.scaffold.new_parts import NewPart

PANEL = "Extend"
new = make_group("new", "Write a new part", "polder new filter capital_letters")
Name = Annotated[str, typer.Argument(metavar="NAME")]


def check_checkout() -> None:
    """Check that the current folder is a checkout.

    Raises:
        InputError: it is not.
    """
    from pipeline.core.errors import InputError

    if not Path("Snakefile").is_file():
        raise InputError(f"{Path.cwd()} has no Snakefile: run this in your checkout of Polder")


def write_part(part: NewPart) -> None:
    """Make the edits in the current folder, which is a checkout, and print the files and what to do next.

    Raises:
        InputError: the folder is no checkout of Polder, or an edit cannot be made.
    """
    from pipeline.scaffold.project_edits import apply_edits

    check_checkout()
    for path in apply_edits(Path(), part.edits):
        print(f"wrote {path}")
    print("\n".join(["Next:", *(f"  {sentence}" for sentence in part.next_steps)]))


@command(
    new, PANEL, "A configuration", "polder new run letters --text 'letters/*.txt' --license CC-BY-4.0 --holder Archive"
)
def run(
    name: Name,
    text: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Raw text; without it, the embedded texts.")
    ] = None,
    language: Annotated[str, typer.Option(metavar="CODE", help="The language of the text.")] = "nl",
    license_id: Annotated[str, typer.Option("--license", metavar="SPDX", help="Its license.")] = "",
    holder: Annotated[str, typer.Option(metavar="NAME", help="Who holds the rights.")] = "",
    text_key: Annotated[str, typer.Option(metavar="FIELD", help="The field or column with the text.")] = "text",
) -> None:
    """Write config/NAME.yaml, a run that trains a small model in minutes; quote a PATH with *."""
    import yaml

    from pipeline.config.configuration import parse_configuration
    from pipeline.config.configuration_errors import explain_bad_file_path
    from pipeline.core.errors import InputError
    from pipeline.corpus.text.language_codes import advise_language
    from pipeline.scaffold.new_parts import run_edits
    from pipeline.scaffold.project_edits import NewFile
    from pipeline.sources.source_units import find_files_by_glob
    from pipeline.workflow.settings_contradicted_by_text import find_contradicted_sources

    check_checkout()
    if advice := advise_language(language):
        raise InputError(f"--language {language} is no code of a language: {advice}")
    for path in text or ():
        try:
            find_files_by_glob(path)
        except InputError as error:
            raise InputError(f"--text: {explain_bad_file_path(path) or error}") from None
    part = run_edits(name, dict.fromkeys(text or (), language), license_id, holder, text_key)
    (content,) = (edit.content for edit in part.edits if isinstance(edit, NewFile))
    config = parse_configuration(yaml.safe_load(content))
    try:
        problems = [*find_contradicted_sources(config)]
    except InputError as error:
        problems = [str(error)]
    for problem in problems:  # there is no configuration yet in which somebody could set the key
        option = re.sub(r"set `text_key: ([^`]+)`", r"add `--text-key \1`", problem)
        raise InputError(option.replace("set text_key of the source to", "set --text-key to"))
    write_part(part)


@command(new, PANEL, "A filter rule", "polder new filter capital_letters", name="filter")
def filter_rule(name: Name) -> None:
    """Write a rule of the set quality: its threshold, its measure and its test."""
    from pipeline.scaffold.new_parts import filter_edits

    write_part(filter_edits(name))


@command(new, PANEL, "A step", "polder new step corpus.lengths")
def step(name: Annotated[str, typer.Argument(metavar="corpus.NAME")]) -> None:
    """Write a step that reads a corpus's final documents: its module, its declaration and its test."""
    from pipeline.scaffold.new_parts import step_edits

    write_part(step_edits(name))


@command(new, PANEL, "An evaluation task", "polder new task polder_nl_spreekwoorden --suite dutch")
def task(
    name: Name, suite: Annotated[str, typer.Option(metavar="NAME", help="A folder of config/tasks.")] = "dutch"
) -> None:
    """Write an evaluation task with four items, its row in the list of tasks, and its test."""
    from pipeline.scaffold.new_parts import task_edits

    write_part(task_edits(name, suite))


@command(new, PANEL, "An architecture", "polder new architecture my_llama")
def architecture(name: Name) -> None:
    """Write an architecture that is a Llama until you change it: two modules and a test."""
    from pipeline.scaffold.new_parts import architecture_edits

    write_part(architecture_edits(name))
