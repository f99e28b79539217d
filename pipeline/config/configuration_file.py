"""Reading a configuration from a YAML file."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.configuration import Config, parse_configuration
from pipeline.config.configuration_errors import load_configuration_yaml
from pipeline.core.errors import InputError


def load_configuration(path: Path, **changes: str) -> Config:
    """Return the configuration in a YAML file.

    Args:
        changes: top-level keys that replace those of the file, such as `data`.

    Raises:
        InputError: the file is missing, is no YAML, has a key twice, or does not describe a run.
    """
    try:
        raw = load_configuration_yaml(path)
    except OSError:
        raise InputError(f"there is no configuration {path}: name one of config/*.yaml") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path} holds no keys: a run needs at least run and sources")
    return parse_configuration({**raw, **changes}, [path])
