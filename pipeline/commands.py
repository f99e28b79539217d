"""What people ask of a configuration (`plan`, `schema`, `mirror`), and of runs what no package answers alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pipeline import layout
from pipeline.audit.available_evidence import at_hand
from pipeline.audit.code_differences import changed_code
from pipeline.audit.reproduce import ELSEWHERE, recomputed
from pipeline.audit.token_origin import trace_token
from pipeline.config.configuration import Config, load
from pipeline.core.command_lines import command_options
from pipeline.core.errors import InputError
from pipeline.core.formatting import printable
from pipeline.core.records import load_records
from pipeline.core.yaml_files import load_yaml
from pipeline.evaluate.mirror import mirror_data_sets
from pipeline.evaluate.settings import Suite, SuitesSettings
from pipeline.plan.estimate import estimate
from pipeline.plan.plan_tables import corpus_lines, plan_table, time_lines
from pipeline.plan.settings import EstimateSettings
from pipeline.provenance.compare import compare as compared
from pipeline.provenance.trace import is_of_the_run, is_source, trace_figure, trace_source
from pipeline.provenance.trace import trace as trace_file
from pipeline.provenance.verify import main as verified
from pipeline.provenance.verify import options_of
from pipeline.slurm.corpus_plan import CorpusPlan
from pipeline.workflow.memory_plan import memory_lines
from pipeline.workflow.steps import step_settings


def read(path: Path, **changes: str) -> Config:
    """Return the configuration in a YAML file.

    Raises:
        InputError: the file is missing, is no YAML, has a key twice, or does not describe a run.
    """
    try:
        raw = load_yaml(path)
    except OSError:
        raise InputError(f"there is no configuration {path}: name one of config/*.yaml") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path} holds no keys: a run needs at least run and sources")
    return load({**raw, **changes})


def plan(arguments: list[str]) -> int:
    """Print compute, memory, time, energy, carbon and cost of a configuration, and what its texts need: estimated."""
    parser = argparse.ArgumentParser(prog="python -m pipeline plan")
    parser.add_argument("configuration", type=Path)
    parser.add_argument("--data", help="the folder that {data} stands for, to see how much text there is")
    options = parser.parse_args(arguments)
    changes = {"data": options.data} if options.data else {}
    config = read(options.configuration, **changes)
    settings = step_settings(config, "plan.estimate", {})
    estimated = estimate(EstimateSettings.model_validate(settings.model_dump()))
    print("\n".join([plan_table(estimated), "", *time_lines(estimated), "", *memory_lines(config)]))
    try:
        lines = corpus_lines(CorpusPlan(config).plan())
    except InputError as error:  # models can be planned where the texts are not at hand
        lines = [f"of texts and their jobs nothing can be told: {error}"]
    print("\n".join(["", *lines]))
    return 0


def mirror(arguments: list[str]) -> int:
    """Copy the data sets of tasks that lm-eval ships from their hub into FOLDER, with their revisions and hashes."""
    parser = argparse.ArgumentParser(prog="python -m pipeline mirror", description=mirror.__doc__)
    parser.add_argument("folder", type=Path, help="what a suite names as data")
    parser.add_argument("tasks", nargs="*", help="tasks, groups or tags that lm-eval ships")
    parser.add_argument("--configuration", type=Path, help="also the tasks of its suites")
    parser.add_argument(
        "--revision",
        action="append",
        default=[],
        metavar="NAMESPACE/DATASET=REVISION",
        help="a commit, tag or branch; without it the one listed in mirror.json, or the newest",
    )
    options = parser.parse_args(arguments)
    suites = read(options.configuration).evaluation.suites if options.configuration else []
    tasks = [*options.tasks, *(task for suite in suites if isinstance(suite, Suite) for task in suite.tasks)]
    if not tasks:
        raise InputError("there is no task to mirror data for: name some, or a --configuration whose suites do")
    for given in options.revision:
        if not all(given.partition("=")):
            raise InputError(f"--revision {given}: write NAMESPACE/DATASET=REVISION")
    mirror_data_sets(options.folder, tasks, dict(given.split("=", 1) for given in options.revision))
    return 0


def items(arguments: list[str]) -> int:
    """Write a page of the items that a checkpoint answered: what was asked, what it said, and why it chose so."""
    parser = argparse.ArgumentParser(prog="python -m pipeline items", description=items.__doc__)
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("model")
    parser.add_argument("step", type=int)
    parser.add_argument("--raw", type=Path, help="the folder of data files that lie outside of the project")
    parser.add_argument("--output", type=Path, default=Path("items.html"))
    options = parser.parse_args(arguments)
    instance = {"model": options.model, "step": str(options.step)}
    found = [record for record in load_records(options.run_directory) if record.step == "evaluate.suites"]
    asked = next((record for record in found if record.instance == instance), None)
    if asked is None:
        known = ", ".join(f"{record.instance['model']} {record.instance['step']}" for record in found) or "none"
        raise InputError(f"{options.run_directory} has no evaluation of {options.model} {options.step}: {known}")
    given = next(values[1:] for _, values in command_options(asked.command) if values[:1] == ["tasks"])
    if options.raw is None and (outside := [word for word in given if word.startswith(ELSEWHERE)]):
        raise InputError(f"{outside[0]} lies outside of the project: name its folder with --raw FOLDER")
    files = [options.raw / word.removeprefix(ELSEWHERE) if word.startswith(ELSEWHERE) else Path(word) for word in given]
    if missing := [file for file in files if not file.is_file()]:
        raise InputError(f"{missing[0]} is missing, which the evaluation read: start from the project, or give --raw")
    from pipeline.evaluate.item_page import write_page  # here, for it loads scipy.stats, which takes half a second

    settings = SuitesSettings.model_validate(asked.settings)
    answers = layout.ANSWERS.path(options.run_directory, model=options.model, step=options.step)
    if not answers.is_file():
        raise InputError(f"{answers} is missing: run Snakemake again")
    counts = write_page(options.output, settings, files, answers)
    print(f"{options.output}: {counts['shown']} items, {counts['altered']} with another text than what was asked")
    return 0


def schema(arguments: list[str]) -> int:
    """Print the JSON Schema of a configuration, for editors."""
    argparse.ArgumentParser(prog="python -m pipeline schema").parse_args(arguments)
    print(json.dumps(Config.model_json_schema(), indent=2, sort_keys=True))
    return 0


def verify(arguments: list[str]) -> int:
    """Check a run and what lies beside it, and with --recompute conclude again from its files; 0, 1 or 2 as in all."""
    options = options_of(arguments)
    code, last = verified(options)
    codes = [code]
    for part in at_hand(options.run_directory, options.raw):
        print("".join(f"{printable(line)}\n" for line in part.told()), end="", flush=True)
        codes.append(1 if part.problems else 0)
    for outcome in recomputed(options.run_directory) if options.recompute else ():
        print("\n".join(outcome.told()), flush=True)
        codes.append(outcome.verdict)
    print("".join(f"{line}\n" for line in last), end="", flush=True)
    return next(worst for worst in (1, 2, 0) if worst in codes)


def compare(arguments: list[str]) -> int:
    """Print what differs between two runs and what their models' answers say of it; return 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m pipeline compare", description=compared.__doc__)
    parser.add_argument("a", type=Path, help="results/RUN")
    parser.add_argument("b", type=Path, help="results/OTHER_RUN")
    options = parser.parse_args(arguments)
    found = compared(options.a, options.b)
    from pipeline.evaluate.answer_comparison import (
        compare_runs,  # here, for it loads scipy.stats, which takes half a second
    )

    notes = [*found.notes, *compare_runs(options.a, options.b)]
    lines = found.differences
    if found.code:
        lines += ["code", *(f"  {line}" for line in changed_code(found.code))]
    same = "Settings, code, environment, data, counts, results and energy are the same."
    print("\n".join([*(lines or [same]), *notes]))
    return 1 if lines else 0


def trace(arguments: list[str]) -> int:
    """Print where a file, a figure or a token comes from, or what has a source inside."""
    parser = argparse.ArgumentParser(prog="python -m pipeline trace", description=trace.__doc__)
    parser.add_argument("run_directory", type=Path)
    parser.add_argument(
        "what", help="a file or folder of the run, a figure, a source, or a model with --step and so on"
    )
    parser.add_argument("--step", type=int, help="a step of the training of the model WHAT; from 1")
    parser.add_argument("--sample", type=int, default=0, help="a sample of the step; from 0")
    parser.add_argument("--token", type=int, default=0, help="an input token of the sample; from 0")
    options = parser.parse_args(arguments)
    run, what = options.run_directory, options.what
    if options.step is not None:
        lines = trace_token(run, what, options.step, options.sample, options.token)
    elif is_of_the_run(run, what) or "/" in what:
        lines = trace_file(run, what)
    elif is_source(run, what):
        lines = trace_source(run, what)
    else:
        lines = trace_figure(run, what)
    print("\n".join(lines))
    return 0
