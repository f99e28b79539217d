"""Error of the power model and of the energy forecast, on published jobs of a curation pipeline on Snellius.

    PYTHONPATH=. .venv/bin/python benchmarks/energy_forecast.py FOLDER

FOLDER holds measurements_raw.csv (paper/data of https://github.com/kruuusher13/GPT-NL-Energy-Estimation-, Apache-2.0),
or is tests/energy, whose ear_jobs.csv has the same jobs. Calibration uses 1,000 and 100,000 documents, two runs each;
a ratio below 1 is better than the published error. Work is counted in documents, as published, and in the bytes of the
texts, which are known before a run too: bytes moved by a job less those moved by every start-up.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

from tests.energy.ear_jobs import (
    LARGE,
    SMALL,
    STEPS,
    Run,
    calibrated,
    held_out,
    model_errors,
    published_table,
    runs,
    shared_errors,
    summary,
    table,
    work_of,
)

PUBLISHED = {"data_splitting": 0.144, "string_normalization": 0.155, "heuristic_filtering": 0.081}
PUBLISHED_SHARED_POWER, PUBLISHED_SHARED = 0.458, 0.054


def line(name: str, *cells: str) -> None:
    """Print a row of a table."""
    print(f"| {name} | {' | '.join(cells)} |")


def forecasts(
    title: str, results: list[Run], small: tuple[int, ...], large: tuple[int, ...], replicates=(1, 2)
) -> None:  # type: ignore[no-untyped-def]
    """Print how forecasts by documents and by bytes did."""
    for unit, work in {"documents": lambda run: run.documents, "bytes": work_of(results, small)}.items():
        steps = held_out(results, work, small, large, replicates)
        covered, half_width = summary(steps)
        number = sum(len(step.covered) for step in steps.values())
        line(
            f"{title}, {unit}",
            *(f"{steps[s].error:.1%} ({steps[s].error / PUBLISHED[s]:.2f})" for s in STEPS),
            " / ".join(f"{steps[s].seconds_error:.1%}" for s in STEPS),
            f"{covered * number:.0f} of {number}",
            f"{half_width:.0%}",
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    raw = folder / "measurements_raw.csv"
    jobs = published_table(raw) if raw.exists() else table(folder / "ear_jobs.csv")

    print("Forecast: mean relative error of the energy (ratio to the published one)\n")
    line("calibrated on, work", *STEPS, "seconds", "in the interval", "median half-width")
    line("---", *["---"] * 6)
    size = runs(jobs)
    forecasts("1,000 and 100,000", size, SMALL, LARGE)
    for replicate in (1, 2):
        forecasts(f"replicate {replicate} of them alone", size, SMALL, LARGE, (replicate,))
    forecasts("1,000 and 400,000", size, (1_000, 400_000), (100_000, 1_400_000))
    forecasts("100,000 and 400,000", size, (100_000, 400_000), (1_400_000,))
    forecasts("second series (amst), 1,000 and 100,000", runs(jobs, "amst"), SMALL, LARGE)

    model = calibrated(jobs)
    print(f"\nPower of a node: {model.model_dump(mode='json', exclude_none=True)}\n")
    line("jobs alone on their node", "number", "mean relative error", "in the interval")
    line("---", *["---"] * 3)
    for name, documents, run in (
        ("calibration: size, 1,000 and 100,000", SMALL, "size"),
        ("size, 400,000 and 1,400,000", LARGE, "size"),
        ("amst, 400,000 and 1,400,000", LARGE, "amst"),
        ("amst, 1,000 and 100,000", SMALL, "amst"),
        ("European Parliament", (100,), "euparl"),
    ):
        chosen = [job for job in jobs if job.run == run and job.documents in documents]
        error, held = model_errors(model, chosen)
        line(name, str(len(chosen)), f"{error:.1%}", f"{held * len(chosen):.0f}")

    rows = shared_errors(model, jobs)
    print("\nShared nodes: energy against the mean of the same jobs alone on their nodes\n")
    line("jobs", "number", "EAR's power x time", "time x calibrated power", "ratio to the published 5.4 %")
    line("---", *["---"] * 4)
    for name, chosen_rows in {
        "400,000 documents": [row for row in rows if row[0].documents == 400_000],
        "longer than 15 s": [row for row in rows if row[0].seconds > 15],
        "longer than 30 s": [row for row in rows if row[0].seconds > 30],
        "all": rows,
    }.items():
        power, ours = (fmean(abs(row[key]) for row in chosen_rows) for key in (1, 2))
        line(name, str(len(chosen_rows)), f"{power:.1%}", f"{ours:.1%}", f"{ours / PUBLISHED_SHARED:.2f}")
    shared = runs(jobs, "amstsh")
    print("\nAs published: seconds of the small shared jobs forecast those of 400,000, both x the same power\n")
    for unit, work in {"documents": lambda run: run.documents, "bytes": work_of(shared)}.items():
        steps = held_out(shared, work, SMALL, (400_000,))
        error = fmean(step.seconds_error for step in steps.values())
        power_error = fmean(step.error for step in steps.values())
        print(
            f"{unit}: {error:.1%} ({error / PUBLISHED_SHARED:.2f} of the published 5.4 %); by the node's power "
            f"{power_error:.1%} (published {PUBLISHED_SHARED_POWER:.1%})"
        )


if __name__ == "__main__":
    main()
