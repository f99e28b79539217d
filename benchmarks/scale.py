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
from pipeline.sources.files import assign_unit

STAGES = {
    "fingerprint": ("sources/many/fingerprints/{}.json",),
    "filter": ("corpus/main/filtered/many.{}.parquet", "corpus/main/removed/filter.many.{}.parquet"),
    "signatures": ("corpus/main/signatures/many.{}.parquet",),
    "drop_duplicates": (
        "corpus/main/deduplicated/many.{}.parquet",
        "corpus/main/removed/deduplicate.many.{}.parquet",
    ),
    "decontaminate": (
        "corpus/main/final/many.{}.parquet",
        "corpus/main/removed/decontaminate.many.{}.parquet",
        "corpus/main/contaminated/many.{}.parquet",
    ),
}
DATA_SET = ("README.md", "croissant.json", "dataset.json", "dataset.html")


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


def write_results(project: Path, configuration: dict[str, object]) -> int:
    """Write empty outputs, records and batches of every job up to the corpus; return how many jobs there are."""
    dag = Dag(load(configuration))
    run = project / dag.run
    units = dag.units(dag.config.corpus_sources("main"))
    for name in ("deduplicated/", "duplicates", "ngrams.parquet", "statistics.json", *DATA_SET):
        path = run / "corpus/main" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name in ("deduplicated/", "duplicates") else path.write_text("")
    source = run / "sources/many"
    for folder in ("listing", "units"):
        (source / folder).mkdir(parents=True)
    manifest = {"units": {unit: {"sha256": "0" * 64} for _, unit in units}}
    (source / "manifest.json").write_text(json.dumps(manifest))
    written = 0
    for name in [*dag.records(), *dag.all_batches()]:
        chapter, step, *instance = Path(name).name.removesuffix(".json").split(".")
        if chapter not in ("sources", "corpus"):
            continue
        stage = f"{chapter}.{step}"
        keys = ("corpus", "source", "batch") if chapter == "corpus" else ("source", "batch")
        wildcards = dict(zip(keys, instance, strict=False))
        settings, code, environment = dag.versions(stage, wildcards)
        content = {"stage": stage, "instance": wildcards, "settings": json.loads(settings), "outputs": []}
        content |= {"code_version": code, "environment_version": environment}
        if "batch" in wildcards:
            content["of"] = dag.raw_hash("many", wildcards["batch"])
            if stage == "corpus.filter":
                content["of"] = dag.batch_hash("many", wildcards["batch"])
            for unit in dag.config.batches("many")[wildcards["batch"]]:
                for pattern in (
                    *STAGES[step],
                    f"provenance/records/{stage}.{'main.' * (chapter == 'corpus')}many.{{}}.json",
                ):
                    place = pattern.format(unit)
                    (run / place).parent.mkdir(parents=True, exist_ok=True)
                    (run / place).write_text("")
                    content["outputs"].append({"path": place, "bytes": 0})
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(json.dumps(content))
        written += 1
    for path in run.rglob("*"):
        os.utime(path, (run.stat().st_atime, run.stat().st_mtime))
    return written


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
        seconds, peak, printed = snakemake(project, "--dry-run")
        print(f"{options.units} units, nothing made: {seconds:.1f} s, peak memory {peak / 1e9:.2f} GB")
        jobs = write_results(project, configuration)
        seconds, peak, printed = snakemake(project, "--dry-run")
        print(f"{options.units} units, nothing changed: {seconds:.1f} s, peak memory {peak / 1e9:.2f} GB, {jobs} jobs")
        return int("Nothing to be done" not in printed)


if __name__ == "__main__":
    sys.exit(main())
