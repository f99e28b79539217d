"""The commands that prepare a machine, and bring in or take out models and data sets."""

from __future__ import annotations

import datetime
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.cli.new_commands import PANEL as EXTEND
from pipeline.cli.new_commands import Name, check_checkout, new, write_part
from pipeline.cli.parameters import command, make_group, print_json

PANEL = "Extend"
commands = make_group()
model = make_group("model", "Import or export a model", "polder model import downloads/qwen3 imported/qwen3")
platform = make_group("platform", "Describe a machine", "polder platform check --platform snellius --account NAME")
Account = Annotated[str | None, typer.Option(metavar="NAME", help="The account, as slurm.account.")]


@command(commands, PANEL, "Copy lm-eval's data sets", "polder mirror private/mirror arc_easy")
def mirror(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that a suite names as data.")],
    tasks: Annotated[list[str] | None, typer.Argument(metavar="TASK", help="Tasks, groups, tags or suites.")] = None,
    configuration: Annotated[Path | None, typer.Option(metavar="CONFIG", help="Add the tasks of its suites.")] = None,
    revision: Annotated[
        list[str] | None,
        typer.Option(metavar="DATASET=REVISION", help="A commit, tag or branch of NAMESPACE/DATASET."),
    ] = None,
) -> None:
    """Copy the data sets of tasks and suites from their hub, with their revisions and hashes."""
    from pipeline.config.configuration_file import load_configuration
    from pipeline.core.errors import InputError
    from pipeline.evaluate.dataset_mirror import mirror_data_sets

    suites = load_configuration(configuration).evaluation.suites if configuration else []
    for given in revision or ():
        if not all(given.partition("=")):
            raise InputError(f"--revision {given}: write NAMESPACE/DATASET=REVISION")
    pairs = (given.partition("=") for given in revision or ())
    mirror_data_sets(folder, [*(tasks or ()), *suites], {name: commit for name, _, commit in pairs})


@command(commands, PANEL, "List web reservations", "polder reservations data/robots/*.warc.gz --out data/opt-out.json")
def reservations(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="WARC, JSON lines, Parquet, or a folder.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The list, for opt_out of a source.")],
    agent: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An agent that counts, instead of Polder's list.")
    ] = None,
    unnamed: Annotated[bool, typer.Option(help="Rules for * count for agents that a robots.txt does not name.")] = True,
    fetched: Annotated[
        str | None, typer.Option(metavar="DATE", help="When the files of a folder were fetched.")
    ] = None,
    opt_out: Annotated[Path | None, typer.Option(metavar="LIST", help="Keep the entries of this list too.")] = None,
) -> None:
    """Make an opt-out list of what robots.txt, ai.txt and tdmrep.json reserve, from files that you have fetched."""
    from pipeline.core.errors import InputError
    from pipeline.opt_out.lists import YAML_SUFFIXES
    from pipeline.opt_out.opt_out_list_from_reservations import AI_AGENTS, collect_reservations

    if out.suffix not in YAML_SUFFIXES:
        raise InputError(f"--out {out}: the list is JSON: name a file that ends in .json")
    listed = collect_reservations(files, agents=agent or AI_AGENTS, unnamed=unnamed, fetched=fetched, opt_out=opt_out)
    try:
        out.write_text(listed.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}: name a file in a folder that is there") from None
    counted = Counter(file for _, file in {(one.host, one.file) for one in listed.reservations})
    shown = ", ".join(f"{file} of {number} hosts" for file, number in sorted(counted.items()))
    print(f"{out}: {shown or 'nothing is reserved'}")


@command(model, PANEL, "Import a model", "polder model import downloads/qwen3 imported/qwen3", name="import")
def import_model(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model that Transformers saved.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new folder.")],
) -> None:
    """Convert a model that Transformers saved, so that a configuration can name it under initialize_from."""
    from pipeline.model import huggingface

    huggingface.import_model(folder, out)


@command(model, PANEL, "Export a model", "polder model export imported/qwen3 exported/qwen3", name="export")
def export_model(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model that polder model import wrote.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new folder.")],
) -> None:
    """Convert an imported model back, so that Transformers loads it."""
    from pipeline.model import huggingface

    huggingface.export_model(folder, out)


@command(model, PANEL, "Write a GGUF file", "polder model gguf exported/qwen3 qwen3.gguf", name="gguf")
def write_gguf_file(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model that Transformers loads.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The new file.")],
    output_type: Annotated[
        Literal["f32", "bf16", "f16", "q8_0"], typer.Option("--type", help="Round matrices to it.")
    ] = "f16",
) -> None:
    """Write a model as the file that llama.cpp loads; its tokenizer needs pretokenizer: llama3."""
    from pipeline.pretrain.gguf_export import write_gguf

    write_gguf(folder, out, output_type)


