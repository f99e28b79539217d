"""What people ask of a configuration: `python -m pipeline plan CONFIG` and `python -m pipeline schema`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import yaml

from pipeline.ground.errors import InputError
from pipeline.plan.estimate import estimate
from pipeline.plan.settings import EstimateSettings
from pipeline.plan.table import table
from pipeline.run.config import Config, load
from pipeline.run.steps import step_settings


def read(path: Path, **changes: str) -> Config:
    """Return the configuration in a YAML file.

    Raises:
        InputError: the file is missing, is no YAML, or does not describe a run.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError:
        raise InputError(f"there is no configuration {path}: name one of config/*.yaml") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path} holds no keys: a run needs at least run and sources")
    return load({**raw, **changes})


def plan(arguments: list[str]) -> int:
    """Print compute, memory, time, energy, carbon and cost of a configuration, all estimated."""
    parser = argparse.ArgumentParser(prog="python -m pipeline plan")
    parser.add_argument("configuration", type=Path)
    options = parser.parse_args(arguments)
    settings = step_settings(read(options.configuration), "plan.estimate", {})
    print(table(estimate(EstimateSettings.model_validate(settings.model_dump()))))
    return 0


def schema(arguments: list[str]) -> int:
    """Print the JSON Schema of a configuration, for editors."""
    argparse.ArgumentParser(prog="python -m pipeline schema").parse_args(arguments)
    print(json.dumps(Config.model_json_schema(), indent=2, sort_keys=True))
    return 0
