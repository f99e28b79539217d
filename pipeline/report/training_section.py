"""Return what the page shows of a training: figures, charts, validation, and the plan next to the measurement."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.core.batch_schedule import median_step_seconds
from pipeline.core.job_records import Record, is_training_segment
from pipeline.core.settings import Pretrained
from pipeline.energy.run_energy_report_reader import EnergyAccounting, EnergyFigure, sum_energy
from pipeline.report.charts import LINE_STYLES, Series, draw_line_chart
from pipeline.report.run_reader import Json, RunReader

# Rows of the table of a training: the key of the metrics, its label, and the filter of its figures.
METRIC_ROWS = (
    ("loss", "Training loss, nats per token", "number"),
    ("gradient_norm", "Gradient norm before clipping", "number"),
    ("tokens_per_second", "Tokens per second", "number"),
    ("seconds", "Time of a step", "brief"),
    ("device_utilization", "Device utilization: share of time in which anything ran", "share"),
    ("device_utilization_least", "The same for the least busy device", "share"),
    ("model_flops_utilization", "Model FLOPs utilization (MFU): useful arithmetic over the peak", "share"),
    ("hardware_flops_utilization", "Hardware FLOPs utilization: recomputation included", "share"),
    ("memory_bytes", "Peak memory of a process", "size"),
    ("memory_used_bytes", "Memory in use on a device", "size"),
    ("data_stall_seconds", "Waiting for data per step", "brief"),
    ("energy_joules", "Energy of a step", "joules"),
)
GROUP_PREFIX = "validation_loss/"


def known_values_by_step(metrics: list[Json], key: str) -> list[tuple[float, float]]:
    """Return (step, value) of the lines that know a value."""
    return [(line["step"], line[key]) for line in metrics if line.get(key) is not None]


def format_duration_below_minute(seconds: float) -> str:
    """Return a short time in seconds, milliseconds or microseconds."""
    unit, factor = next(((u, f) for u, f in (("s", 1.0), ("ms", 1e3)) if seconds * f >= 1), ("µs", 1e6))
    return f"{seconds * factor:,.3g} {unit}"


def draw_training_charts(metrics: list[Json], energy_label: str, gettext: Callable[[str], str] = str) -> list[Any]:
    """Return the charts of a run; those of which nothing is known are left out, except the first three.

    `energy_label` says how the joules are known, and `gettext` a sentence in the language of the page.
    """

    def series(name: str, key: str, factor: float = 1.0) -> Series:
        return Series(gettext(name), [(step, value * factor) for step, value in known_values_by_step(metrics, key)])

    def draw(title: str, unit: str, *wanted: Series, from_zero: bool = True) -> Any:
        return draw_line_chart(
            gettext(title), gettext("step"), gettext(unit), [*wanted], from_zero=from_zero, gettext=gettext
        )

    def draw_series_with_points(title: str, unit: str, *wanted: Series, from_zero: bool = True) -> Any:
        charts = [line for line in wanted if line.points]
        return draw(title, unit, *charts, from_zero=from_zero) if charts else None

    hardware = series("hardware FLOPs utilization", "hardware_flops_utilization", 100)
    model = series("model FLOPs utilization (MFU)", "model_flops_utilization", 100)
    stall_shares = [
        (line["step"], 100 * line["data_stall_seconds"] / line["seconds"])
        for line in metrics
        if line.get("data_stall_seconds") is not None and line.get("seconds")
    ]
    by_language, by_source = (
        [
            Series(name, known_values_by_step(metrics, f"{GROUP_PREFIX}{column}/{name}"))
            for name in list_validation_groups(metrics, column)
        ]
        for column in ("language", "source")
    )
    charts = [
        draw(
            *("Loss", "nats per token", series("training", "loss"), series("validation", "validation_loss")),
            from_zero=False,
        ),
        draw("Throughput", "tokens per second", series("throughput", "tokens_per_second")),
        draw("Learning rate", "learning rate", series("learning rate", "learning_rate")),
        draw_series_with_points(
            "Device utilization and MFU",
            "%",
            series("device utilization", "device_utilization", 100),
            model,
            *([hardware] if hardware.points != model.points else []),
        ),
        draw_series_with_points("Gradient norm", "before clipping", series("norm", "gradient_norm")),
        draw_series_with_points(
            "Memory of the largest process",
            "GB",
            series("peak", "memory_bytes", 1e-9),
            series("in use", "memory_used_bytes", 1e-9),
        ),
        draw_series_with_points(
            f"{gettext('Energy')}, {gettext(energy_label)}", "J per step", series("energy", "energy_joules")
        ),
        draw_series_with_points("Waiting for data", "% of the step", Series(gettext("stall"), stall_shares)),
        draw_series_with_points("Validation loss per language", "nats per token", *by_language, from_zero=False),
        draw_series_with_points("Validation loss per source", "nats per token", *by_source, from_zero=False),
    ]
    return [chart for chart in charts if chart is not None]


def draw_training_loss_by_model(reader: RunReader, gettext: Callable[[str], str] = str) -> Any:
    """Return the chart of the training loss of all models; None where no loss was recorded."""
    lines = [Series(metrics.name, known_values_by_step(metrics.lines, "loss")) for metrics in reader.metrics]
    lines = [line for line in lines if line.points][:LINE_STYLES]
    title = gettext(
        "How badly the model predicts the next token, in nats (minus the natural logarithm of its probability); "
        "lower is better"
    )
    return draw_line_chart(title, gettext("step"), gettext("nats per token"), lines, gettext=gettext) if lines else None


def summarize_metrics(metrics: list[Json]) -> list[Json]:
    """Return a row per figure that is known: mean, least, most and last."""
    rows = []
    for key, words, filter_name in METRIC_ROWS:
        values = [float(value) for _, value in known_values_by_step(metrics, key)]
        if values:
            summary = [sum(values) / len(values), min(values), max(values), values[-1]]
            rows.append({"words": words, "filter": filter_name, "values": summary})
    return rows


def list_validation_groups(metrics: list[Json], column: str) -> list[str]:
    """Return the languages or sources with a validation loss of their own, in order."""
    start = f"{GROUP_PREFIX}{column}/"
    return sorted({key.removeprefix(start) for line in metrics for key in line if key.startswith(start)})


def read_last_validation(metrics: list[Json]) -> list[Json]:
    """Return the last validation: of all that it saw, then of each language and each source, with intervals."""
    line = next((line for line in reversed(metrics) if line.get("validation_loss") is not None), None)
    if line is None:
        return []
    places = [("all", "", "")]
    places += [
        (column, name, f"/{column}/{name}")
        for column in ("language", "source")
        for name in list_validation_groups([line], column)
    ]
    rows = []
    for column, name, place in places:
        row = {"column": column, "name": name, "step": int(line["step"])}
        for key, kind in (("loss", "loss"), ("bits", "bits_per_byte")):
            row[key] = line.get(f"validation_{kind}{place}")
            row[f"{key}_interval"] = [line.get(f"validation_{kind}_{end}{place}") for end in ("low", "high")]
        rows.append(row)
    return rows


def compare_with_baselines(line: Json, vocabulary_size: int | None, held_out: Json) -> Json:
    """Return what guessing, a unigram and a bigram lose on the text of the validation, and how the model compares.

    `best` of the three and `verdict` are None unless the losses of the model and the bigram are known; the model is
    `better` or `worse` than the best where the whole interval of its loss is, else `inconclusive`. `counted_part`
    has the tokens that were counted, and of how many, where they are not all.

    Args:
        line: that of the last validation in the metrics.
    """
    losses = {
        "guessing": math.log(vocabulary_size) if vocabulary_size else None,
        "unigram": held_out.get("unigram_loss"),
        "bigram": held_out.get("bigram_loss"),
    }
    known = {name: value for name, value in losses.items() if value is not None}
    loss, best, verdict = line.get("validation_loss"), None, None
    if loss is not None and "bigram" in known:
        best = min(known, key=known.__getitem__)
        low, high = (line.get(f"validation_loss_{end}") or loss for end in ("low", "high"))
        verdict = "better" if high < known[best] else "worse" if low > known[best] else "inconclusive"
    counted, every = held_out.get("counted_tokens", 0), held_out.get("of_training_tokens", 0)
    return {
        **losses,
        "best": best,
        "verdict": verdict,
        "counted_part": (counted, every) if counted < every else None,
    }


def sources_without_validation(index: Json) -> list[str]:
    """Return the sources of a token set of which training reads text and validation has none, by name."""
    read, held = ({group["source"] for group in index[split].get("groups", [])} for split in ("train", "validation"))
    return sorted(read - held)


def find_parent_checkpoint(model: str, segments: list[Record]) -> tuple[str, int] | None:
    """Return the model and the step that a training goes on from; None where it begins with weights of its own.

    Args:
        segments: their records, the first one first.
    """
    before = [entry.path for entry in segments[0].inputs if entry.name == "previous"] if segments else []
    if not before:
        return None
    _, other, _, step, *_ = before[0].split("/")
    return (other, int(step)) if other != model else None


def list_interruptions(segments: list[Record]) -> list[tuple[str, str, int | None]]:
    """Return (segment, what happened, how often or at which step) of resumptions, restarts and skipped batches."""
    rows: list[tuple[str, str, int | None]] = []
    for record in segments:
        counts, step = record.counts, str(record.instance.get("step"))
        if counts.get("resumed_from") is not None:
            rows.append((step, "continued from the checkpoint of step", counts["resumed_from"]))
        restarts, skips = counts.get("restarts"), counts.get("skipped_data_steps")
        if restarts:
            rows.append((step, _format_reasons("started again", counts.get("restart_reasons")), restarts))
        if skips:
            rows.append((step, _format_reasons("batches left out", counts.get("skip_reasons")), len(skips)))
    return rows


def _format_reasons(words: str, reasons: list[str] | None) -> str:
    return f"{words}: {'; '.join(dict.fromkeys(reasons))}" if reasons else words


def describe_base_model(reader: RunReader, name: str, pretrained: Pretrained | None) -> Json | None:
    """Return the model that another one began with: name, origin, tokens, and how the embeddings were made."""
    if pretrained is None:
        return None
    records = reader.records_of("pretrain.adopt", model=name)
    counts = records[0].counts if records else {}
    token_counts = {key: counts.get(f"tokens_{key}") for key in ("copied", "composed", "unknown")}
    description = {
        "name": pretrained.display_name,
        **{key: getattr(pretrained, key) for key in ("license", "url", "tokens")},
    }
    same, rotation = counts.get("same_tokenizer"), counts.get("rotation") or []
    return {**description, "same_tokenizer": same, "rotation": "; ".join(rotation), **token_counts}


ACTIVATIONS = {False: "activation_bytes_per_device", True: "activation_bytes_with_recomputation"}
"""In the plan, by whether all is computed again."""
# By the key in the plan: the words of a row, and the filter of its figures.
PLANNED_ROWS = {
    "parameters": ("Parameters", "number"),
    "tokens": ("Tokens trained on", "number"),
    "step_seconds": ("Time of a step, median", "brief"),
    "tokens_per_second_per_device": ("Tokens per second of a device, median", "number"),
    "utilization_share": ("Model FLOPs utilization, median", "share"),
    "memory_bytes": ("Peak memory of a device", "size"),
    "seconds": ("Time of the training's jobs, startup and lost ones included", "duration"),
    "energy_joules": ("Electricity of the same jobs, before PUE", "kwh"),
}


@dataclass(frozen=True)
class PlannedRow:
    """A figure as it was planned, perhaps with its interval, and as it was measured; `filter` says how they are shown.

    `label` names the kind of the measured figure where it is not measured alone.
    """

    words: str
    filter: str
    planned: float
    measured: float | None
    low: float | None = None
    high: float | None = None
    label: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times the plan was measured."""
        return self.measured / self.planned if self.planned and self.measured is not None else None

    @property
    def is_inside(self) -> bool | None:
        """Whether the planned interval holds what was measured; None where there is no interval, or no measurement."""
        if self.measured is None or self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


