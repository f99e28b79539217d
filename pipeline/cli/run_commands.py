"""The commands that start a run, or look at one that is running."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.parameters import AsJson, ConfigurationFile, DataFolder, RunFolder, command, make_group

PANEL = "Run"
commands = make_group()


@command(commands, PANEL, "Run a configuration", "polder run config/micro.yaml -n")
def run(
    configuration: ConfigurationFile,
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TARGET", help="Stages, files; options of Snakemake after --."),
    ] = None,
    profile: Annotated[str, typer.Option(metavar="NAME", help="local, slurm or a folder.")] = "local",
    dry_run: Annotated[bool, typer.Option("-n", "--dry-run", help="Show the jobs, run none.")] = False,
    data: DataFolder = None,
) -> None:
    """Run a configuration with Snakemake, or only the stages and files that are named."""
    from pipeline.cli.snakemake_command import build_snakemake_command, replace_process

    replace_process(build_snakemake_command(configuration, targets or [], profile, dry_run=dry_run, data=data))


@command(commands, PANEL, "Estimate time and memory", "polder plan config/micro.yaml")
def plan(
    configuration: ConfigurationFile,
    data: DataFolder = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with all figures.")] = None,
    as_json: AsJson = False,
) -> None:
    """Report mistakes (exit code 2), and estimate the time, memory, energy and cost of a run."""
    from pipeline.cli.plan_output import print_plan

    print_plan(configuration, data, as_json=as_json, html=html)


@command(commands, PANEL, "Show the progress", "polder follow results/demo --once")
def follow(
    run: RunFolder,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a run, its trainings and its waiting jobs until you press Ctrl-C."""
    from pipeline.pretrain.training_follower import TrainingFollower
    from pipeline.slurm.waiting_for_leftover_jobs import list_waiting_jobs
    from pipeline.workflow import live_view

    announce = partial(print, file=sys.stderr) if as_json else print
    follower = live_view.Follower(run, list_waiting_jobs, TrainingFollower(run, announce).describe)
    live_view.follow(follower, once=once, as_json=as_json)


@command(commands, PANEL, "Energy used and to come", "polder energy results/demo")
def energy(run: RunFolder, data: DataFolder = None, as_json: AsJson = False) -> None:
    """Show the energy that a run has used, and an estimate for the rest, also while it runs."""
    from pipeline.cli.parameters import print_json
    from pipeline.workflow.energy_progress import format_progress_table, read_energy_progress

    steps, account = read_energy_progress(run, data)
    if as_json:
        so_far = account.total.model_dump(mode="json")
        print_json({"so_far": so_far, "steps": [step.as_json() for step in steps], "problems": account.problems})
    else:
        print("\n".join(format_progress_table(steps, account)))


@command(commands, PANEL, "Read Slurm's meters", "polder accounting results/demo")
def accounting(run: RunFolder) -> None:
    """Write down what Slurm, EAR and other meters know of a run's jobs."""
    from pipeline.slurm.accounting import update_accounting

    update_accounting(run)


@command(commands, PANEL, "Check this machine", "polder doctor")
def doctor(
    lock: Annotated[str, typer.Option(metavar="NAME", help="The lock: cpu, cuda or rocm.")] = "cpu",
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder of results.")] = Path("results"),
    as_json: AsJson = False,
) -> None:
    """Check Python, packages, GPUs, Slurm and disks, and say what to do; exit with 1 if there is a problem."""
    from pipeline.cli.doctor import check_machine
    from pipeline.cli.parameters import print_json

    findings = list(check_machine(lock, results))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print("\n".join(map(str, findings)))
    raise typer.Exit(int(any(finding.ok is False for finding in findings)))
