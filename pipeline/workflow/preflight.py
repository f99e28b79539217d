"""Find problems and hints of a run by its configuration and the platform's file, before anything runs.

Slurm is not queried, and torch is imported only for a model that begins with pretrained weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from pipeline.config.configuration import Config
from pipeline.config.evaluation_item_paths import list_decontamination_item_files
from pipeline.core.errors import InputError
from pipeline.core.job_command_lines import format_search_folder
from pipeline.energy.carbon_intensity import read_intensity_series
from pipeline.evaluate.task_file_reader import list_suite_files
from pipeline.forecast.forecast_inputs import collect_forecast_inputs
from pipeline.layout import MILESTONE
from pipeline.model.settings import Architecture
from pipeline.plan.settings import ModelPlan, PlatformPlan
from pipeline.plan.sharding_strategy_definitions import STRATEGIES
from pipeline.plan.training_time import estimate_training_time
from pipeline.pretrain.monitors import memory_estimate
from pipeline.pretrain.parallel import process_layout
from pipeline.pretrain.processes.launch_command import (
    count_processes,
    count_processes_per_node,
    find_option,
    launcher_name,
    split_command,
)
from pipeline.pretrain.settings import Training
from pipeline.workflow import cache_between_invocations, settings_contradicted_by_text

HIGH_LEARNING_RATE = 0.1
"""Peak rates of AdamW and Muon are usually below it."""
PROCESS_BYTES = 1_500_000_000  # of Python with torch and no tensors


def model_launch_commands(config: Config) -> dict[str, str | None]:
    """Return the default launch command of each model that is not trained yet."""
    trained = {name: model.training.milestone_steps()[-1] for name, model in config.models.items()}
    return {
        name: config.launch
        for name, step in trained.items()
        if not MILESTONE.path(config.run_directory, model=name, step=step).is_dir()
    }


def uses_slurm(config: Config) -> bool:
    """Return whether the platform and the configuration describe a run through Slurm."""
    return bool(config.platform.partitions) or config.slurm.nodes > 1


@dataclass(frozen=True)
class PlannedTraining:
    """A training on its processes; `capacity_bytes` is the memory of one, None if unknown."""

    name: str
    training: Training
    shape: Architecture
    vocabulary_size: int
    processes: int
    per_node: int
    capacity_bytes: int | None

    @property
    def process_layout(self) -> process_layout.ProcessLayout:
        """The layout of the processes.

        Raises:
            InputError: no layout fits.
        """
        return process_layout.make_layout(self.training, self.processes, self.per_node)

    @property
    def memory_advice(self) -> str:
        """The memory of a process, and which settings would fit."""
        assert self.capacity_bytes is not None
        model = self.training, self.shape, self.vocabulary_size
        would_fit = memory_estimate.advise_settings(*model, self.processes, self.per_node, self.capacity_bytes)
        return f"which has {self.capacity_bytes / memory_estimate.GIBIBYTE:.3g} GiB: {would_fit}"

    def check_layout_and_memory(self) -> None:
        """Raise InputError where model, batch or state cannot be laid out on the processes."""
        model = self.training, self.shape, self.vocabulary_size
        process_layout.check_mesh_divides_model(*model, self.processes, self.per_node)
        needed = memory_estimate.state_bytes(*model, self.process_layout)
        if self.capacity_bytes is not None and needed > self.capacity_bytes:
            raise InputError(
                f"weights, gradients and optimizer alone take {needed / memory_estimate.GIBIBYTE:.3g} GiB of a "
                f"process, {self.memory_advice}"
            )


def build_planned_training(config: Config, name: str, launch: str | None) -> PlannedTraining:
    """Return a model on the processes that a launch command starts."""
    model, per_node = config.models[name], count_processes_per_node(launch)
    return PlannedTraining(
        name=name,
        training=model.training,
        shape=model.architecture,
        vocabulary_size=config.vocabulary_size(model.tokens),
        processes=count_processes(launch),
        per_node=per_node,
        capacity_bytes=_process_memory_bytes(config, per_node),
    )


def find_problems(config: Config, launched: Mapping[str, str | None], *, slurm: bool | None) -> Iterator[str]:
    """Yield a sentence for each problem: a missing file; a mesh, a batch or a memory that does not fit.

    `polder plan` and each invocation of Snakemake refuse what this finds, before the first job.

    Args:
        launched: model to launch command, of the models to train.
        slurm: whether jobs go through Slurm, to the partitions of the platform's file; None: not known yet.
    """
    problems = chain(_find_file_problems(config, launched), find_training_problems(config, launched, slurm=slurm))
    yield from dict.fromkeys(map(config.origin.prefix_source_location, problems))


def _find_file_problems(config: Config, launched: Mapping[str, str | None]) -> Iterator[str]:
    if missing := [*settings_contradicted_by_text.find_missing_source_files(config)]:
        yield from missing
    else:
        yield from settings_contradicted_by_text.find_invalid_language_codes(config)
        yield from cache_between_invocations.find_personal_data_in_paths(config)
        try:
            yield from settings_contradicted_by_text.find_contradicted_settings(config, launched)
        except InputError as error:
            yield str(error)
    yield from _missing_files(config)
    yield from _unreadable_intensity(config)
    yield from _find_unreadable_references(config)


def _find_unreadable_references(config: Config) -> Iterator[str]:
    """Yield a sentence for each pretrained model, suite, calibration run and evidence that cannot be used."""
    checks: list[tuple[str, Callable[[], object]]] = [
        ("", config.license_evidence_hashes),
        ("", partial(collect_forecast_inputs, config)),
        ("evaluation.suites: ", lambda: [list_suite_files(suite) for suite in config.suites()]),
        *(("", partial(list_decontamination_item_files, config, corpus)) for corpus in config.corpus),
        *(("", partial(config.pretrained_files, name)) for name, model in config.models.items() if model.pretrained),
    ]
    for key, check in checks:
        try:
            check()
        except InputError as error:
            yield f"{key}{str(error).removeprefix(key)}"


def find_training_problems(config: Config, launched: Mapping[str, str | None], *, slurm: bool | None) -> Iterator[str]:
    """Yield a sentence for each training that cannot work on its devices, whatever files there are."""
    if slurm and config.models:
        yield from _unused_devices(config)
        yield from _unused_nodes(config)
    for name, launch in launched.items():
        if (policy := config.models[name].training.energy_policy) and slurm is False:
            yield (
                f"models.{name}.training.energy_policy {policy} needs options of sbatch, and this run does not "
                "submit jobs: use the profile slurm, or leave it out"
            )
        if config.models[name].training.float8 and config.run.environment != "cuda":
            yield (
                f"models.{name}.training.float8 needs an NVIDIA GPU of compute capability 8.9 or more, and "
                f"run.environment is {config.run.environment}: set float8 to false, or run.environment to cuda"
            )
        try:
            build_planned_training(config, name, launch).check_layout_and_memory()
        except InputError as error:
            yield f"models.{name}: {error}"


def _unused_devices(config: Config) -> Iterator[str]:
    """Yield a sentence if the environment or the launch command does not match the platform's devices."""
    platform, environment = config.platform, config.run.environment
    gpu = platform.partitions.get("gpu")
    file = f"workflow/platforms/{platform.name}.yaml"
    if environment != "cpu" and not (gpu and gpu.gpus):
        yield (
            f"run.environment is {environment}, but platform {platform.name} has no partition with GPUs: choose "
            f"another with --config platform=NAME, or write its partition gpu into {file}"
        )
    if platform.device and platform.device != environment:
        yield (
            f"platform {platform.name} has {platform.device} devices, but run.environment is {environment}: write "
            f"run: {{environment: {platform.device}}} and install envs/{platform.device}.lock"
        )
    words = split_command(platform.launch)
    sets_processes = (
        launcher_name(platform.launch) == "torchrun" or find_option(words, "--ntasks-per-node") or not words
    )
    started = count_processes_per_node(platform.launch) if sets_processes else platform.devices
    if gpu and gpu.gpus and started != platform.devices:
        yield (
            f"devices is {platform.devices}, but launch starts {started} {'process' if started == 1 else 'processes'} "
            f"on a node, each for one device: make them equal in {file}, as by "
            f"launch: srun --ntasks-per-node={platform.devices}"
        )


