"""Files of a run, and CPU seconds of `verify` and `trace`, with the files of units in archives and by themselves.

    PYTHONPATH=. python benchmarks/archived_records.py --units 10000 [--units-per-batch 240]

The same run three times: with a record, an attempt, readings and the outputs for each unit of each step; with the first
three in archives of batches; with small outputs in archives too. `verify` and `trace` run in processes of their own.
Outputs are small files, of the folders that a run has.
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
from pipeline.core.archived_run_files import FileStore
from pipeline.core.output_archives import OutputArchives
from tests.provenance.conftest import RunBuilder

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "laws"
INSTANCES = {"sources": {"source": SOURCE}, "corpus": {"corpus": "main", "source": SOURCE}}
REMOVED = {step: layout.REMOVED.fill(step=step) for step in ("filter", "deduplicate", "decontaminate")}
# What each step reads and writes of a unit; the last four write all units in one job.
STEPS = {
    "sources.fingerprint": ((), (layout.FINGERPRINT,)),
    "corpus.filter": ((layout.FINGERPRINT,), (layout.FILTERED, REMOVED["filter"])),
    "corpus.signatures": ((layout.FILTERED,), (layout.SIGNATURES,)),
    "corpus.deduplicate": ((layout.FILTERED, layout.SIGNATURES), (layout.DEDUPLICATED, REMOVED["deduplicate"])),
    "corpus.matches": ((layout.DEDUPLICATED,), (layout.MATCHES,)),
    "corpus.decontaminate": ((layout.FILTERED, layout.MATCHES), (layout.FINAL_DOCUMENTS, REMOVED["decontaminate"])),
    "sources.listing": ((), (layout.UNIT_LISTING,)),
    "sources.manifest": ((layout.FINGERPRINT,), (layout.SOURCE_UNITS.child("{unit}.json"),)),
    "corpus.find_duplicates": ((layout.SIGNATURES,), (layout.DUPLICATES,)),
    "corpus.find_items": ((layout.MATCHES,), (layout.CONTAMINATED,)),
}
BATCHED = [*STEPS][:6]


def unit_paths(places: tuple[layout.PathTemplate, ...], units: range) -> list[str]:
    """Return the paths of units in some folders, relative to the run."""
    values = {"corpus": "main", "source": SOURCE}
    return [place.relative_path(**values, unit=unit) for place in places for unit in units]


def build_run(folder: Path, units: int) -> RunBuilder:
    """Write a run in which each unit was worked on by all steps, one after another."""
    run = RunBuilder(folder)
    for step, (read, written) in STEPS.items():
        instance = INSTANCES[step.split(".")[0]]
        jobs = [range(unit, unit + 1) for unit in range(units)] if step in BATCHED else [range(units)]
        for job in jobs:
            run.minute = 0  # of the hour in which a job begins
            outputs = {path: f"{step} {path}".encode() for path in unit_paths(written, job)}
            named = {**instance, "unit": str(job.start)} if step in BATCHED else {next(iter(instance)): "main"}
            run.job(step, named, unit_paths(read, job), outputs)
    return run


def archive_records(run: Path, units: int, units_per_batch: int) -> None:
    """Move the records, attempts and readings of all units into the archives of their batches."""
    for step in BATCHED:
        prefix = ".".join([step, *INSTANCES[step.split(".")[0]].values()])
        for number, batch in enumerate(batches(units, units_per_batch)):
            names = tuple(f"{prefix}.{unit}." for unit in batch)
            folders = (layout.RECORDS, layout.ATTEMPTS, layout.READINGS)
            files = (Path(entry.path) for folder in folders for entry in os.scandir(run / folder))
            FileStore(run, prefix).archive(
                f"{prefix}.{number}", (file for file in files if file.name.startswith(names))
            )


def archive_outputs(run: Path, units: int, units_per_batch: int) -> None:
    """Move the small outputs of all units into the archives of their jobs."""
    for step, (_, written) in STEPS.items():
        stage = step.split(".")[0]
        prefix = ".".join([step, *INSTANCES[stage].values()])
        parts = [*batches(units, units_per_batch)] if step in BATCHED else [range(units)]
        for number, part in enumerate(parts):
            paths = [run / path for path in unit_paths(written, part)]
            OutputArchives(run, "/".join(paths[0].parts[-4:-2]), prefix).add(
                f"{prefix}.{number}" if step in BATCHED else f"{step}.{'main' if stage == 'corpus' else SOURCE}", paths
            )


def batches(units: int, size: int) -> Iterator[range]:
    """Yield the units of each batch."""
    for start in range(0, units, size):
        yield range(start, min(start + size, units))


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
    """Print the files and the CPU seconds of each of the three."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--units-per-batch", type=int, default=240)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run = build_run(Path(temporary) / "run", given.units)
        (target,) = unit_paths((layout.FINAL_DOCUMENTS,), range(given.units // 2, given.units // 2 + 1))
        runs = {"by themselves": run}
        for what, archive in (("records archived", archive_records), ("outputs too", archive_outputs)):
            last = [*runs.values()][-1]
            runs[what] = RunBuilder(Path(shutil.copytree(last.folder, Path(temporary) / what.replace(" ", "-"))))
            archive(runs[what].folder, given.units, given.units_per_batch)
        results = {what: measure(one, target) for what, one in runs.items()}
    for name in ("files", "verify", "trace"):
        print(f"{name}: {', '.join(f'{figures[name]:,.1f} {what}' for what, figures in results.items())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
