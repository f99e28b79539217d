"""CPU seconds, memory and file calls of a Snakemake start on a login node, for a run of many units.

    PYTHONPATH=. python benchmarks/large_run_startup.py --units 10000 [--file-calls] [--keep FOLDER]

Dry runs plan the whole run with nothing made, everything made, everything made but unknown to Snakemake, and one raw
file changed. Outputs are empty files; names, counts, parameters, records and Snakemake's metadata are those of a run.
CPU seconds are user and system of all processes; memory is the peak of one process; file calls are counted by `strace
-f -e trace=%file` in a separate start.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.whole_run import copy_project
from pipeline.config.configuration import parse_configuration
from pipeline.sources.source_units import assign_unit
from pipeline.workflow.dag import Dag

OF_UNITS = {
    "fingerprint": ("sources/{source}/fingerprints/{unit}.json",),
    "filter": ("corpus/main/filtered/{source}.{unit}.parquet", "corpus/main/removed/filter.{source}.{unit}.parquet"),
    "signatures": ("corpus/main/signatures/{source}.{unit}.parquet",),
    "deduplicate": (
        "corpus/main/deduplicated/{source}.{unit}.parquet",
        "corpus/main/removed/deduplicate.{source}.{unit}.parquet",
    ),
    "matches": ("corpus/main/matches/{source}.{unit}.parquet",),
    "decontaminate": (
        "corpus/main/final/{source}.{unit}.parquet",
        "corpus/main/removed/decontaminate.{source}.{unit}.parquet",
    ),
}
FOLDERS = (
    "corpus/main/duplicates",
    "corpus/main/contaminated",
    "models/base/milestones/2",
    "models/base/final",
    "models/base/tensorboard",
    "report/papers",
)
FILES = (
    *(f"corpus/main/{name}" for name in ("ngrams.parquet", "statistics.json", "README.md", "croissant.json")),
    "corpus/main/contamination.json",
    *(f"corpus/main/{name}" for name in ("dataset.json", "dataset.html")),
    *(f"tokenizer/main/{name}.json" for name in ("tokenizer", "tokenizer_config", "fertility")),
    *(f"tokens/main/{split}/0.arrow" for split in ("train", "validation")),
    *("tokens/main/index.json", "models/base/metrics.jsonl", "evaluation/base/2/results.json", "plan/plan.json"),
    *(f"report/{name}" for name in ("index.html", "model-card.md")),
    *("ro-crate-metadata.json", "provenance/batches/sources"),
)
WILDCARDS = {
    "sources": ("source", "batch"),
    "corpus": ("corpus", "source", "batch"),
    "tokenizer": ("tokenizer",),
    "tokens": ("tokens", "shard"),
    "pretrain": ("model", "step"),
    "evaluate": ("model", "step"),
}
MODEL = {
    "architecture": {"layers": 1, "width": 32, "heads": 4},
    "training": {
        "sequence_length": 64,
        "batch_size": 4,
        "micro_batch_size": 2,
        "steps": 2,
        "learning_rate": 0.001,
    },
}


def write_source(folder: Path, units: int) -> None:
    """Write one small file for each unit: the first name whose hash falls in it."""
    folder.mkdir(parents=True)
    missing, number = set(range(units)), 0
    while missing:
        name = f"{number}.txt"
        unit = assign_unit(name, units)
        if unit in missing:
            missing.remove(unit)
            (folder / name).write_text("tekst")
        number += 1


def write_project(project: Path, sources: int, units: int, units_per_job: int) -> dict[str, Any]:
    """Copy the project and write its raw files and its configuration many.yaml, which is returned."""
    copy_project(project)
    described = []
    for number in range(sources):
        write_source(project / f"data/{number:02}", units // sources)
        described.append(
            {
                "name": f"many{number:02}",
                "path": f"data/{number:02}/*.txt",
                "language": "nl",
                "license": "CC0-1.0",
                "rights": {"basis": "public-domain", "holder": "nobody"},
                "units": units // sources,
                "units_per_job": units_per_job,
            }
        )
    configuration = {"run": {"name": "many"}, "sources": described, "models": {"base": MODEL}}
    configuration |= {"tokens": {"main": {"shards": 1}}, "evaluation": {"checkpoints": "final"}}
    (project / "many.yaml").write_text(yaml.safe_dump(configuration))
    return configuration


def write_results(dag: Dag) -> int:
    """Write empty outputs, records and batches of all jobs below the working directory; return how many jobs."""
    run = Path(dag.run)
    for name in FOLDERS:
        (run / name).mkdir(parents=True)
    for name in FILES:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("")
    for source in dag.config.sources:
        folder = run / "sources" / source.name
        (folder / "listing").mkdir(parents=True)
        (folder / "units").mkdir()
        units = {unit: {"sha256": "0" * 64} for unit in dag.config.unit_files(source.name)}
        (folder / "manifest.json").write_text(json.dumps({"units": units}))
    written = [
        *dag.record_paths(),
        *dag.all_batch_record_paths(),
        dag.record_template("report.page"),
        dag.record_template("provenance.crate"),
    ]
    for name in written:
        chapter, step, *instance = Path(name).name.removesuffix(".json").split(".")
        step, wildcards = f"{chapter}.{step}", dict(zip(WILDCARDS.get(chapter, ()), instance, strict=False))
        settings, code, environment = dag.job_versions(step, wildcards)
        content = {"step": step, "instance": wildcards, "settings": json.loads(settings), "inputs": [], "outputs": []}
        content |= {"code_version": code, "environment_version": environment}
        if "batch" in wildcards:
            source, batch = wildcards["source"], wildcards["batch"]
            planned = dag.raw_hash if chapter == "sources" else dag.batch_hash
            content |= {"of": planned(wildcards) if step in ("fingerprint", "filter") else None}
            for unit in dag.config.job_batches(source)[batch]:
                record = f"provenance/records/{step}.{'main.' * (chapter == 'corpus')}{source}.{unit}.json"
                for pattern in (*OF_UNITS[step], record):
                    place = pattern.format(source=source, unit=unit)
                    (run / place).parent.mkdir(parents=True, exist_ok=True)
                    (run / place).write_text("")
                    content["outputs"].append({"path": place, "bytes": 0})
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(json.dumps(content))
    for path in run.rglob("*"):
        os.utime(path, (run.stat().st_atime, run.stat().st_mtime))
    return len(written)


class Cost(NamedTuple):
    """What a command took: CPU seconds of all its processes, peak memory of the largest, and what it printed."""

    cpu_seconds: float
    peak_memory_bytes: int
    printed: str


def cost(command: list[str], folder: Path) -> Cost:
    """Run a command in a folder and return what it took.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryFile("w+") as printed:
        run = subprocess.Popen(command, cwd=folder, stdout=printed, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(run.pid, 0)
        printed.seek(0)
        text = printed.read()
    if status:
        raise RuntimeError(f"{' '.join(command)} failed:\n{text[-3000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss, text)


class FileCalls(NamedTuple):
    """System calls about files: all that strace counts, and those that name a file, not one that is open (fstat)."""

    all: int
    by_name: int


def file_calls(command: list[str], folder: Path) -> FileCalls:
    """Return how many system calls about files the processes of a command make."""
    with tempfile.NamedTemporaryFile("r") as log:
        cost(["strace", "-f", "-e", "trace=%file", "-o", log.name, *command], folder)
        # A call that another process interrupts stands on two lines, of which the second has no arguments.
        calls = [line for line in log if "(" in line and " resumed>" not in line]
    return FileCalls(len(calls), sum("AT_EMPTY_PATH" not in line for line in calls))


def snakemake(*options: str) -> list[str]:
    """Return the command that starts the project."""
    return [sys.executable, "-m", "snakemake", *options, "--profile", "local", "--configfile", "many.yaml"]


def jobs_of(printed: str) -> int:
    """Return how many jobs a dry run says would run."""
    totals = [line.split()[1] for line in printed.splitlines() if line.startswith("total ")]
    return int(totals[-1]) if totals else 0


def main() -> int:
    """Print the figures; return 1 where Snakemake found something to do and nothing had changed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", type=int, default=20)
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--units-per-job", type=int, default=6)
    parser.add_argument("--file-calls", action="store_true", help="count them too, which takes minutes")
    parser.add_argument("--keep", help="a folder for the project, which stays")
    options = parser.parse_args()

    def start(what: str) -> int:
        taken = cost(snakemake("--dry-run"), project)
        calls = f", {file_calls(snakemake('--dry-run'), project).all:,} file calls" if options.file_calls else ""
        jobs = jobs_of(taken.printed)
        memory = taken.peak_memory_bytes / 1e6
        print(f"{what}: {jobs} jobs, {taken.cpu_seconds:.1f} CPU s, {memory:.0f} MB{calls}", flush=True)
        return jobs

    with tempfile.TemporaryDirectory() as temporary:
        project = Path(options.keep or temporary).absolute() / "polder"
        configuration = write_project(project, options.sources, options.units, options.units_per_job)
        cost(snakemake("--version"), project)
        start(f"{options.units} units, nothing made")
        os.chdir(project)
        print(f"{write_results(Dag(parse_configuration(configuration)))} jobs made", flush=True)
        again = start("all made, which Snakemake forgot")
        cost(snakemake("--touch", "--forceall"), project)  # Snakemake remembers what it has touched
        again += start("all made")
        raw = project / "data/00/0.txt"
        raw.write_text("andere tekst")
        start("one raw file changed")
        os.chdir("/")
        return int(again > 0)


if __name__ == "__main__":
    sys.exit(main())
