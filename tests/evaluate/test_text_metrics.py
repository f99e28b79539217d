"""Generated text is compared with references, or with the correct passage, and each rule is checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import CHRF

from pipeline.evaluate.simplification_metrics import (
    count_dutch_syllables,
    count_english_syllables,
    flesch_douma,
    flesch_kincaid,
    lix,
    sari,
    sari_13a,
)
from pipeline.evaluate.text_metrics import (
    chrf3pp,
    find_missing_field,
    normalize_answer,
    rouge_l,
    score_text,
    supported_claims_share,
)

NOT_THERE = "Dat staat niet in de bronnen."
METADATA = {"abstention": NOT_THERE}
CITED = ("exact_answer", "citation", "abstention")
THERE = {"answers": ["de Havenweg", "aan de Havenweg"], "passage": 2}
NOWHERE: dict[str, Any] = {"answers": [], "passage": 0}


def test_rouge_l_equals_a_hand_computed_value() -> None:
    # The longest common subsequence is "de kat sliep", 3 of 4 and 3 of 5 words: F1 = 2 * 3 / (4 + 5).
    assert rouge_l("De kat sliep lang.", ["de oude kat sliep diep"]) == pytest.approx(6 / 9)
    assert rouge_l("Ideeën!", ["ideeën"]) == 1, "letters with an accent are letters"
    assert rouge_l("", ["iets"]) == 0 == rouge_l("niets", ["iets"])
    assert rouge_l("a b", ["x", "a b"]) == 1, "the best reference"


def test_rouge_l_equals_the_library() -> None:
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


def test_sari_13a_equals_the_evaluate_library() -> None:
    """The values of its file metrics/sari/sari.py, version 0.4.6."""
    assert sari_13a("It's 3.5 km to the sea.", "It is 3.5 km.", ["The sea is 3.5 km away."]) == pytest.approx(
        64.60317460317461
    )
    assert (
        sari_13a("de kat zit", "de kat zit", ["de kat zit"]) == 100 > sari("de kat zit", "de kat zit", ["de kat zit"])
    )
    assert sari_13a("de kat zit", "", ["de kat"]) == pytest.approx(65.27777777777779)


def test_chrf3pp_equals_sacrebleu() -> None:
    text, reference = "een tekst over de vis", "een korte tekst over vis"
    expected = CHRF(word_order=2, beta=3).corpus_score([text], [[reference]]).score
    assert chrf3pp(text, [reference]) == chrf3pp(text, ["iets anders", reference]) == pytest.approx(expected)
    assert chrf3pp("", [reference]) == 0


def test_answers_are_compared_without_articles_punctuation_and_citations() -> None:
    assert normalize_answer(" De Havenweg, [2].") == "havenweg" == normalize_answer("havenweg")
    assert normalize_answer("the Hague") == "hague" and normalize_answer("") == ""


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
def test_answer_citation_and_abstention_scores(
    text: str, fields: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    assert tuple(score_text(text, fields, CITED, METADATA).values()) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("De milieustraat ligt aan de Havenweg [1].", 1),
        ("De milieustraat ligt aan de Kerkstraat [1].", 0),  # two of three words
        ("De milieustraat aan de Havenweg is vandaag gesloten.", 0),  # three of four words
        ("De milieustraat aan de Havenweg is vandaag, op zondag, gesloten.", 1),  # four of five words
        ("Zij sluit om 17 uur. Grofvuil wordt opgehaald.", 0.5),  # the number is another one
        ("Zij sluit om 16 uur. Grofvuil wordt opgehaald.", 1),
        ("Op de Havenweg wordt grofvuil opgehaald.", 0),  # both passages support a part of it
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
def test_claim_is_supported_if_one_passage_has_its_words_and_numbers(text: str, expected: float | None) -> None:
    passages = [
        "De milieustraat ligt aan de Havenweg, is op zondag gesloten en sluit om 16 uur.",
        "Grofvuil wordt opgehaald.",
    ]
    result = supported_claims_share(text, passages, NOT_THERE)
    assert math.isnan(result) if expected is None else result == expected
    of_items = score_text(text, {"passages": passages}, ("claims_found",), METADATA)["claims_found"]
    assert of_items == pytest.approx(result, nan_ok=True)


def test_summary_claims_are_checked_against_its_text() -> None:
    assert score_text("Het regent.", {"text": "Het regent al 3 dagen."}, ("claims_found",), {}) == {"claims_found": 1}
    assert score_text("Het regent al 4 dagen.", {"text": "Het regent al 3 dagen."}, ("claims_found",), {}) == {
        "claims_found": 0
    }


@pytest.mark.parametrize(
    ("fields", "metrics", "metadata", "message"),
    [
        (THERE, CITED, {}, "metadata: {abstention: …} is missing"),
        ({"answers": [], "passage": 1}, CITED, METADATA, "write `passage`, a number or 0, and `answers`"),
        ({"answers": ["a"]}, CITED, METADATA, "write `passage`"),
        ({"question": "a"}, ("claims_found",), {}, "write `passages`, a list of texts, or `text`"),
        ({"source": "a"}, ("sari",), {}, "write `references`, a list of texts"),
        ({"references": []}, ("rouge_l", "chrf"), {}, "write `references`, a list of texts"),
        ({"references": ["a"]}, ("sari",), {}, "write `source`"),
        (
            {"references": ["a"]},
            ("rouge_l", "exact_match"),
            {},
            "the metrics exact_match and rouge_l exclude each other",
        ),
    ],
)
def test_missing_item_field_is_reported(
    fields: dict[str, Any], metrics: tuple[str, ...], metadata: dict[str, Any], message: str
) -> None:
    assert message in (find_missing_field(fields, metrics, metadata) or "")


def test_complete_item_has_no_problem() -> None:
    assert find_missing_field(THERE, CITED, METADATA) is find_missing_field(NOWHERE, CITED, METADATA) is None
    assert find_missing_field({"references": ["a"], "source": "b"}, ("sari", "chrf", "lix"), {}) is None


SOURCE = "About 95 species are currently accepted ."
REFERENCES = [
    "About 95 species are currently known .",
    "About 95 species are now accepted .",
    "95 species are now accepted .",
]


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ("About 95 you now get in .", 0.2682782411698074),
        ("About 95 species are now agreed .", 0.5889995423074248),
        ("About 95 species are currently agreed .", 0.5071608864657479),
    ],
)
def test_sari_equals_the_reference_implementation(text: str, published: float) -> None:
    assert sari(SOURCE, text, REFERENCES) == pytest.approx(100 * published)
    assert sari(SOURCE.upper(), text.replace(" .", "."), REFERENCES) == pytest.approx(100 * published), "as tokens"


def test_sari_equals_a_hand_computed_value() -> None:
    # Of single words: kept a and b, of which b is correct, and b is all that is to be kept: 2 * 0.5 * 1 / 1.5 = 2/3;
    # deleted c, rightly: 1; added x, wrongly: 0. Of pairs: kept ab, wrongly; deleted bc, rightly: 1; added bx, wrongly.
    # Of triples: deleted abc, rightly: 1. No four words in a row: 0. So (5/3 + 1 + 1) / 4 / 3.
    assert sari("a b c", "a b x", ["b y"]) == pytest.approx(100 * (5 / 3 + 1 + 1) / 12)
    assert sari("a b c d", "w x y z", ["w x y z"]) == pytest.approx(100 * (2 / 3)), "nothing was to be kept"


def test_sari_of_a_copy_and_of_empty_text() -> None:
    """A copy keeps something correctly and does nothing else; empty text deletes all, much of it correctly."""
    source, references = "The tenant shall notify the landlord", ["The tenant must tell the landlord"]
    copy, nothing = sari(source, source, references), sari(source, "", references)
    assert 0 < copy < nothing < sari(source, references[0], references)


@pytest.mark.parametrize(
    ("word", "syllables"),
    [
        ("jaar", 1),
        ("ideeën", 3),
        ("bijzonder", 3),
        ("geïnd", 2),
        ("nieuwe", 2),
        ("mooi", 1),
        ("beantwoorden", 4),
        ("pst", 1),
    ],
)
def test_dutch_syllable_count(word: str, syllables: int) -> None:
    assert count_dutch_syllables(word) == syllables


@pytest.mark.parametrize(
    ("word", "syllables"),
    [
        *(("made", 1), ("table", 2), ("tables", 2), ("houses", 2), ("called", 1), ("handled", 2), ("needed", 2)),
        *(("the", 1), ("whales", 1), ("people", 2), ("application", 4), ("rhythm", 1), ("agreed", 2)),
    ],
)
def test_english_syllable_count(word: str, syllables: int) -> None:
    assert count_english_syllables(word) == syllables


def test_readability_equals_a_hand_computed_value() -> None:
    # 6 words, 2 sentences, 7 syllables (mis-schien has two), 1 word of more than six letters.
    text = "De kat slaapt. Zij droomt misschien."
    assert flesch_douma(text) == pytest.approx(206.835 - 77 * 7 / 6 - 0.93 * 3)
    assert lix(text) == pytest.approx(6 / 2 + 100 * 1 / 6)
    # 7 words, 1 sentence, 9 syllables (ap-proved and let-ter have two).
    assert flesch_kincaid("The clerk approved the letter at once!") == pytest.approx(0.39 * 7 + 11.8 * 9 / 7 - 15.59)
    assert lix("no full stop here") == 4


def test_easy_texts_score_as_easier() -> None:
    hard = "De toekenning van de subsidie geschiedt onder voorbehoud van beschikbaarstelling van begrotingsmiddelen."
    easy = "U krijgt het geld als wij genoeg hebben. Dat weten wij nog niet."
    assert flesch_douma(easy) > 80 > 45 > flesch_douma(hard) and lix(easy) < 30 < 60 < lix(hard)
    hard = "The allocation of municipal resources is conditional upon parliamentary authorisation."
    assert flesch_kincaid("You get it if we have it.") < 3 < 15 < flesch_kincaid(hard)


def test_text_without_words_has_no_readability() -> None:
    for measure in (lix, flesch_douma, flesch_kincaid):
        assert math.isnan(measure("")) and math.isnan(measure(" ... §"))
