"""The software environment of jobs: an image, whose Python must match the plan, or environment modules.

With `--sdm env-modules`, a module that does not load ends the job. Snakemake's own command continues if `module` is
missing, because a failed command before `&&` does not end a shell.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.platforms import Platform
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.job import environment_lock_comparison
from pipeline.job.environment_lock_comparison import Environment
from pipeline.slurm.executor.snakemake_private import EnvModules
from pipeline.slurm.site_checks import COMMAND_SECONDS, SiteFinding
from pipeline.workflow.steps import STEPS

IMAGE_PYTHON = Path(__file__).parents[2] / "envs/container/python"
REQUIRED_MODULES = ("torch", "pyarrow", "datatrove", "pydantic")
VERSION_PROGRAM = (
    "import sys; from importlib.util import find_spec;"
    "print('%d.%d' % sys.version_info[:2], *[name for name in sys.argv[1:] if find_spec(name) is None])"
)


def container_image_variables(platform: Platform) -> dict[str, str]:
    """Return the variables with which envs/container/python finds the image, and a training its Python."""
    if platform.container is None:
        return {}
    gpus = "--nv" if platform.device == "cuda" else ""
    return {"PIPELINE_IMAGE": platform.container, "PIPELINE_GPUS": gpus, "PIPELINE_PYTHON": str(IMAGE_PYTHON)}


def command_prefix(platform: Platform) -> str:
    """Return the prefix of all commands, with which `python` is that of the platform's image."""
    folders = shlex.quote(f"{IMAGE_PYTHON.parent}:{sys.prefix}/bin")
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in container_image_variables(platform).items())
    return f"trap : TERM; export {variables} PATH={folders}:$PATH; "


def image_environments(platform: Platform, lock: str) -> dict[str, Environment] | None:
    """Return the environment of every step in the platform's image; None without an image.

    Raises:
        InputError: the image is missing, does not start, has another Python or lacks packages.
    """
    if platform.container is None:
        return None
    finding = check_image(platform)
    if not finding.ok:
        raise InputError(f"{finding.what}: {finding.way_out}")
    return environment_lock_comparison.image_environments(
        str(IMAGE_PYTHON), lock, list(STEPS), {**os.environ, **container_image_variables(platform)}
    )


def describe_image(platform: Platform, before: Mapping[str, Any] | None, *, hashed: bool = True) -> dict[str, Any]:
    """Return path, size, time and sha256 of the platform's image as `image`; nothing without an image.

    An image has gigabytes: one with the path, size and time of the last snapshot, `before`, keeps its hash. A folder
    has no hash, nor has a changed file unless `hashed`.
    """
    if platform.container is None:
        return {}
    path = Path(platform.container)
    image: dict[str, Any] = {"path": platform.container, "sha256": None}
    if path.is_file():
        state = path.stat()
        image |= {"bytes": state.st_size, "modified_ns": state.st_mtime_ns}
        known = (before or {}).get("image") or {}
        if {**known, "sha256": None} == image:
            image["sha256"] = known["sha256"]
        if hashed and image["sha256"] is None:
            image["sha256"] = hash_file(path)
    return {"image": image}


def check_image(platform: Platform) -> SiteFinding:
    """Start the platform's image and compare its Python with this one, which is part of every step's version."""
    image, file = str(platform.container), f"workflow/platforms/{platform.name}.yaml"
    if not Path(image).exists():
        return SiteFinding(False, f"there is no image {image}", f"write an existing one into {file}")
    words = [str(IMAGE_PYTHON), "-c", VERSION_PROGRAM, *REQUIRED_MODULES]
    done = subprocess.run(
        words, env={**os.environ, **container_image_variables(platform)}, capture_output=True, text=True
    )
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = said[-1].removeprefix("error: ") if said else f"it ends with {done.returncode}"
        return SiteFinding(
            False, f"Python of the image {image} does not start ({why})", "see docs/howto/use-a-container.md"
        )
    version, *lacking = done.stdout.split()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != here:
        return SiteFinding(
            False,
            f"the image {image} has Python {version}, but .venv has Python {here}",
            f"rebuild .venv with PYTHON=python{version} sh envs/setup.sh, or write another image into {file}",
        )
    if lacking:
        way_out = "make .venv-image in it, see docs/howto/use-a-container.md"
        return SiteFinding(False, f"Python of the image {image} lacks {', '.join(lacking)}", way_out)
    return SiteFinding(True, f"the image {image} has Python {version}, as .venv")


def module_load_command(names: Sequence[str]) -> str:
    """Return the shell command that loads only these modules, or ends the shell."""
    return f"{{ module purge && module load {' '.join(names)}; }} || exit 1;"


class JobModules(EnvModules):  # type: ignore[misc]
    def shellcmd(self, cmd: str) -> str:
        """Return a job's command with the modules loaded before it."""
        return f"{module_load_command(self.names)} {cmd}"


def export_module_function(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set BASH_ENV, so that every bash of a job defines `module`.

    The function that a login shell exports is lost if /bin/sh is not bash, as on Debian, which drops the variable
    `BASH_FUNC_module%%`. Environment Modules and Lmod set MODULESHOME.
    """
    start = Path(environment.get("MODULESHOME", ""), "init", "bash")
    if "BASH_ENV" not in environment and start.is_file():
        environment["BASH_ENV"] = str(start)


def check_modules(names: Sequence[str]) -> SiteFinding:
    """Check that Snakemake's shell has a command `module`, and that it loads these modules."""
    if subprocess.run(["bash", "-c", "type module"], capture_output=True).returncode:
        return SiteFinding(
            False,
            "there is no command module here, so --sdm env-modules would load nothing",
            "start from a login shell where `bash -c 'module list'` works, or leave --sdm env-modules out",
        )
    if not names:
        return SiteFinding(True, "module is here; the platform names no modules")
    done = subprocess.run(
        ["bash", "-c", module_load_command(names)], capture_output=True, text=True, timeout=COMMAND_SECONDS
    )
    # Old versions of module end with 0 where they fail.
    if done.returncode or re.search(r"\bERROR\b", done.stderr):
        said = next(
            (text.strip() for text in done.stderr.splitlines() if text.strip()), f"it ends with {done.returncode}"
        )
        return SiteFinding(
            False,
            f"the modules {' '.join(names)} do not load ({said})",
            "see `module avail`, and `module use` their folder before you run snakemake",
        )
    return SiteFinding(True, f"modules load: {' '.join(names)}")
