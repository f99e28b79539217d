"""The key figures of a run, each with how it is known and what it comes from, and the sums that must add up.

The figures are written to `report/figures.json` too, for programs: `from` has paths within the run, a folder's with a
slash.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline import layout
from pipeline.core.display_text import format_duration
from pipeline.core.job_records import Record
from pipeline.core.markup import format_bytes, format_number, use_minus_sign
from pipeline.energy.run_energy_report_reader import EnergyAccounting, EnergyFigure, choose_energy_unit
from pipeline.report.footprint import Footprint, list_energy_total_checks
from pipeline.report.run_reader import Artifact, Json, RunReader

ATTEMPTS, RECORDS, ENERGY = f"{layout.ATTEMPTS}/", f"{layout.RECORDS}/", layout.ENERGY_ACCOUNT
ARCHIVES = f"{layout.BATCH_ARCHIVES}/"
COUNTED_ATTEMPTS = (
    "all attempts but those of the stages report and provenance"  # which run while or after it is written
)
REPORT_COMMAND = "python -m pipeline report page"


@dataclass(frozen=True)
class KeyFigure:
    """One figure: its stable name, its label in English, its text on the page, its value, and its proof.

    `how` is measured, estimated, stated, counted or computed; what is known in several ways has the least certain.
    """

    figure: str
    label: str
    text: str
    value: float
    unit: str
    how: str
    paths: tuple[str, ...]
    command: str

    @property
    def anchor(self) -> str:
        """Return the id of the figure on the page."""
        return "figure-" + re.sub(r"[^\w-]+", "-", self.figure, flags=re.ASCII)

    @property
    def source_link(self) -> str:
        """Return the link from the page to what the figure is read from."""
        return f"../{self.paths[0]}"

    def as_json(self) -> Json:
        """Return the figure as `report/figures.json` has it."""
        keys = ("figure", "label", "value", "unit", "how")
        return {key: getattr(self, key) for key in keys} | {"from": [*self.paths], "command": self.command}


def _measurement_kind(figure: EnergyFigure) -> str:
    """Return how an energy is known; what is partly estimated is estimated."""
    return figure.label if figure.label in ("measured", "stated") else "estimated"


class _FigureFactory:
    """Makes figures of artifacts: each comes from the artifact and from the record of the job that wrote it."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.writers = {entry.path: record for record in records for entry in record.outputs}

    def make_figures(
        self, artifact: Artifact | Record, rows: Iterable[tuple[str, str, Any, str, str]]
    ) -> list[KeyFigure]:
        """Return a figure for each row (name, label, value, unit, how) whose value is known."""
        path = artifact.file if isinstance(artifact, Record) else artifact.link.removeprefix("../")
        record = self.writers.get(path)
        paths = (path, record.file) if record else (path,)
        command = shlex.join(record.command) if record else ""
        return [
            KeyFigure(
                name,
                label,
                format_bytes(value) if unit == "bytes" else use_minus_sign(format_number(value)),
                value,
                unit,
                how,
                paths,
                command,
            )
            for name, label, value, unit, how in rows
            if value is not None
        ]


MODEL_FIGURES = {
    "tokens_seen": ("tokens that {name} saw", "tokens", "counted"),
    "steps": ("training steps of {name}", "steps", "counted"),
    "validation_loss": ("validation loss of {name}, last", "nats per token", "computed"),
    "validation_bits_per_byte": ("validation bits per byte of {name}, last", "bits per byte", "computed"),
}
CORPUS_FIGURES = {
    "documents_in": ("documents read for corpus {name}", "documents"),
    "documents_out": ("documents of corpus {name}", "documents"),
    "bytes_out": ("text of corpus {name}", "bytes"),
}
"""By the key of a model, and of the totals of a corpus: the label and the unit, and how it is known."""


def _model_figures(proofs: _FigureFactory, reader: RunReader, models: Sequence[Json]) -> list[KeyFigure]:
    figures = []
    metrics_by_model = {metrics.name: metrics for metrics in reader.metrics}
    for model in models:
        name = model["name"]
        if model["segments"]:
            rows = [(f"model.{name}.parameters", f"parameters of {name}", model["parameters"], "parameters", "counted")]
            if (active := model["active_parameters"]) != model["parameters"]:  # experts
                label = f"parameters of {name} that a token uses"
                rows.append((f"model.{name}.active_parameters", label, active, "parameters", "counted"))
            figures += proofs.make_figures(model["segments"][-1], rows)
        of_metrics = MODEL_FIGURES.items()
        figures += proofs.make_figures(
            metrics_by_model[name],
            [(f"model.{name}.{key}", label.format(name=name), model[key], *how) for key, (label, *how) in of_metrics],
        )
    return figures


