"""Answer the points of the papers: find each answer and table that a form names, in one language.

The sentences on each model and on each corpus are in `answers.jinja`.
"""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from pipeline import layout
from pipeline.core.markup import format_bytes
from pipeline.corpus.documents import HARMFUL, NO_YEAR, RIGHTS_REASONS
from pipeline.energy.run_energy_report_reader import EnergyFigure
from pipeline.report.footprint import group_nodes_by_power_model, list_meters
from pipeline.report.papers.facts import (
    CATEGORIES,
    CURATION_STEPS,
    GENRES,
    PERSONAL_DATA,
    UNION_LANGUAGES,
    ModelFacts,
    SourceFacts,
    find_middle_length,
    find_size_band,
    format_energy,
    format_parameter_band,
    format_share,
)
from pipeline.report.papers.paper import Answer
from pipeline.report.papers.spdx import hash_weights
from pipeline.report.papers.tables import MANIFESTS, NOT_SEARCHED, SOURCES, TABLES, PaperTables
from pipeline.report.run_reader import Json
from pipeline.report.settings import NOT_IN_PAPERS, Disclosure, ProviderStatements, text_in_language
from pipeline.report.translator import Translator

SENTENCES = "answers.jinja"
FINGERPRINTS = layout.UNIT_RECORDS.relative_path(job="sources.fingerprint.*")
EXPORT = layout.PathTemplate(f"{layout.RECORDS}/pretrain.export.{{model}}.json")
SEGMENTS, ATTEMPTS = layout.SEGMENT_RECORD, layout.PathTemplate(f"{layout.ATTEMPTS}/")
MODEL_ANSWERS: dict[str, tuple[layout.PathTemplate, ...]] = {
    **dict.fromkeys(("dependence", "architecture", "parameters", "modality", "hardware"), (SEGMENTS,)),
    "names": (SEGMENTS, EXPORT),
    **dict.fromkeys(("design", "compute"), (SEGMENTS,)),
    "files": (layout.PathTemplate(f"{layout.FINAL_MODEL}/"),),
    "authenticity": (layout.CRATE,),
    "time": (SEGMENTS, ATTEMPTS),
}
"""By the answers that have a sentence for each model: the files that it is from."""
CORPUS_ANSWERS = {
    "curation": "none",
    "personal_data": "none found by a pattern, or not searched for",
    "flags": NOT_SEARCHED,
}
"""By the answers that have sentences for each corpus: what is said where there are none."""


@cache
def _load_template() -> jinja2.Template:
    # Answers are plain text: what shows them escapes them.
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=folder, autoescape=False, undefined=jinja2.StrictUndefined).get_template(SENTENCES)


