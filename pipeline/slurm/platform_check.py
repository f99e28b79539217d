"""`polder platform check`: is the machine as its file says, and can a job run there?

Each check prints one line. The last checks are small jobs: Python, GPUs and disk on one node of each partition, and the
network between two nodes of the training partition.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pipeline.config.configuration import Config
from pipeline.config.platforms import JobOptions, Partition, PartitionKind, Platform
from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.energy.external_meters.slurm_energy import parse_energy_plugin
from pipeline.slurm import job_software, site_checks
from pipeline.slurm.executor.slurm_commands import query_configuration
from pipeline.slurm.executor.slurm_environment import clean_environment
from pipeline.slurm.site_checks import SiteFinding
from pipeline.workflow import preflight


def check_platform(
    platform: Platform,
    account: str | None,
    nodes: int,
    wait_seconds: int,
    partitions: Mapping[PartitionKind, JobOptions] | None = None,
) -> Iterator[SiteFinding]:
    """Yield one finding after the other, those of jobs last; no job is started without Slurm or a partition.

    Args:
        platform: the machine.
        account: as `slurm.account`.
        nodes: of a training.
        wait_seconds: the longest wait for a small job.
        partitions: as `slurm.partitions`.
    """
    slurm = site_checks.check_commands()
    yield slurm
    if not slurm.ok:
        return
    entries: dict[str, Partition | None] = {str(kind): entry for kind, entry in platform.partitions.items()}
    entries = entries or {"default": None}
    findings = [*site_checks.check_partitions(platform, nodes)]
    options = {kind: platform.job_options(kind, account, partitions) for kind in entries}
    findings += [site_checks.check_account(name) for name in dict.fromkeys(one.account for one in options.values())]
    yield from findings
    yield from site_checks.check_partition_sizes(platform)
    trains = next(kind for kind in ("gpu", "cpu", "default") if kind in entries)
    yield from site_checks.check_scratch(platform, account)
    loads = None
    if platform.modules:
        job_software.export_module_function()
        loads = job_software.check_modules(platform.modules)
        yield loads
    if platform.container:
        yield job_software.check_image(platform)
    yield from check_energy_meters(platform)
    if any(finding.ok is False for finding in findings):
        yield SiteFinding(None, "Python, GPUs and disk of the partitions, and the network: no small job was started")
        return
    load = loads is not None and loads.ok is True
    srun = {kind: _srun_words(entry, options[kind], wait_seconds) for kind, entry in entries.items()}
    for kind in entries:
        yield from check_node(platform, kind, srun[kind], load)
    if nodes < 2:
        yield SiteFinding(None, "whether two nodes talk, since --nodes is 1")
    else:
        yield check_network(platform, srun[trains])
    yield SiteFinding(
        None,
        "limits of account and QOS, waiting times, the binding of launch, collectives of more than two nodes, and "
        "whether the joules of Slurm and EAR are right: small jobs do not show these",
    )


def check_energy_meters(platform: Platform) -> Iterator[SiteFinding]:
    """Look for EAR, and for Slurm's own readings of energy."""
    file = f"workflow/platforms/{platform.name}.yaml"
    if platform.ear:
        lacking = (
            [] if re.search(r"--ear\b", site_checks.run_command("srun", "--help")) else ["srun has no option --ear"]
        )
        lacking += [] if shutil.which("eacct") else ["there is no command eacct (module load ear?)"]
        yield SiteFinding(not lacking, ", ".join(lacking) or f"EAR: {platform.ear}", f"take ear out of {file}")
    plugin = parse_energy_plugin(query_configuration()) or "none"
    if platform.energy_plugin and platform.energy_plugin not in plugin.split(","):
        yield SiteFinding(
            False, f"Slurm reads energy by {plugin}, not by {platform.energy_plugin}", f"write that into {file}"
        )
    else:
        yield SiteFinding(
            True, "Slurm reads no energy" if plugin == "none" else f"Slurm reads energy by its plugin {plugin}"
        )


def _srun_words(entry: Partition | None, options: JobOptions, wait_seconds: int) -> list[str]:
    """Return the first words of a small job's command line, on a partition or on Slurm's default."""
    words = ["srun", "--job-name=platform-check", "--time=5", f"--immediate={wait_seconds}"]
    return [*words, *site_checks.slurm_options_for_whole_node(entry, 8000), *site_checks.format_job_options(options)]


def _job_python(platform: Platform) -> str:
    """Return the Python that jobs run, the image's where the platform has one."""
    return str(job_software.IMAGE_PYTHON) if platform.container else sys.executable