def _data_figures(proofs: _FigureFactory, reader: RunReader) -> list[KeyFigure]:
    figures = []
    for statistics in reader.statistics:
        name, totals = statistics.content["corpus"], statistics.content["totals"]
        of_corpus = [
            (f"corpus.{name}.{key}", label.format(name=name), totals[key], unit, "counted")
            for key, (label, unit) in CORPUS_FIGURES.items()
        ]
        figures += proofs.make_figures(statistics, of_corpus)
    for index in reader.indexes:
        name = index.name
        splits = [(split, index.content[split]["tokens"]) for split in ("train", "validation")]
        rows = [(f"tokens.{name}.{split}", f"{split} tokens of token set {name}", count) for split, count in splits]
        figures += proofs.make_figures(index, [(*row, "tokens", "counted") for row in rows])
    return figures


def _score_figures(proofs: _FigureFactory, reader: RunReader, evaluations: Sequence[Json]) -> list[KeyFigure]:
    by_language = {(entry["model"], entry["checkpoints"][0]["step"]): entry["languages"] for entry in evaluations}
    figures = []
    for results in reader.evaluation:
        model, step = results.content["model"], results.content["step"]
        rows = []
        for task in results.content["tasks"]:
            name, metric = task["task"], task["metric"]
            label = f"{metric} of {model}, step {step}: {name}"
            rows.append((f"score.{model}.{step}.{name}.{metric}", label, task["value"], metric, "computed"))
        for row in by_language.get((model, step), []):
            language, value = row.language, round(row.value)
            label = f"mean score of {model}, step {step}, in language {language}; 0 is guessing, 100 all right"
            rows.append((f"language.{model}.{step}.{language}", label, value, "points", "computed"))
        figures += proofs.make_figures(results, rows)
    return figures


def _resource_figures(energy: Footprint, models: Sequence[Json], evidence: tuple[str, ...]) -> list[KeyFigure]:
    """Return energy, carbon and time; `evidence` are the folders of records and attempts."""
    joules = [
        ("energy.facility", f"electricity of the facility, {COUNTED_ATTEMPTS}, times PUE", energy.facility),
        ("energy.total", f"electricity, {COUNTED_ATTEMPTS}, before PUE", energy.total),
        ("energy.lost", "electricity of lost attempts, before PUE", energy.account.lost),
    ]
    joules += [
        (f"energy.model.{m['name']}", f"electricity of the segments of {m['name']}, before PUE", m["energy"])
        for m in models
    ]
    figures = [
        KeyFigure(
            name,
            label,
            figure.value,
            figure.joules,
            "J",
            _measurement_kind(figure),
            (ENERGY,),
            REPORT_COMMAND,
        )
        for name, label, figure in joules
        if figure.is_known
    ]
    if energy.carbon.amount:
        grams = energy.carbon.amount.value
        label = "carbon dioxide equivalent, location-based"
        figures.append(
            KeyFigure("carbon.total", label, energy.carbon.value, grams, "g", "estimated", (ENERGY,), REPORT_COMMAND)
        )
    for name, label, seconds in (
        ("time.wall", f"time in jobs, {COUNTED_ATTEMPTS}", energy.use.wall_seconds),
        ("time.processor", f"processor time, {COUNTED_ATTEMPTS}", energy.use.cpu_seconds),
    ):
        text = format_duration(seconds)
        figures.append(KeyFigure(name, label, text, seconds, "s", "measured", evidence, REPORT_COMMAND))
    return figures


