"""`python -m pipeline platform check`: is the machine as its file says, and can a job run there?

One line per thing that is looked at, and one for what could not be. The last ones are small jobs: on one node of each
partition Python, GPUs and disk; on two nodes where training goes the network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.config import platforms
from pipeline.config.platforms import Partition, Platform
from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.slurm import image, modules, site
from pipeline.slurm.site import Finding


def main(arguments: list[str]) -> int:
    """Print what was found; return 1 if something is not ok."""
    parser = argparse.ArgumentParser(prog="python -m pipeline platform check", description=__doc__)
    parser.add_argument("--platform", default="local", help="a file of workflow/platforms")
    parser.add_argument("--account", help="who pays, as slurm.account of the configuration")
    parser.add_argument("--nodes", type=int, default=2, help="as many as training will ask for, as slurm.nodes")
    parser.add_argument("--wait-seconds", type=int, default=600, help="how long a small job may wait for its start")
    options = parser.parse_args(arguments)
    platform = platforms.described(options.platform)
    good = True
    for finding in findings(platform, options.account, options.nodes, options.wait_seconds):
        print(finding, flush=True)
        good = good and finding.ok is not False
    return 0 if good else 1


def findings(platform: Platform, account: str | None, nodes: int, wait_seconds: int) -> Iterator[Finding]:
    """Look at one thing after the other, jobs last; without Slurm or a partition there is no job to ask."""
    slurm = site.commands()
    yield slurm
    if not slurm.ok:
        return
    found = [*site.partitions(platform, nodes), site.account(account)]
    yield from found
    yield from site.sizes(platform)
    yield from site.scratch(platform, account)
    loads = None
    if platform.modules:
        modules.provide()
        loads = modules.look(platform.modules)
        yield loads
    if platform.container:
        yield image.look(platform)
    yield from measurements(platform)
    if any(finding.ok is False for finding in found):
        yield Finding(None, "no small job was asked: no partition's Python, GPUs and disk, nor the network")
        return
    load = loads is not None and loads.ok is True
    entries: dict[str, Partition | None] = {str(kind): entry for kind, entry in platform.partitions.items()}
    entries = entries or {"default": None}
    trains = next(kind for kind in ("gpu", "cpu", "default") if kind in entries)
    for kind, entry in entries.items():
        yield from one_node(platform, kind, _srun(entry, account, wait_seconds), load)
    if nodes < 2:
        yield Finding(None, "whether two nodes talk, since --nodes is 1")
    else:
        yield two_nodes(platform, _srun(entries[trains], account, wait_seconds))
    yield Finding(
        None,
        "what no small job shows: limits of account and QOS, how long jobs wait, the binding of launch, collectives of "
        "more than two nodes, and whether Slurm's and EAR's joules are right",
    )


def measurements(platform: Platform) -> Iterator[Finding]:
    """Look for EAR, and for Slurm's own readings of energy."""
    file = f"workflow/platforms/{platform.name}.yaml"
    if platform.ear:
        lacking = [] if re.search(r"--ear\b", site.ask("srun", "--help")) else ["srun has no option --ear"]
        lacking += [] if shutil.which("eacct") else ["there is no command eacct (module load ear?)"]
        yield Finding(not lacking, ", ".join(lacking) or f"EAR: {platform.ear}", f"take ear out of {file}")
    said = re.search(
        r"^AcctGatherEnergyType\s*=\s*(?:acct_gather_energy/)?(\S+)", site.ask("scontrol", "show", "config"), re.M
    )
    plugin = said[1] if said else "none"
    if platform.energy_plugin and platform.energy_plugin not in plugin.split(","):
        yield Finding(
            False, f"Slurm reads energy by {plugin}, not by {platform.energy_plugin}", f"write that into {file}"
        )
    else:
        none = plugin in ("none", "(null)")
        yield Finding(True, "Slurm reads no energy" if none else f"Slurm reads energy by its plugin {plugin}")


