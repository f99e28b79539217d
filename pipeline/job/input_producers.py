"""Find the records of the jobs that made the inputs of a job."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

from pipeline.core.archived_run_files import FileStore
from pipeline.core.errors import InputError
from pipeline.core.job_records import FileEntry, Record, map_producers
from pipeline.layout import RECORD


def find_producers(run_directory: Path, paths: Iterable[str]) -> dict[str, tuple[Record, FileEntry]]:
    """Return the record and the output that made each of some files of a run, by path.

    A run of ten thousand units has fifty thousand records, so those of other files are not opened: a file that a step
    wrote has the wildcards of its record's name in its path, in their order, between slashes and dots. Where
    several records fit, that of the step which wrote the file before is read first: mostly all are of one step.

    Raises:
        InputError: a record that was opened is broken.
    """
    names: dict[tuple[str, ...], list[str]] = {}
    files = {file.name: file for file in FileStore(run_directory).find_all(RECORD)}
    for name in files:
        names.setdefault(tuple(name.split(".")[2:-1]), []).append(name)
    wildcards, longest = {word for words in names for word in words}, max(map(len, names), default=0)
    made: dict[str, tuple[Record, FileEntry]] = {}
    unread, last_step = {name for fitting in names.values() for name in fitting}, ""
    for path in paths:
        words = [word for word in re.split("[/.]", path) if word in wildcards]
        subsets = {subset for length in range(longest + 1) for subset in combinations(words, length)}
        fitting = [name for subset in subsets & names.keys() for name in names[subset] if name in unread]
        for name in sorted(fitting, key=lambda name: (not name.startswith(last_step), name)):
            if path in made:
                break
            unread.remove(name)
            try:
                record = Record.load(files[name])
            except InputError:
                if files[name].is_file():
                    raise
                continue  # Snakemake removes the record of a job that it starts
            made |= map_producers([record])
            if path in made:
                last_step = f"{record.step}."
    return made
