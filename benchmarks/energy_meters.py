"""Error of Polder's energy meters against public data of a second meter.

    PYTHONPATH=. .venv/bin/python benchmarks/energy_meters.py POWER PC

POWER is plotting/data of https://github.com/JimZeyuYang/GPU_Power_Benchmark, PC is results of
https://github.com/raphischer/ai-energy-validation. The published errors of 20 boards are in
tests/energy/gpu_sensor_errors.csv. No figure is fitted to what it is tested on: a gain comes from other models, at
their steady loads, and is tested on energies; a line for the PC comes from the other applications.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from pipeline.energy.meter_recorder import POWER_SAMPLE_SECONDS, SAMPLE_SECONDS
from pipeline.energy.power_model import UNREAD_SHARE, UNREAD_WATTS
from tests.energy.second_meters import (
    RECORDS,
    PcRun,
    attribute_pc_run,
    fit_gain,
    fit_pc,
    gain_of,
    held_out_errors,
    read_pc_runs,
    read_record,
    read_sensor_errors,
    record_errors,
)

SENSOR_ERRORS = Path(__file__).parent.parent / "tests/energy/gpu_sensor_errors.csv"
CLASSES = {one: (one,) for one in ("kepler", "maxwell", "pascal", "turing")} | {"ampere and ada": ("ampere", "ada")}
PACKAGE_WATTS = (20.0, 50.0, 90.0)
SOCKET_STEP_JOULES = 3.6e3  # of the meter at the socket: its display counts in Wh


def line(*cells: str) -> None:
    """Print a row of a table."""
    print(f"| {' | '.join(cells)} |")


def head(*cells: str) -> None:
    """Print the first two rows of a table."""
    line(*cells)
    line(*["---"] * len(cells))


def spread(errors: Iterable[float]) -> str:
    """Return the mean error, and the range."""
    errors = [*errors]
    return f"{fmean(errors):+.1%} ({min(errors):+.1%} to {max(errors):+.1%})"


def print_sensors() -> None:
    """Print the published errors of each architecture, and what a gain from its other models leaves."""
    boards = read_sensor_errors(SENSOR_ERRORS)
    print("Published errors of sensors, and after a gain from the other models of the class\n")
    head("architecture", "boards, models", "steady", "energy", "mean size", "after the gain", "mean size", "gain, all")
    for name, architectures in CLASSES.items():
        some = [board for board in boards if board.architecture in architectures]
        left = held_out_errors(some)
        line(
            name,
            f"{len(some)}, {len({board.model for board in some})}",
            spread(board.steady for board in some),
            spread(board.tested for board in some),
            f"{fmean(abs(board.tested) for board in some):.1%}",
            spread(left),
            f"{fmean(map(abs, left)):.1%}",
            f"{fit_gain(some):.3f}",
        )
    errors = [board.tested for board in boards if gain_of(board.architecture) == 1]
    errors += held_out_errors([board for board in boards if gain_of(board.architecture) != 1])
    print(
        f"\nAll {len(errors)} boards, where Polder's classes with a gain have that of the other models: mean size ",
        end="",
    )
    print(f"{fmean(map(abs, errors)):.1%}")


def print_records(folder: Path) -> None:
    """Print the error of Polder's meter on each record: by samples of power, and by a counter of the same readings."""
    boards = [board for board in read_sensor_errors(SENSOR_ERRORS) if board.architecture in ("ampere", "ada")]
    print("\nRecords of 10 to 14 s, 41 starts each: Polder's meter against the meter in the board's supply\n")
    every = f"power every {POWER_SAMPLE_SECONDS:g} s"
    head(
        "board", "load", f"power every {SAMPLE_SECONDS:g} s", every, "counter", "counter, gain of others", "as shipped"
    )
    for name, kind in RECORDS.items():
        record = read_record(folder / name, kind)
        others = [board for board in boards if board.model != record.model]
        gain = fit_gain(others) if gain_of(record.architecture) != 1 else 1.0
        step = None if record.architecture != "kepler" else POWER_SAMPLE_SECONDS
        line(
            f"{record.model} ({record.architecture})",
            record.load,
            spread(record_errors(record, SAMPLE_SECONDS)),
            spread(record_errors(record, POWER_SAMPLE_SECONDS)),
            spread(record_errors(record, None)) if step is None else "none",
            f"{spread(record_errors(record, step, gain))} × {gain:.3f}" if gain != 1 else "no gain",
            f"{spread(record_errors(record, step, gain_of(record.architecture)))} × {gain_of(record.architecture):g}",
        )


def print_pc(folder: Path) -> None:
    """Print the error of CodeCarbon's sum, and of Polder's estimate of the whole PC, against its socket."""
    runs = read_pc_runs(folder)
    groups: dict[str, list[PcRun]] = {
        name: [run for run in runs if run.group == name] for name in {r.group for r in runs}
    }
    print("\nA PC (RTX 4090, i9-13900K): sums over all runs of a group, and errors of single runs\n")
    near = "within 10 %", "or a step of the meter"
    head("runs", "number", "estimate", "sum", "mean size", "range", *near, "in the interval")
    for name, some in sorted(groups.items()):
        socket = [run.socket_joules for run in some]
        watts, factor = fit_pc([run for run in runs if run.group != name])

        def show(title: str, joules: list[float], held: str = "", name=name, socket=socket) -> None:  # type: ignore[no-untyped-def]
            errors = [own / truth - 1 for own, truth in zip(joules, socket, strict=True)]
            apart = [(abs(own - truth), 0.1 * truth) for own, truth in zip(joules, socket, strict=True)]
            line(
                name,
                str(len(errors)),
                title,
                f"{sum(joules) / sum(socket) - 1:+.1%}",
                f"{fmean(map(abs, errors)):.1%}",
                f"{min(errors):+.0%} to {max(errors):+.0%}",
                str(sum(distance <= allowed for distance, allowed in apart)),
                str(sum(distance <= allowed + SOCKET_STEP_JOULES for distance, allowed in apart)),
                held,
            )

        show("parts alone (CodeCarbon)", [run.parts_joules for run in some])
        title = f"line of the other groups: {watts:.0f} W + {factor:.2f} × parts"
        show(title, [watts * run.seconds + factor * run.parts_joules for run in some])
        for package in PACKAGE_WATTS if name.startswith("GPU") else (0.0,):
            ours = [attribute_pc_run(run, package) for run in some]
            held = sum(one.low <= run.socket_joules <= one.high for one, run in zip(ours, some, strict=True))
            show("Polder" + f", processor {package:g} W" * bool(package), [one.joules for one in ours], str(held))
    print(
        f"\nPolder: {UNREAD_WATTS.watts:g} W and {UNREAD_SHARE.watts:.0%} of what is read, boards × "
        f"{gain_of('ada'):g}; these round figures were chosen with all groups known. The meter's step of 3.6 kJ "
        f"is {SOCKET_STEP_JOULES / fmean(run.socket_joules for run in runs if run.seconds < 300):.0%} of a run of two "
        "minutes."
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("power", type=Path)
    parser.add_argument("pc", type=Path)
    arguments = parser.parse_args()
    print_sensors()
    print_records(arguments.power)
    print_pc(arguments.pc)


if __name__ == "__main__":
    main()