@command(platform, PANEL, "Check a platform's file", "polder platform check --platform snellius --account NAME")
def check(
    name: Annotated[
        str | None, typer.Option("--platform", metavar="NAME", help="workflow/platforms/NAME.yaml; else CONFIG's.")
    ] = None,
    account: Account = None,
    nodes: Annotated[int, typer.Option(help="The nodes of a training, as slurm.nodes.")] = 2,
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG", help="Take slurm.account and slurm.partitions of this file.")
    ] = None,
    wait_seconds: Annotated[int, typer.Option(help="The longest wait for a small job.")] = 600,
) -> None:
    """Check that a platform's file fits the machine and that small jobs run there; exit with 1 if something fails."""
    from pipeline.config import platforms
    from pipeline.config.configuration_file import load_configuration
    from pipeline.slurm.platform_check import check_platform

    good = True
    run = load_configuration(config) if config else None
    described = platforms.load_platform_settings(name or "local") if name or run is None else run.platform
    account = account or (run.slurm.account if run else None)
    for finding in check_platform(described, account, nodes, wait_seconds, run.slurm.partitions if run else None):
        print(finding, flush=True)
        good = good and finding.ok is not False
    raise typer.Exit(0 if good else 1)


@command(platform, PANEL, "Measure this node", "polder platform measure --folder /data/me")
def measure(
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Measure how fast a file of 4 GiB is written here.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long each rate is measured.")] = 20,
) -> None:
    """Measure rates of this node, in a job with all of its GPUs, and print them as lines for a platform's file."""
    import torch

    from pipeline.pretrain.processes import device_and_process_group
    from pipeline.slurm.platform_measurement import measure_node

    name = device_and_process_group.get_device_name(device_and_process_group.choose_backend_and_device(0)[1])
    print(f"# {name}, by polder platform measure, {datetime.date.today():%Y-%m-%d}, torch {torch.__version__}")
    print("# Single matrix products: a training reaches less, see docs/reference/platform-file.md.", flush=True)
    for key, value in measure_node(folder, seconds):
        print(f"{key}: {value:.3g}", flush=True)


@command(new, EXTEND, "A platform's file", "polder new platform dune --account NAME", name="platform")
@command(platform, PANEL, "Write a platform's file", "polder platform new dune --account NAME", name="new")
def new_platform_file(name: Name, account: Account = None) -> None:
    """Write workflow/platforms/NAME.yaml and its test, with what Slurm says here; all other keys are comments."""
    from pipeline.core.errors import InputError
    from pipeline.scaffold.new_parts import platform_edits
    from pipeline.slurm.site_description import describe_site, list_accounts

    check_checkout()
    try:
        known = describe_site(f"{datetime.date.today():%Y-%m-%d}", account)
    except InputError as error:
        known = {}
        print(f"Slurm does not answer here ({error}): every key is a comment.", file=sys.stderr)
    write_part(platform_edits(name, known))
    if known and (accounts := list_accounts()):  # a Slurm that does not answer may take a minute to say so, each time
        print(f"Your accounts: {'; '.join(accounts)}")


@command(commands, PANEL, "Compare with the lock", "polder environment --deep")
def environment(
    lock: Annotated[str, typer.Option(metavar="NAME", help="The lock envs/NAME.lock: run.environment.")] = "cpu",
    platform: Annotated[str | None, typer.Option(metavar="NAME", help="Allow this platform's own_versions.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Compare every installed file with its RECORD.")] = False,
) -> None:
    """Compare the installed packages with a lock; exit with 1 if they differ."""
    from pipeline.job.environment_lock_comparison import find_environment_problems, list_unlocked_packages

    differences = list(find_environment_problems(lock, platform, deep))
    print("\n".join(differences) if differences else f"What is installed is what envs/{lock}.lock says.")
    if extra := list_unlocked_packages(lock):
        print(f"Not in the lock, and counted only where a step imports it: {', '.join(extra)}", file=sys.stderr)
    raise typer.Exit(1 if differences else 0)


@command(commands, PANEL, "JSON Schema for editors", "polder schema > config/schema.json")
def schema() -> None:
    """Print the JSON Schema of a configuration, for editors."""
    from pipeline.config.configuration import Config

    print_json(Config.model_json_schema())


commands.add_typer(new, rich_help_panel=PANEL)
commands.add_typer(model, rich_help_panel=PANEL)
commands.add_typer(platform, rich_help_panel=PANEL)
