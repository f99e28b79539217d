"""The forms of the papers name only existing answers and tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.corpus.personal_data.text_masking import KINDS
from pipeline.report.papers.computed_answers import ANSWERS, Answers, is_answer_name, is_table_name
from pipeline.report.papers.facts import (
    PERSONAL_DATA,
    SourceFacts,
    find_size_band,
    format_parameter_band,
    format_share,
    rank_domains,
)
from pipeline.report.papers.spdx import describe_training, list_training_corpora
from pipeline.report.papers.tables import PaperTables
from pipeline.report.papers.write import SectionForm, read_forms
from pipeline.report.settings import NOT_IN_PAPERS, Disclosure, ProviderStatements
from pipeline.report.translator import translator


def test_every_computed_answer_and_provider_statement_is_in_a_form() -> None:
    sections = [section for form in read_forms().values() for section in form.sections.values()]
    named = {name for section in sections for name in section.points.values()}
    assert named >= ANSWERS
    asked = {f"disclosure.{name}" for name in Disclosure.model_fields if name not in NOT_IN_PAPERS}
    in_the_model_card = {"disclosure.languages", "disclosure.limitations"}
    assert asked - in_the_model_card | {"run.provider", "run.contact"} <= named


@pytest.mark.parametrize(
    "name", ["disclosure.other", "disclosure.license_evidence", "run.seed", "sources.other-public"]
)
def test_unknown_answer_is_refused(name: str) -> None:
    assert not is_answer_name(name)
    with pytest.raises(ValidationError, match=f"Contact: {name} is no known answer"):
        SectionForm(title="General", points={"Contact": name})


@pytest.mark.parametrize(("rows", "is_known"), [("sources.crawled", True), ("sources.none", False), ("names", False)])
def test_unknown_table_is_refused(rows: str, is_known: bool) -> None:
    assert is_table_name(rows) is is_known
    if not is_known:
        with pytest.raises(ValidationError, match=f"Every one: {rows} is no known answer"):
            SectionForm(title="General", points={}, tables={"Every one": rows})


def test_corpus_without_personal_data_is_omitted_from_the_sentence() -> None:
    corpora = [{"name": "a", "personal_data": [("email", 2)]}, {"name": "b", "personal_data": []}]
    page = {"settings": SimpleNamespace(run="tiny"), "corpora": corpora}
    answers = Answers(page, ProviderStatements(Disclosure(), None, None), [], [], translator("en"))
    text = "corpus a: 2 e-mail addresses; found by patterns; what no pattern finds remains"
    assert answers.answer("personal_data").text == text
    assert PERSONAL_DATA.keys() == {*KINDS, "name"}
    page["corpora"] = [{"name": "a", "personal_data": [(kind, 1) for kind in sorted(PERSONAL_DATA)]}]
    assert answers.answer("personal_data").text == (
        "corpus a: 1 postal addresses; corpus a: 1 citizen service numbers (BSN); corpus a: 1 credit card numbers; "
        "corpus a: 1 e-mail addresses; corpus a: 1 bank account numbers (IBAN); corpus a: 1 IP addresses; "
        "corpus a: 1 numbers of the trade register (KvK); corpus a: 1 names of persons; corpus a: 1 number plates; "
        "corpus a: 1 passport numbers; corpus a: 1 telephone numbers; found by patterns; what no pattern finds remains"
    )
    page["corpora"] = corpora[1:]
    assert answers.answer("personal_data").text == "none found by a pattern, or not searched for"


def test_compute_of_an_imported_model_excludes_its_earlier_training() -> None:
    model: Any = SimpleNamespace(name="own", tokens=10, branch_of=None, began_with={"name": "other"}, flops=float)
    page = {"settings": SimpleNamespace(run="tiny"), "corpora": []}
    answers = Answers(page, ProviderStatements(Disclosure(), None, None), [], [model], translator("en"))
    assert str(answers.answer("compute").text).endswith("of that (without the earlier training of other)")
    model.branch_of = ("base", 4)
    assert str(answers.answer("compute").text).endswith("of that")


def test_official_eu_languages_equal_the_official_list() -> None:
    page = {"settings": SimpleNamespace(run="tiny"), "corpora": [{"name": "a", "languages": [("fy", {}), ("nl", {})]}]}
    answers = Answers(page, ProviderStatements(Disclosure(), None, None), [], [], translator("en"))
    assert answers.answer("union_languages").text == "Dutch (nl)"


@pytest.mark.parametrize(
    ("value", "band"),
    [
        (0, "1 to 500 million"),
        (499_999_999, "1 to 500 million"),
        (500_000_000, "500 million to 5 billion"),
        (5_000_000_000, "5 to 15 billion"),
        (15_000_000_000, "15 to 50 billion"),
        (50_000_000_000, "50 to 100 billion"),
        (100_000_000_000, "100 to 500 billion"),
        (500_000_000_000, "500 billion to 1 trillion"),
        (1_000_000_000_000, "more than 1 trillion"),
    ],
)
def test_band_of_a_number_of_parameters_begins_at_its_limit(value: int, band: str) -> None:
    assert format_parameter_band(value) == band


def test_band_of_a_number_of_tokens_begins_at_its_limit() -> None:
    bands = {999_999_999: "less than 1", 1_000_000_000: "1 billion to 10", 9_999_999_999_999: "1 billion to 10"}
    bands |= {10_000_000_000_000: "more than 10 trillion"}
    assert [tokens for tokens, band in bands.items() if not find_size_band(tokens).startswith(band)] == []


def test_small_share_is_a_fraction() -> None:
    assert [format_share(value) for value in (12.0, 0.5, 0.01, 0.0099)] == ["1,200 %", "50 %", "1 %", "1 / 100"]


def test_genres_and_domains_of_a_data_set() -> None:
    sources = {genre: {"genre": genre, "documents": 1} for genre in ("historical", "speech", "web", "documentation")}
    largest = [[f"{number:04}.nl", 1, 5000 - number] for number in range(2000)]
    content = {"corpus": "a", "sources": sources, "domains": {"web": {"domains": 40_000, "largest": largest}}}
    other = {"corpus": "b", "domains": {"web": {"domains": 3, "largest": [["0001.nl", 7, 9000]]}, "x": {}}}
    data_sets: Any = [SimpleNamespace(content=one) for one in (content, other)]
    page = {"settings": SimpleNamespace(run="tiny"), "corpora": [], "reader": SimpleNamespace(data_sets=data_sets)}
    answers = Answers(page, ProviderStatements(Disclosure(), None, None), [], [], translator("en"))
    genres = "manuals and other documentation; web pages; speech in writing; historical texts"
    assert answers.answer("genres").text == genres
    assert answers.answer("genres").origin[-2:] == ("corpus/a/dataset.json", "corpus/b/dataset.json")
    number, domains = rank_domains(data_sets, {"web"}, small=True)
    assert (number, len(domains)) == (40_000, 1000) and domains[:2] == [("0001.nl", 7, 9000), ("0000.nl", 1, 5000)]
    assert len(rank_domains(data_sets, {"web"}, small=False)[1]) == 2000
    assert rank_domains(data_sets, set(), small=False) == (0, [])


def test_tokens_that_models_read_equally_often_have_one_figure() -> None:
    models: Any = [
        SimpleNamespace(name=name, epochs={"laws": times, "all": 2.0}) for name, times in (("a", 1), ("b", 2.5))
    ]
    facts = dict.fromkeys(SourceFacts.__dataclass_fields__, "")
    numbers = dict.fromkeys(("bytes_read", "documents_read", "documents_used", "tokens"), 7)
    sources: Any = [SourceFacts(**{**facts, **numbers, "name": name}) for name in ("laws", "all", "none")]
    tables = PaperTables({}, sources, models, translator("en"))
    assert [row[-1] for row in tables.source_table("", sources).rows] == ["a: 1, b: 2.50", "2.00", "–"]
    assert tables.source_table("", sources).rows[0] == (
        *("laws", "–", "not stated", "not stated", "not stated", "not stated", "–", "read on not stated"),
        *("7", "7", "7", "7", "a: 1, b: 2.50"),
    )


def test_training_that_goes_on_from_another_one_names_it() -> None:
    facts = {"flops": float, "tokens": 10, "seconds": 2.4, "hardware": ("1 × A", "2 × B"), "began_with": None}
    model: Any = SimpleNamespace(**facts, branch_of=("base", 4))
    training = "6.000e+00 floating-point operations by 6ND, 10 tokens, 2 s on 1 × A + 2 × B"
    continued = "; it continues step 4 of base, without the seconds and energy of that training"
    assert describe_training(model) == f"{training}{continued}"
    model.branch_of = None
    assert describe_training(model) == training


def test_corpora_of_a_model_are_those_whose_shards_it_read() -> None:
    def job(path: str, tokens: str = "") -> SimpleNamespace:
        return SimpleNamespace(instance={"tokens": tokens}, inputs=[SimpleNamespace(path=path)])

    corpora = {"z": "a", "b": "a", "m": "a", "other": "b"}
    shards = [job(f"corpus/{corpus}/final/x.0.parquet", tokens) for corpus, tokens in corpora.items()]
    shards.append(job("tokenizer/main/tokenizer.json", "a"))
    segments = [job("tokens/a/index.json"), job("models/own/milestones/1")]
    reader: Any = SimpleNamespace(segments=lambda model: segments, records_of=lambda step: shards)
    assert list_training_corpora(reader, SimpleNamespace(name="own")) == ["b", "m", "z"]  # type: ignore[arg-type]