def _unused_nodes(config: Config) -> Iterator[str]:
    """Yield a sentence if a training would not use its nodes, or most of their time."""
    platform, nodes, seconds = config.platform, config.slurm.nodes, config.slurm.warning_seconds
    file = f"workflow/platforms/{platform.name}.yaml"
    partition = platform.partitions.get("gpu") or platform.partitions.get("cpu")
    if nodes > 1 and launcher_name(platform.launch) != "srun":
        yield (
            f"slurm.nodes is {nodes}, but platform {platform.name} starts trainings without srun, on one node: "
            f"leave slurm.nodes out, or write launch: srun … into {file}"
        )
    if partition and 60 * partition.minutes < 2 * seconds:
        yield (
            f"slurm.warning_seconds is {seconds}, but a job of {partition.name} has {partition.minutes} "
            f"minutes: write less than half of them, or another partition into {file}"
        )


def find_hints(config: Config, launched: Mapping[str, str | None]) -> Iterator[str]:
    """Yield a sentence for text that may not be readable, and for a training that may not fit, diverge or take long."""
    yield from map(config.origin.prefix_source_location, settings_contradicted_by_text.find_source_hints(config))
    yield from map(config.origin.prefix_source_location, _find_training_hints(config, launched))


def _find_training_hints(config: Config, launched: Mapping[str, str | None]) -> Iterator[str]:
    for name, launch in launched.items():
        try:
            model = build_planned_training(config, name, launch)
            model.check_layout_and_memory()
        except InputError:
            continue
        if (rate := model.training.learning_rate) > HIGH_LEARNING_RATE:
            yield (
                f"models.{name}.training.learning_rate is {rate:g}, and peak rates are usually below "
                f"{HIGH_LEARNING_RATE}: write one such as 0.003"
            )
        if (
            config.platform.device
            and name not in config.cell_model_names()
            and (left := _unset_gpu_settings(model.training))
        ):
            fast = ", ".join(f"{key}: {value}" for key, value in left.items())
            yield (
                f"models.{name} has {' and '.join(left)} at the defaults for a CPU: write training: {{{fast}}}, "
                "which is faster on GPUs (bf16 many times), or write the defaults to keep them"
            )
        if STRATEGIES[model.training.strategy].optimizer_on_disk and not config.platform.node_disk:
            yield f"models.{name}: strategy {model.training.strategy} {process_layout.NO_NODE_DISK}"
        shape = model.training, model.shape, model.vocabulary_size
        needed = memory_estimate.estimate_bytes(*shape, model.process_layout, model.training.micro_batch_size)
        if model.capacity_bytes is not None and needed > model.capacity_bytes * memory_estimate.USABLE_SHARE:
            takes = f"{needed / memory_estimate.GIBIBYTE:.3g} GiB of a process by an estimate"
            yield f"models.{name} takes {takes}, {model.memory_advice}"
        yield from _long_training_hints(config, model)


