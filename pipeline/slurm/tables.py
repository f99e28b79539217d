"""The tables of meters that the section `energy` of a run's configuration names, read beside the books of jobs.

They are of any run, also of one without Slurm: a power distribution unit knows nodes and no jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.config.error_messages import sentence
from pipeline.config.platforms import described
from pipeline.core.atomic_files import write_json
from pipeline.core.errors import InputError
from pipeline.energy.external_meters.ear_meter import read_ear
from pipeline.energy.external_meters.meter_tables import FOLDER, ExternalReadings
from pipeline.energy.external_meters.smart_meter import read_smart_meter
from pipeline.energy.readings import READINGS, ExternalReading, MeterInterval
from pipeline.energy.settings import Energy
from pipeline.job import frozen
from pipeline.slurm.starts import Start


def configured(run_directory: Path) -> tuple[Energy, bool]:
    """Return the section `energy` of the run as it was last started, and whether its platform has EAR.

    Raises:
        InputError: the section has no sense, or there is no such platform.
    """
    content: dict[str, Any] = (frozen.newest(run_directory) or {}).get("configuration") or {}
    try:
        settings = Energy.model_validate(content.get("energy") or {})
    except ValidationError as error:
        raise InputError(sentence(error, Energy, f"{run_directory}/{frozen.FOLDER}, section energy")) from None
    platform = content.get("platform")
    return settings, bool(platform and described(str(platform)).ear)


def _began(run_directory: Path, begun: list[Start]) -> float | None:
    """Return when the run began, in seconds of Unix time, by its starts and its meters; None where neither says."""
    moments = [datetime.fromisoformat(start.started).timestamp() for start in begun]
    for path in (run_directory / READINGS).glob("*.jsonl"):
        try:
            with path.open(encoding="utf-8") as lines:
                moments.append(MeterInterval.model_validate_json(next(lines)).started)
        except (OSError, ValueError, StopIteration):
            continue  # the account says what is wrong with it
    return min(moments, default=None)


def _read(readers: list[Callable[[], ExternalReadings]]) -> ExternalReadings:
    """Return what all readers find; a table that cannot be read is a sentence."""
    books: list[ExternalReading] = []
    problems: list[str] = []
    for read in readers:
        try:
            found = read()
        except InputError as error:
            problems.append(str(error))
            continue
        books += found
        problems += found.problems
    return ExternalReadings(books, problems)


def write(run_directory: Path, settings: Energy, begun: list[Start]) -> list[str]:
    """Write the books of the tables that the settings name, and return what is wrong with them, in sentences."""
    since, until = _began(run_directory, begun), time.time()
    kinds: dict[str, list[Callable[[], ExternalReadings]]] = {
        "ear_files": [partial(read_ear, Path(file)) for file in settings.ear_files],
        "smart_meters": [partial(read_smart_meter, meter, since=since, until=until) for meter in settings.smart_meters],
    }
    problems: list[str] = []
    for kind, readers in kinds.items():
        path = run_directory / FOLDER / f"{kind}.json"
        if not readers:
            path.unlink(missing_ok=True)
            continue
        found = _read(readers)
        path.parent.mkdir(parents=True, exist_ok=True)
        books = [book.model_dump(mode="json") for book in found]
        write_json(path, {"books": books, "problems": found.problems})
        problems += found.problems
    return problems