class Answers(PaperTables):
    """The answers of one run in one language.

    Args:
        page: what the report's page shows, as `view.build_context` returns it.
    """

    def __init__(
        self,
        page: Json,
        stated: ProviderStatements,
        sources: list[SourceFacts],
        models: list[ModelFacts],
        words: Translator,
    ) -> None:
        super().__init__(page, sources, models, words)
        self.stated = stated
        known = {"w": words, "run": page["settings"].run, "size": format_bytes, "band": format_parameter_band}
        known |= {"curation_steps": CURATION_STEPS, "kinds": PERSONAL_DATA, "rights_reasons": RIGHTS_REASONS}
        known |= {"harmful": HARMFUL}
        known |= {"share": format_share, "documentation": stated.text("model_documentation")}
        known |= {"weights": lambda model: hash_weights(page["reader"], model).values()}
        self._sentences: Any = _load_template().make_module(known)

    def find_provider_statement(self, name: str) -> Answer:
        """Return a statement of the provider."""
        text = self.stated.text(name, self.words.language)
        return Answer(text if text != "" else self.words("none"), key=self.stated.keys[name])

    def model_answers(self, key: str) -> Answer:
        lines = [
            self.words("model {name}: {answer}", name=model.name, answer=getattr(self._sentences, key)(model))
            for model in self.models
        ]
        origin: list[str] = []
        for place in MODEL_ANSWERS[key]:
            origin += [place.glob_pattern(model=model.name) for model in self.models] if "{model}" in place else [place]
        return Answer("; ".join(lines) or self.words("no model was trained"), tuple(origin))

    def corpus_answers(self, key: str) -> Answer:
        sentences = (getattr(self._sentences, key)(corpus) for corpus in self.page["corpora"])
        return Answer("; ".join(filter(None, sentences)) or self.words(CORPUS_ANSWERS[key]), self._statistics_files())

    def text_only(self) -> Answer:
        return Answer(self.words("text"), (MANIFESTS,))

    def compute_method(self) -> Answer:
        """How operations are counted: by formula, from exact counts."""
        w = self.words
        text = w(
            "parameters × tokens read, both counted; a text read twice counts twice, steps done again after a failure "
            "count once"
        )
        return Answer(text, tuple(model.records_pattern for model in self.models))

    def energy(self) -> Answer:
        """Electricity of the training of each model, and of all that the run took."""
        w = self.words
        models = [f"{one.name}: {format_energy(one.energy, w)}{self._sentences.before(one)}" for one in self.models]
        total: EnergyFigure = self.page["energy"].total
        whole = w("the whole run, including lost attempts and idle nodes: {energy}", energy=format_energy(total, w))
        return Answer("; ".join([*models, whole]), (layout.ENERGY_ACCOUNT,))

    def energy_method(self) -> Answer:
        """By which meters the electricity is known."""
        account = self.page["account"]
        meters = list_meters(account, sorted(self.page["energy"].total.meters))
        meters += [
            str(model["source"]) for _, model in group_nodes_by_power_model(account) if meters and model.get("source")
        ]
        text = "; ".join(map(self.words.gettext, meters)) if meters else self.words("no meter was read")
        return Answer(text, (layout.ENERGY_ACCOUNT, f"{layout.READINGS}/"))

    def source_categories(self) -> Answer:
        w = self.words
        kinds = {source.category for source in self.sources}
        titles = [w(CATEGORIES[kind]) for kind in CATEGORIES if kind in kinds]
        return Answer("; ".join(titles) or w("none"), (MANIFESTS,))

    def amount(self) -> Answer:
        w = self.words
        indexes = self.page["reader"].indexes
        most = max((index.content["train"]["tokens"] for index in indexes), default=0)
        sets = [
            w(
                "token set {name}: {train} tokens for training, {held} kept apart to test the model during training",
                name=index.name,
                train=w.number(index.content["train"]["tokens"]),
                held=w.number(index.content["validation"]["tokens"]),
            )
            for index in indexes
        ]
        corpora = [
            w(
                "corpus {name} (a collection of texts): {documents} documents, {bytes} bytes",
                name=corpus["name"],
                documents=w.number(corpus["totals"]["documents_out"]),
                bytes=w.number(corpus["totals"]["bytes_out"]),
            )
            for corpus in self.page["corpora"]
        ]
        origin = [layout.TOKEN_INDEX.relative_path(tokens=index.name) for index in indexes]
        origin += self._statistics_files()
        size = w("{band} (a token is a word or a part of one)", band=w(find_size_band(most)))
        read = [
            w("model {name} read {tokens} tokens in training, repeats included", name=m.name, tokens=w.number(m.tokens))
            for m in self.models
        ]
        return Answer("; ".join([size, *sets, *read, *corpora]), tuple(origin))

    def size_method(self) -> Answer:
        """What bytes and tokens are counts of."""
        text = self.words(
            "Bytes are those of the text itself, not compressed; only the tables of sources have those of their files. "
            "The table of languages counts a document under the language that it is written in. The tables of sources "
            "count it under the language of its source. Tokens are counted after this run's own tokenizer (the program "
            "that splits text into tokens) has split all texts."
        )
        return Answer(text, (layout.TOKEN_INDEX.glob_pattern(), *self._statistics_files()))

    def license_method(self) -> Answer:
        """How licenses and publishers are known."""
        text = self.words(
            "Licenses and publishers are as the provider states them. Polder, the program that made this run, compares "
            "licenses with what the documents state, and with nothing else."
        )
        return Answer(text, (MANIFESTS,))

    def summary_status(self) -> Answer:
        """That the summary is the newest version that the provider states, and where to look for a newer one."""
        named = {name: self.stated.text(name, self.words.language) for name in STATUS}
        if missing := [name for name, text in named.items() if text is None]:
            return Answer(None, key=self.stated.keys[missing[0]])
        text = self.words(
            "This is version {summary_version}, last changed on {summary_changed}. It is the newest version that the "
            "provider has stated. If {summary_url} has a later one, that one replaces it.",
            **named,
        )
        return Answer(text, key=self.stated.keys[STATUS[0]])

    def languages(self) -> Answer:
        used = {language for corpus in self.page["corpora"] for language, _ in corpus["languages"]}
        names = [self.words.language_name(language) for language in sorted(used)]
        return Answer(", ".join(names) or self.words("none"), self._statistics_files())

    def genres(self) -> Answer:
        """The kinds of text that the sources name, without those of which no document was used."""
        named = {
            source["genre"]
            for data_set in self.page["reader"].data_sets
            for source in (data_set.content.get("sources") or {}).values()
            if source.get("genre") and source.get("documents")
        }
        text = "; ".join(self.words(GENRES[genre]) for genre in GENRES if genre in named)
        return Answer(
            text or self.words("the kind of text is stated for no source"), (MANIFESTS, *self._dataset_files())
        )

    def characteristics(self) -> Answer:
        """How long the texts of each corpus are, and from which years."""
        w = self.words
        data_sets = {one.content["corpus"]: one.content for one in self.page["reader"].data_sets}
        sentences = []
        for corpus in self.page["corpora"]:
            name, totals = corpus["name"], corpus["totals"]
            if not totals["documents_out"]:
                continue
            mean = w.number(round(totals["bytes_out"] / totals["documents_out"]))
            sentences.append(
                w("corpus {name}: a text has {bytes} bytes on average (most letters take one)", name=name, bytes=mean)
            )
            content = data_sets.get(name, {})
            if middle := find_middle_length(content.get("lengths") or {}):
                low, high = map(w.number, middle)
                sentences.append(
                    w(
                        "half of the texts are shorter than a length between {low} and {high} characters",
                        low=low,
                        high=high,
                    )
                )
            years = {year: part["documents"] for year, part in (content.get("years") or {}).items() if year != NO_YEAR}
            if years:
                sentences.append(
                    w(
                        "{number} texts state a year, from {first} to {last}",
                        number=w.number(sum(years.values())),
                        first=min(years),
                        last=max(years),
                    )
                )
            elif "years" in content:
                sentences.append(w("no text states its year"))
        origin = (*self._statistics_files(), *self._dataset_files())
        return Answer("; ".join(sentences) or w("no document was used"), origin)

    def union_languages(self) -> Answer:
        used = {language for corpus in self.page["corpora"] for language, _ in corpus["languages"]}
        names = [self.words.language_name(language) for language in sorted(used & UNION_LANGUAGES)]
        return Answer(", ".join(names) or self.words("none"), self._statistics_files())

    def read_last(self) -> Answer:
        days = sorted(source.read_last for source in self.sources if source.read_last)
        return Answer(self.words.day(days[-1]) if days else self.words("not recorded"), (FINGERPRINTS,))

    def tests(self) -> Answer:
        w = self.words
        tasks = sorted({f"{task['task']} ({task['language']})" for model in self.models for task in model.scores})
        origin = tuple(f"{layout.EVALUATION.relative_path(model=model.name)}/" for model in self.models)
        return Answer(", ".join(tasks) or w("no task was evaluated"), origin)

    def opt_out(self) -> Answer:
        """What opt-out lists left out, and what a search found of it afterwards."""
        w, proofs = self.words, self.page["reader"].forgotten
        listed = {name: part for proof in proofs for name, part in proof.content["sources"].items()}
        sentences = [
            w(
                "corpus {name}: reserved documents left out: {documents}, copies of them: {copies}; "
                "a search of the {searched} used documents found {found}",
                name=proof.content["corpus"],
                documents=w.number(proof.content["before"]["documents"]),
                copies=w.number(proof.content["before"]["copies"]),
                found=w.number(proof.content["after"]["documents"] + proof.content["after"]["copies"]),
                searched=w.number(proof.content["searched"]["documents"]),
            )
            for proof in proofs
        ]
        sentences += [
            w(
                "source {name}: {file} of {hosts} hosts reserves rights, for {documents} documents",
                name=name,
                file=file,
                hosts=w.number(count["hosts"]),
                documents=w.number(count["documents"]),
            )
            for name, part in sorted(listed.items())
            for file, count in sorted(part.get("reservations", {}).items())
        ]
        origin = tuple(layout.FORGOTTEN.relative_path(corpus=proof.content["corpus"]) for proof in proofs)
        return Answer("; ".join(sentences) or w("no source has an opt-out list"), origin or self._statistics_files())

    def evidence(self) -> Answer:
        """Files that show licenses, by their hashes."""
        settings: Any = self.page["settings"]
        files = settings.disclosure.license_evidence
        lines = [
            f"{source}: {files[source]}, sha256 {sha}"
            for source, sha in sorted(settings.license_evidence_sha256.items())
        ]
        return Answer("; ".join(lines) or None, key="disclosure.license_evidence")

    def describe_category(self, category: str) -> Answer:
        w = self.words
        named = [
            (text, ", ".join(one.name for one in self._sources_of(category) if bool(one.documents_used) == is_used))
            for text, is_used in (
                ("yes, text: {names}", True),
                ("read, but no document of theirs was used: {names}", False),
            )
        ]
        text = "; ".join(w(text, names=names) for text, names in named if names) or self._deny_category(category)
        return Answer(text, (MANIFESTS,))

    def _deny_category(self, category: str) -> str:
        """Return that no source is of a category, or which sources may be of it."""
        w, stated = self.words, self.page["settings"].disclosure.data_categories
        is_statement_needed = category in NEVER_FROM_RIGHTS
        unknown = [
            source.name
            for source in self.sources
            if not source.is_described or (is_statement_needed and source.name not in stated)
        ]
        if self.sources and not unknown:
            return w("No. All sources of this run ({number}) are of another kind.", number=w.number(len(self.sources)))
        none = w("no source is described as of this kind")
        if is_statement_needed or not unknown:
            return none
        return w("{none}; the kind of these is not described: {names}", none=none, names=", ".join(unknown))

    def describe_sources(self, category: str) -> Answer:
        """What the texts of a category are and when they were collected, as the provider describes each source."""
        w, described = self.words, self.page["settings"].disclosure.source_descriptions
        sources = self._sources_of(category)
        names = [source.name for source in sources]
        if not names:
            return Answer(w("no source of this kind"), (MANIFESTS,))
        key = "disclosure.source_descriptions"
        if any(name not in described for name in names):
            return Answer(None, key=key)
        texts = [
            w(
                "{name}: text, {language}. {content}. Collected: {collected}",
                name=source.name,
                language=w("in {language}", language=w.language_name(source.language))
                if source.language
                else w("language not stated"),
                content=(text_in_language(described[source.name].content, w.language) or "").rstrip("."),
                collected=text_in_language(described[source.name].collected, w.language),
            )
            for source in sources
        ]
        return Answer("; ".join(texts), key=key)

    def domains(self) -> Answer:
        """How many of the domains of what was crawled are named, the most relevant by the size of their texts."""
        w = self.words
        if not self._sources_of("crawled"):
            return Answer(w("no source is described as crawled"), (MANIFESTS,))
        number, rows = self._top_domains()
        if not number:
            return Answer(w("the documents of the crawled sources have no addresses"), self._dataset_files())
        text = w(
            "{named} of {number} domains, the largest by the bytes of their texts",
            named=w.number(len(rows)),
            number=w.number(number),
        )
        return Answer(text, self._dataset_files())

    def answer(self, key: str) -> Answer:
        """Return the answer that a form names; `is_answer_name` says whether there is one of that name."""
        kind, _, name = key.partition(".")
        if kind in ASKED:
            return self.find_provider_statement(name)
        if kind in OF_CATEGORIES:
            return OF_CATEGORIES[kind](self, name)
        if key in MODEL_ANSWERS:
            return self.model_answers(key)
        return self.corpus_answers(key) if key in CORPUS_ANSWERS else COMPUTED[key](self)


