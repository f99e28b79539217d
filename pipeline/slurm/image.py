"""The image that jobs compute in: how they enter it, which it is, and whether its Python is that of the plan."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config.platforms import Platform
from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of
from pipeline.job import environments
from pipeline.job.environments import Environment
from pipeline.slurm.site import Finding
from pipeline.workflow.steps import STEPS

PYTHON = Path(__file__).parents[2] / "envs/container/python"
NEEDED = ("torch", "pyarrow", "datatrove", "pydantic")
PROGRAM = (
    "import sys; from importlib.util import find_spec;"
    "print('%d.%d' % sys.version_info[:2], *[name for name in sys.argv[1:] if find_spec(name) is None])"
)


def environment(platform: Platform) -> dict[str, str]:
    """Return the variables by which envs/container/python knows the image, and a training what runs its processes."""
    if platform.container is None:
        return {}
    gpus = "--nv" if platform.device == "cuda" else ""
    return {"PIPELINE_IMAGE": platform.container, "PIPELINE_GPUS": gpus, "PIPELINE_PYTHON": str(PYTHON)}


def environments_in(platform: Platform, lock: str) -> dict[str, Environment] | None:
    """Return the environment of every step in the platform's image, if it has one, whose Python is asked for all.

    Raises:
        InputError: there is no such image, it does not answer, or it has another Python or lacks what steps need.
    """
    if platform.container is None:
        return None
    finding = look(platform)
    if not finding.ok:
        raise InputError(f"{finding.what}: {finding.way_out}")
    return environments.inside(str(PYTHON), lock, list(STEPS), {**os.environ, **environment(platform)})


def described(platform: Platform, before: Mapping[str, Any] | None, *, hashed: bool = True) -> dict[str, Any]:
    """Return what identifies the platform's image: `image` with path, length, time and sha256; nothing without one.

    An image has gigabytes: one with path, length and time of the start before, `before`, has its hash too. A folder has
    none, and neither has a file that changed since and is not to be hashed now.
    """
    if platform.container is None:
        return {}
    path = Path(platform.container)
    found: dict[str, Any] = {"path": platform.container, "sha256": None}
    if path.is_file():
        state = path.stat()
        found |= {"bytes": state.st_size, "modified_ns": state.st_mtime_ns}
        known = (before or {}).get("image") or {}
        if {**known, "sha256": None} == found:
            found["sha256"] = known["sha256"]
        if hashed and found["sha256"] is None:
            found["sha256"] = sha256_of(path)
    return {"image": found}


def look(platform: Platform) -> Finding:
    """Start the platform's image and compare its Python with this one, whose version is a part of every step's."""
    image, file = str(platform.container), f"workflow/platforms/{platform.name}.yaml"
    if not Path(image).exists():
        return Finding(False, f"there is no image {image}", f"write one that is there into {file}")
    words = [str(PYTHON), "-c", PROGRAM, *NEEDED]
    done = subprocess.run(words, env={**os.environ, **environment(platform)}, capture_output=True, text=True)
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = said[-1].removeprefix("error: ") if said else f"it ends with {done.returncode}"
        return Finding(False, f"Python of the image {image} does not start ({why})", "see docs/platform.md, An image")
    version, *lacking = done.stdout.split()
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != here:
        return Finding(
            False,
            f"the image {image} has Python {version}, but .venv has Python {here}",
            f"make .venv anew with PYTHON=python{version} sh envs/setup.sh, or write another image into {file}",
        )
    if lacking:
        way_out = "make .venv-image in it, see docs/platform.md, An image"
        return Finding(False, f"Python of the image {image} lacks {', '.join(lacking)}", way_out)
    return Finding(True, f"the image {image} has Python {version}, as .venv")
