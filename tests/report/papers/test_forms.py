"""The forms of the papers name only existing answers and tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.corpus.personal_data.text_masking import KINDS
from pipeline.report.papers.computed_answers import ANSWERS, Answers, is_answer_name, is_table_name
from pipeline.report.papers.facts import PERSONAL_DATA
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
