"""What a run is refused, in one sentence, before it submits anything: asked once, without a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline import foreseen
from pipeline.config import Config
from pipeline.errors import InputError
from pipeline.pretrain.launch import launcher
from pipeline.slurm import image, site
from pipeline.slurm import modules as modules_of_jobs
from pipeline.slurm.site import Finding


def refuse(config: Config, *, slurm: bool, modules: bool, launched: Mapping[str, str | None] | None = None) -> None:
    """Check what jobs of this run need: where they go through `slurm`, and where they load `modules`.

    Args:
        launched: model to launch command, of the models that are to be trained; none: of all that are not trained.

    Raises:
        InputError: something of it is not there, or cannot work.
    """
    for sentence in foreseen.problems(config, foreseen.launches(config) if launched is None else launched):
        raise InputError(sentence)
    for finding in _findings(config, slurm, modules):
        if finding.ok is False:
            raise InputError(f"{finding.what}: {finding.way_out}")


def _findings(config: Config, slurm: bool, modules: bool) -> Iterator[Finding]:
    if modules:
        modules_of_jobs.provide()
        yield modules_of_jobs.look(config.platform.modules)
    if config.platform.container:
        yield image.look(config.platform)
    if not slurm:
        return
    yield site.commands()
    yield from _devices(config)
    yield from site.partitions(config.platform, config.slurm.nodes)
    yield from site.sizes(config.platform)
    yield from _training(config)
    yield site.account(config.slurm.account)
    yield from site.scratch(config.platform, config.slurm.account)
    yield site.writable("the folder of the results", config.directory)


def _devices(config: Config) -> Iterator[Finding]:
    """Look whether the platform has the devices that the run's environment is for."""
    platform, environment = config.platform, config.run.environment
    if not config.models:
        return
    gpu = platform.partitions.get("gpu")
    file = f"workflow/platforms/{platform.name}.yaml"
    if environment != "cpu" and not (gpu and gpu.gpus):
        yield Finding(
            False,
            f"run.environment is {environment}, but platform {platform.name} has no partition with GPUs",
            f"choose another with --config platform=NAME, or write its partition gpu into {file}",
        )
    if platform.device and platform.device != environment:
        yield Finding(
            False,
            f"platform {platform.name} has {platform.device} devices, but run.environment is {environment}",
            f"write run: {{environment: {platform.device}}} and install envs/{platform.device}.lock",
        )


def _training(config: Config) -> Iterator[Finding]:
    """Look whether a training would use the nodes that it gets, and most of their time."""
    platform, nodes, seconds = config.platform, config.slurm.nodes, config.slurm.warning_seconds
    file = f"workflow/platforms/{platform.name}.yaml"
    partition = platform.partitions.get("gpu") or platform.partitions.get("cpu")
    if nodes > 1 and launcher(platform.launch) != "srun":
        yield Finding(
            False,
            f"slurm.nodes is {nodes}, but platform {platform.name} starts no training by srun, so on one node alone",
            f"leave slurm.nodes out, or write launch: srun … into {file}",
        )
    if partition and 60 * partition.minutes < 2 * seconds:
        yield Finding(
            False,
            f"slurm.warning_seconds is {seconds}, but a job of {partition.name} has {partition.minutes} minutes in all",
            f"write less than half of them, or another partition into {file}",
        )
