"""The commands that compare runs, and look into them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.cli.parameters import (
    AsJson,
    ModelName,
    RawFolder,
    ResultsFolder,
    RunFolder,
    command,
    make_group,
    print_json,
)

PANEL = "Inspect"
commands = make_group()


@command(commands, PANEL, "List runs and figures", "polder runs results")
def runs(
    results: ResultsFolder = Path("results"),
    mlflow: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write models into this MLflow store.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a column for each run, with settings that differ and figures, and a row for each model, cells included."""
    from pipeline.core.display_text import escape_to_one_line
    from pipeline.experiment.mlflow_export import export_runs, import_mlflow_without_telemetry
    from pipeline.experiment.run_overview import INTERVAL_NOTE, find_runs_in_folder, format_models, format_runs

    if mlflow:
        import_mlflow_without_telemetry()
    summaries = find_runs_in_folder(results)
    if as_json:
        figures = {
            name: {key: figure.model_dump(by_alias=True) for key, figure in summary.figures.items()}
            for name, summary in summaries.items()
        }
        print_json({name: {**one._asdict(), "figures": figures[name]} for name, one in summaries.items()})
    else:
        models = format_models(summaries)
        print("\n".join([*format_runs(summaries), "", *models, *[""] * bool(models), INTERVAL_NOTE]))
    if mlflow:
        print("\n".join(map(escape_to_one_line, ["", *export_runs(mlflow, results, summaries)])))


@command(commands, PANEL, "Compare two runs", "polder compare results/a results/b")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", readable=False, help="The folder of a run.")],
    b: Annotated[Path, typer.Argument(metavar="B", readable=False, help="The folder of another run.")],
    all_lines: Annotated[bool, typer.Option("--all", help="Print every difference, not a summary.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what differs between two runs and between the answers of their models; exit with 1 if something does."""
    from pipeline.audit.commit_differences import explain_code_changes
    from pipeline.evaluate.answer_comparison import compare_run_answers
    from pipeline.provenance.compare_runs import compare_runs as compare_records
    from pipeline.provenance.compare_runs import summarize_differences

    comparison = compare_records(a, b)
    answers = compare_run_answers(a, b)
    notes = [*comparison.notes, *answers]
    lines = comparison.differences
    if comparison.code:
        lines += ["code", *(f"  {line}" for line in explain_code_changes(comparison.code))]
    same = "Settings, code, environment, data, counts, results and energy are the same."
    if as_json:
        print_json({"differences": lines, "notes": notes, "same": not lines})
    elif not lines:
        print("\n".join([same, *notes]))
    else:
        conclusion, *summary = summarize_differences(lines)
        is_short = len(summary) == len(lines)
        shown = lines if all_lines else summary
        more = [] if all_lines or is_short else [f"Every difference: polder compare {a} {b} --all"]
        print("\n".join([conclusion, *answers, *shown, *(comparison.notes if all_lines or is_short else []), *more]))
    raise typer.Exit(1 if lines else 0)


@command(commands, PANEL, "Fit a scaling law", "polder ladder results --hold-out largest")
def ladder(
    results: ResultsFolder = Path("results"),
    hold_out: Annotated[
        Literal["largest"] | None, typer.Option(help="Fit without the largest model, and predict its loss.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit the scaling law of all finished models, with intervals, and list each model with its energy."""
    from pipeline.core.display_text import escape_to_one_line
    from pipeline.core.errors import InputError
    from pipeline.experiment.ladder_scaling_law import find_rungs, fit_rungs, format_scaling_law

    rungs, left_out = find_rungs(results)
    try:
        fit = fit_rungs(rungs, hold_out=hold_out is not None)
    except InputError as error:
        raise InputError("; ".join([str(error), *left_out])) from None
    if as_json:
        models = [{**rung.point._asdict(), "model": rung.model, "epochs": rung.epochs} for rung in rungs]
        print_json({"law": fit.as_json(), "models": models, "left_out": left_out})
    else:
        lines = format_scaling_law(rungs, fit, hold_out=hold_out is not None)
        print("\n".join(map(escape_to_one_line, [*lines, *left_out])))


@command(commands, PANEL, "Speed by devices", "polder scaling results")
def scaling(results: ResultsFolder = Path("results"), as_json: AsJson = False) -> None:
    """Print how speed and energy of the same training change with the number of devices: strong and weak scaling."""
    from pipeline.core.display_text import escape_to_one_line
    from pipeline.experiment.device_scaling import format_scaling, read_measurements

    measurements = list(read_measurements(results))
    if as_json:
        print_json([one._asdict() for one in measurements])
    else:
        print("\n".join(map(escape_to_one_line, format_scaling(measurements))))


@command(commands, PANEL, "Read a model's answers", "polder items results/demo base 120")
def items(
    run: RunFolder,
    model: ModelName,
    step: Annotated[int, typer.Argument(metavar="STEP", help="The training step of an evaluated checkpoint.")],
    raw: RawFolder = None,
    output: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("items.html"),
) -> None:
    """Write a page of evaluation items: the prompt, the model's answer, and the likelihood of each choice."""
    from pipeline.audit.item_page_of_finished_run import write_items

    counts = write_items(run, model, step, raw, output)
    print(f"{output}: {counts['shown']} items, {counts['altered']} with another text than what was asked")


@command(commands, PANEL, "Scores for other tools", "polder scores results/demo base 120 --format lm-eval")
def scores(
    run: RunFolder,
    model: ModelName,
    step: Annotated[int, typer.Argument(metavar="STEP", help="The training step of an evaluated checkpoint.")],
    kind: Annotated[
        Literal["lm-eval", "every-eval-ever", "euroeval", "model-index"],
        typer.Option("--format", help="The tool that reads the file; model-index is that of a model card."),
    ],
    name: Annotated[
        str | None, typer.Option(metavar="NAMESPACE/NAME", help="The published model; else RUN/MODEL-STEP.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write; else the name that the tool gives it.")
    ] = None,
) -> None:
    """Write the scores of a checkpoint, with intervals, in the format of another tool."""
    from pipeline.evaluate.score_export import write_scores

    path, left_out = write_scores(run, model, step, kind, output, name)
    print(path)
    if left_out:
        print(f"left out, because no direction is better: {', '.join(left_out)}")


@command(commands, PANEL, "Trace a running training", "polder profile results/demo base --steps 3")
def profile(
    run: RunFolder,
    model: ModelName,
    steps: Annotated[int, typer.Option(help="The number of steps to trace.")] = 3,
    seconds: Annotated[float, typer.Option(help="The longest time to wait for the trace.")] = 600,
) -> None:
    """Have a running training trace its next steps, in Chrome's format (chrome://tracing, Perfetto)."""
    from pipeline.pretrain.monitors.profiler import request_trace

    trace = request_trace(run, model, steps, seconds)
    print(f"{trace}: open it in https://ui.perfetto.dev or chrome://tracing")
