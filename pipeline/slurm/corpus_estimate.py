"""Estimate text, jobs, memory, hours and disk of the stages sources and corpus before their first job.

Jobs and their requests are those of the run. Text is estimated by the first bytes of files, time by measured rates.
Both are upper estimates: no document counts as removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from pipeline.config.configuration import Config
from pipeline.core.output_archives import FEWEST_FILES, is_archivable
from pipeline.forecast.corpus_size_and_time import (
    JOIN_SHARES,
    CorpusSize,
    CpuRate,
    estimate_source_size,
    find_cpu_rates,
    maximum_documents,
    recommended_memory_bytes,
)
from pipeline.slurm.executor.job_requests import ResourceRequest, pack_jobs
from pipeline.slurm.resources import STEPS_HOLDING_KEYS, StepResources
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import STEPS
from pipeline.workflow.steps.declaration import Output

TOKEN_BYTES = 3.68  # of text: the least of the vocabularies of 8,192 entries and more in docs/results/tokenizer.md
LEAST_VOCABULARY = 8192
MEGABYTE = 1_000_000
JOB_FILES = 4  # record, attempt, readings, log
BATCH_FILES = 4  # archive with those of its units, lists of records and of results, log


class CorpusPlan:
    """Estimates the corpora of one configuration; its sources are sampled once."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.requests = StepResources(config, Dag(config))
        self.rates, self.rates_by = find_cpu_rates(
            [config.run_directory, *map(Path, config.emission_settings.calibration)]
        )
        self.sources = {
            source.name: estimate_source_size(config.source_units(source.name)) for source in config.sources
        }
        partitions = config.platform.partitions
        self.partition = partitions.get("cpu")
        self.cores = None if self.partition else os.cpu_count() or 1
        self.problems: list[str] = []

    def plan(self) -> dict[str, Any]:
        """Return the plan as JSON; `problems` lists what does not fit, and what to do."""
        corpora = {name: self._estimate_corpus(name) for name in self.config.corpus}
        sources = {"steps": self._estimate_steps("sources", {})}
        disk = [bytes for corpus in corpora.values() for bytes in (corpus["disk_bytes"] or {}).values()]
        results = self.config.run_directory.absolute()
        folder = next(path for path in (results, *results.parents) if path.is_dir())
        free_bytes, files, free_files = shutil.disk_usage(folder).free, self.count_files(), count_free_files(folder)
        if sum(disk) > free_bytes:
            self.problems.append(
                f"the corpora and tokens may take {sum(disk) / 1e9:.3g} GB and {free_bytes / 1e9:.3g} GB are free in "
                f"{folder}: set run.results to a folder with more"
            )
        if free_files is not None and files > free_files:
            self.problems.append(
                f"the results are at least {files:,} files and {free_files:,} can be made in {folder}: keep the raw "
                "text in fewer, larger files and raise unit_bytes, or set run.results to a folder with more"
            )
        return {
            "label": "estimated",
            "sources": sources,
            "corpora": corpora,
            "disk_bytes": sum(disk),
            "free_bytes": free_bytes,
            "files": files,
            "free_files": free_files,
            "cores": self.cores,
            "rates_by": self.rates_by,
            "problems": list(dict.fromkeys(self.problems)),
        }

    def count_files(self, corpus: str | None = None) -> int:
        """Return the least number of files of a corpus or of the whole run; of an output folder with others one."""
        files = 0
        for step in STEPS.values():
            outputs = [output for output in step.outputs if output.only_if(self.config)]
            for values in step.instances.jobs(self.config):
                job = dict(zip(step.instances.wildcards, values, strict=True))
                if corpus not in (None, job.get("corpus")):
                    continue
                is_batch = "batch" in job
                files += BATCH_FILES if is_batch else JOB_FILES
                units = self.requests.count_units(job) if is_batch else 1
                for is_small, group in groupby(sorted(outputs, key=_is_small), _is_small):
                    number = len([*group]) * units
                    if is_small and not is_batch:
                        number *= self._count_units(job)
                    files += 1 if is_small and number >= FEWEST_FILES else number
        return files

    def _count_units(self, job: Mapping[str, str]) -> int:
        names = [job["source"]] if "source" in job else self.config.corpus_sources(job["corpus"])
        return sum(len(self.config.unit_files(name)) for name in names)

    def _estimate_corpus(self, name: str) -> dict[str, Any]:
        names = self.config.corpus_sources(name)
        unknown = [source for source in names if self.sources[source] is None]
        whole = sum((one for source in names if (one := self.sources[source])), CorpusSize())
        section = self.config.corpus[name].deduplication
        allowed = maximum_documents(section.memory_bytes)
        if whole.documents > allowed:
            self.problems.append(
                f"corpus {name}: deduplication.memory_bytes allows {allowed:,} documents and about "
                f"{whole.documents:,.0f} are expected: set corpus.{name}.deduplication.memory_bytes to "
                f"{recommended_memory_bytes(round(whole.documents))}"
            )
        return {
            "files": sum(len(self.config.raw_files(source)) for source in names),
            "raw_bytes": sum(sum(self.config.source_units(source).sizes.values()) for source in names),
            "unknown_sources": unknown,
            "documents": round(whole.documents),
            "sampled_documents": whole.sampled,
            "documents_allowed": allowed,
            "text_bytes": round(whole.text_bytes),
            "result_files": self.count_files(name),
            "disk_bytes": {key: round(value) for key, value in self._estimate_disk_bytes(name, whole).items()},
            "steps": self._estimate_steps("corpus", {"corpus": name}),
        }

    def _estimate_disk_bytes(self, name: str, whole: CorpusSize) -> dict[str, float]:
        disk_bytes = whole.disk_bytes(self.config.corpus[name].deduplication)
        for tokens, section in self.config.tokens.items():
            entries = self.config.tokenizer[section.tokenizer].vocabulary_size
            if section.corpus == name and entries >= LEAST_VOCABULARY:
                size = 2 if entries <= 2**16 else 4
                disk_bytes[f"tokens {tokens}"] = (
                    whole.text_bytes / TOKEN_BYTES * size + whole.id_bytes + 16 * whole.documents
                )
        return disk_bytes

    def _estimate_steps(self, of_stage: str, fixed: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Return the jobs and requests of each step of a stage that has jobs."""
        estimates = {}
        for name, step in STEPS.items():
            if step.stage != of_stage:
                continue
            instances = [
                dict(zip(step.instances.wildcards, job, strict=True)) for job in step.instances.jobs(self.config)
            ]
            jobs = [job for job in instances if fixed.items() <= job.items()]
            if jobs:
                estimates[name] = self._estimate_step(name, jobs)
        return estimates

    def _estimate_step(self, name: str, jobs: list[dict[str, str]]) -> dict[str, Any]:
        requests = [
            {key: value(job, attempt=1) if callable(value) else value for key, value in self.requests(name).items()}
            for job in jobs
        ]
        summary: dict[str, Any] = {
            "jobs": len(jobs),
            "submissions": self._count_submissions(name, requests),
            "cores": max(one["cpus_per_task"] for one in requests),
            "memory_bytes": max(one["mem_mb"] for one in requests) * MEGABYTE,
            "time_limit_seconds": max(one["runtime"] for one in requests) * 60,
        }
        shares = self.config.corpus[jobs[0]["corpus"]].deduplication.jobs if "corpus" in jobs[0] else 1
        rate = self.rates.get(JOIN_SHARES if name == "corpus.find_duplicates" and shares > 1 else name)
        taken = []
        for job, one in zip(jobs, requests, strict=True):
            if rate is None or not self._is_known(job):
                self._check_limits(name, job, None)
                continue
            taken.append(self._estimate_seconds(name, rate, job, one["cpus_per_task"]))
            self._check_limits(name, job, taken[-1][1][1])
        if len(taken) == len(jobs):
            for end, label in enumerate(("low", "high")):
                cpu, longest = sum(one[end][0] for one in taken), max(one[end][1] for one in taken)
                summary[f"{label}_core_seconds"] = cpu
                summary[f"{label}_seconds"] = max(longest, cpu / self.cores if self.cores else 0)
        return summary

    def _count_submissions(self, name: str, requests: list[dict[str, Any]]) -> int | None:
        """Return the number of Slurm jobs if all are ready together; None if it is unknown."""
        if self.partition is None:
            return None
        return 0 if STEPS[name].is_local else len(pack_jobs([_resource_request(one) for one in requests]))

    def _is_known(self, job: Mapping[str, str]) -> bool:
        names = [job["source"]] if "source" in job else self.config.corpus_sources(job["corpus"])
        return all(self.sources[name] is not None for name in names)

    def _estimate_seconds(
        self, name: str, rate: CpuRate, job: Mapping[str, str], cores: int
    ) -> list[tuple[float, float]]:
        """Return low and high estimates of a job: its CPU seconds, and the seconds on its cores."""
        need = STEPS[name].need
        parts = [float(part) for part in self.requests.input_part_bytes(need.reads, job)] if need else []
        names = [job["source"]] if "source" in job else self.config.corpus_sources(job["corpus"])
        whole = sum((one for name in names if (one := self.sources[name])), CorpusSize())
        parts = [
            part / whole.raw_bytes * (whole.documents if rate.of_documents else whole.text_bytes) for part in parts
        ]
        if name == "corpus.equal_keys":
            parts = [part / self.config.corpus[job["corpus"]].deduplication.jobs for part in parts]
        starts = rate.start_seconds
        ends = []
        for cpu, largest in zip(rate.cpu_seconds(sum(parts)), rate.cpu_seconds(max(parts, default=0)), strict=True):
            ends.append((cpu, starts + max((cpu - starts) / cores, largest - starts)))
        return ends

    def _check_limits(self, name: str, job: Mapping[str, str], high_seconds: float | None) -> None:
        """Add a problem if a job needs more than its partition has."""
        need, partition = STEPS[name].need, self.partition
        if need is None or partition is None:
            return
        held, most = self.requests.memory_megabytes_of(name, need, job), partition.memory_megabytes
        what = " ".join([name, *job.values()])
        section = f"corpus.{job.get('corpus')}.deduplication"
        if held > most:
            way = f"lower {section}.memory_bytes" if name in STEPS_HOLDING_KEYS else "lower unit_bytes"
            self.problems.append(f"{what} needs {held:,} MB and a node of {partition.name} has {most:,}: {way}")
        if partition.minutes and high_seconds is not None and high_seconds > partition.minutes * 60:
            way = f"raise {section}.jobs" if name in STEPS_HOLDING_KEYS else "give the source a lower units_per_job"
            self.problems.append(
                f"{what} may take {high_seconds / 3600:.3g} h and {partition.name} allows {partition.minutes / 60:.3g} "
                f"h: {way}"
            )


def _is_small(output: Output) -> bool:
    return is_archivable(output.place)


def count_free_files(folder: Path) -> int | None:
    """Return how many files a file system may get; None where it makes inodes as needed."""
    file_system = os.statvfs(folder)
    return file_system.f_favail if file_system.f_files else None


def _resource_request(resources: Mapping[str, Any]) -> ResourceRequest:
    return ResourceRequest(
        resources["slurm_partition"],
        resources["cpus_per_task"],
        resources["mem_mb"],
        resources["runtime"],
        resources.get("allocation_cpus"),
        resources.get("allocation_mem_mb"),
    )
