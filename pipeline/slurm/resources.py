"""Resource requests of each rule: partition, time, memory, cores, GPUs, nodes and tasks.

A request grows with the bytes that a job reads and with the memory or time that earlier attempts lacked, up to the
limits of the partition in the platform's file. Without Slurm, Snakemake ignores everything except `launch`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.config.platforms import Allocation, JobOptions, Partition, PartitionKind
from pipeline.forecast.workload import segment_flops
from pipeline.model.size_and_cost import parameter_count
from pipeline.pretrain.processes.launch_command import launcher_name, parse_cpus_per_task
from pipeline.slurm.executor.job_requests import RequestGrowth, compute_request_growth
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import STEPS
from pipeline.workflow.steps.declaration import BytesOf, ResourceNeeds

# Units that a core of a batch processes one after another, so that unequal ones even out.
ROUNDS = 4
UNKNOWN_FLOPS_PER_SECOND = 5e9  # of a device without a value in the platform's file: a core
UTILIZATION = 0.1  # of the peak, low: training goes on in a next allocation, but a short limit starts sooner
PROCESS_MEGABYTES = 1500  # of Python with torch and no tensors
LOADED_BYTES = 8  # per parameter, of a model on a CPU: weights in fp32, twice while they are read
FIXED_PROMPTS = 120  # of pipeline/evaluate/prompts.json
READ_BYTES_PER_MINUTE = 3e11  # 5 GB/s of weights from memory, low for two cores
STEPS_HOLDING_KEYS = ("corpus.equal_keys", "corpus.find_duplicates")  # in `deduplication.memory_bytes`
STATE_BYTES = 48  # per parameter, of a process on a CPU: weights, gradients, Adam's state, twice while it is saved


def batch_cores(partition: Partition, units: int, unit_megabytes: int) -> int:
    """Return the cores of a batch, each with the memory of one unit.

    If each core gets several units, the cores fill whole smallest allocations; else each unit has a core and other jobs
    may use the rest. The memory that is billed with the cores limits their number.
    """
    smallest = partition.allocation or Allocation(cpus=1, memory_megabytes=partition.memory_megabytes)
    wanted = min(-(-units // ROUNDS), partition.cpus)
    cores = wanted // smallest.cpus * smallest.cpus or min(units, smallest.cpus)
    billed_megabytes = min(-(-cores // smallest.cpus) * smallest.memory_megabytes, partition.memory_megabytes)
    return max(min(cores, billed_megabytes // unit_megabytes), 1)


class StepResources:
    """The resource requests of the rules of one run."""

    def __init__(self, config: Config, dag: Dag) -> None:
        self.config = config
        self.dag = dag
        self._source_bytes = cache(self._read_source_bytes)
        self._batch_bytes = cache(self._read_batch_bytes)

    def __call__(self, step: str) -> dict[str, Any]:
        """Return the resources of a step's rule, each a value or a function of a job's wildcards and attempt."""
        need, partition = STEPS[step].need, self._partition("cpu")
        if need is None:
            return self._training_resources(step) if STEPS[step].is_supervised else self._evaluation_resources(step)

        def memory(wildcards: Mapping[str, str], attempt: int) -> int:
            return int(
                self.memory_megabytes_of(step, need, wildcards)
                * self._compute_request_growth(step, wildcards, attempt).memory
            )

        def cores(wildcards: Mapping[str, str], attempt: int) -> int:
            if partition is None:
                return 1
            if need.reads == "batch":
                return batch_cores(partition, self.count_units(wildcards), memory(wildcards, attempt))
            billed = partition.allocation.cpus if partition.allocation else 1
            if need.reads == "shard":  # few shards share the billed cores; more than eight threads wait for the texts
                return max(min(billed // self.config.tokens[wildcards["tokens"]].shards, 8), 1)
            return min(max(need.cpus, billed), partition.cpus) if need.cpus > 1 else 1

        def runtime(wildcards: Mapping[str, str], attempt: int) -> int:
            parts = self.input_part_bytes(need.reads, wildcards)
            longest = max(sum(parts) // cores(wildcards, attempt), max(parts, default=0))
            growth = self._compute_request_growth(step, wildcards, attempt).time
            minutes = need.minutes + longest // need.bytes_per_minute
            if step == "evaluate.samples":
                minutes += self._generation_minutes(wildcards["model"])
            return self._cap(minutes, growth, partition.minutes if partition else None)

        def mem_mb(wildcards: Mapping[str, str], attempt: int) -> int:
            each = cores(wildcards, attempt) if need.reads == "batch" else 1
            held = memory(wildcards, attempt) * each
            return self._cap(held, 1, partition.memory_megabytes if partition else None)

        cpus_per_task = cores if need.reads in ("batch", "shard") else cores({}, 1)
        return {
            "runtime": runtime,
            "mem_mb": mem_mb,
            "cpus_per_task": cpus_per_task,
            **self._partition_resources("cpu"),
        }

    def memory_megabytes_of(self, step: str, need: ResourceNeeds, wildcards: Mapping[str, str]) -> int:
        """Return the memory of a job, or of one unit of a batch, in MB."""
        largest = max(self.input_part_bytes(need.reads, wildcards), default=0)
        if step == "tokenizer.train":
            largest = min(largest, self.config.tokenizer[wildcards["tokenizer"]].sample_bytes)
        held = need.memory_megabytes + int(need.memory_bytes_per_byte * largest / 1e6)
        if step in STEPS_HOLDING_KEYS:
            held += self.config.corpus[wildcards["corpus"]].deduplication.memory_bytes // 1_000_000
        if step == "evaluate.samples":
            held += int(self._count_parameters(wildcards["model"]) * LOADED_BYTES / 1e6)
        return held

    def _generation_minutes(self, model: str) -> int:
        """Return the minutes in which a CPU generates text: it reads the fp32 weights for each token of each batch."""
        wanted = self.config.evaluation.memorization
        if wanted is None:
            return 0
        batches = -(-(2 * wanted.prompts + FIXED_PROMPTS) // self.config.evaluation.batch_size)
        return int(4 * self._count_parameters(model) * batches * wanted.continuation_tokens / READ_BYTES_PER_MINUTE)

    def count_units(self, wildcards: Mapping[str, str]) -> int:
        """Return the number of units of a batch: its threads on one machine."""
        return len(self.input_part_bytes("batch", wildcards))

    def _training_resources(self, step: str) -> dict[str, Any]:
        """Return the resources of training: one task per device of each node with `srun`, else one."""
        platform, nodes = self.config.platform, self.config.slurm.nodes
        partition, by_srun, devices = self._partition("gpu"), launcher_name(platform.launch) == "srun", platform.devices
        tasks = nodes * devices if by_srun else 1
        seconds = self.config.slurm.warning_seconds
        # With `mpi` the signal of `--signal` reaches the ranks only. Otherwise it also reaches Snakemake's job, which
        # ignores only URG.
        signal = "USR1" if tasks > 1 else "URG"
        extra = f"--signal={signal}@{seconds} --open-mode=append"
        if tasks > 1:
            extra += f" --ntasks-per-node={devices}"

        def runtime(wildcards: Mapping[str, str], attempt: int) -> int:
            minutes = self._training_minutes(wildcards, tasks) + seconds // 60  # after the warning it only stops
            return self._cap(minutes, 1, partition.minutes if partition else None)

        def mem_mb(wildcards: Mapping[str, str], attempt: int) -> int:
            if partition and partition.gpus:
                return partition.memory_megabytes
            held = self._count_parameters(wildcards["model"]) * STATE_BYTES / 1e6 + PROCESS_MEGABYTES
            growth = self._compute_request_growth(step, wildcards, attempt).memory
            return self._cap(int(held * devices), growth, partition.memory_megabytes if partition else None)

        def options(wildcards: Mapping[str, str]) -> str:
            policy = self.config.models[wildcards["model"]].training.energy_policy
            return self._sbatch_options("gpu", extra, policy=policy)

        return {
            "staging": platform.node_disk or "",
            "runtime": runtime,
            "mem_mb": mem_mb,
            **self._process_resources(step, nodes),
            **self._partition_resources("gpu", constraint=platform.node_disk_constraint),
            "slurm_extra": options,
        }

    def _process_resources(self, step: str, nodes: int) -> dict[str, Any]:
        """Return the resources for a process on each device of whole nodes with `srun`, else of one node."""
        platform, partition = self.config.platform, self._partition("gpu")
        by_srun, devices = launcher_name(platform.launch) == "srun", platform.devices
        tasks = nodes * devices if by_srun else 1
        shape: dict[str, Any] = {"nodes": nodes} if by_srun else {}
        if tasks > 1:
            shape |= {"mpi": "srun", "tasks": tasks}
        if partition and partition.gpus:
            shape |= {"gres": f"gpu:{devices}", "tasks_per_gpu": 0}

        def launch(wildcards: Mapping[str, str]) -> str:
            if not by_srun:
                return platform.launch or ""
            if tasks == 1:
                return ""
            logs = layout.LOG.path_with_wildcards(
                self.dag.run, job=f"{step}.{wildcards['model']}.{wildcards['step']}.rank-%t"
            )
            words = (
                f"srun --export=ALL --nodes={nodes} --ntasks={tasks} --output={shlex.quote(logs)} --open-mode=append"
            )
            # Where memory follows the cores, a task would have that of its own alone.
            if partition and partition.memory_follows_cpus and "--mem" not in (platform.launch or ""):
                words += " --mem=0"
            return (platform.launch or "").replace("srun", words, 1)

        cpus = parse_cpus_per_task(platform.launch) or (1 if by_srun else devices)
        return {"launch": launch, "platform": platform.name, "cpus_per_task": cpus, **shape}

    def _evaluation_resources(self, step: str) -> dict[str, Any]:
        """Return the resources of an evaluation: one device with its share of a node, or whole nodes."""
        nodes = self.config.slurm.evaluation_nodes if step == "evaluate.suites" else 0
        kind: PartitionKind = "gpu" if nodes else "evaluation"
        partition = self._partition(kind)
        gpus, devices = partition.gpus if partition else 0, self.config.platform.devices
        shape: dict[str, Any] = {"launch": "", "platform": self.config.platform.name}
        extra: list[str] = []
        if nodes:
            shape = self._process_resources(step, nodes)
            extra += [f"--ntasks-per-node={devices}"] if "tasks" in shape else []
        elif partition and gpus:
            shape |= {"gres": "gpu:1", "cpus_per_task": max(partition.cpus // gpus, 1)}

        def runtime(wildcards: Mapping[str, str], attempt: int) -> int:
            growth = self._compute_request_growth(step, wildcards, attempt).time
            return self._cap(120, growth, partition.minutes if partition else None)

        def mem_mb(wildcards: Mapping[str, str], attempt: int) -> int:
            if partition and gpus:
                return partition.memory_megabytes // (1 if nodes else gpus)
            held = (self._evaluated_model_bytes(wildcards) / 1e6 + 2 * PROCESS_MEGABYTES) * (devices if nodes else 1)
            growth = self._compute_request_growth(step, wildcards, attempt).memory
            return self._cap(int(held), growth, partition.memory_megabytes if partition else None)

        return {"runtime": runtime, "mem_mb": mem_mb, **shape, **self._partition_resources(kind, *extra)}

    def _evaluated_model_bytes(self, wildcards: Mapping[str, str]) -> float:
        """Return the memory of a model that is evaluated on a CPU: twice its weights in fp32."""
        baseline = dict(wildcards.items()).get("baseline")
        model = self.config.baselines()[baseline] if baseline else wildcards["model"]
        if model is not None:
            return self._count_parameters(model) * 8
        return self.config.baseline_file_sizes(str(baseline)) * 4

    def _partition(self, kind: PartitionKind) -> Partition | None:
        """Return the partition that work of a kind goes to; None if the platform's file has no partitions."""
        return self.config.platform.partitions.get(self.config.platform.partition_for_work(kind))

    def _partition_resources(self, kind: PartitionKind, *extra: str, constraint: str | None = None) -> dict[str, Any]:
        """Return partition, account, QOS, constraint, reservation, smallest billed allocation, and options of sbatch.

        What is not known is left out. Jobs that ask for less than the smallest allocation may share it.
        """
        partition, options = self._partition(kind), self._job_options(kind)
        allocation = partition.allocation if partition else None
        placed = {
            "slurm_extra": self._sbatch_options(kind, *extra),
            "slurm_partition": partition.name if partition else None,
            "slurm_account": options.account,
            "qos": options.qos,
            "constraint": "&".join(name for name in (options.constraint, constraint) if name),
            "reservation": options.reservation,
            "allocation_cpus": allocation.cpus if allocation else None,
            "allocation_mem_mb": allocation.memory_megabytes if allocation else None,
            "cpu_mem_mb": partition.memory_megabytes_per_cpu if partition else None,
        }
        return {key: value for key, value in placed.items() if value}

    def _job_options(self, kind: PartitionKind) -> JobOptions:
        return self.config.job_options(self.config.platform.partition_for_work(kind))

    def _sbatch_options(self, kind: PartitionKind, *extra: str, policy: str | None = None) -> str:
        """Return the options of sbatch; those of an energy policy replace those of EAR.

        With --requeue, a job that is preempted or loses its node waits in the queue again. EAR measures all jobs.
        """
        energy = self.config.platform.energy_policies[policy] if policy else self.config.platform.ear
        own = map(shlex.quote, self._job_options(kind).options)
        return " ".join(["--requeue", *extra, *([energy] if energy else []), *own])

    @staticmethod
    def _compute_request_growth(step: str, wildcards: Mapping[str, str], attempt: int) -> RequestGrowth:
        """Return the growth of this attempt by the causes of the failures before it."""
        return compute_request_growth(step.replace(".", "_"), [value for _, value in wildcards.items()], attempt)

    @staticmethod
    def _cap(amount: int, growth: float, most: int | None) -> int:
        """Return the amount for this attempt, up to the limit of the partition."""
        grown = int(amount * growth)
        return min(grown, most) if most else grown

    def input_part_bytes(self, reads: BytesOf, wildcards: Mapping[str, str]) -> list[int]:
        """Return the raw bytes of each unit of a batch, or the total that another job reads as one part.

        A data set that is not here counts 0.
        """
        config = self.config
        if reads == "nothing":
            return []
        if reads == "file":
            return [int(self.dag.split_raw_file_bytes(wildcards))]
        if reads == "batch":
            return self._batch_bytes(wildcards["source"], wildcards["batch"])
        sources = [source.name for source in config.sources]
        if reads == "source":
            sources = [wildcards["source"]]
        elif reads != "everything":
            section = "tokens" if reads == "shard" else reads
            corpus = wildcards["corpus"] if reads == "corpus" else getattr(config, section)[wildcards[section]].corpus
            sources = config.corpus_sources(corpus)
        total = sum(map(self._source_bytes, sources))
        return [total // config.tokens[wildcards["tokens"]].shards if reads == "shard" else total]

    def _read_batch_bytes(self, source: str, batch: str) -> list[int]:
        listed = self.config.source_units(source)
        units = [listed.units[unit].values() for unit in listed.batches[batch]]
        size = listed.source.unit_bytes
        return [sum(path.stat().st_size if path.is_file() else size for path in paths) for paths in units]

    def _read_source_bytes(self, source: str) -> int:
        return sum(self.config.source_units(source).sizes.values())

    def _count_parameters(self, model: str) -> int:
        section = self.config.models[model]
        return parameter_count(section.architecture, self.config.vocabulary_size(section.tokens))

    def _training_minutes(self, wildcards: Mapping[str, str], processes: int) -> int:
        """Return the time limit of a segment; if it is too short, the job continues in another allocation."""
        platform, flops = self.config.platform, segment_flops(self.config, wildcards["model"], wildcards["step"])
        speed = (platform.peak_flops_per_second or UNKNOWN_FLOPS_PER_SECOND) * UTILIZATION * processes
        return 60 + int(flops / speed / 60)
