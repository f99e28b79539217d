"""Answer the points of the papers on data, and find each answer and table that a form names."""

from __future__ import annotations

import inspect
from typing import Any

from pipeline import layout
from pipeline.report.papers.facts import SourceFacts, large_and_small, top_domains
from pipeline.report.papers.model_answers import MANIFESTS, ModelAnswers
from pipeline.report.papers.paper import Answer, Table
from pipeline.report.settings import NOT_ASKED, Disclosure

FINGERPRINTS = layout.RECORD.name(job="sources.fingerprint.*")
SIZE_BANDS = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))
LARGEST_BAND = "more than 10 trillion tokens"
CATEGORIES = {
    "public": "publicly available data sets",
    "licensed": "private data sets licensed by their holders",
    "third-party": "private data sets of other third parties",
    "crawled": "data crawled and scraped from online sources",
    "user": "data of users",
    "synthetic": "synthetic data",
    "other": "other sources",
}


class Answers(ModelAnswers):
    """The answers of one run in one language: those on its data, besides those on its models."""

    def data_kinds(self) -> Answer:
        """Which kinds of sources there are."""
        w = self.words
        kinds = {source.category for source in self.sources}
        titles = [w(CATEGORIES[kind]) for kind in CATEGORIES if kind in kinds]
        return Answer("; ".join(titles) or w("none"), (MANIFESTS,))

    def amount(self) -> Answer:
        """How many documents, bytes and tokens there are, in which band."""
        w = self.words
        indexes = self.page["material"].indexes
        most = max((index.content["train"]["tokens"] for index in indexes), default=0)
        band = next((text for limit, text in SIZE_BANDS if most < limit), LARGEST_BAND)
        sets = [
            w(
                "set {name}: {train} tokens for training and {held} held out for validation",
                name=index.name,
                train=w.number(index.content["train"]["tokens"]),
                held=w.number(index.content["validation"]["tokens"]),
            )
            for index in indexes
        ]
        corpora = [
            w(
                "corpus {name}: {documents} documents, {bytes} bytes",
                name=corpus["name"],
                documents=w.number(corpus["totals"]["documents_out"]),
                bytes=w.number(corpus["totals"]["bytes_out"]),
            )
            for corpus in self.page["corpora"]
        ]
        origin = [layout.TOKEN_INDEX.name(tokens=index.name) for index in indexes]
        origin += self._statistics()
        return Answer("; ".join([w(band), *sets, *corpora]), tuple(origin))

    def languages(self) -> Answer:
        """Documents and bytes of each language that was identified."""
        w = self.words
        told = [
            w(
                "{language}: {documents} documents, {bytes} bytes (corpus {name})",
                language=language,
                documents=w.number(sizes["documents"]),
                bytes=w.number(sizes["bytes"]),
                name=corpus["name"],
            )
            for corpus in self.page["corpora"]
            for language, sizes in corpus["languages"]
        ]
        return Answer("; ".join(told) or w("none"), self._statistics())

    def _statistics(self) -> tuple[str, ...]:
        return tuple(layout.STATISTICS.name(corpus=corpus["name"]) for corpus in self.page["corpora"])

    def read_last(self) -> Answer:
        """When the raw files were read."""
        days = sorted(source.read_last for source in self.sources if source.read_last)
        return Answer(days[-1] if days else self.words("not recorded"), (FINGERPRINTS,))

    def curation(self) -> Answer:
        """What was done with the texts, and how many documents each step left."""
        w = self.words
        told = []
        for corpus in self.page["corpora"]:
            steps = ", ".join(
                w("{step} removed {number}", step=stage["stage"], number=w.number(sum(stage["removed"].values())))
                for stage in corpus["totals"]["stages"]
            )
            told.append(
                w(
                    "corpus {name}: {read} documents read, {steps}, {used} used",
                    name=corpus["name"],
                    read=w.number(corpus["totals"]["documents_in"]),
                    steps=steps,
                    used=w.number(corpus["totals"]["documents_out"]),
                )
            )
        return Answer("; ".join(told) or w("none"), self._statistics())

    def personal_data(self) -> Answer:
        """What was replaced as personal data."""
        w = self.words
        told = [
            w("corpus {name}: {kind} {number}", name=corpus["name"], kind=kind, number=w.number(number))
            for corpus in self.page["corpora"]
            for kind, number in corpus["personal_data"]
        ]
        found = "; ".join(told) or w("no pattern found any, or none was looked for")
        return Answer(found, self._statistics())

    def removed(self, what: str, title: str) -> Table:
        """Documents removed for a reason, by step; `what` is the key of the page's rows."""
        w = self.words
        rows = tuple((corpus, reason, w.number(count)) for corpus, reason, count in self.page[what])
        none = ((w("all", "papers"), w("none removed for such a reason"), "0"),)
        return Table(title, (w("Corpus"), w("Step and reason"), w("Documents")), rows or none, self._statistics(), 2)

    def tests(self) -> Answer:
        """On which tasks the models were tested."""
        w = self.words
        tasks = sorted({f"{task['task']} ({task['language']})" for model in self.models for task in model.scores})
        origin = tuple(f"{layout.EVALUATION.name(model=model.name)}/" for model in self.models)
        return Answer(", ".join(tasks) or w("no task was evaluated"), origin)

    def source_table(self, title: str, sources: list[SourceFacts]) -> Table:
        """Sources with rights and sizes."""
        w = self.words
        head = (
            *(w("Source"), w("Language"), w("Licence"), w("Basis"), w("Holder"), w("Address")),
            *(w("Bytes read"), w("Documents read"), w("Documents used"), w("Tokens"), w("Times read", "papers")),
        )
        unknown = w("not stated")
        rows = tuple(
            (
                *(s.name, s.language or unknown, s.license_told or unknown, s.basis or unknown, s.holder or unknown),
                *(s.address or "–", w.number(s.bytes_read), w.number(s.documents_read), w.number(s.documents_used)),
                *(w.number(s.tokens), self._times(s.name)),
            )
            for s in sources
        )
        return Table(title, head, rows, (MANIFESTS,), 6)

    def _times(self, source: str) -> str:
        w = self.words
        each = {m.name: m.epochs[source] for m in self.models if source in m.epochs}
        values = [*each.values()]
        if not values:
            return "–"
        if len({*values}) == 1:
            return w.number(values[0], 3)
        return ", ".join(f"{name}: {w.number(value, 3)}" for name, value in each.items())

    def flags(self) -> Answer:
        """What lists and classifiers flagged, and what became of it."""
        w = self.words
        told = [
            w(
                "corpus {name}: {flag} {flagged} documents ({removed} removed for it, {kept} used)",
                name=corpus["name"],
                flag=flag,
                flagged=w.number(counts["flagged"]),
                removed=w.number(counts["removed"]),
                kept=w.number(counts["kept"]),
            )
            for corpus in self.page["corpora"]
            for flag, counts in corpus["flags"]
        ]
        return Answer("; ".join(told) or w("no list and no classifier was set"), self._statistics())

    def opt_out(self) -> Answer:
        """What opt-out lists left out, and what a search found of it afterwards."""
        w = self.words
        told = [
            w(
                "corpus {name}: {documents} reserved documents and {copies} copies of them were left out; {found} were "
                "found in the {searched} documents that are used",
                name=proof.content["corpus"],
                documents=w.number(proof.content["before"]["documents"]),
                copies=w.number(proof.content["before"]["copies"]),
                found=w.number(proof.content["after"]["documents"] + proof.content["after"]["copies"]),
                searched=w.number(proof.content["searched"]["documents"]),
            )
            for proof in self.page["material"].forgotten
        ]
        origin = tuple(
            layout.FORGOTTEN.name(corpus=proof.content["corpus"]) for proof in self.page["material"].forgotten
        )
        return Answer("; ".join(told) or w("no source has an opt-out list"), origin or self._statistics())

    def evidence(self) -> Answer:
        """Files that show licences, by their hashes."""
        settings: Any = self.page["settings"]
        files = settings.disclosure.license_evidence
        told = [
            f"{source}: {files[source]}, sha256 {sha}"
            for source, sha in sorted(settings.license_evidence_sha256.items())
        ]
        return Answer("; ".join(told) or None, key="disclosure.license_evidence")

    def used(self, category: str) -> Answer:
        """Whether there are sources of a category, and which."""
        w = self.words
        names = ", ".join(source.name for source in self._sources_of(category))
        return Answer(w("yes, text: {names}", names=names) if names else w("no"), (MANIFESTS,))

    def _sources_of(self, category: str) -> list[SourceFacts]:
        return [source for source in self.sources if source.category == category]

    def domains(self) -> Answer:
        """How many of the domains of what was crawled are named, the most relevant by the size of their texts."""
        w = self.words
        if not self._sources_of("crawled"):
            return Answer(w("no source was crawled"), (MANIFESTS,))
        number, rows = self._top_domains()
        if not number:
            return Answer(w("the documents of the crawled sources have no addresses"), self._data_sets())
        told = w(
            "{named} of {number} domains, the largest by the bytes of their texts",
            named=w.number(len(rows)),
            number=w.number(number),
        )
        return Answer(told, self._data_sets())

    def _top_domains(self) -> tuple[int, list[tuple[str, int, int]]]:
        small = bool(self.page["settings"].disclosure.small_provider)
        crawled = {source.name for source in self._sources_of("crawled")}
        return top_domains(self.page["material"].data_sets, crawled, small=small)

    def _data_sets(self) -> tuple[str, ...]:
        return tuple(layout.DATASET.name(corpus=one.content["corpus"]) for one in self.page["material"].data_sets)

    def _domain_table(self, title: str) -> list[Table]:
        w = self.words
        number, domains = self._top_domains()
        head = (w("Domain"), w("Documents"), w("Bytes"))
        rows = tuple((name, w.number(documents), w.number(size)) for name, documents, size in domains)
        return [Table(title, head, rows, self._data_sets(), 1)] if number else []

    def answer(self, key: str) -> Answer:
        """Return the answer that a form names; `is_answer` says whether there is one of that name."""
        kind, _, name = key.partition(".")
        if kind in ASKED:
            return self.asked(name)
        return self.used(name) if kind == SOURCES else ANSWERS[key](self)

    def tables(self, title: str, rows: str) -> list[Table]:
        """Return the tables of the rows that a form names, none where they are left out."""
        if rows == "settings":
            return self.settings(title)
        if rows == "domains":
            return self._domain_table(title)
        if rows in REMOVED:
            return [self.removed(rows, title)]
        category = rows.partition(".")[2]
        large, others = large_and_small(self.sources)
        sources = {"": self.sources, "large-public": large, "other-public": others}
        found = sources[category] if category in sources else self._sources_of(category)
        return [self.source_table(title, found)] if found or category in ("", "large-public") else []


ASKED, SOURCES = ("disclosure", "run"), "sources"  # what a provider states, and categories of sources
REMOVED = ("removed_for_reservation", "removed_as_harmful")
ANSWERS = {
    name: method
    for kind in (ModelAnswers, Answers)
    for name, method in vars(kind).items()
    if inspect.isfunction(method) and [*inspect.signature(method).parameters] == ["self"] and name[0] != "_"
}
"""By the words of forms: the methods that need no more than the run."""
TABLES = {"settings", "domains", *REMOVED, SOURCES, "sources.large-public", "sources.other-public"}


def is_answer(key: str) -> bool:
    """Return whether a form may name an answer so."""
    kind, _, name = key.partition(".")
    if kind == "run":
        return name in ("provider", "contact")
    return (
        key in ANSWERS
        or (kind == "disclosure" and name in Disclosure.model_fields and name not in NOT_ASKED)
        or (kind == SOURCES and name in CATEGORIES)
    )


def is_table(rows: str) -> bool:
    """Return whether a form may name the rows of a table so."""
    return rows in TABLES or (rows.partition(".")[0] == SOURCES and is_answer(rows))
