"""Fit a node's power model to measured jobs, and print the YAML for a partition of a platform file.

    PYTHONPATH=. .venv/bin/python benchmarks/power_model.py TABLE.csv --source "EAR, 20 jobs" [--core-watts 4.2 2.6 4.9]

TABLE has the columns busy_cores, watts and seconds; a row is one job alone on its node. `watts` is the node's mean
power without its GPUs (EAR: DC_NODE_POWER_W minus the GPUx_POWER_W); `busy_cores` is CPU seconds / seconds. Some rows
should keep at least four cores busy. If none does, give the watts of one more core with its lowest and highest value
from a data sheet as --core-watts.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import yaml

from pipeline.core.errors import InputError
from tests.energy.power_fit import ObservedPower, WattRange, fit_power_model


def rows(path: Path) -> list[ObservedPower]:
    """Return the rows of a table.

    Raises:
        InputError: it cannot be read, a column is missing, or a figure is none.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [
                ObservedPower(*(float(row[key]) for key in ObservedPower._fields))
                for row in csv.DictReader(file)
                if any(row)
            ]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except KeyError as error:
        raise InputError(f"{path} has no column {error}: it needs {', '.join(ObservedPower._fields)}") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}: each of {', '.join(ObservedPower._fields)} must be a number") from None


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--source", required=True, help="who measured what, for the platform's file")
    parser.add_argument("--core-watts", type=float, nargs=3, metavar=("WATTS", "LEAST", "MOST"))
    arguments = parser.parse_args()
    core = WattRange(*arguments.core_watts) if arguments.core_watts else None
    try:
        model = fit_power_model(rows(arguments.table), source=arguments.source, busy_core_watts=core)
    except InputError as error:
        sys.exit(str(error))
    values = {
        key: [float(f"{one:.3g}") for one in value] if isinstance(value, list) else value
        for key, value in model.model_dump(mode="json", exclude_defaults=True).items()
    }
    values = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in values.items()}
    print(yaml.safe_dump({"power": values}, sort_keys=False, allow_unicode=True, width=120), end="")


if __name__ == "__main__":
    main()