def compare_with_plan(
    reader: RunReader, account: EnergyAccounting, model: Json, metrics: list[Json], estimate: Json
) -> list[PlannedRow]:
    """Return the rows of a model; none of what the plan does not know.

    Args:
        model: as `summarize_model` returns it.
        metrics: the lines of its metrics.
        estimate: its entry in the plan; empty where there is none.
    """
    processes, speed = model["processes"], model["tokens_per_second"]
    activations = estimate.get(ACTIVATIONS[model["recomputation"] == "full"])
    held = (estimate.get(f"{part}_bytes_per_device") for part in ("model_state", "gathered"))
    memory = _sum(*held, activations)
    energy = _total_attempt_energy(account, model["name"])
    measured = {
        "parameters": model["parameters"],
        "tokens": model["own_tokens"],
        "step_seconds": median_step_seconds(metrics),
        "tokens_per_second_per_device": speed / processes if speed and processes else None,
        "utilization_share": model["model_flops_utilization"],
        # A process's memory on a CPU holds Python and its libraries.
        "memory_bytes": model["memory_bytes"] if model["device"] not in (None, "CPU") else None,
        "seconds": _total_attempt_seconds(reader, model["name"]),
        "energy_joules": energy.joules if energy.is_known else None,
    }
    planned: dict[str, Any] = {**estimate, "memory_bytes": memory}
    more: dict[str, dict[str, Any]] = {
        "step_seconds": _step_time_interval(estimate),
        "energy_joules": {"label": energy.label if energy.is_known else ""},
    }
    return [
        PlannedRow(*PLANNED_ROWS[key], planned[key], measured[key], **more.get(key, {}))
        for key in PLANNED_ROWS
        if planned.get(key) is not None
    ]


def _step_time_interval(estimate: Json) -> dict[str, float]:
    """Return the interval of a step's time: the plan's of the whole time is by the error of a step's."""
    whole, step = estimate.get("seconds"), estimate.get("step_seconds")
    ends = {end: estimate.get(f"{end}_seconds") for end in ("low", "high")}
    return {end: step * value / whole for end, value in ends.items() if value is not None and whole and step}


def _sum(*amounts: float | None) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def _total_attempt_seconds(reader: RunReader, name: str) -> float | None:
    """Return the seconds of all attempts at the model's segments; None where those of one are not known."""
    attempts = [one for one in reader.attempts if is_training_segment(name, one.step, one.instance)]
    return _sum(*(attempt.wall_seconds for attempt in attempts)) if attempts else None


def _total_attempt_energy(account: EnergyAccounting, name: str) -> EnergyFigure:
    """Return the joules of the same attempts; not known where those of one are not."""
    jobs = [job for job in account.jobs.values() if is_training_segment(name, job.step, job.instance)]
    return sum_energy(jobs) if jobs and all(job.is_known for job in jobs) else EnergyFigure()