def _srun(entry: Partition | None, account: str | None, wait_seconds: int) -> list[str]:
    """Return the beginning of a small job's command line, on a partition or, of none, on Slurm's default."""
    words = [
        "srun",
        "--job-name=platform-check",
        "--time=5",
        "--cpus-per-task=1",
        "--mem=8000",
        f"--immediate={wait_seconds}",
    ]
    words += [f"--partition={entry.name}"] if entry else []
    words += [f"--gres=gpu:{entry.gpus}"] if entry and entry.gpus else []
    return words + ([f"--account={account}"] if account else [])


def _python(platform: Platform) -> str:
    """Return the Python that jobs run, the image's where the platform has one."""
    return str(image.PYTHON) if platform.container else sys.executable


def _answer(platform: Platform, words: Sequence[str]) -> dict[str, Any]:
    """Run a small job with the platform's variables and return what it answers.

    Raises:
        InputError: it did not start in time, or failed.
    """
    variables = platform_files.variables(platform.model_dump())
    environment = {**variables, **image.environment(platform), **os.environ}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        own = [line for line in said if not line.startswith(("srun:", "slurmstepd:"))]
        raise InputError((own or said or [f"srun ends with {done.returncode}"])[-1])
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def one_node(platform: Platform, kind: str, srun: Sequence[str], load: bool) -> Iterator[Finding]:
    """Ask one node of a partition for Python, its GPUs and its own disk, with the modules loaded there."""
    entry = {str(name): partition for name, partition in platform.partitions.items()}.get(kind)
    device = platform.device or "" if entry is None or entry.gpus else ""
    probe = [_python(platform), "-m", "pipeline.slurm.probe", "node", platform.node_disk or "", device]
    if load:
        probe = ["bash", "-c", f'{modules.line(platform.modules)} exec "$@"', "bash", *probe]
    try:
        told = _answer(platform, [*srun, "--nodes=1", "--ntasks=1", *probe])
    except InputError as error:
        what = f"a small job on one node ({kind}) failed ({error})"
        yield Finding(False, what, "try its command: " + " ".join(srun) + " …")
        return
    node = f"node {told['node']} ({kind})"
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    lacks = f", without {', '.join(told['lacks'])}" if told["lacks"] else ""
    way_out = f"here it is {here} with all of them: make .venv for this partition, or one that all see"
    yield Finding(told["python"] == here and not lacks, f"{node}: Python {told['python']}{lacks}", way_out)
    if entry and entry.gpus:
        seen = told.get("gpus_seen", told["gpus_given"])
        what = f"{node}: Slurm gives {told['gpus_given']} GPUs"
        what += f", torch ({told['built_for']}) sees {seen}" if device else ""
        right = seen == told["gpus_given"] == entry.gpus and told.get("built_for") in (None, device)
        lock = f"install envs/{device}.lock, and see nvidia-smi or rocm-smi there" if device else ""
        yield Finding(right, what, f"{entry.gpus} were asked for: {lock or 'see scontrol show node'}")
        if not device:
            yield Finding(None, f"{node}: whether torch sees the GPUs, since the platform's file names no device")
    if "disk" in told:
        way_out = f"write another node_disk into workflow/platforms/{platform.name}.yaml, or leave it out"
        yield Finding(told["disk_ok"], f"{node}: {told['disk']}", way_out)


def two_nodes(platform: Platform, srun: Sequence[str]) -> Finding:
    """Let two nodes sum a tensor, found and joined as the processes of a training are."""
    probe = [_python(platform), "-m", "pipeline.slurm.probe", "pair"]
    spread = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    try:
        told = _answer(platform, [*srun, *spread, *probe])
    except InputError as error:
        way_out = "see the variables under environment (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME) and try NCCL_DEBUG=INFO"
        return Finding(False, f"two nodes do not talk ({error})", way_out)
    bandwidth = f"{told['bytes_per_second'] / 1e9:.2g} GB/s all-reduced"
    what = f"{' and '.join(told['nodes'])} talk by {told['backend']}: {bandwidth}"
    return Finding(told["right"], what, "the sum was wrong: tell the site")