def _unset_gpu_settings(training: Training) -> dict[str, str]:
    """Return the keys that the configuration omits, each with the value that is fast on a GPU."""
    fast = {"precision": "bf16"}
    if training.backend == "fsdp" and training.mesh.expert == 1:
        fast["compile"] = "true"
    return {key: value for key, value in fast.items() if key not in training.model_fields_set}


def _long_training_hints(config: Config, planned: PlannedTraining) -> Iterator[str]:
    partition = config.platform.partitions.get("gpu")
    if partition is None:
        return
    model = {"architecture": planned.shape, "training": planned.training, "vocabulary_size": planned.vocabulary_size}
    platform = PlatformPlan.model_validate(config.platform.model_dump())
    seconds = estimate_training_time(ModelPlan.model_validate(model), platform, planned.processes)["seconds"]
    if seconds is not None and seconds > 60 * partition.minutes:
        yield (
            f"models.{planned.name} takes about {seconds / 3600:,.0f} hours by the plan on {planned.processes} "
            f"processes: {math.ceil(seconds / 60 / partition.minutes)} jobs of {partition.name} or more, each of which "
            "continues the one before"
        )


def _process_memory_bytes(config: Config, per_node: int) -> int | None:
    """Return the memory of one process: that of its device, or its share of a CPU node; None if unknown."""
    platform = config.platform
    partition = platform.partitions.get("gpu") or platform.partitions.get("cpu")
    if platform.memory_bytes_per_device is not None and (partition is None or partition.gpus):
        return platform.memory_bytes_per_device
    if partition is None or partition.gpus:
        return None
    return max((partition.memory_megabytes << 20) // per_node - PROCESS_BYTES, 0)


def _missing_files(config: Config) -> Iterator[str]:
    """Yield a sentence for each missing file that the configuration names.

    Raw files and evaluation tasks are checked when the rules are read.
    """
    for source in config.sources:
        if source.opt_out and not Path(config.source_units(source.name).resolve_path(source.opt_out)).is_file():
            yield (
                f"source {source.name}: there is no opt_out list {source.opt_out}{format_search_folder(source.opt_out)}"
                ": correct its path or leave it out"
            )
    for name, corpus in config.corpus.items():
        if corpus.language_model is not None:
            path = config.resolve_data_path("the language model", corpus.language_model.path)
            if not Path(path).is_file():
                hint = format_search_folder(path)
                yield f"corpus.{name}.language_model: there is no file {path}{hint}: correct its path"
        try:
            config.harmful_content_files(name)
            for source_name in config.corpus_sources(name):
                config.block_and_allow_list_files(name, source_name)
            config.quality_training_files(name)
        except InputError as error:
            yield str(error)
    for name in config.interleaved:
        try:
            config.interleaved_lists(name)
        except InputError as error:
            yield str(error)
    for name in config.evaluation.baselines:
        try:
            config.baseline_model_files(name)
        except InputError as error:
            yield str(error)


def _unreadable_intensity(config: Config) -> Iterator[str]:
    series = config.emission_settings.carbon_intensity_series
    if series and Path(series.path).is_file():
        try:
            read_intensity_series(series, Path(series.path))
        except InputError as error:
            yield f"energy.carbon_intensity_series: {error}"
