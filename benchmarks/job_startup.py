"""CPU seconds and file calls of a job before its step begins, and as a whole, in a run of many units.

    PYTHONPATH=. python benchmarks/job_startup.py PROJECT --units 10000 [--whole]

PROJECT is a copy of the project with a finished run of config/micro.yaml, such as benchmarks/whole_run.py leaves, and
a git repository; its archives of batches are unpacked. The benchmark multiplies a unit's records to that many units, in
archives, and removes the copies at the end. Each
step's command comes from its record and stops where the step would begin. Imports of the step's module and the start
of an empty Python are listed separately. CPU seconds are user and system of all processes, the lowest of three. File
calls are counted by `strace -f -e trace=%file`; the figure in brackets leaves out fstat, which older C libraries do
not count.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.large_run_startup import cost, file_calls
from pipeline.core.archived_run_files import FileStore
from tests.stored import unpack_archives

# The commands of the contract, ended where the step would begin.
START = """
import os, sys
from pipeline.__main__ import start
from pipeline.job.job_execution import Job
bind = Job.bind_arguments
sys.path[0] = os.getcwd()  # as `-m` has it
Job.bind_arguments = lambda *given: (lambda *_, **__: os._exit(0), *bind(*given)[1:])
sys.exit(start())
"""


UNIT_STEPS = (
    "sources.fingerprint",
    *(f"corpus.{step}.main" for step in ("filter", "signatures", "deduplicate", "decontaminate")),
)


UNITS_PER_BATCH = 240


def copy_records(records: Path, units: int) -> list[Path]:
    """Archive copies of the records of a unit under the numbers of units that the run has not; return the archives."""
    run, archives = records.parents[1], []
    for step in UNIT_STEPS:
        content = (records / f"{step}.nl_gids.0.json").read_bytes()
        for first in range(1, units, UNITS_PER_BATCH):
            numbers = range(first, min(first + UNITS_PER_BATCH, units))
            copies = [records / f"{step}.nl_gids.{number}.json" for number in numbers]
            for copy in copies:
                copy.write_bytes(content)
            archives.append(FileStore(run, f"{step}.").archive(f"{step}.nl_gids.{first}", copies))
    return [archive for archive in archives if archive]


def figures(command: list[str], project: Path) -> str:
    """Return CPU seconds and file calls of a command."""
    seconds = min(cost(command, project).cpu_seconds for _ in range(3))
    calls = file_calls(command, project)
    return f"{seconds:.2f} | {calls.all:,} ({calls.by_name:,})"


def main() -> int:
    """Print a table, a line for each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("project", type=Path)
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--whole", action="store_true", help="run each step to its end as well")
    parser.add_argument("--steps", nargs="*", help="these alone, such as corpus.filter")
    options = parser.parse_args()
    unpack_archives(options.project / "results/micro")
    records = options.project / "results/micro/provenance/records"
    commands = {}
    for path in sorted(records.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["command"][3:]:
            commands.setdefault(record["step"], (path, record["command"][3:]))
    copies = copy_records(records, options.units)
    print(f"{len(list(records.iterdir()))} records by themselves, {len(copies)} archives")
    print("step | to its begin: CPU s | file calls | imports alone: CPU s | file calls | whole: CPU s | file calls")
    try:
        for step, (path, words) in commands.items():
            if options.steps and step not in options.steps:
                continue
            content = path.read_bytes()
            path.unlink()  # a unit that is done is not begun
            row = [step, figures([sys.executable, "-c", START, *words], options.project)]
            row.append(figures([sys.executable, "-c", f"import pipeline.{step}"], options.project))
            if options.whole:
                row.append(figures([sys.executable, "-m", "pipeline", *words], options.project))
            path.write_bytes(content)
            print(" | ".join(row), flush=True)
    finally:
        for copy in copies:
            copy.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