def compute_key_figures(reader: RunReader, content: Json, cells: Sequence[Json]) -> dict[str, KeyFigure]:
    """Return the key figures by name. What is not known has none.

    Args:
        reader: the run, cells of experiments included.
        content: that of the view, without cells.
        cells: those with metrics; they have the figures of a model.
    """
    models = [*content["models"], *cells]
    proofs = _FigureFactory(reader.records)
    energy, checks, failed = content["energy"], content["checks"], content["failed_checks"]
    archives = (ARCHIVES,) if any(record.archive for record in reader.records) else ()
    lost = tuple(sorted({one.attempt.archive or one.attempt.file for one in energy.attempts})) or (ATTEMPTS,)

    def paths_of(group: Sequence[ConservationCheck]) -> tuple[str, ...]:
        return tuple(sorted({check.link.removeprefix("../") for check in group})) or (RECORDS,)

    counted = [
        ("run.jobs", "jobs with a record", len(reader.records), "jobs", (RECORDS, *archives)),
        ("run.attempts_lost", "lost attempts", len(energy.attempts), "attempts", lost),
        (
            "run.unreadable",
            "files that cannot be read",
            len(reader.unreadable),
            "files",
            (RECORDS, ATTEMPTS, *archives),
        ),
        ("checks.total", "consistency checks", len(checks), "checks", paths_of(checks)),
        ("checks.failed", "consistency checks that fail", len(failed), "checks", paths_of(failed)),
    ]
    figures = [
        *_model_figures(proofs, reader, models),
        *_data_figures(proofs, reader),
        *_resource_figures(energy, models, (RECORDS, ATTEMPTS, *archives)),
        *_score_figures(proofs, reader, content["evaluations"]),
        *(
            KeyFigure(name, label, format_number(value), value, unit, "counted", paths, REPORT_COMMAND)
            for name, label, value, unit, paths in counted
        ),
    ]
    return {figure.figure: figure for figure in figures}


ENERGY_TOLERANCE = 0.01  # of the total, by which the sum of its parts may differ from it


@dataclass(frozen=True)
class ConservationCheck:
    """One sum: what must hold, of what, the figures, and whether it holds."""

    sentence: str  # with names of `of` in braces
    of: dict[str, str]
    figures: str
    holds: bool
    link: str


def _check_sum(sentence: str, values: dict[str, str], link: str, left: int, *right: int) -> ConservationCheck:
    """Return whether a number is the sum of others."""
    figures = f"{left:,} = {' + '.join(f'{part:,}' for part in right)}"
    return ConservationCheck(sentence, values, figures, left == sum(right), link)


def _stage_checks(name: str, values: dict[str, str], part: Json, link: str) -> Iterator[ConservationCheck]:
    before = part["documents_in"]
    for step in part["stages"]:
        read, step_values = step["in"], values | {"step": step["stage"]}
        removed = sum(step["removed"].values())
        yield _check_sum(name + ": in = kept + removed, step {step}", step_values, link, read, step["kept"], removed)
        yield _check_sum(name + ": what goes into {step} came out before it", step_values, link, before, read)
        before = step["kept"]
    yield _check_sum(name + ": documents out = kept by the last stage", values, link, part["documents_out"], before)


def _corpus_checks(statistics: Artifact) -> Iterator[ConservationCheck]:
    content, link = statistics.content, statistics.link
    values, sources = {"corpus": content["corpus"]}, content["sources"]
    for source, part in sorted(sources.items()):
        name, source_values = "corpus {corpus}, source {source}", values | {"source": source}
        yield from _stage_checks(name, source_values, part, link)
        if "read_bytes" in part:
            damaged, sentence = (
                sum(row["bytes"] for row in part["quarantined"]),
                "bytes on disk = read + in damaged files",
            )
            yield _check_sum(f"{name}: {sentence}", source_values, link, part["raw_bytes"], part["read_bytes"], damaged)
    yield from _stage_checks("corpus {corpus}, all sources", values, content["totals"], link)
    for key in ("documents_in", "documents_out", "bytes_in", "bytes_out"):
        sentence, parts = f"corpus {{corpus}}: {key.replace('_', ' ')} = sum over sources", sources.values()
        yield _check_sum(sentence, values, link, content["totals"][key], sum(part[key] for part in parts))


def _source_checks(manifest: Artifact) -> Iterator[ConservationCheck]:
    content, values = manifest.content, {"source": manifest.name}
    files = [file for unit in content.get("units", {}).values() for file in unit["files"]]
    size = sum(file["bytes"] for file in files)
    yield _check_sum("source {source}: bytes = sum over files", values, manifest.link, content["bytes"], size)
    yield _check_sum("source {source}: number of files", values, manifest.link, content["files"], len(files))


def _input_hash_check(reader: RunReader) -> ConservationCheck:
    """Every input that another job wrote must have the hash that its writer recorded."""
    written = {entry.path: entry.sha256 for record in reader.records for entry in record.outputs}
    read = [entry for record in reader.records for entry in record.inputs if entry.path in written]
    same = sum(entry.sha256 == written[entry.path] for entry in read)
    sentence = "records: every input has the sha256 that the job which wrote it recorded"
    return _check_sum(sentence, {}, f"../{layout.RECORDS}", same, len(read))


