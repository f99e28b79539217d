"""Fit the scaling law of the finished models below a folder, and predict the largest from the others.

Parameters are those of the blocks and norms, without embedding and output, whose share shrinks as models grow (Kaplan
et al. 2020, section 1.3).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pipeline.core.display_text import align_columns
from pipeline.core.errors import InputError
from pipeline.core.job_records import Record
from pipeline.core.settings import merge_result_and_nonresult_settings
from pipeline.experiment.run_overview import find_last_segments, find_runs_in_folder, run_folder
from pipeline.experiment.scaling_fit import PARAMETERS, LossPrediction, ScalingFit, ScalingPoint, fit_scaling_law
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import parameter_count
from pipeline.plan.scaling_laws import LossUnit, ScalingLaw
from pipeline.provenance.trace import ReportFigure

UNIT: LossUnit = "bits per byte"
MOST_EPOCHS = 4
"""Up to this many epochs, repeated text is about as good as fresh text (Muennighoff et al. 2023, section 6)."""


class Rung(NamedTuple):
    """A finished model.

    Attributes:
        epochs: of its training text.
        index_sha256: of the index of its validation tokens.
        variant: its settings without the seed.
        is_cell: whether it is a cell of an experiment.
    """

    model: str
    point: ScalingPoint
    epochs: float
    energy: ReportFigure | None
    index_sha256: str
    variant: str
    seed: int | None
    is_cell: bool

    @property
    def training_flops(self) -> float:
        """The floating-point operations of training, 6 N D."""
        return 6 * self.point.parameters * self.point.tokens


def find_rungs(results: Path) -> tuple[list[Rung], list[str]]:
    """Find the finished models of the runs below a folder, by compute, and the reasons for those left out.

    Raises:
        InputError: there is no run, or models that are no cells were validated on different tokens.
    """
    rungs, left_out = [], []
    for name, run in find_runs_in_folder(results).items():
        for model, record in find_last_segments(run_folder(results, name)).items():
            try:
                rungs.append(_read_rung(f"{name}/{model}", model, record, run.figures))
            except InputError as error:
                left_out.append(f"left out: {error}")
    rungs.sort(key=lambda rung: (rung.training_flops, rung.model))
    reasons = _find_cells_of_other_tokens(rungs)
    reasons |= _find_worse_settings([rung for rung in rungs if rung.model not in reasons])
    left_out += [f"left out: {model} {reason}" for model, reason in reasons.items()]
    return [rung for rung in rungs if rung.model not in reasons], left_out


def _find_cells_of_other_tokens(rungs: Sequence[Rung]) -> dict[str, str]:
    """Return the cells that were validated on other tokens than the models that are no cells, with the reason.

    Raises:
        InputError: models that are no cells were validated on different tokens.
    """
    reasons = {}
    first = min(rungs, key=lambda rung: rung.is_cell, default=None)
    for rung in rungs:
        if first is None or rung.index_sha256 == first.index_sha256:
            continue
        if not rung.is_cell:
            raise InputError(
                f"{first.model} and {rung.model} were validated on different tokens, so that their losses are of no "
                "one law: name a folder whose models share a token set"
            )
        reasons[rung.model] = f"was validated on other tokens than {first.model}"
    return reasons


def _find_worse_settings(rungs: Sequence[Rung]) -> dict[str, str]:
    """Return the models that another one of the same size and tokens makes superfluous, with the reason.

    A law describes losses of well-chosen settings, so of several settings those with the lowest mean loss over their
    seeds count. A cell with the settings and the seed of another model is the same training.
    """
    reasons: dict[str, str] = {}
    variants: dict[tuple[float, float], dict[str, list[Rung]]] = {}
    for rung in sorted(rungs, key=lambda rung: rung.is_cell):
        seeds = variants.setdefault(rung.point[:2], {}).setdefault(rung.variant, [])
        same = next((one.model for one in seeds if rung.is_cell and one.seed == rung.seed), None)
        if same:
            reasons[rung.model] = f"is the same training as {same}"
        else:
            seeds.append(rung)
    for of_one_size in variants.values():
        losses = {variant: fmean(rung.point.loss for rung in seeds) for variant, seeds in of_one_size.items()}
        best = min(losses, key=losses.__getitem__)
        for variant in losses.keys() - {best}:
            for rung in of_one_size[variant]:
                reasons[rung.model] = (
                    f"has the size and the tokens of {of_one_size[best][0].model}, whose settings give a lower loss "
                    f"({losses[best]:.4f} instead of {losses[variant]:.4f})"
                )
    return dict(sorted(reasons.items()))


def _read_rung(name: str, model: str, record: Record, figures: Mapping[str, ReportFigure]) -> Rung:
    """Read a model from the report of its run and the record of its last segment.

    Raises:
        InputError: its report has no loss, it has experts, or it is not trained to its end.
    """
    steps, planned = int(record.instance["step"]), record.settings["training"]["steps"]
    if steps < planned:
        raise InputError(f"{name} has done {steps} of {planned} training steps")
    index = next((entry for entry in record.inputs if entry.name == "index"), None)
    if index is None:
        raise InputError(f"{name} has no index of tokens in the record of its last segment")
    keys = (f"model.{model}.validation_bits_per_byte", f"model.{model}.tokens_seen")
    try:
        loss, tokens, train = (figures[key].value for key in (*keys, f"tokens.{Path(index.path).parent.name}.train"))
    except KeyError as error:
        raise InputError(
            f"{name} has no {error.args[0]} in the report of its run: `polder run CONFIG report` writes it for every "
            "model with training.validation_every"
        ) from None
    architecture = Architecture.model_validate(record.settings["architecture"])
    if architecture.experts:
        raise InputError(f"{name} has experts, and the law applies to models without")
    parameters = parameter_count(architecture, 0)
    point = ScalingPoint(parameters, tokens, loss)
    return Rung(
        model=name,
        point=point,
        epochs=tokens / train,
        energy=figures.get(f"energy.model.{model}"),
        index_sha256=index.sha256,
        variant=json.dumps([record.settings["architecture"], record.settings["training"]], sort_keys=True),
        seed=record.settings.get("seed"),
        is_cell=bool(merge_result_and_nonresult_settings(record.settings, record.operation).get("records_outcome")),
    )


def fit_rungs(rungs: Sequence[Rung], *, hold_out: bool) -> ScalingFit:
    """Fit the law of the models, without the largest if it is held out.

    Raises:
        InputError: there are too few models for a law.
    """
    return fit_scaling_law([rung.point for rung in (rungs[:-1] if hold_out else rungs)], UNIT)


def format_scaling_law(rungs: Sequence[Rung], fitted: ScalingFit, *, hold_out: bool) -> list[str]:
    """Format the law: its models, its parameters, the best split of compute, and the prediction."""
    used = rungs[:-1] if hold_out else rungs
    lines = [*_format_table(rungs, fitted, hold_out=hold_out), ""]
    cells = sum(rung.is_cell for rung in used)
    lines.append(
        f"The law is fitted to {f'{len(used)} of these {len(rungs)}' if hold_out else f'these {len(rungs)}'} models"
        f"{f', {cells} of them cells of experiments' if cells else ''}:"
    )
    lines += _format_law(fitted)
    largest = rungs[-1]
    lines.append(_format_best_split(fitted.law, largest))
    if hold_out:
        lines.append(_format_held_out(largest, fitted.predict(largest.point.parameters, largest.point.tokens)))
    if repeated := [rung.model for rung in rungs if rung.epochs > MOST_EPOCHS]:
        lines.append(
            f"the law assumes fresh text: {', '.join(repeated)} read theirs over {MOST_EPOCHS} times and learn less"
        )
    return lines


def _format_table(rungs: Sequence[Rung], fitted: ScalingFit, *, hold_out: bool) -> list[str]:
    rows = [["model", "parameters N", "tokens D", "epochs", f"loss L, {UNIT}", "law's L", "law's error", "energy"]]
    for rung in rungs:
        parameters, tokens, loss = rung.point
        by_law = fitted.law.loss(parameters, tokens)
        energy = f"{rung.energy.value:,.0f} J {rung.energy.how}" if rung.energy else "not known"
        held = " (held out)" if hold_out and rung is rungs[-1] else ""
        rows.append([f"{rung.model}{held}", f"{parameters:,.0f}", f"{tokens:,.0f}", f"{rung.epochs:.3g}"])
        rows[-1] += [f"{loss:.4f}", f"{by_law:.4f}", f"{100 * (by_law / loss - 1):+.2f} %", energy]
    return align_columns(rows)


def _format_law(fitted: ScalingFit) -> Iterator[str]:

    law = fitted.law
    yield (
        f"L = E + A / N^alpha + B / D^beta, with L the validation loss in {law.unit}, N the parameters without "
        "embedding and output, D the training tokens; with 95 % intervals"
    )
    rows = []
    for letter in PARAMETERS:
        low, high = fitted.interval(letter)
        rows.append([letter, f"{getattr(law, letter):.4g}", f"{low:.4g} to {high:.4g}"])
    yield from align_columns(rows)


def _format_best_split(law: ScalingLaw, rung: Rung) -> str:

    try:
        parameters, tokens = law.compute_optimal(rung.training_flops)
    except InputError as error:
        return str(error)
    return (
        f"compute of {rung.model} (6 N D = {rung.training_flops:.3g} FLOP) spent best: {parameters:.3g} parameters, "
        f"{tokens:.3g} tokens{_format_outside(law.describe_extrapolation(parameters, tokens))}"
    )


def _format_held_out(rung: Rung, predicted: LossPrediction) -> str:

    loss = rung.point.loss
    return (
        f"{rung.model}, held out: predicted {predicted.loss:.4f} ({predicted.low:.4f} to {predicted.high:.4f}), "
        f"measured {loss:.4f}: {100 * (predicted.loss / loss - 1):+.2f} %{_format_outside(predicted.outside)}"
    )


def _format_outside(outside: Sequence[str]) -> str:
    return f"; outside of the fitted range: {', '.join(outside)}" if outside else ""
