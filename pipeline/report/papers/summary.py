"""The public summary of training content, in the sections of the Commission's template of July 2025."""

from __future__ import annotations

from pipeline import layout
from pipeline.report.papers.answers import MANIFESTS, Answers
from pipeline.report.papers.facts import large_and_small, top_domains
from pipeline.report.papers.paper import Answer, Paper, Section, Table, section
from pipeline.report.read import Artefact

SUMMARY = "training-content-summary"


def _used(a: Answers, category: str) -> Answer:
    """Whether there are sources of a category, and which."""
    w = a.words
    found = [source for source in a.sources if source.category == category]
    if not found:
        return Answer(w("no"), (MANIFESTS,))
    names = ", ".join(source.name for source in found)
    return Answer(w("yes, text: {names}", names=names), (MANIFESTS,))


def _listed(a: Answers, category: str, title: str) -> list[Table]:
    found = [source for source in a.sources if source.category == category]
    return [a.source_table(title, found)] if found else []


def _domains(a: Answers, data_sets: list[Artefact], *, small: bool) -> tuple[Answer, list[Table]]:
    """The most relevant domains of what was crawled, by the size of their texts."""
    w = a.words
    crawled = {source.name for source in a.sources if source.category == "crawled"}
    if not crawled:
        return Answer(w("no source was crawled"), (MANIFESTS,)), []
    origin = tuple(layout.DATASET.name(corpus=data_set.content["corpus"]) for data_set in data_sets)
    number, rows = top_domains(data_sets, crawled, small=small)
    if not number:
        return Answer(w("the documents of the crawled sources have no addresses"), origin), []
    told = w(
        "{named} of {number} domains, the largest by the bytes of their texts",
        named=w.number(len(rows)),
        number=w.number(number),
    )
    table = Table(
        w("Largest domains of the crawled sources"),
        (w("Domain"), w("Documents"), w("Bytes")),
        tuple((name, w.number(documents), w.number(size)) for name, documents, size in rows),
        origin,
        1,
    )
    return Answer(told, origin), [table]


def summary(a: Answers, run: str, data_sets: list[Artefact], *, small: bool) -> Paper:
    """Return the summary; `small` is whether the provider is a small or medium-sized enterprise."""
    w = a.words
    large, smaller = large_and_small(a.sources)
    domains, domain_tables = _domains(a, data_sets, small=small)
    parts: list[Section] = [
        section(
            "1.1",
            w("Identification of the provider"),
            [
                (w("Provider"), a.asked("provider")),
                (w("Contact"), a.asked("contact")),
                (w("Authorised representative in the Union"), a.asked("authorised_representative")),
            ],
        ),
        section(
            "1.2",
            w("Identification of the models"),
            [
                (w("Models"), a.names()),
                (w("Depends on another model"), a.dependence()),
                (w("Date of placing on the Union market"), a.asked("placed_on_market")),
            ],
        ),
        section(
            "1.3",
            w("Modalities, size and other characteristics of the training data"),
            [
                (w("Modality"), a.text_only()),
                (w("Size of the text"), a.amount()),
                (w("Kinds of text"), a.asked("content_types")),
                (w("Latest date on which data were acquired"), a.latest()),
                (w("Day on which the files were read last"), a.read_last()),
                (w("Training goes on with new data"), a.asked("continuous_training")),
                (w("Languages of the texts"), a.languages()),
                (w("Legal basis of the processing"), a.asked("legal_basis")),
            ],
        ),
        section(
            "2.1",
            w("Publicly available data sets"),
            [(w("Used"), _used(a, "public"))],
            a.source_table(w("Large ones: more than 3 % of the bytes of all public data sets"), large),
            *([a.source_table(w("The others"), smaller)] if smaller else []),
        ),
        section(
            "2.2",
            w("Private data sets obtained from third parties"),
            [
                (w("Licensed by the holders of the rights or those who represent them"), _used(a, "licensed")),
                (w("Obtained from other third parties"), _used(a, "third-party")),
            ],
            *_listed(a, "licensed", w("Licensed data sets")),
            *_listed(a, "third-party", w("Data sets of other third parties")),
        ),
        section(
            "2.3",
            w("Data crawled and scraped from online sources"),
            [
                (w("Sources that were crawled"), _used(a, "crawled")),
                (w("Crawlers, their purpose, behaviour and period"), a.asked("crawlers")),
                (w("Most relevant domains"), domains),
            ],
            *_listed(a, "crawled", w("Crawled sources")),
            *domain_tables,
        ),
        section(
            "2.4",
            w("Data of users"),
            [
                (w("Used"), _used(a, "user")),
                (w("Data of users of the provider's services"), a.asked("user_data")),
            ],
            *_listed(a, "user", w("Sources of data of users")),
        ),
        section(
            "2.5",
            w("Synthetic data"),
            [
                (w("Used"), _used(a, "synthetic")),
                (w("Models that generated texts"), a.asked("synthetic_data")),
            ],
            *_listed(a, "synthetic", w("Synthetic sources")),
        ),
        section(
            "2.6",
            w("Other sources of data"),
            [(w("Used"), _used(a, "other"))],
            *_listed(a, "other", w("Sources without a public address, such as texts in the public domain")),
        ),
        section(
            "3.1",
            w("Reservations of rights from text and data mining"),
            [
                (w("Measures on reservations of rights"), a.asked("reservations")),
                (w("How a text is removed"), a.asked("removal")),
                (w("Evidence of licences"), a.evidence()),
                (w("Opt-out lists"), a.opt_out()),
            ],
            a.removed("removed_for_reservation", w("Documents removed for a reservation, an opt-out or a licence")),
        ),
        section(
            "3.2",
            w("Removal of illegal content"),
            [
                (w("Measures against illegal content"), a.asked("illegal_content")),
                (w("Flagged by lists and classifiers"), a.flags()),
            ],
            a.removed("removed_as_harmful", w("Documents removed as harmful")),
        ),
        section(
            "3.3",
            w("Other processing"),
            [
                (w("Curation: what was removed"), a.curation()),
                (w("Personal data replaced"), a.personal_data()),
            ],
        ),
    ]
    law = w("Regulation (EU) 2024/1689, Article 53(1)(d), and the template of the Commission")
    return Paper(SUMMARY, w.language, w("Public summary of training content of {run}", run=run), law, tuple(parts))