def _token_checks(reader: RunReader, index: Artifact) -> Iterator[ConservationCheck]:
    values, content = {"tokens": index.name}, index.content
    for split in ("train", "validation"):
        for key in ("documents", "tokens"):
            sentence, shards = f"token set {{tokens}}, {split}: {key} = sum over shards", content[split]["shards"]
            yield _check_sum(sentence, values, index.link, content[split][key], sum(shard[key] for shard in shards))
    records = reader.records_of("tokens.shard", tokens=index.name)
    paths = {entry.path for record in records for entry in record.inputs}
    documents = content["train"]["documents"] + content["validation"]["documents"]
    for statistics in reader.statistics:
        corpus, out = statistics.content["corpus"], statistics.content["totals"]["documents_out"]
        if any(path.startswith(f"{layout.CORPUS.relative_path(corpus=corpus)}/") for path in paths):
            sentence = "token set {tokens}: documents = documents out of corpus {corpus}"
            yield _check_sum(sentence, values | {"corpus": corpus}, index.link, documents, out)


def _opt_out_checks(reader: RunReader, proof: Artifact) -> Iterator[ConservationCheck]:
    """What the proof counts as there before must be what the steps removed, and nothing may be found after."""
    content, link, values = proof.content, proof.link, {"corpus": proof.content["corpus"]}
    for statistics in reader.statistics:
        if statistics.content["corpus"] != content["corpus"]:
            continue
        totals, known = statistics.content["totals"], statistics.content["sources"]
        listed = sum(part["documents"] for name, part in content["sources"].items() if name in known)
        counted = {"filter": listed, "deduplicate": content["before"]["copies"]}
        for step in totals["stages"]:
            if (stage := step["stage"]) in counted:
                sentence = "corpus {corpus}: removed as opt_out by {step} = what the lists name"
                yield _check_sum(
                    sentence, values | {"step": stage}, link, step["removed"].get("opt_out", 0), counted[stage]
                )
        sentence = "corpus {corpus}: documents searched for what is forgotten = documents out"
        yield _check_sum(sentence, values, link, content["searched"]["documents"], totals["documents_out"])
    matches = content["after"]["documents"] + content["after"]["copies"]
    yield _check_sum("corpus {corpus}: nothing that is forgotten is found", values, link, matches, 0)


def _energy_checks(account: EnergyAccounting) -> Iterator[ConservationCheck]:
    """The parts of the energy come to its total, and how it is known comes to all of it."""
    link, total = f"../{layout.ENERGY_ACCOUNT}", account.total
    unit = choose_energy_unit(total.joules)

    def check_energy_sum(what: str, sum_: float) -> ConservationCheck:
        holds = abs(sum_ - total.joules) <= ENERGY_TOLERANCE * total.joules
        figures = f"{unit.format(total.joules, 4)} {unit.name} = {unit.format(sum_, 4)} {unit.name}"
        return ConservationCheck(f"energy: total = {what}, within {ENERGY_TOLERANCE:.0%}", {}, figures, holds, link)

    sums = list_energy_total_checks(account)
    for what, parts in sums:
        yield check_energy_sum(what, parts.joules)
    if sums:
        yield check_energy_sum(
            "measured + estimated + stated", total.measured_joules + total.estimated_joules + total.stated_joules
        )
        low, high = unit.format(total.low_joules, 4), unit.format(total.high_joules, 4)
        yield ConservationCheck(
            "energy: the total is in its interval",
            {},
            f"{low} ≤ {unit.format(total.joules, 4)} ≤ {high} {unit.name}",
            total.low_joules <= total.joules <= total.high_joules,
            link,
        )


def list_conservation_checks(reader: RunReader, account: EnergyAccounting) -> list[ConservationCheck]:
    """Return every check of the run, those of the chain first."""
    checks = [_input_hash_check(reader)]
    for manifest in reader.manifests:
        checks += _source_checks(manifest)
    for statistics in reader.statistics:
        checks += _corpus_checks(statistics)
    for index in reader.indexes:
        checks += _token_checks(reader, index)
    for proof in reader.forgotten:
        checks += _opt_out_checks(reader, proof)
    checks += _energy_checks(account)
    return checks
