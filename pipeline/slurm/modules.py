"""Environment modules of jobs, with `--sdm env-modules`: what does not load ends the job.

Snakemake's own line goes on where `module` is missing, because a command before `&&` that fails does not end a shell.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from snakemake.deployment.env_modules import EnvModules

from pipeline.slurm.site import SECONDS, Finding


def line(names: Sequence[str]) -> str:
    """Return the shell's words that load these modules alone, or end the shell."""
    return f"{{ module purge && module load {' '.join(names)}; }} || exit 1;"


class Modules(EnvModules):  # type: ignore[misc]
    """The modules of a rule."""

    def shellcmd(self, cmd: str) -> str:
        """Return a job's command with the modules loaded before it."""
        return f"{line(self.names)} {cmd}"


def provide(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let every bash of a job define `module` itself, as bash does with the file in BASH_ENV.

    The function that a login shell exports is lost on the way where /bin/sh is no bash, as on Debian: it drops the
    variable `BASH_FUNC_module%%` for its name. MODULESHOME is set by Environment Modules and by Lmod.
    """
    start = Path(environment.get("MODULESHOME", ""), "init", "bash")
    if "BASH_ENV" not in environment and start.is_file():
        environment["BASH_ENV"] = str(start)


def look(names: Sequence[str]) -> Finding:
    """Look whether there is a command `module`, as Snakemake's shell sees it, and whether it loads these."""
    if subprocess.run(["bash", "-c", "type module"], capture_output=True).returncode:
        return Finding(
            False,
            "there is no command module here, so --sdm env-modules would load nothing",
            "start from a login shell where `bash -c 'module list'` works, or leave --sdm env-modules out",
        )
    if not names:
        return Finding(True, "module is here; the platform names no modules")
    done = subprocess.run(["bash", "-c", line(names)], capture_output=True, text=True, timeout=SECONDS)
    # Old versions of module end with 0 where they fail.
    if done.returncode or re.search(r"\bERROR\b", done.stderr):
        said = next(
            (text.strip() for text in done.stderr.splitlines() if text.strip()), f"it ends with {done.returncode}"
        )
        return Finding(
            False,
            f"the modules {' '.join(names)} do not load ({said})",
            "see `module avail`, and `module use` the folder that they lie in before snakemake starts",
        )
    return Finding(True, f"modules load: {' '.join(names)}")
