"""The books of a run as they were written beside its accounting, for the account and for the report.

`provenance/accounting/CLUSTER.JOB.json` has those of a job of Slurm, `provenance/accounting/books/NAME.json` those of a
table that the configuration names, and `problems.json` there what could not be asked the last time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pipeline.energy.books.table import Books
from pipeline.energy.readings import Book

JOBS = "provenance/accounting"
FOLDER = "provenance/accounting/books"
PROBLEMS = f"{FOLDER}/problems.json"


class WrittenBooks(BaseModel):
    """What of a file is of interest here; one without books is of before there were any."""

    books: list[Book] = []
    problems: list[str] = []
    job: str | None = None
    energy_final: bool = True
    energy_problems: list[str] = []


def read_books(run_directory: Path) -> Books:
    """Return all books of a run; where something of them is missing, `problems` says what and why.

    A file that is damaged takes nothing from the others.
    """
    books: list[Book] = []
    problems: list[str] = []
    late: list[str] = []
    for folder in (run_directory / FOLDER, run_directory / JOBS):
        for path in sorted(folder.glob("[!.]*.json")):
            try:
                content: Any = json.loads(path.read_text(encoding="utf-8"))
                found = WrittenBooks.model_validate(content)
            except (OSError, ValueError) as error:
                kind = "is damaged" if isinstance(error, ValidationError | ValueError) else "cannot be read"
                problems.append(f"{path} {kind}: delete it and call python -m pipeline accounting {run_directory}")
                continue
            books += found.books
            problems += [*found.problems, *found.energy_problems]
            if not found.energy_final and found.job:
                late.append(found.job)
    if late:
        problems.append(
            f"the energy of {len(late)} jobs of Slurm (such as {late[0]}) is not final: call python -m pipeline "
            f"accounting {run_directory} later"
        )
    return Books(books, problems)
