"""The genre of a source is estimated by properties of a sample of its documents."""

from __future__ import annotations

import pytest

from pipeline.corpus.text.source_genre_estimate import (
    CRITERIA,
    GENTLEST,
    READ_CHARACTERS,
    GenreEstimate,
    estimate_genre,
    identify_genre,
    measure_document,
)

SENTENCE = "De molenaar liep langs de dijk en zag hoe het water in de verte langzaam steeg, maar hij zei er niets van. "
TEXTS = {
    "speech": "en toen eh zei ze ja eh ik weet het niet hoor en dat was het dan eh ongeveer " * 4,
    "drama": "ANNA.\nWat wilt gij hier zo laat?\nPIETER.\nIk zoek mijn broer.\n" * 6,
    "historical": "Soo is den brief ende oock het schip aldaer uyt Bantam gecomen, ende wy hebben dese sake gehoort. "
    * 6,
    "laws": "Artikel 1\nDe minister stelt bij regeling nadere voorschriften als bedoeld in het eerste lid.\n" * 6,
    "documentation": "# Installeren\n\n1. Open het venster.\n2. Kies de map.\n\nDe map is daarna beschikbaar.\n" * 6,
    "prose": SENTENCE * 20,
    "web": "Vandaag gegeten bij een zaak op de markt. Lekker en snel, maar wel duur! Volgende keer nemen we de soep.",
}


@pytest.mark.parametrize("genre", CRITERIA)
def test_document_genre_follows_from_its_form(genre: str) -> None:
    assert identify_genre(measure_document(TEXTS[genre])) == genre


def test_properties_are_shares_of_words_and_nonblank_lines() -> None:
    text = (
        "JAN.\nartikel een eh twee\n\nJAN.\n- drie\nPIET: vier vijf zes zeven\nPIET: negen tien elf twaalf eh\nANNA.\n"
    )
    measured = measure_document(text)
    assert (measured.words, measured.words_per_line) == (19, 19 / 7)
    assert measured.speaker_lines == 4 / 7  # ANNA. occurs once
    assert (measured.structured_lines, measured.legal_terms, measured.fillers) == (1 / 7, 1 / 19, 2 / 19)
    assert measure_document("Anna:\nKomt.\nAnna:\nHij komt niet\nHij komt niet\n").speaker_lines == 2 / 5
    assert measure_document("") == (0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "line", ["## Kop", "- deel", "3. stap", "(2) stap", "a) lid", "| cel |", "```", "    code()", "kies `ja`", "===="]
)
def test_headings_lists_tables_and_code_are_structure(line: str) -> None:
    assert measure_document(f"{line}\nDe man liep.").structured_lines == 0.5


def test_long_document_is_measured_at_its_beginning() -> None:
    assert measure_document("een " * READ_CHARACTERS).words == READ_CHARACTERS // 4


def test_source_genre_is_the_most_frequent_and_its_properties_are_the_reasons() -> None:
    genre = estimate_genre([TEXTS["laws"]] * 6 + [TEXTS["web"]] * 4)
    assert (genre.genre, genre.is_clear, genre.documents) == ("laws", True, 10)
    assert genre.genres == {"laws": 6, "web": 4}
    share = measure_document(TEXTS["laws"]).legal_terms
    assert genre.reasons == [f"{share:.1%} of the words are legal terms such as artikel or pursuant"]
    message = genre.explain_estimate("wetten")
    assert (
        message.startswith("source wetten: 6 of 10 sampled documents have the genre laws (")
        and "write `genre: laws`" in message
    )


@pytest.mark.parametrize(
    ("laws", "web", "prose"),
    [(49, 26, 25), (57, 43, 0), (0, 0, 0)],
    ids=["less than half", "a small lead", "no text"],
)
def test_source_without_a_clear_genre_gets_the_most_permissive_rules(laws: int, web: int, prose: int) -> None:
    texts = [TEXTS["laws"]] * laws + [TEXTS["web"]] * web + [TEXTS["prose"]] * prose
    genre = estimate_genre(texts)
    assert (genre.genre, genre.is_clear, genre.reasons) == (GENTLEST, False, [])
    message = genre.explain_estimate("s")
    assert (
        "gentlest rules apply, those of web" in message
        and "if it is documentation, drama, historical, laws, prose, speech, write" in message
    )
    assert ("49 laws, 26 web, 25 prose" if prose else "57 laws, 43 web" if laws else "no text to sample") in message
    assert estimate_genre([TEXTS["laws"]] * 58 + [TEXTS["web"]] * 42).is_clear


def test_short_documents_count_only_without_longer_ones() -> None:
    stub, law = "<redoc></redoc> " * 3, TEXTS["laws"]
    genre = estimate_genre([stub] * 9 + [law])
    assert (genre.genre, genre.documents) == ("laws", 1)
    assert estimate_genre([stub] * 9).documents == 9


def test_genre_estimate_round_trips_through_json() -> None:
    genre = estimate_genre([TEXTS["drama"], TEXTS["web"], TEXTS["drama"]])
    assert GenreEstimate.model_validate_json(genre.model_dump_json()) == genre
