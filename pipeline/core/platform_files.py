"""The platform files of workflow/platforms, without validation: what a step needs to know of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError

PLATFORMS = Path(__file__).parents[2] / "workflow" / "platforms"
TEMPLATE = "template"
"""The template for new platform files; not a platform."""


def list_platforms() -> list[str]:
    return sorted(file.stem for file in PLATFORMS.glob("*.yaml") if file.stem != TEMPLATE)


def load_platform(name: str) -> dict[str, Any]:
    """Return the content of a platform file.

    Raises:
        InputError: there is no such platform, or its file is no YAML of keys with its own name.
    """
    path = PLATFORMS / f"{name}.yaml"
    if name == TEMPLATE:
        raise InputError(
            "configuration: platform: template is no machine: copy workflow/platforms/template.yaml to the name of "
            f"yours, or choose one of {', '.join(list_platforms())}"
        )
    if name not in list_platforms():
        raise InputError(f"configuration: platform: there is no {name!r}: choose one of {', '.join(list_platforms())}")
    from pipeline.core.yaml_files import load_yaml  # every job of a step reads this module, and few a platform

    loaded = load_yaml(path)
    if not isinstance(loaded, dict) or loaded.get("name") != name:
        raise InputError(f"{path} must hold keys, the first of them name: {name}")
    return loaded


def platform_variables(platform: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that a platform file sets for a training unless they are already set."""
    suffix = platform.get("address_suffix")
    return {**platform.get("environment", {}), **({"PIPELINE_ADDRESS_SUFFIX": suffix} if suffix else {})}


def current_container_image() -> str | None:
    """Return the Apptainer or SingularityCE image that this process runs in; None outside of an image."""
    return os.environ.get("APPTAINER_NAME") or os.environ.get("SINGULARITY_NAME")


def fill_folder_template(template: str, account: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return a folder path with its $VARIABLES and {account} filled in.

    Raises:
        InputError: one of them is not known.
    """
    if "{account}" in template and account is None:
        raise InputError(f"the folder {template} needs the account: write slurm: {{account: NAME}}")
    filled = template.replace("{account}", account or "")
    missing = [name for name in re.findall(r"\$\{?(\w+)\}?", filled) if name not in environment]
    if missing:
        raise InputError(f"the folder {template} needs the variable {missing[0]}, which is not set: export it")
    return re.sub(r"\$\{?(\w+)\}?", lambda match: environment[match[1]], filled)
