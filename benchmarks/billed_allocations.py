"""Core-hours billed for data jobs, against the core-hours they use, on the three platforms.

    PYTHONPATH=. .venv/bin/python benchmarks/billed_allocations.py [--spread 0.25]

Nothing is submitted. Requests and packing are the run's own (`pipeline.slurm.resources`,
`pipeline.slurm.executor.job_requests`). The time of a unit is modeled: CPU seconds of one core, measured with the
preset `standard` on one unit of 63.7 MB stored (194 MB of text) without process start-up, times the unit's bytes,
which vary around their mean. A core is assumed to compute all the time. A batch gives a free core its largest
remaining unit. Batches that become ready together are packed; batches that become ready one at a time, as the previous
batch ends (signatures, decontaminate), are billed alone. Fertility runs next to the shards; a shard uses one thread.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.configuration import Config, parse_configuration
from pipeline.slurm.executor.job_requests import ResourceRequest, count_smallest_allocations, pack_jobs
from pipeline.slurm.resources import StepResources
from pipeline.workflow.job_parameters import Dag

MEASURED_BYTES = 63.7e6
BATCHES = {
    "sources.fingerprint": 0.06,
    "corpus.filter": 45.0,
    "corpus.signatures": 17.6,
    "corpus.deduplicate": 1.3,
    "corpus.matches": 5.0,
    "corpus.decontaminate": 1.0,
}
ONE_BY_ONE = ("corpus.signatures", "corpus.matches", "corpus.decontaminate")
SINGLES = {"sources.manifest": 0.001, "corpus.find_duplicates": 0.1, "corpus.statistics": 0.02, "corpus.publish": 0.42}
SHARDS_SECONDS = 73.0  # of all shards
# Training a tokenizer: reading, merging (once), and counting words, which alone runs on all cores; on one core each.
TRAIN_READ_SECONDS, TRAIN_MERGE_SECONDS, TRAIN_COUNT_SECONDS, FERTILITY_SECONDS = 0.7, 5.5, 41.7, 5.9
TOKENIZER_BYTES = 10e9  # a tokenizer is trained on no more: on a corpus of its own
START_SECONDS, START_CPU_SECONDS = 5.0, 2.5  # of a job: on all its cores, and what one of them computes meanwhile
CORPORA = {"1 TB": (10_000, 100e6, 4000), "10 GB": (200, 50e6, 20)}  # units, bytes of one, shards of tokens
MACHINES = ("snellius", "juwels-booster", "lumi")


def configuration(machine: str, units: int, shards: int) -> Config:
    """Return the micro run with one source of so many units, on a machine."""
    raw: dict[str, Any] = yaml.safe_load(Path("config/micro.yaml").read_text())
    raw["sources"] = [
        {**raw["sources"][0], "name": "web", "path": None, "units": units, "units_per_job": None}
        | {"dataset": {"name": "nobody/nothing", "revision": "0" * 40}}
    ]
    raw["corpus"] = {"main": {"deduplication": {"memory_bytes": 32_000_000_000 if units > 1000 else 4_000_000_000}}}
    raw["tokens"] = {"main": {"shards": shards}}
    return parse_configuration({**raw, "platform": machine})


def makespan(seconds: Sequence[float], cores: int) -> float:
    """Return when the last of some units ends, of which each free core takes the largest that is left."""
    free = [0.0] * cores
    for duration in sorted(seconds, reverse=True):
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


class Bill:
    """What the jobs of one run are billed for, in core seconds, by step."""

    def __init__(self, machine: str, units: int, mean_bytes: float, shards: int, spread: float) -> None:
        self.config = configuration(machine, units, shards)
        self.requests = StepResources(self.config, Dag(self.config))
        self.shards = shards
        chance = random.Random(42)
        self.sizes = {str(n): max(mean_bytes * chance.gauss(1, spread), mean_bytes / 10) for n in range(units)}
        self.requests._read_batch_bytes = lambda source, batch: [  # type: ignore[method-assign]
            int(self.sizes[unit]) for unit in self.config.job_batches(source)[batch]
        ]
        self.requests._read_source_bytes = lambda source: int(sum(self.sizes.values()))  # type: ignore[method-assign]
        self.used: dict[str, float] = {}
        self.billed: dict[str, float] = {}

    def request(self, stage: str, wildcards: dict[str, str]) -> ResourceRequest:
        """Return what the executor would make of a job's resources."""
        asked = {
            key: value(wildcards, attempt=1) if callable(value) else value
            for key, value in self.requests(stage).items()
        }
        return ResourceRequest(
            asked["slurm_partition"],
            asked["cpus_per_task"],
            asked["mem_mb"],
            asked["runtime"],
            asked["allocation_cpus"],
            asked["allocation_mem_mb"],
        )

    def add(self, stage: str, jobs: Sequence[tuple[ResourceRequest, float, float]], together: bool = True) -> None:
        """Count jobs, each with its CPU seconds and its duration."""
        groups = pack_jobs([job[0] for job in jobs]) if together else [[number] for number in range(len(jobs))]
        for group in groups:
            members = [jobs[number] for number in group]
            size, memory = members[0][0].allocation_cpus or 1, members[0][0].allocation_memory_megabytes
            cpus, megabytes = (sum(getattr(job[0], key) for job in members) for key in ("cpus", "memory_megabytes"))
            cores = count_smallest_allocations(cpus, megabytes, size, memory) * size
            self.billed[stage] = self.billed.get(stage, 0) + cores * (max(job[2] for job in members) + START_SECONDS)
            self.used[stage] = self.used.get(stage, 0) + sum(job[1] + START_CPU_SECONDS for job in members)

    def count(self) -> None:
        """Count all jobs of the data stages."""
        wildcards = {"source": "web", "corpus": "main", "tokenizer": "main", "tokens": "main", "shard": "0"}
        of_measured = sum(self.sizes.values()) / MEASURED_BYTES
        for stage, rate in BATCHES.items():
            jobs = []
            for batch, units in self.config.job_batches("web").items():
                request = self.request(stage, {**wildcards, "batch": batch})
                seconds = [self.sizes[unit] / MEASURED_BYTES * rate for unit in units]
                jobs.append((request, sum(seconds), makespan(seconds, request.cpus)))
            self.add(stage, jobs, together=stage not in ONE_BY_ONE)
        for stage, rate in SINGLES.items():
            seconds = rate * of_measured
            self.add(stage, [(self.request(stage, wildcards), seconds, seconds)])
        of_tokenizer = min(of_measured, TOKENIZER_BYTES / MEASURED_BYTES)
        total = int(sum(self.sizes.values()))
        self.requests._read_source_bytes = lambda source: int(min(total, TOKENIZER_BYTES))  # type: ignore[method-assign]
        request = self.request("tokenizer.train", wildcards)
        serial = TRAIN_READ_SECONDS * of_tokenizer + TRAIN_MERGE_SECONDS
        counting = TRAIN_COUNT_SECONDS * of_tokenizer
        self.add("tokenizer.train", [(request, serial + counting, serial + counting / request.cpus)])
        fertility = FERTILITY_SECONDS * of_tokenizer
        fertility_job = (self.request("tokenizer.fertility", wildcards), fertility, fertility)
        self.requests._read_source_bytes = lambda source: total  # type: ignore[method-assign]
        shard = SHARDS_SECONDS * of_measured / self.shards
        self.add(
            "tokens.shard", [fertility_job, *[(self.request("tokens.shard", wildcards), shard, shard)] * self.shards]
        )


def main() -> None:
    """Print a table for each corpus and machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spread", type=float, default=0.25, help="standard deviation of a unit's bytes / their mean")
    options = parser.parse_args()
    for corpus, (units, mean_bytes, shards) in CORPORA.items():
        for machine in MACHINES:
            bill = Bill(machine, units, mean_bytes, shards, options.spread)
            bill.count()
            print(f"{corpus} in {units:,} units on {machine}: core hours used, billed, billed / used")
            for stage, billed in bill.billed.items():
                used = bill.used[stage]
                print(f"  {stage:24} {used / 3600:9.2f} {billed / 3600:9.2f} {billed / used:7.2f}")
            used, billed = sum(bill.used.values()), sum(bill.billed.values())
            print(f"  {'all':24} {used / 3600:9.2f} {billed / 3600:9.2f} {billed / used:7.2f}\n")


if __name__ == "__main__":
    main()
