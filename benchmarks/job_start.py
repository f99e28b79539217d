"""What a job costs before its step begins, and as a whole: CPU seconds and file calls, in a run of many units.

    PYTHONPATH=. python benchmarks/job_start.py PROJECT --units 10000 [--whole]

PROJECT is a copy of the project with a finished run of config/micro.yaml, such as benchmarks/run.py leaves. The records
of its units are copied until there are as many as in a run of so many units; the copies are removed at the end. Each
step's command is taken from its record and ends where the step would begin. Of that, the libraries that it imports are
told apart: a Python that imports the step's module and nothing else. CPU seconds are user and system of all
processes, the smallest of three; file calls are those that strace counts (`strace -f -c -e trace=%file`), among them
those that ask about an open file (fstat), which no file system hears of.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.scale import cost, file_calls

# The commands of the contract, ended where the step would begin.
START = """
import os, sys
from pipeline.__main__ import main
from pipeline.stage import Stage
bind = Stage.bind
Stage.bind = lambda *given: (lambda *_, **__: os._exit(0), *bind(*given)[1:])
sys.exit(main(sys.argv[1:]))
"""


def copy_records(records: Path, units: int) -> list[Path]:
    """Copy the records of units under the numbers of units that the run does not have; return the copies."""
    copies = []
    for path in sorted(records.glob("*.*.*.*.json")):
        *name, unit, _ = path.name.split(".")
        if name[:2] in (["sources", "fingerprint"], *(["corpus", step] for step in ("filter", "signatures"))) or (
            name[:2] in (["corpus", "drop_duplicates"], ["corpus", "decontaminate"])
        ):
            if unit != "0" or name[-1] != "nl_gids":
                continue
            for number in range(1, units):
                copy = records / f"{'.'.join(name)}.{number}.json"
                copy.write_bytes(path.read_bytes())
                copies.append(copy)
    return copies


def figures(command: list[str], project: Path) -> tuple[float, int]:
    """Return CPU seconds and file calls of a command."""
    return min(cost(command, project).cpu_seconds for _ in range(3)), file_calls(command, project)


def main() -> int:
    """Print a table, a line for each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("project", type=Path)
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--whole", action="store_true", help="run each step to its end as well")
    parser.add_argument("--steps", nargs="*", help="these alone, such as corpus.filter")
    options = parser.parse_args()
    records = options.project / "results/micro/provenance/records"
    commands = {}
    for path in sorted(records.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["command"][3:]:
            commands.setdefault(record["stage"], (path, record["command"][3:]))
    copies = copy_records(records, options.units)
    print(f"{len(list(records.iterdir()))} records")
    print("step | CPU s to its begin | of them imports | file calls | of them imports | whole: CPU s | file calls")
    try:
        for stage, (path, words) in commands.items():
            if options.steps and stage not in options.steps:
                continue
            record = path.read_bytes()
            path.unlink()  # a unit that is done is not begun
            started = figures([sys.executable, "-c", START, *words], options.project)
            imported = figures([sys.executable, "-c", f"import pipeline.{stage}"], options.project)
            whole = figures([sys.executable, "-m", "pipeline", *words], options.project) if options.whole else (0, 0)
            if not options.whole:
                path.write_bytes(record)
            print(
                f"{stage} | {started[0]:.2f} | {imported[0]:.2f} | {started[1]:,} | {imported[1]:,} | "
                f"{whole[0]:.2f} | {whole[1]:,}",
                flush=True,
            )
    finally:
        for copy in copies:
            copy.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
