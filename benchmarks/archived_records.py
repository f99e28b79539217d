"""Files of a run, and CPU seconds of `verify` and `trace`, with the records of units in archives and by themselves.

    PYTHONPATH=. python benchmarks/archived_records.py --units 10000 [--units-per-batch 240] [--steps 6]

The same run twice: with a record, an attempt and readings for each unit of each step, and with these in the archives of
batches. `verify` and `trace` run in processes of their own. Outputs are small files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.large_run_startup import cost
from pipeline import layout
from pipeline.core.stored_files import FileStore
from tests.provenance.conftest import RunBuilder

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "laws"


def build_run(folder: Path, units: int, steps: int) -> RunBuilder:
    """Write a run in which each unit was worked on by some steps, one after another."""
    run = RunBuilder(folder)
    for step in range(steps):
        for unit in range(units):
            run.minute = 0  # of the hour in which a job begins
            before = [f"corpus/main/{step - 1}/{SOURCE}.{unit}.parquet"] if step else []
            written = {f"corpus/main/{step}/{SOURCE}.{unit}.parquet": b"%d %d" % (step, unit)}
            run.job(f"corpus.step{step}", {"corpus": "main", "source": SOURCE, "unit": str(unit)}, before, written)
    return run


def archive_units(run: Path, units: int, steps: int, units_per_batch: int) -> None:
    """Move the files of all units into the archives of their batches."""
    for step in range(steps):
        prefix = f"corpus.step{step}.main.{SOURCE}"
        for number, batch in enumerate(batches(units, units_per_batch)):
            names = tuple(f"{prefix}.{unit}." for unit in batch)
            folders = (layout.RECORDS, layout.ATTEMPTS, layout.READINGS)
            files = (Path(entry.path) for folder in folders for entry in os.scandir(run / folder))
            FileStore(run, prefix).archive(
                f"{prefix}.{number}", (file for file in files if file.name.startswith(names))
            )


def batches(units: int, size: int) -> Iterator[list[int]]:
    """Yield the units of each batch."""
    for start in range(0, units, size):
        yield [*range(start, min(start + size, units))]


def measure(run: RunBuilder, target: str) -> dict[str, float]:
    """Finish a run; return the number of files in its folder, and the CPU seconds of commands that read it."""
    run.crate()
    folder = run.folder
    commands = {
        "verify": ["verify", str(folder)],
        "trace": ["trace", str(folder), target],
    }
    results: dict[str, float] = {"files": sum(len(names) for _, _, names in os.walk(folder))}
    for name, words in commands.items():
        command = [sys.executable, "-m", "pipeline", *words]
        results[name] = median(cost(command, ROOT).cpu_seconds for _ in range(3))
    return results


def main() -> int:
    """Print the figures of both and their ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--units-per-batch", type=int, default=240)
    parser.add_argument("--steps", type=int, default=6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run = build_run(Path(temporary) / "run", given.units, given.steps)
        target = f"corpus/main/{given.steps - 1}/{SOURCE}.{given.units // 2}.parquet"
        other = RunBuilder(Path(shutil.copytree(run.folder, Path(temporary) / "archived")))
        archive_units(other.folder, given.units, given.steps, given.units_per_batch)
        alone, archived = (measure(one, target) for one in (run, other))
    for what, value in alone.items():
        ratio = archived[what] / value
        unit = "" if what == "files" else " CPU s"
        print(f"{what}: {value:,.1f}{unit} by themselves, {archived[what]:,.1f}{unit} in archives: {ratio:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
