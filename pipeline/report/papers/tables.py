"""The tables of the papers, filled from the facts of a run in one language."""

from __future__ import annotations

from pipeline import layout
from pipeline.report.papers.facts import LEFT_OUT, ModelFacts, SourceFacts, rank_domains, split_by_size
from pipeline.report.papers.paper import Table
from pipeline.report.run_reader import Json
from pipeline.report.translator import Translator

MANIFESTS = layout.MANIFEST.glob_pattern()
SOURCES = "sources"  # kind of rows and of answers: categories of sources
NOT_SEARCHED = "not searched for: no list of words and no classifier was set"
REMOVED = ("removed_for_reservation", "removed_as_harmful")
TABLES = {
    "settings",
    "domains",
    "languages",
    "selection",
    *REMOVED,
    SOURCES,
    "sources.large-public",
    "sources.other-public",
}
"""The rows that a form may name, besides those of each category of sources."""


class PaperTables:
    """The tables of one run in one language.

    Args:
        page: what the report's page shows, as `view.build_context` returns it.
    """

    def __init__(self, page: Json, sources: list[SourceFacts], models: list[ModelFacts], words: Translator) -> None:
        self.page, self.sources, self.models, self.words = page, sources, models, words

    def settings_tables(self, title: str) -> list[Table]:
        w = self.words
        return [
            Table(
                f"{title}: {model['name']}",
                (w("Setting"), w("Value")),
                tuple((name, "–" if value is None else str(value)) for name, value in model["settings"]),
                (layout.SEGMENT_RECORD.glob_pattern(model=model["name"]),),
            )
            for model in self.page["models"]
        ]

    def _statistics_files(self) -> tuple[str, ...]:
        return tuple(layout.STATISTICS.relative_path(corpus=corpus["name"]) for corpus in self.page["corpora"])

    def removal_table(self, what: str, title: str) -> Table:
        """Documents removed for a reason, by step; `what` is the key of the page's rows."""
        w = self.words
        rows = tuple((corpus, reason, w.number(count)) for corpus, reason, count in self.page[what])
        reason, number = "none removed for this reason", "0"
        if what == "removed_as_harmful" and not any(corpus["flags"] for corpus in self.page["corpora"]):
            reason, number = NOT_SEARCHED, "–"
        elif what == "removed_for_reservation" and not self.page["reader"].forgotten:
            reason = "none removed for this reason; no source has an opt-out list"
        none = ((w("all", "papers"), w(reason), number),)
        return Table(
            title, (w("Corpus"), w("Step and reason"), w("Documents")), rows or none, self._statistics_files(), 2
        )

    def source_table(self, title: str, sources: list[SourceFacts]) -> Table:
        w = self.words
        head = (
            *(w("Source"), w("Name of the data set"), w("Language")),
            *(w("License, as stated"), w("Basis"), w("Holder or publisher"), w("Address")),
            w("Version, or day of reading"),
            *(
                w("Bytes of its files, as they are stored"),
                w("Documents read"),
                w("Documents used"),
                w("Tokens"),
                w("Times each token was read in training, on average"),
            ),
        )
        unknown = w("not stated")
        rows = tuple(
            (
                *(s.name, s.title or "–", w.language_name(s.language) if s.language else unknown),
                s.license_text or unknown,
                *(w.gettext(s.basis) if s.basis else unknown, s.holder or unknown, s.address or "–"),
                s.version or w("read on {day}", day=w.day(s.read_last) if s.read_last else unknown),
                *(w.number(s.bytes_read), w.number(s.documents_read), w.number(s.documents_used)),
                *(w.number(s.tokens), self._format_epochs(s.name)),
            )
            for s in sources
        )
        return Table(title, head, rows, (MANIFESTS,), 8)

    def language_table(self, title: str) -> Table:
        """Documents and bytes by the language that they are written in, for each corpus."""
        w = self.words
        rows = tuple(
            (w.language_name(language), corpus["name"], w.number(sizes["documents"]), w.number(sizes["bytes"]))
            for corpus in self.page["corpora"]
            for language, sizes in corpus["languages"]
        )
        head = (w("Language"), w("Corpus"), w("Documents"), w("Bytes of text"))
        return Table(title, head, rows, self._statistics_files(), 2)

    def selection_table(self, title: str, sources: list[SourceFacts]) -> Table:
        """Which part of each source was read and used, and by which rules the rest was left out."""
        w = self.words
        head = (w("Source"), w("Part that was read"), w("Documents used, of those read"), w("Left out, and why"))
        rows = tuple(
            (
                s.name,
                w("the part that its publisher calls {split}", split=s.split)
                if s.split
                else w("files that the provider gave: {number}", number=w.number(s.files)),
                w("{used} of {read}", used=w.number(s.documents_used), read=w.number(s.documents_read)),
                "; ".join(w(LEFT_OUT[rule], number=w.number(number)) for rule, number in s.left_out.items())
                or w("none"),
            )
            for s in sources
        )
        return Table(title, head, rows, (MANIFESTS, *self._statistics_files()))

    def _format_epochs(self, source: str) -> str:
        w = self.words
        each = {m.name: m.epochs[source] for m in self.models if source in m.epochs}
        values = [*each.values()]
        if not values:
            return "–"
        if len({*values}) == 1:
            return w.number(values[0], 3)
        return ", ".join(f"{name}: {w.number(value, 3)}" for name, value in each.items())

    def _sources_of(self, category: str) -> list[SourceFacts]:
        return [source for source in self.sources if source.category == category]

    def _top_domains(self) -> tuple[int, list[tuple[str, int, int]]]:
        small = bool(self.page["settings"].disclosure.small_provider)
        crawled = {source.name for source in self._sources_of("crawled")}
        return rank_domains(self.page["reader"].data_sets, crawled, small=small)

    def _dataset_files(self) -> tuple[str, ...]:
        return tuple(
            layout.DATASET.relative_path(corpus=one.content["corpus"]) for one in self.page["reader"].data_sets
        )

    def _domain_table(self, title: str) -> list[Table]:
        w = self.words
        number, domains = self._top_domains()
        head = (w("Domain"), w("Documents"), w("Bytes"))
        rows = tuple((name, w.number(documents), w.number(size)) for name, documents, size in domains)
        return [Table(title, head, rows, self._dataset_files(), 1)] if number else []

    def make_tables(self, title: str, rows: str) -> list[Table]:
        """Return the tables of the rows that a form names, none where they are left out."""
        if rows == "settings":
            return self.settings_tables(title)
        if rows == "domains":
            return self._domain_table(title)
        if rows in REMOVED:
            return [self.removal_table(rows, title)]
        if rows == "languages":
            return [self.language_table(title)]
        if rows == "selection":
            public = self._sources_of("public")
            return [self.selection_table(title, public)] if public else []
        category = rows.partition(".")[2]
        large, others = split_by_size(self.sources)
        sources = {"": self.sources, "large-public": large, "other-public": others}
        method = sources[category] if category in sources else self._sources_of(category)
        return [self.source_table(title, method)] if method or category in ("", "large-public") else []
