"""How long Snakemake needs to see that nothing has changed in a corpus of many units, and how much memory.

    PYTHONPATH=. python benchmarks/scale.py --units 10000

The outputs of the units are empty files; names, numbers, parameters and records are those of a run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml

from benchmarks.run import copy_project
from pipeline.config import load
from pipeline.dag import Dag
from pipeline.sources.listing import assign_unit

STAGES = {
    "filter": ("filtered/{}.parquet", "removed/filter.{}.parquet"),
    "signatures": ("signatures/{}.parquet", "duplicates/{}.parquet"),
    "drop_duplicates": ("deduplicated/{}.parquet", "removed/deduplicate.{}.parquet"),
    "decontaminate": ("final/{}.parquet", "removed/decontaminate.{}.parquet", "contaminated/{}.parquet"),
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


def write_results(project: Path, configuration: dict[str, object]) -> None:
    """Write empty outputs and the record of every job up to the corpus, and the manifest."""
    dag = Dag(load(configuration))
    run = project / dag.run
    units = dag.units(dag.config.corpus_sources("main"))
    names = [f"sources/{source}/fingerprints/{unit}.json" for source, unit in units]
    for outputs in STAGES.values():
        names += [f"corpus/main/{pattern.format(f'{s}.{u}')}" for pattern in outputs for s, u in units]
    names += [f"corpus/main/{name}" for name in ("ngrams.parquet", "statistics.json")]
    names += [f"corpus/main/{name}" for name in ("README.md", "croissant.json", "dataset.json", "dataset.html")]
    records = [name for name in dag.records() if Path(name).name.split(".")[0] in ("sources", "corpus")]
    for name in names:
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    manifest = {"units": {unit: {"sha256": "0" * 64} for _, unit in units}}
    (run / "sources" / "many" / "manifest.json").write_text(json.dumps(manifest))
    (run / "provenance" / "records").mkdir(parents=True)
    for name in records:
        chapter, step, *instance = Path(name).name.removesuffix(".json").split(".")
        keys = ("corpus", "source", "unit") if chapter == "corpus" else ("source", "unit")
        wildcards = dict(zip(keys, instance, strict=False))
        settings, code, environment = dag.versions(f"{chapter}.{step}", wildcards)
        record = {"stage": f"{chapter}.{step}", "instance": wildcards, "settings": json.loads(settings)}
        (project / name).write_text(json.dumps({**record, "code_version": code, "environment_version": environment}))
    for path in run.rglob("*"):
        os.utime(path, (run.stat().st_atime, run.stat().st_mtime))


def snakemake(project: Path, *options: str) -> tuple[float, int, str]:
    """Run Snakemake in the project; return seconds, peak memory in bytes and what it printed."""
    command = [sys.executable, "-m", "snakemake", "corpus", *options, "--profile", "local", "--configfile", "many.yaml"]
    start, peak = time.monotonic(), 0
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen(command, cwd=project, stdout=printed, stderr=subprocess.STDOUT) as run,
    ):
        process = psutil.Process(run.pid)
        while run.poll() is None:
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.1)
        printed.seek(0)
        return time.monotonic() - start, peak, printed.read()


def main() -> int:
    """Print the figures; return 1 where Snakemake found something to do."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--units", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "polder"
        copy_project(project)
        write_source(project / "data", options.units)
        rights = {"basis": "public-domain", "holder": "nobody"}
        source = {"name": "many", "language": "nl", "license": "CC0-1.0", "rights": rights, "units": options.units}
        configuration = {"run": {"name": "many"}, "sources": [{**source, "path": str(project / "data" / "*.txt")}]}
        (project / "many.yaml").write_text(yaml.safe_dump(configuration))
        write_results(project, configuration)
        seconds, peak, printed = snakemake(project, "--dry-run")
        print(f"{options.units} units, nothing changed: {seconds:.1f} s, peak memory {peak / 1e9:.2f} GB")
        return int("Nothing to be done" not in printed)


if __name__ == "__main__":
    sys.exit(main())
