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
from pipeline.core.markup import number, size
from pipeline.core.records import Record
from pipeline.energy.energy_accounting import EnergyAccounting, Figure, energy_unit
from pipeline.report import amounts
from pipeline.report.footprint import Footprint, conserved
from pipeline.report.run_reader import Artefact, Json, RunReader

ATTEMPTS, RECORDS, ENERGY = f"{layout.ATTEMPTS}/", f"{layout.RECORDS}/", layout.ENERGY_ACCOUNT
COUNTED = "all attempts but those of the stages report and provenance"  # which run while or after it is written
REPORT = "python -m pipeline report page"


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
    def link(self) -> str:
        """Return the link from the page to what the figure is read from."""
        return f"../{self.paths[0]}"

    def as_json(self) -> Json:
        """Return the figure as `report/figures.json` has it."""
        keys = ("figure", "label", "value", "unit", "how")
        return {key: getattr(self, key) for key in keys} | {"from": [*self.paths], "command": self.command}


def _how(figure: Figure) -> str:
    """Return how an energy is known; what is partly estimated is estimated."""
    return figure.label if figure.label in ("measured", "stated") else "estimated"


class _Proofs:
    """Makes figures of artefacts: each comes from the artefact and from the record of the job that wrote it."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.writers = {entry.path: record for record in records for entry in record.outputs}

    def of(self, artefact: Artefact | Record, rows: Iterable[tuple[str, str, Any, str, str]]) -> list[KeyFigure]:
        """Return a figure for each row (name, label, value, unit, how) whose value is known."""
        path = artefact.file if isinstance(artefact, Record) else artefact.link.removeprefix("../")
        record = self.writers.get(path)
        paths = (path, record.file) if record else (path,)
        command = shlex.join(record.command) if record else ""
        return [
            KeyFigure(name, label, size(value) if unit == "bytes" else number(value), value, unit, how, paths, command)
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


def _models(proofs: _Proofs, material: RunReader, models: Sequence[Json]) -> list[KeyFigure]:
    found = []
    for model, metrics in zip(models, material.metrics, strict=True):
        name = model["name"]
        if model["segments"]:
            rows = [(f"model.{name}.parameters", f"parameters of {name}", model["parameters"], "parameters", "counted")]
            if (active := model["active_parameters"]) != model["parameters"]:  # experts
                label = f"parameters of {name} that a token uses"
                rows.append((f"model.{name}.active_parameters", label, active, "parameters", "counted"))
            found += proofs.of(model["segments"][-1], rows)
        of_metrics = MODEL_FIGURES.items()
        found += proofs.of(
            metrics,
            [(f"model.{name}.{key}", label.format(name=name), model[key], *how) for key, (label, *how) in of_metrics],
        )
    return found


def _data(proofs: _Proofs, material: RunReader) -> list[KeyFigure]:
    found = []
    for statistics in material.statistics:
        name, totals = statistics.content["corpus"], statistics.content["totals"]
        of_corpus = [
            (f"corpus.{name}.{key}", label.format(name=name), totals[key], unit, "counted")
            for key, (label, unit) in CORPUS_FIGURES.items()
        ]
        found += proofs.of(statistics, of_corpus)
    for index in material.indexes:
        name = index.name
        splits = [(split, index.content[split]["tokens"]) for split in ("train", "validation")]
        rows = [(f"tokens.{name}.{split}", f"{split} tokens of token set {name}", count) for split, count in splits]
        found += proofs.of(index, [(*row, "tokens", "counted") for row in rows])
    return found


def _scores(proofs: _Proofs, material: RunReader) -> list[KeyFigure]:
    found = []
    for results in material.evaluation:
        model, step = results.content["model"], results.content["step"]
        rows = []
        for task in results.content["tasks"]:
            name, metric = task["task"], task["metric"]
            label = f"{metric} of {model}, step {step}: {name}"
            rows.append((f"score.{model}.{step}.{name}.{metric}", label, task["value"], metric, "computed"))
        found += proofs.of(results, rows)
    return found


def _spent(energy: Footprint, models: Sequence[Json]) -> list[KeyFigure]:
    """Return energy, carbon and time."""
    joules = [("energy.total", f"electricity, {COUNTED}", energy.total)]
    joules += [("energy.lost", "electricity of attempts whose result was lost", energy.account.lost)]
    joules += [
        (f"energy.model.{m['name']}", f"electricity of the segments of {m['name']}", m["energy"]) for m in models
    ]
    found = [
        KeyFigure(name, f"{label}, before PUE", figure.value, figure.joules, "J", _how(figure), (ENERGY,), REPORT)
        for name, label, figure in joules
        if figure.is_known
    ]
    if energy.carbon.amount:
        grams = energy.carbon.amount.value
        label = "carbon dioxide equivalent, location-based"
        found.append(KeyFigure("carbon.total", label, energy.carbon.value, grams, "g", "estimated", (ENERGY,), REPORT))
    for name, label, seconds in (
        ("time.wall", f"time in jobs, {COUNTED}", energy.use.wall_seconds),
        ("time.processor", f"processor time, {COUNTED}", energy.use.cpu_seconds),
    ):
        text = amounts.format_duration(seconds)
        found.append(KeyFigure(name, label, text, seconds, "s", "measured", (RECORDS, ATTEMPTS), REPORT))
    return found


def key_figures(material: RunReader, content: Json) -> dict[str, KeyFigure]:
    """Return the key figures by name; `content` is that of the view. What is not known has none."""
    proofs = _Proofs(material.records)
    energy, checks, failed = content["energy"], content["checks"], content["failed_checks"]
    lost = tuple(one.attempt.file for one in energy.attempts) or (ATTEMPTS,)

    def paths_of(some: Sequence[Check]) -> tuple[str, ...]:
        return tuple(sorted({check.link.removeprefix("../") for check in some})) or (RECORDS,)

    counted = [
        ("run.jobs", "jobs with a record", len(material.records), "jobs", (RECORDS,)),
        ("run.attempts_lost", "attempts whose result was lost", len(energy.attempts), "attempts", lost),
        ("run.unreadable", "files that cannot be read", len(material.unreadable), "files", (RECORDS, ATTEMPTS)),
        ("checks.total", "conservation checks", len(checks), "checks", paths_of(checks)),
        ("checks.failed", "conservation checks that fail", len(failed), "checks", paths_of(failed)),
    ]
    found = [
        *_models(proofs, material, content["models"]),
        *_data(proofs, material),
        *_spent(energy, content["models"]),
        *_scores(proofs, material),
        *(
            KeyFigure(name, label, number(value), value, unit, "counted", paths, REPORT)
            for name, label, value, unit, paths in counted
        ),
    ]
    return {figure.figure: figure for figure in found}


ENERGY_TOLERANCE = 0.01  # of the total, by which the sum of its parts may differ from it


@dataclass(frozen=True)
class Check:
    """One sum: what must hold, of what, the figures, and whether it holds."""

    sentence: str  # a name of `of` stands in braces
    of: dict[str, str]
    figures: str
    holds: bool
    link: str


def _equal(sentence: str, of: dict[str, str], link: str, left: int, *right: int) -> Check:
    """Return whether a number is the sum of others."""
    figures = f"{left:,} = {' + '.join(f'{part:,}' for part in right)}"
    return Check(sentence, of, figures, left == sum(right), link)


def _stage_checks(name: str, of: dict[str, str], part: Json, link: str) -> Iterator[Check]:
    before = part["documents_in"]
    for step in part["stages"]:
        read, of_step = step["in"], of | {"step": step["stage"]}
        removed = sum(step["removed"].values())
        yield _equal(name + ": in = kept + removed, step {step}", of_step, link, read, step["kept"], removed)
        yield _equal(name + ": what goes into {step} came out before it", of_step, link, before, read)
        before = step["kept"]
    yield _equal(name + ": documents out = kept by the last stage", of, link, part["documents_out"], before)


def _corpus_checks(statistics: Artefact) -> Iterator[Check]:
    content, link = statistics.content, statistics.link
    of, sources = {"corpus": content["corpus"]}, content["sources"]
    for source, part in sorted(sources.items()):
        name, of_source = "corpus {corpus}, source {source}", of | {"source": source}
        yield from _stage_checks(name, of_source, part, link)
        if "read_bytes" in part:
            damaged, what = sum(row["bytes"] for row in part["quarantined"]), "bytes on disk = read + in damaged files"
            yield _equal(f"{name}: {what}", of_source, link, part["raw_bytes"], part["read_bytes"], damaged)
    yield from _stage_checks("corpus {corpus}, all sources", of, content["totals"], link)
    for key in ("documents_in", "documents_out", "bytes_in", "bytes_out"):
        what, parts = f"corpus {{corpus}}: {key.replace('_', ' ')} = sum over sources", sources.values()
        yield _equal(what, of, link, content["totals"][key], sum(part[key] for part in parts))


def _source_checks(manifest: Artefact) -> Iterator[Check]:
    content, of = manifest.content, {"source": manifest.name}
    files = [file for unit in content.get("units", {}).values() for file in unit["files"]]
    size = sum(file["bytes"] for file in files)
    yield _equal("source {source}: bytes = sum over files", of, manifest.link, content["bytes"], size)
    yield _equal("source {source}: number of files", of, manifest.link, content["files"], len(files))


def _chain_check(material: RunReader) -> Check:
    """Every input that another job wrote must have the hash that its writer recorded."""
    written = {entry.path: entry.sha256 for record in material.records for entry in record.outputs}
    read = [entry for record in material.records for entry in record.inputs if entry.path in written]
    same = sum(entry.sha256 == written[entry.path] for entry in read)
    what = "records: every input has the sha256 that the job which wrote it recorded"
    return _equal(what, {}, f"../{layout.RECORDS}", same, len(read))


def _token_checks(material: RunReader, index: Artefact) -> Iterator[Check]:
    of, content = {"tokens": index.name}, index.content
    for split in ("train", "validation"):
        for key in ("documents", "tokens"):
            what, shards = f"token set {{tokens}}, {split}: {key} = sum over shards", content[split]["shards"]
            yield _equal(what, of, index.link, content[split][key], sum(shard[key] for shard in shards))
    records = material.records_of("tokens.shard", tokens=index.name)
    paths = {entry.path for record in records for entry in record.inputs}
    documents = content["train"]["documents"] + content["validation"]["documents"]
    for statistics in material.statistics:
        corpus, out = statistics.content["corpus"], statistics.content["totals"]["documents_out"]
        if any(path.startswith(f"{layout.CORPUS.name(corpus=corpus)}/") for path in paths):
            what = "token set {tokens}: documents = documents out of corpus {corpus}"
            yield _equal(what, of | {"corpus": corpus}, index.link, documents, out)


def _forgetting_checks(material: RunReader, proof: Artefact) -> Iterator[Check]:
    """What the proof counts as there before must be what the steps removed, and nothing may be found after."""
    content, link, of = proof.content, proof.link, {"corpus": proof.content["corpus"]}
    for statistics in material.statistics:
        if statistics.content["corpus"] != content["corpus"]:
            continue
        totals, known = statistics.content["totals"], statistics.content["sources"]
        listed = sum(part["documents"] for name, part in content["sources"].items() if name in known)
        counted = {"filter": listed, "deduplicate": content["before"]["copies"]}
        for step in totals["stages"]:
            if (stage := step["stage"]) in counted:
                what = "corpus {corpus}: removed as opt_out by {step} = what the lists name"
                yield _equal(what, of | {"step": stage}, link, step["removed"].get("opt_out", 0), counted[stage])
        what = "corpus {corpus}: documents searched for what is forgotten = documents out"
        yield _equal(what, of, link, content["searched"]["documents"], totals["documents_out"])
    found = content["after"]["documents"] + content["after"]["copies"]
    yield _equal("corpus {corpus}: nothing that is forgotten is found", of, link, found, 0)


def _energy_checks(account: EnergyAccounting) -> Iterator[Check]:
    """The parts of the energy come to its total, and how it is known comes to all of it."""
    link, total = f"../{layout.ENERGY_ACCOUNT}", account.total
    unit = energy_unit(total.joules)

    def check(what: str, sum_: float) -> Check:
        holds = abs(sum_ - total.joules) <= ENERGY_TOLERANCE * total.joules
        figures = f"{unit.told(total.joules, 4)} {unit.name} = {unit.told(sum_, 4)} {unit.name}"
        return Check(f"energy: total = {what}, within {ENERGY_TOLERANCE:.0%}", {}, figures, holds, link)

    sums = conserved(account)
    for what, parts in sums:
        yield check(what, parts.joules)
    if sums:
        yield check(
            "measured + estimated + stated", total.measured_joules + total.estimated_joules + total.stated_joules
        )
        low, high = unit.told(total.low_joules, 4), unit.told(total.high_joules, 4)
        yield Check(
            "energy: the total lies in its interval",
            {},
            f"{low} ≤ {unit.told(total.joules, 4)} ≤ {high} {unit.name}",
            total.low_joules <= total.joules <= total.high_joules,
            link,
        )


def conservation_checks(material: RunReader, account: EnergyAccounting) -> list[Check]:
    """Return every check of the run, those of the chain first."""
    checks = [_chain_check(material)]
    for manifest in material.manifests:
        checks += _source_checks(manifest)
    for statistics in material.statistics:
        checks += _corpus_checks(statistics)
    for index in material.indexes:
        checks += _token_checks(material, index)
    for proof in material.forgotten:
        checks += _forgetting_checks(material, proof)
    checks += _energy_checks(account)
    return checks