def _run_probe(platform: Platform, words: Sequence[str]) -> dict[str, Any]:
    """Run a small job with the platform's variables and return its answer.

    Raises:
        InputError: it did not start in time, or failed.
    """
    variables = platform_files.platform_variables(platform.model_dump())
    environment = {**variables, **job_software.container_image_variables(platform), **clean_environment()}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        own = [line for line in said if not line.startswith(("srun:", "slurmstepd:"))]
        raise InputError((own or said or [f"srun ends with {done.returncode}"])[-1])
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def check_node(platform: Platform, kind: str, srun: Sequence[str], load: bool) -> Iterator[SiteFinding]:
    """Check Python, GPUs and disk of one node of a partition, with the modules loaded."""
    entry = {str(name): partition for name, partition in platform.partitions.items()}.get(kind)
    device = platform.device or "" if entry is None or entry.gpus else ""
    probe = [_job_python(platform), "-m", "pipeline.slurm.node_probe", "node", platform.node_disk or "", device]
    if load:
        probe = ["bash", "-c", f'{job_software.module_load_command(platform.modules)} exec "$@"', "bash", *probe]
    try:
        answer = _run_probe(platform, [*srun, "--nodes=1", "--ntasks=1", *probe])
    except InputError as error:
        what = f"a small job on one node ({kind}) failed ({error})"
        yield SiteFinding(False, what, "try its command: " + " ".join(srun) + " …")
        return
    node = f"node {answer['node']} ({kind})"
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    lacks = f", without {', '.join(answer['lacks'])}" if answer["lacks"] else ""
    way_out = f"here it is {here} with all of them: make .venv for this partition, or one that all see"
    yield SiteFinding(answer["python"] == here and not lacks, f"{node}: Python {answer['python']}{lacks}", way_out)
    if entry and entry.gpus:
        seen = answer.get("gpus_seen", answer["gpus_given"])
        what = f"{node}: Slurm gives {answer['gpus_given']} GPUs"
        what += f", torch ({answer['built_for']}) sees {seen}" if device else ""
        right = seen == answer["gpus_given"] == entry.gpus and answer.get("built_for") in (None, device)
        lock = f"install envs/{device}.lock, and see nvidia-smi or rocm-smi there" if device else ""
        yield SiteFinding(right, what, f"{entry.gpus} were asked for: {lock or 'see scontrol show node'}")
        if not device:
            yield SiteFinding(None, f"{node}: whether torch sees the GPUs, since the platform's file names no device")
    if "disk" in answer:
        way_out = f"write another node_disk into workflow/platforms/{platform.name}.yaml, or leave it out"
        yield SiteFinding(answer["disk_ok"], f"{node}: {answer['disk']}", way_out)


def check_network(platform: Platform, srun: Sequence[str]) -> SiteFinding:
    """Let two nodes sum a tensor, joined like the processes of a training."""
    probe = [_job_python(platform), "-m", "pipeline.slurm.node_probe", "pair"]
    nodes = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    try:
        answer = _run_probe(platform, [*srun, *nodes, *probe])
    except InputError as error:
        way_out = "see the variables under environment (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME) and try NCCL_DEBUG=INFO"
        return SiteFinding(False, f"two nodes do not talk ({error})", way_out)
    bandwidth = f"{answer['bytes_per_second'] / 1e9:.2g} GB/s all-reduced"
    what = f"{' and '.join(answer['nodes'])} talk by {answer['backend']}: {bandwidth}"
    return SiteFinding(answer["right"], what, "the sum was wrong: report it to the site")


def check_run_requirements(
    config: Config, *, slurm: bool, modules: bool, launched: Mapping[str, str | None] | None = None
) -> None:
    """Check what the jobs of a run need of Slurm and of environment modules.

    Args:
        slurm: whether jobs go through Slurm.
        modules: whether jobs load environment modules.
        launched: model to launch command, of the models to train; by default all that are not trained yet.

    Raises:
        InputError: something is missing, or cannot work.
    """
    for sentence in preflight.find_problems(
        config, preflight.model_launch_commands(config) if launched is None else launched, slurm=slurm
    ):
        raise InputError(sentence)
    for finding in _run_findings(config, slurm, modules):
        if finding.ok is False:
            raise InputError(f"{finding.what}: {finding.way_out}")


def _run_findings(config: Config, slurm: bool, modules: bool) -> Iterator[SiteFinding]:
    if modules:
        job_software.export_module_function()
        yield job_software.check_modules(config.platform.modules)
    if not slurm:
        return
    yield site_checks.check_commands()
    yield from site_checks.check_partitions(config.platform, config.slurm.nodes)
    yield from site_checks.check_partition_sizes(config.platform)
    platform = config.platform
    kinds: list[PartitionKind] = sorted({platform.partition_for_work(kind) for kind in get_args(PartitionKind)})
    wanted = {kind: config.job_options(kind) for kind in kinds}
    for account in dict.fromkeys(options.account for options in wanted.values()):
        yield site_checks.check_account(account)
    trains = platform.partition_for_work("gpu")
    for kind, options in wanted.items():
        nodes = config.slurm.nodes if kind == trains else 1
        yield site_checks.check_submission(kind, platform.partitions.get(kind), options, nodes)
    yield from site_checks.check_scratch(platform, config.slurm.account)
    yield site_checks.check_writable("the folder of the results", config.run_directory)
