"""The sums that must add up: documents of every step, joules of the run, and hashes along the chain of records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline import layout
from pipeline.energy.energy_accounting import EnergyAccounting, energy_unit
from pipeline.report.footprint import conserved
from pipeline.report.run_reader import Artefact, Json, RunReader

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
