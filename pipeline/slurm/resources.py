"""What each rule asks Slurm for: partition, time, memory, cores, GPUs, nodes and tasks.

A request grows with the bytes that a job reads and with what the attempts before it lacked, and never goes beyond what
the partition of the platform's file has. On one machine, without Slurm, Snakemake ignores all of it but `launch`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pipeline.config import Config
from pipeline.dag import Dag
from pipeline.model.size import flops_per_token, parameter_count
from pipeline.platforms import Partition
from pipeline.pretrain.launch import cpus_per_task, launcher
from pipeline.slurm.retry import Growth, factor

Scope = Literal["nothing", "batch", "file", "source", "corpus", "reserving", "tokenizer", "tokens", "everything"]


@dataclass(frozen=True)
class Need:
    """What the jobs of a stage need, by the raw bytes of what they read; compressed text counts as it is stored.

    A byte on disk is up to six of text, so the rates are far below what a core does, and Slurm charges for what was
    used, not for what was asked.
    """

    scope: Scope = "nothing"
    minutes: int = 30
    bytes_per_minute: int = 100_000_000
    memory_megabytes: int = 2000
    memory_bytes_per_byte: float = 0.0
    cpus: int = 1


NEEDS: dict[str, Need] = {
    "sources.split": Need("file"),
    "sources.dataset": Need("source"),
    "sources.listing": Need(),
    "sources.fingerprint": Need("batch", bytes_per_minute=1_000_000_000),
    "sources.entries": Need("batch"),
    "sources.manifest": Need("source", bytes_per_minute=1_000_000_000),
    "corpus.filter": Need("batch", minutes=60, bytes_per_minute=20_000_000, memory_megabytes=4000),
    "corpus.signatures": Need("batch", minutes=60, bytes_per_minute=20_000_000, memory_megabytes=4000),
    "corpus.reserved": Need("batch", minutes=60, bytes_per_minute=20_000_000, memory_megabytes=4000),
    "corpus.deduplicate": Need("corpus", minutes=60, memory_megabytes=4000, memory_bytes_per_byte=0.2),
    "corpus.drop_duplicates": Need("batch", memory_megabytes=4000),
    "corpus.ngrams": Need(),
    "corpus.decontaminate": Need("batch", minutes=60, bytes_per_minute=20_000_000, memory_megabytes=4000),
    "corpus.statistics": Need("corpus", memory_megabytes=4000),
    "corpus.publish": Need("corpus", memory_megabytes=4000),
    "corpus.forgotten": Need("corpus", minutes=60, memory_megabytes=4000, memory_bytes_per_byte=0.2),
    "tokenizer.train": Need("tokenizer", minutes=60, memory_megabytes=4000, memory_bytes_per_byte=4.0, cpus=8),
    "tokenizer.fertility": Need("tokenizer", memory_megabytes=4000),
    "tokens.shard": Need("tokens", minutes=60, memory_megabytes=4000),
    "tokens.index": Need("tokens", bytes_per_minute=1_000_000_000),
    "plan.estimate": Need(),
    "pretrain.export": Need(memory_megabytes=4000),
    "report.remains": Need("everything", memory_megabytes=4000),
    "report.page": Need(minutes=60, memory_megabytes=4000),
    "provenance.crate": Need(minutes=60, memory_megabytes=4000),
}
UNKNOWN_FLOPS_PER_SECOND = 5e9  # of a device of which the platform's file says nothing: a core
UTILIZATION = 0.1  # of the peak, low: training goes on in a next allocation, but a short limit starts sooner
PROCESS_MEGABYTES = 1500  # of Python with torch, before it holds anything
STATE_BYTES = 48  # per parameter, of a process on a CPU: weights, gradients, Adam's state, twice while it is saved


class Requests:
    """What the rules of one run ask for."""

    def __init__(self, config: Config, dag: Dag) -> None:
        self.config = config
        self.dag = dag
        self._source_bytes = cache(self._bytes_of_source)

    def __call__(self, stage: str) -> dict[str, Any]:
        """Return the resources of a stage's rule, each a value or a function of a job's wildcards and attempt."""
        if stage == "pretrain.segment":
            return self._segment()
        if stage == "evaluate.suites":
            return self._evaluation()
        need = NEEDS[stage]
        partition = self._partition("cpu")

        def runtime(wildcards: Mapping[str, str], attempt: int) -> int:
            minutes = need.minutes + self.bytes_read(need.scope, wildcards) // need.bytes_per_minute
            growth = self._growth(stage, wildcards, attempt).time
            return self._limited(minutes, growth, partition.minutes if partition else None)

        def mem_mb(wildcards: Mapping[str, str], attempt: int) -> int:
            held = need.memory_bytes_per_byte * self.bytes_read(need.scope, wildcards) / 1e6
            growth = self._growth(stage, wildcards, attempt).memory
            return self._limited(
                need.memory_megabytes + int(held), growth, partition.memory_megabytes if partition else None
            )

        cpus = min(need.cpus, partition.cpus) if partition else 1
        return {"runtime": runtime, "mem_mb": mem_mb, "cpus_per_task": cpus, **self._place(partition)}

    def _segment(self) -> dict[str, Any]:
        """Return the resources of training: one task per device of each node where `srun` starts them, else one."""
        platform, nodes = self.config.platform, self.config.slurm.nodes
        partition = self._partition("gpu")
        by_srun = launcher(platform.launch) == "srun"
        devices = platform.devices
        tasks = nodes * devices if by_srun else 1
        gpus = {"gres": f"gpu:{devices}", "tasks_per_gpu": 0} if partition and partition.gpus else {}
        seconds = self.config.slurm.warning_seconds
        # With `mpi` the signal of `--signal` reaches the ranks alone. Else it reaches Snakemake's job as well, which
        # ignores no other signal than URG.
        signal = "USR1" if tasks > 1 else "URG"
        extra = f"--signal={signal}@{seconds} --open-mode=append"
        shape: dict[str, Any] = {"nodes": nodes} if by_srun else {}
        if tasks > 1:
            shape |= {"mpi": "srun", "tasks": tasks}
            extra += f" --ntasks-per-node={devices}"

        def launch(wildcards: Mapping[str, str]) -> str:
            if not by_srun:
                return platform.launch or ""
            if tasks == 1:
                return ""
            logs = f"{self.dag.run}/logs/pretrain.segment.{wildcards['model']}.{wildcards['step']}.rank-%t.log"
            words = f"srun --nodes={nodes} --ntasks={tasks} --output={shlex.quote(logs)} --open-mode=append"
            return (platform.launch or "").replace("srun", words, 1)

        def runtime(wildcards: Mapping[str, str], attempt: int) -> int:
            minutes = self._training_minutes(wildcards, tasks) + seconds // 60  # after the warning it only stops
            return self._limited(minutes, 1, partition.minutes if partition else None)

        def mem_mb(wildcards: Mapping[str, str], attempt: int) -> int:
            if partition and partition.gpus:
                return partition.memory_megabytes
            held = self._parameters(wildcards["model"]) * STATE_BYTES / 1e6 + PROCESS_MEGABYTES
            growth = self._growth("pretrain.segment", wildcards, attempt).memory
            return self._limited(int(held * devices), growth, partition.memory_megabytes if partition else None)

        return {
            "launch": launch,
            "platform": platform.name,
            "staging": platform.node_disk or "",
            "runtime": runtime,
            "mem_mb": mem_mb,
            "cpus_per_task": cpus_per_task(platform.launch) or (1 if by_srun else devices),
            **shape,
            **gpus,
            **self._place(partition, extra),
        }

    def _evaluation(self) -> dict[str, Any]:
        """Return the resources of an evaluation: one device with its share of a node."""
        partition = self._partition("gpu")
        gpus = partition.gpus if partition else 0
        shared = {"gres": "gpu:1", "cpus_per_task": max(partition.cpus // gpus, 1)} if partition and gpus else {}

        def runtime(wildcards: Mapping[str, str], attempt: int) -> int:
            growth = self._growth("evaluate.suites", wildcards, attempt).time
            return self._limited(120, growth, partition.minutes if partition else None)

        def mem_mb(wildcards: Mapping[str, str], attempt: int) -> int:
            if partition and gpus:
                return partition.memory_megabytes // gpus
            held = self._parameters(wildcards["model"]) * 8 / 1e6 + 2 * PROCESS_MEGABYTES
            growth = self._growth("evaluate.suites", wildcards, attempt).memory
            return self._limited(int(held), growth, partition.memory_megabytes if partition else None)

        return {"runtime": runtime, "mem_mb": mem_mb, **shared, **self._place(partition)}

    def _partition(self, kind: Literal["cpu", "gpu"]) -> Partition | None:
        """Return the partition of a kind, or the one for all else; none where the platform's file has no partitions."""
        partitions = self.config.platform.partitions
        return partitions.get(kind) or partitions.get("cpu")

    def _place(self, partition: Partition | None, *extra: str) -> dict[str, Any]:
        """Return the partition where it is known, else the plugin takes the cluster's default, and sbatch's options.

        A job whose node fails or that is preempted waits in the queue again; it has not failed. EAR measures all jobs.
        """
        options = ["--requeue", *extra, *([self.config.platform.ear] if self.config.platform.ear else [])]
        return {"slurm_extra": " ".join(options)} | ({"slurm_partition": partition.name} if partition else {})

    @staticmethod
    def _growth(stage: str, wildcards: Mapping[str, str], attempt: int) -> Growth:
        """Return by how much this attempt grows, by the causes of those before it."""
        return factor(stage.replace(".", "_"), [value for _, value in wildcards.items()], attempt)

    @staticmethod
    def _limited(amount: int, growth: float, most: int | None) -> int:
        """Return as much as this attempt needs, but not more than there is."""
        grown = int(amount * growth)
        return min(grown, most) if most else grown

    def bytes_read(self, scope: Scope, wildcards: Mapping[str, str]) -> int:
        """Return the bytes of the raw files behind what a job reads; those of a data set that is not here count 0."""
        config = self.config
        if scope == "nothing":
            return 0
        if scope == "file":
            return int(self.dag.large_file_bytes(wildcards))
        if scope == "batch":
            return config.source_units(wildcards["source"]).batch_bytes[wildcards["batch"]]
        sources = [source.name for source in config.sources]
        if scope == "source":
            sources = [wildcards["source"]]
        elif scope != "everything":
            corpus = wildcards["corpus"] if scope == "corpus" else getattr(config, scope)[wildcards[scope]].corpus
            sources = config.corpus_sources(corpus)
        return sum(map(self._source_bytes, sources))

    def _bytes_of_source(self, source: str) -> int:
        return sum(self.config.source_units(source).sizes.values())

    def _vocabulary_size(self, model: str) -> int:
        tokens = self.config.tokens[self.config.models[model].tokens]
        return self.config.tokenizer[tokens.tokenizer].vocabulary_size

    def _parameters(self, model: str) -> int:
        return parameter_count(self.config.models[model].architecture, self._vocabulary_size(model))

    def _training_minutes(self, wildcards: Mapping[str, str], processes: int) -> int:
        """Return a time limit for a segment; where it is too short, Slurm gives the job another allocation."""
        model, last = self.config.models[wildcards["model"]], int(wildcards["step"])
        training, platform = model.training, self.config.platform
        first = max((step for step in training.milestones() if step < last), default=0)
        tokens = (last - first) * training.batch_size * training.sequence_length
        flops = tokens * flops_per_token(
            model.architecture, self._vocabulary_size(wildcards["model"]), training.sequence_length
        )
        speed = (platform.peak_flops_per_second or UNKNOWN_FLOPS_PER_SECOND) * UTILIZATION * processes
        return 60 + int(flops / speed / 60)
