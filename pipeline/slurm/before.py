"""What a run is refused, in one sentence, before it submits anything: asked once, without a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.config.configuration import Config
from pipeline.core.errors import InputError
from pipeline.slurm import modules as modules_of_jobs
from pipeline.slurm import site
from pipeline.slurm.site import Finding
from pipeline.workflow import preflight


def refuse(config: Config, *, slurm: bool, modules: bool, launched: Mapping[str, str | None] | None = None) -> None:
    """Check what jobs of this run need: where they go through `slurm`, and where they load `modules`.

    Args:
        launched: model to launch command, of the models that are to be trained; none: of all that are not trained.

    Raises:
        InputError: something of it is not there, or cannot work.
    """
    for sentence in preflight.problems(
        config, preflight.launches(config) if launched is None else launched, slurm=slurm
    ):
        raise InputError(sentence)
    for finding in _findings(config, slurm, modules):
        if finding.ok is False:
            raise InputError(f"{finding.what}: {finding.way_out}")


def _findings(config: Config, slurm: bool, modules: bool) -> Iterator[Finding]:
    if modules:
        modules_of_jobs.provide()
        yield modules_of_jobs.look(config.platform.modules)
    if not slurm:
        return
    yield site.commands()
    yield from site.partitions(config.platform, config.slurm.nodes)
    yield from site.sizes(config.platform)
    yield site.account(config.slurm.account)
    yield from site.scratch(config.platform, config.slurm.account)
    yield site.writable("the folder of the results", config.directory)
