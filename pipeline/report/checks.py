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


def _stage_checks(name: str, of: dict[str, str], part: Json, link: str) -> Iterator[Check]:
    before = part["documents_in"]
    for step in part["stages"]:
        removed = sum(step["removed"].values())
        yield Check(
            name + ": in = kept + removed, step {step}",
            of | {"step": step["stage"]},
            f"{step['in']:,} = {step['kept']:,} + {removed:,}",
            step["in"] == step["kept"] + removed,
            link,
        )
        yield Check(
            name + ": what goes into {step} came out before it",
            of | {"step": step["stage"]},
            f"{before:,} = {step['in']:,}",
            before == step["in"],
            link,
        )
        before = step["kept"]
    yield Check(
        name + ": documents out = kept by the last stage",
        of,
        f"{part['documents_out']:,} = {before:,}",
        part["documents_out"] == before,
        link,
    )


def _corpus_checks(statistics: Artefact) -> Iterator[Check]:
    content, link = statistics.content, statistics.link
    corpus = content["corpus"]
    for source, part in sorted(content["sources"].items()):
        yield from _stage_checks("corpus {corpus}, source {source}", {"corpus": corpus, "source": source}, part, link)
        if "read_bytes" in part:
            damaged = sum(row["bytes"] for row in part["quarantined"])
            yield Check(
                "corpus {corpus}, source {source}: bytes on disk = read + in damaged files",
                {"corpus": corpus, "source": source},
                f"{part['raw_bytes']:,} = {part['read_bytes']:,} + {damaged:,}",
                part["raw_bytes"] == part["read_bytes"] + damaged,
                link,
            )
    yield from _stage_checks("corpus {corpus}, all sources", {"corpus": corpus}, content["totals"], link)
    for key in ("documents_in", "documents_out", "bytes_in", "bytes_out"):
        total = content["totals"][key]
        parts = sum(part[key] for part in content["sources"].values())
        yield Check(
            f"corpus {{corpus}}: {key.replace('_', ' ')} = sum over sources",
            {"corpus": corpus},
            f"{total:,} = {parts:,}",
            total == parts,
            link,
        )


def _source_checks(manifest: Artefact) -> Iterator[Check]:
    files = [file for unit in manifest.content.get("units", {}).values() for file in unit["files"]]
    total, parts, of = manifest.content["bytes"], sum(file["bytes"] for file in files), {"source": manifest.name}
    figures = f"{total:,} = {parts:,}"
    yield Check("source {source}: bytes = sum over files", of, figures, total == parts, manifest.link)
    total = manifest.content["files"]
    figures = f"{total:,} = {len(files):,}"
    yield Check("source {source}: number of files", of, figures, total == len(files), manifest.link)


def _chain_check(material: RunReader) -> Check:
    """Every input that another job wrote must have the hash that its writer recorded."""
    written = {entry.path: entry.sha256 for record in material.records for entry in record.outputs}
    read = [entry for record in material.records for entry in record.inputs if entry.path in written]
    same = sum(entry.sha256 == written[entry.path] for entry in read)
    return Check(
        "records: every input has the sha256 that the job which wrote it recorded",
        {},
        f"{same:,} = {len(read):,}",
        same == len(read),
        f"../{layout.RECORDS}",
    )


def _token_checks(material: RunReader, index: Artefact) -> Iterator[Check]:
    of, content = {"tokens": index.name}, index.content
    for split in ("train", "validation"):
        for key in ("documents", "tokens"):
            total, parts = content[split][key], sum(shard[key] for shard in content[split]["shards"])
            what = f"token set {{tokens}}, {split}: {key} = sum over shards"
            yield Check(what, of, f"{total:,} = {parts:,}", total == parts, index.link)
    shards = material.records_of("tokens.shard", tokens=index.name)
    paths = {entry.path for record in shards for entry in record.inputs}
    documents = content["train"]["documents"] + content["validation"]["documents"]
    for statistics in material.statistics:
        corpus, out = statistics.content["corpus"], statistics.content["totals"]["documents_out"]
        if any(path.startswith(f"{layout.CORPUS.name(corpus=corpus)}/") for path in paths):
            what, figures = (
                "token set {tokens}: documents = documents out of corpus {corpus}",
                f"{documents:,} = {out:,}",
            )
            yield Check(what, of | {"corpus": corpus}, figures, documents == out, index.link)


def _forgetting_checks(material: RunReader, proof: Artefact) -> Iterator[Check]:
    """What the proof counts as there before must be what the steps removed, and nothing may be found after."""
    corpus, before, after = proof.content["corpus"], proof.content["before"], proof.content["after"]
    for statistics in material.statistics:
        if statistics.content["corpus"] != corpus:
            continue
        read = {name: part for name, part in proof.content["sources"].items() if name in statistics.content["sources"]}
        counted = {"filter": sum(part["documents"] for part in read.values()), "deduplicate": before["copies"]}
        for step in statistics.content["totals"]["stages"]:
            if step["stage"] in counted:
                removed, known = step["removed"].get("opt_out", 0), counted[step["stage"]]
                what = "corpus {corpus}: removed as opt_out by {step} = what the lists name"
                of = {"corpus": corpus, "step": step["stage"]}
                yield Check(what, of, f"{removed:,} = {known:,}", removed == known, proof.link)
        searched, out = proof.content["searched"]["documents"], statistics.content["totals"]["documents_out"]
        what = "corpus {corpus}: documents searched for what is forgotten = documents out"
        yield Check(what, {"corpus": corpus}, f"{searched:,} = {out:,}", searched == out, proof.link)
    found = after["documents"] + after["copies"]
    what = "corpus {corpus}: nothing that is forgotten is found"
    yield Check(what, {"corpus": corpus}, f"{found:,} = 0", found == 0, proof.link)


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