ASKED = ("disclosure", "run")  # what a provider states
OF_CATEGORIES = {SOURCES: Answers.describe_category, "descriptions": Answers.describe_sources}
STATUS = ("summary_version", "summary_changed", "summary_url")
NEVER_FROM_RIGHTS = ("crawled", "user", "synthetic")  # categories of sources that only the provider can state
COMPUTED = {
    name: method
    for name, method in vars(Answers).items()
    if inspect.isfunction(method) and [*inspect.signature(method).parameters] == ["self"] and name[0] != "_"
}
"""By the words of forms: the methods that need no more than the run."""
ANSWERS = {*MODEL_ANSWERS, *CORPUS_ANSWERS, *COMPUTED}


def is_answer_name(key: str) -> bool:
    """Return whether a form may name an answer so."""
    kind, _, name = key.partition(".")
    if kind == "run":
        return name in ("provider", "contact")
    return (
        key in ANSWERS
        or (kind == "disclosure" and name in Disclosure.model_fields and name not in NOT_IN_PAPERS)
        or (kind in OF_CATEGORIES and name in CATEGORIES)
    )


def is_table_name(rows: str) -> bool:
    """Return whether a form may name the rows of a table so."""
    return rows in TABLES or (rows.partition(".")[0] == SOURCES and is_answer_name(rows))
