"""SARI and readability are those of their papers: by published figures, by counting by hand."""

from __future__ import annotations

import math

import pytest

from pipeline.evaluate.simplicity import (
    dutch_syllables,
    english_syllables,
    flesch_douma,
    flesch_kincaid,
    lix,
    sari,
)

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
def test_sari_gives_what_the_program_of_its_authors_gives(text: str, published: float) -> None:
    assert sari(SOURCE, text, REFERENCES) == pytest.approx(100 * published)
    assert sari(SOURCE.upper(), text.replace(" .", "."), REFERENCES) == pytest.approx(100 * published), "as tokens"


def test_sari_by_hand() -> None:
    # Of single words: kept a and b, of which b is right, and b is all that is to be kept: 2 * 0.5 * 1 / 1.5 = 2/3;
    # deleted c, rightly: 1; added x, wrongly: 0. Of pairs: kept ab, wrongly; deleted bc, rightly: 1; added bx, wrongly.
    # Of triples: deleted abc, rightly: 1. No four words in a row: 0. So (5/3 + 1 + 1) / 4 / 3.
    assert sari("a b c", "a b x", ["b y"]) == pytest.approx(100 * (5 / 3 + 1 + 1) / 12)
    assert sari("a b c d", "w x y z", ["w x y z"]) == pytest.approx(100 * (2 / 3)), "nothing was to be kept"


def test_sari_of_a_copy_and_of_nothing() -> None:
    """A copy rightly keeps something and does no more; who writes nothing deletes all, much of it rightly."""
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
def test_dutch_syllables(word: str, syllables: int) -> None:
    assert dutch_syllables(word) == syllables


@pytest.mark.parametrize(
    ("word", "syllables"),
    [
        *(("made", 1), ("table", 2), ("tables", 2), ("houses", 2), ("called", 1), ("handled", 2), ("needed", 2)),
        *(("the", 1), ("whales", 1), ("people", 2), ("application", 4), ("rhythm", 1), ("agreed", 2)),
    ],
)
def test_english_syllables(word: str, syllables: int) -> None:
    assert english_syllables(word) == syllables


def test_readability_by_hand() -> None:
    # 6 words, 2 sentences, 7 syllables (mis-schien has two), 1 word of more than six letters.
    text = "De kat slaapt. Zij droomt misschien."
    assert flesch_douma(text) == pytest.approx(206.835 - 77 * 7 / 6 - 0.93 * 3)
    assert lix(text) == pytest.approx(6 / 2 + 100 * 1 / 6)
    # 7 words, 1 sentence, 9 syllables (ap-proved and let-ter have two).
    assert flesch_kincaid("The clerk approved the letter at once!") == pytest.approx(0.39 * 7 + 11.8 * 9 / 7 - 15.59)
    assert lix("no full stop here") == 4


def test_easy_texts_are_called_easier() -> None:
    hard = "De toekenning van de subsidie geschiedt onder voorbehoud van beschikbaarstelling van begrotingsmiddelen."
    easy = "U krijgt het geld als wij genoeg hebben. Dat weten wij nog niet."
    assert flesch_douma(easy) > 80 > 45 > flesch_douma(hard) and lix(easy) < 30 < 60 < lix(hard)
    hard = "The allocation of municipal resources is conditional upon parliamentary authorisation."
    assert flesch_kincaid("You get it if we have it.") < 3 < 15 < flesch_kincaid(hard)


def test_a_text_without_words_has_no_readability() -> None:
    for measure in (lix, flesch_douma, flesch_kincaid):
        assert math.isnan(measure("")) and math.isnan(measure(" ... §"))
