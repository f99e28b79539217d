"""The evaluation items of a finished run, with the files that its record names."""

from __future__ import annotations

from pathlib import Path

from pipeline import layout
from pipeline.audit.reproduce import OUTSIDE_PREFIX
from pipeline.core.errors import InputError
from pipeline.core.job_command_lines import command_options
from pipeline.core.job_records import load_records
from pipeline.evaluate.checkpoint_answers_page import write_item_page
from pipeline.evaluate.settings import SuitesSettings


def write_items(run_directory: Path, model: str, step: int, raw: Path | None, output: Path) -> dict[str, int]:
    """Write a page of the items that a checkpoint answered, and return how many it shows.

    Args:
        raw: the folder of data files that are outside of the project.

    Raises:
        InputError: the run has no such evaluation, or a file that it read or wrote is missing.
    """
    instance = {"model": model, "step": str(step)}
    records = [record for record in load_records(run_directory) if record.step == "evaluate.suites"]
    evaluation = next((record for record in records if record.instance == instance), None)
    if evaluation is None:
        known = ", ".join(f"{record.instance['model']} {record.instance['step']}" for record in records) or "none"
        raise InputError(f"{run_directory} has no evaluation of {model} {step}: {known}")
    tasks = next(values[1:] for _, values in command_options(evaluation.command) if values[:1] == ["tasks"])
    if raw is None and (outside := [word for word in tasks if word.startswith(OUTSIDE_PREFIX)]):
        raise InputError(f"{outside[0]} is outside of the project: name its folder with --raw FOLDER")
    files = [
        raw / word.removeprefix(OUTSIDE_PREFIX) if raw and word.startswith(OUTSIDE_PREFIX) else Path(word)
        for word in tasks
    ]
    if missing := [file for file in files if not file.is_file()]:
        raise InputError(f"{missing[0]} is missing, which the evaluation read: start from the project, or give --raw")
    answers = layout.ANSWERS.path(run_directory, model=model, step=step)
    if not answers.is_file():
        raise InputError(f"{answers} is missing: run Snakemake again")
    return write_item_page(output, SuitesSettings.model_validate(evaluation.settings), files, answers)
