"""What a model writes is compared with references, or with the right passage, and each rule can be done by hand."""

from __future__ import annotations

from typing import Any

import pytest
from rouge_score.rouge_scorer import RougeScorer

from pipeline.evaluate.written import normalised, problem, rouge_l, score

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
    ("fields", "metrics", "metadata", "told"),
    [
        (THERE, CITED, {}, "metadata: {abstention: …} is missing"),
        ({"answers": [], "passage": 1}, CITED, METADATA, "write `passage`, a number or 0, and `answers`"),
        ({"answers": ["a"]}, CITED, METADATA, "write `passage`"),
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
