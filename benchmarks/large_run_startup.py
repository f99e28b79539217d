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
from pipeline.core.archived_run_files import FileStore
from pipeline.layout import MANIFEST, RECORD, SOURCES_COMPLETE, UNIT_RECORDS
from pipeline.sources.source_units import assign_unit
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import STEPS
from pipeline.workflow.steps.declaration import Step

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
            (folder / name).write_text("tekst " * 100)
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
    configuration |= {"tokenizer": {"main": {"vocabulary_size": 300}}}
    configuration |= {"tokens": {"main": {"shards": 1}}, "evaluation": {"checkpoints": "final"}}
    (project / "many.yaml").write_text(yaml.safe_dump(configuration))
    return configuration


def write_results(dag: Dag) -> int:
    """Write empty outputs, records and batches of all jobs below the working directory; return how many jobs."""
    run, config = Path(dag.run), dag.config
    written = [*dag.non_batch_record_paths(), *dag.all_batch_record_paths()]
    written += [dag.record_path_template(name) for name in ("report.page", "provenance.crate")]

    def write_outputs(step: Step, values: dict[str, str]) -> list[str]:
        outputs = [output for output in step.outputs if output.only_if(config)]
        for output in outputs:
            place = output.place.path(run, **values)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(exist_ok=True) if output.is_folder else place.write_text("")
        return [output.place.relative_path(**values) for output in outputs]

    SOURCES_COMPLETE.path(run).parent.mkdir(parents=True)
    SOURCES_COMPLETE.path(run).write_text("")
    for name in written:
        stage, step, *instance = Path(name).stem.split(".")
        declared = STEPS[f"{stage}.{step}"]
        values = dict(zip(declared.instances.wildcards, instance, strict=True))
        settings, code, environment = dag.job_settings_and_versions(declared.name, values)
        content = {"step": declared.name, "instance": values, "settings": json.loads(settings), "inputs": []}
        content |= {"outputs": [], "code_version": code, "environment_version": environment}
        if batch := values.pop("batch", None):
            planned = dag.hash_raw_names_and_sizes if declared.reads_raw and stage == "sources" else dag.batch_hash
            of = planned({**values, "batch": batch}) if declared.content_hash else None
            records, prefix = [], ".".join((declared.name, *values.values()))
            for unit in config.job_batches(values["source"])[batch]:
                made = write_outputs(declared, {**values, "unit": unit})
                content["outputs"] += [{"path": place, "bytes": 0} for place in made]
                records.append(RECORD.path(run, job=f"{prefix}.{unit}"))
                records[-1].parent.mkdir(parents=True, exist_ok=True)
                records[-1].write_text("")
            names = [record.relative_to(run).as_posix() for record in records]
            content |= {"instance": {**values, "batch": batch}, "of": of}
            listed = {"records": [{"path": name, "sha256": ""} for name in names], "step": "", "instance": {}}
            UNIT_RECORDS.path(run, job=f"{prefix}.{batch}").parent.mkdir(parents=True, exist_ok=True)
            UNIT_RECORDS.path(run, job=f"{prefix}.{batch}").write_text(json.dumps(listed))
            FileStore(run, prefix).archive(f"{prefix}.{batch}", records)
        else:
            write_outputs(declared, values)
        if declared.name == "sources.manifest":
            units = {unit: {"sha256": "0" * 64} for unit in config.unit_files(values["source"])}
            MANIFEST.path(run, **values).write_text(json.dumps({"units": units}))
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
        # A call that another process interrupts takes two lines; the second has no arguments.
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
