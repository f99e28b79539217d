"""What a model writes is compared with references, or with the right passage, and each rule can be done by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from rouge_score.rouge_scorer import RougeScorer

from pipeline.evaluate.written import claims_found, normalised, problem, rouge_l, score

NOT_THERE = "Dat staat niet in de bronnen."
METADATA = {"abstention": NOT_THERE}
CITED = ("exact_answer", "citation", "abstention")
THERE = {"answers": ["de Havenweg", "aan de Havenweg"], "passage": 2}
NOWHERE: dict[str, Any] = {"answers": [], "passage": 0}


def test_rouge_l_by_hand() -> None:
    # The longest common subsequence is "de kat sliep", 3 of 4 and 3 of 5 words: F1 = 2 * 3 / (4 + 5).
    assert rouge_l("De kat sliep lang.", ["de oude kat sliep diep"]) == pytest.approx(6 / 9)
    assert rouge_l("Ideeën!", ["ideeën"]) == 1, "letters with an accent are letters"
    assert rouge_l("", ["iets"]) == 0 == rouge_l("niets", ["iets"])
    assert rouge_l("a b", ["x", "a b"]) == 1, "the best reference"


def test_rouge_l_is_that_of_the_library() -> None:
    texts = [
        "the cat sat on the mat",
        "a cat lay on the mat today",
        "rain, and then more rain",
        "mat the on sat cat the",
    ]
    library = RougeScorer(["rougeL"])
    for text in texts:
        for reference in texts:
            expected = library.score(reference, text)["rougeL"].fmeasure
            assert rouge_l(text, [reference]) == pytest.approx(expected)


def test_an_answer_is_compared_without_articles_signs_and_citations() -> None:
    assert normalised(" De Havenweg, [2].") == "havenweg" == normalised("havenweg")
    assert normalised("the Hague") == "hague" and normalised("") == ""


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("Aan de Havenweg [2]", THERE, (1, 1, 1)),
        ("havenweg", THERE, (1, 0, 1)),
        ("de Havenweg [1]", THERE, (1, 0, 1)),
        ("de Havenweg [1] [2]", THERE, (1, 0, 1)),
        ("de Kerkstraat [2]", THERE, (0, 1, 1)),
        (NOT_THERE, THERE, (0, 0, 0)),
        (NOT_THERE, NOWHERE, (1, 1, 1)),
        (" dat staat niet in de bronnen", NOWHERE, (1, 1, 1)),
        ("Henk [1]", NOWHERE, (0, 0, 0)),
        ("", NOWHERE, (0, 1, 0)),
        ("", THERE, (0, 0, 1)),
    ],
)
def test_answers_citations_and_abstentions(text: str, fields: dict[str, Any], expected: tuple[int, int, int]) -> None:
    assert tuple(score(text, fields, CITED, METADATA).values()) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("De milieustraat ligt aan de Havenweg [1].", 1),
        ("De milieustraat ligt aan de Kerkstraat [1].", 0),  # two of three words
        ("De milieustraat aan de Havenweg is vandaag gesloten.", 0),  # three of four words
        ("De milieustraat aan de Havenweg is vandaag, op zondag, gesloten.", 1),  # four of five words
        ("Zij sluit om 17 uur. Grofvuil wordt opgehaald.", 0.5),  # the number is another one
        ("Zij sluit om 16 uur. Grofvuil wordt opgehaald.", 1),
        ("Op de Havenweg wordt grofvuil opgehaald.", 0),  # both passages say a part of it
        ("17", 0),
        ("op", None),  # neither a number nor a word of four letters
        ("de de de de", None),
        ("Zij is op. Grofvuil wordt opgehaald.", 1),
        ("Zij is op. De Kerkstraat is op.", 0),
        (NOT_THERE, None),
        (f"Grofvuil wordt opgehaald. {NOT_THERE}", 1),
        ("", None),
        ("[2]", None),
    ],
)
def test_a_claim_is_found_where_one_passage_has_its_words_and_numbers(text: str, expected: float | None) -> None:
    passages = [
        "De milieustraat ligt aan de Havenweg, is op zondag gesloten en sluit om 16 uur.",
        "Grofvuil wordt opgehaald.",
    ]
    found = claims_found(text, passages, NOT_THERE)
    assert math.isnan(found) if expected is None else found == expected
    of_items = score(text, {"passages": passages}, ("claims_found",), METADATA)["claims_found"]
    assert of_items == pytest.approx(found, nan_ok=True)


def test_claims_of_a_summary_are_looked_for_in_its_text() -> None:
    assert score("Het regent.", {"text": "Het regent al 3 dagen."}, ("claims_found",), {}) == {"claims_found": 1}
    assert score("Het regent al 4 dagen.", {"text": "Het regent al 3 dagen."}, ("claims_found",), {}) == {
        "claims_found": 0
    }


@pytest.mark.parametrize(
    ("fields", "metrics", "metadata", "told"),
    [
        (THERE, CITED, {}, "metadata: {abstention: …} is missing"),
        ({"answers": [], "passage": 1}, CITED, METADATA, "write `passage`, a number or 0, and `answers`"),
        ({"answers": ["a"]}, CITED, METADATA, "write `passage`"),
        ({"question": "a"}, ("claims_found",), {}, "write `passages`, a list of texts, or `text`"),
        ({"source": "a"}, ("sari",), {}, "write `references`, a list of texts"),
        ({"references": []}, ("rouge_l", "chrf"), {}, "write `references`, a list of texts"),
        ({"references": ["a"]}, ("sari",), {}, "write `source`"),
        ({"references": ["a"]}, ("rouge_l", "exact_match"), {}, "the metric exact_match cannot stand beside rouge_l"),
    ],
)
def test_what_an_item_lacks_is_told(
    fields: dict[str, Any], metrics: tuple[str, ...], metadata: dict[str, Any], told: str
) -> None:
    assert told in (problem(fields, metrics, metadata) or "")


def test_an_item_with_all_that_is_needed_has_no_problem() -> None:
    assert problem(THERE, CITED, METADATA) is problem(NOWHERE, CITED, METADATA) is None
    assert problem({"references": ["a"], "source": "b"}, ("sari", "chrf", "lix"), {}) is None
