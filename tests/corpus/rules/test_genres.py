"""Genre rules distinguish text from menus, tables and code, and each source is filtered by its genre."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from datatrove.data import Document

from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.corpus.filter import rule_blocks
from pipeline.corpus.rules.gopher import GopherQuality, ProseMeasures
from pipeline.corpus.rules.presets import GENRES, PRESETS
from pipeline.corpus.rules.settings import LanguageRules, Quality
from pipeline.corpus.settings import Corpus
from pipeline.workflow.steps import step_settings
from tests.corpus.rules.test_gopher import demonstration_texts

MICRO = Path(__file__).parents[3] / "config" / "micro.yaml"
TABLE = """
| Veld | Wat erin staat |
|------|----------------|
| Naam | De naam van de klant zoals die op de factuur komt te staan. |
| Land | Het land waar de klant woont, en dat voor de belasting telt. |
"""
MENU = "\n".join(f"{page}\n  Instellingen {page}\n  Rapporten {page}" for page in ("Inkoop", "Verkoop", "Magazijn"))


def test_table_bars_are_not_words() -> None:
    for words, expected in (("plain", (False, "few_alphabetic_words")), ("lexical", True)):
        rules = Quality(minimum_words=5, minimum_stop_words=0, alphabetic_words=0.9)
        document = Document(text=TABLE, id="", metadata={"language": "nl"})
        assert GopherQuality({"nl": rules}, None, {"nl": words}).filter(document) == expected


@pytest.mark.parametrize("written", [str.lower, str.upper, str.title])
def test_stop_word_share_counts_only_words_with_a_letter(written: Callable[[str], str]) -> None:
    text = written("de man en de hond 12 34 | -")
    for share, expected in ((0.6, True), (0.601, (False, "small_stop_word_share"))):
        rules = Quality(minimum_words=None, alphabetic_words=None, minimum_stop_words=0, stop_word_share=share)
        rules = rules.model_copy(update={"stop_words": ["de", "en"], "minimum_mean_word_length": None})
        document = Document(text=text, id="", metadata={"language": "nl"})
        assert GopherQuality({"nl": rules}).filter(document) == expected
        assert document.metadata.get("filter_value") == (None if expected is True else "0.6")


def test_code_is_detected_by_its_characters() -> None:
    for text, expected in (("ab; {c}\td\n", 3 / 7), ("<a>bcdef", 0.25), ("a = b - (c) [d]", 0.0), ("", 0.0)):
        assert ProseMeasures(text, Quality(), "plain", "nl").code_character_share() == expected


RUNNING = (
    "Open the page of the customer",
    "- Open the page of the customer,",
    "OPEN THE PAGE OF THE CUSTOMER",
    "    Open the page of the customer",
    "    - open the page of the customer",
    "| Name | The name of the customer, as on the invoice |",
    "**Description:** The name that is shown to others.\\",
    "open(the) page " * 21,
)
OTHER_LINES = (
    "Open the page of it"[:-3],  # four words
    "Open page, enter customer name, print, send, the",  # one stop word in eight
    "    open the page of the customer",
    "\topen the page of the customer",
    "description: the name of the customer",
    '- "the.name": the name of the customer',
    "# open the page of the customer",
    "// open the page of the customer",
    "<p>the name of the customer</p>",
    '"""Return the name of the customer',
    "from the.page import the, a, name",
    "if the name of a customer {",
    "open the page of the customer;",
    "open the page of the customer;\\",
    "the page of the open(customer) is",
    'the name of the "customer" : is',
    "'the name of the customer',",
    "the name = the customer of a",
    "the name of the customer -> a name",
)


@pytest.mark.parametrize("line", RUNNING + OTHER_LINES)
def test_running_text_is_distinguished_from_code_and_fields(line: str) -> None:
    rules = Quality(stop_words=["the", "of", "is", "a", "to", "that", "as", "on"])
    assert ProseMeasures(line, rules, "lexical", "en").running_word_share() == (line in RUNNING)


def test_documentation_keeps_lists_without_full_stops_and_removes_data(texts: dict[str, str]) -> None:
    sentences = texts["nl_bakker"].split(". ")
    assert _keeps("documentation", "\n".join(f"1. {line.rstrip('.')}" for line in sentences), "nl")
    data = "\n".join(f"zin_{place}: {line}" for place, line in enumerate(sentences))
    assert not _keeps("documentation", data, "nl")
    assert _keeps("web", data, "nl")
    text = "de bakker van het dorp" + "\nbrood: 1 gulden, koek: 2 gulden, taart" * 9  # 5 of 50 words
    for share, expected in ((0.1, True), (0.101, (False, "little_running_text"))):
        rules = Quality(minimum_words=None, alphabetic_words=None, minimum_stop_words=0, running_words=share)
        rules = rules.model_copy(update={"stop_words": ["de", "van", "het"]})
        document = Document(text=text, id="", metadata={"language": "nl"})
        assert GopherQuality({"nl": rules}, None, {"nl": "lexical"}).filter(document) == expected


@pytest.mark.parametrize("genre", GENRES)
def test_genre_keeps_prose_and_removes_menus_code_and_number_tables(genre: str, texts: dict[str, str]) -> None:
    blocks: list[Any] = rule_blocks(GENRES[genre])

    def kept(text: str, language: str = "nl") -> bool:
        return all(
            block.filter(Document(text=text, id="", metadata={"language": language})) is True for block in blocks
        )

    assert kept(texts["nl_water"]) and kept(texts["en_garden"], "en")
    assert kept("\n".join(f"- {line}" for line in texts["nl_bakker"].split(". ")) + "."), "a list of sentences"
    code = "".join(f"int som_{name}(int de, int het) {{ return de + het; }}\n" for name in "abcdefghij")
    numbers = "\n".join(f"| {year} | {year * 7} | {year % 9},{year % 7} | de |" for year in range(1900, 1990))
    for junk in (MENU * 2, code, numbers):
        assert not kept(junk), junk


LETTERS = {  # written for this test, in the spelling of about 1620
    "nl": "Soo hebben wy ghesien dat het schip den 12en aldaer ghecomen was ende dat d'onse met grooter moeyte alle "
    "goederen uyt het schip aen landt ghebracht hebben. Den Coninck heeft oock syne luyden ghesonden, die seyden datse "
    "gheen peper wilden leveren voor ende aleer sy haere betalinghe souden ontfangen, 't welck ons niet geraden docht.",
    "en": "Sweete hart, I haue receiued thy letter, and am glad to heare that thou and the little ones bee well. "
    "I pray thee let the hay bee brought in before the raine, and giue vnto the poore what is owing, for wee haue had "
    "a good yeere. The Kinge is gone to Theobalds, and hath taken ſuch of his ſeruants as ſhall ſtay the winter.",
}


def _keeps(genre: Any, text: str, language: str) -> bool:
    document = Document(text=text, id="", metadata={"language": language})
    return all(block.filter(document) is True for block in rule_blocks(GENRES[genre]))


@pytest.mark.parametrize("language", LETTERS)
def test_old_spelling_is_kept_and_ocr_noise_is_removed(language: str) -> None:
    letter = LETTERS[language]
    assert _keeps("historical", letter, language)
    assert _keeps("prose", letter, language) is (language == "en"), "English of that time spells most of them as today"
    draw = random.Random(4)
    noise = "".join(draw.choice("il1.,;rnm ") if draw.random() < 0.25 else sign for sign in letter)
    assert not _keeps("historical", noise, language)
    register = ", ".join(f"{name} {page}, {page + 7}" for page, name in enumerate(letter.title().split(), 100))
    assert not _keeps("historical", register, language)


def test_long_s_is_never_the_last_letter_of_a_stop_word() -> None:
    words = {language: rules.quality.stop_words for language, rules in GENRES["historical"].items() if rules.quality}
    assert {"ſhall", "theſe", "is", "his", "vpon", "hath"} <= {*words["en"]} and {"ende", "ſoude"} <= {*words["nl"]}
    assert not [word for listed in words.values() for word in listed if word.endswith("ſ")]
    assert all(len({*listed}) == len(listed) for listed in words.values())
    assert {rules.minimum_score for rules in GENRES["historical"].values()} == {0.4}


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "filter-presets.md"


def test_documented_genre_thresholds_equal_the_code() -> None:
    message: dict[str, list[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        name, *cells = (cell.strip(" `") for cell in line.strip("|").split("|"))
        message[name] = cells
    genres = message["Threshold"]
    assert genres == list(GENRES)
    for place, genre in enumerate(genres):
        for rules in GENRES[genre].values():
            quality, repetition = rules.quality, rules.repetition
            assert quality is not None and repetition is not None and repetition.within_words == 200
            n_grams = repetition.duplicate_n_grams
            results = {
                "least share of stop words": f"{quality.stop_word_share}",
                "least share of words with a letter": f"{quality.alphabetic_words}",
                "largest share of code characters": f"{quality.code_characters}",
                "least number of words": f"{quality.minimum_words}",
                "duplicate 5-grams to 10-grams": f"{n_grams[5]} to {n_grams[10]}",
            }
            assert results == {name: message[name][place] for name in results}, genre
            assert (quality.running_words, rules.fineweb) == (0.1 if genre == "documentation" else None, None)


@pytest.mark.parametrize("genre", GENRES)
def test_genre_rules_are_idempotent(genre: str) -> None:
    """The rules edit nothing, so a corpus that is filtered twice is unchanged."""
    blocks: list[Any] = rule_blocks(GENRES[genre])
    texts = [text for text in demonstration_texts() if len(text.split()) > 60][:40]
    kept = 0
    for text in texts:
        document = Document(text=text, id="", metadata={"language": "nl" if " de " in text else "en"})
        decisions = [[block.filter(document) for block in blocks] for _ in range(2)]
        assert decisions[0] == decisions[1] and document.text == text
        kept += all(decision is True for decision in decisions[0])
    assert kept >= 38


def with_genres(of_sources: dict[str, str], **corpus: Any) -> Any:
    """Return the configuration of the micro run in which the sources have these genres."""
    raw = yaml.safe_load(MICRO.read_text())
    sources = [
        source | {"genre": of_sources[source["name"]]} if source["name"] in of_sources else source
        for source in raw["sources"]
    ]
    return {**raw, "sources": sources, "corpus": {"main": {**(raw.get("corpus") or {}).get("main", {}), **corpus}}}


NAMES = [source["name"] for source in yaml.safe_load(MICRO.read_text())["sources"]]
ALL_LAWS = dict.fromkeys(NAMES, "laws")


def rules_of(raw: Any, source: str) -> dict[str, LanguageRules]:
    """Return the rules of a source's filter."""
    config = parse_configuration(raw)
    unit = next(iter(config.unit_files(source)))
    settings: Any = step_settings(config, "corpus.filter", {"corpus": "main", "source": source, "unit": unit})
    return dict(settings.languages)


def test_each_source_is_filtered_by_its_genre() -> None:
    raw = with_genres(ALL_LAWS | {NAMES[1]: "drama"}, preset="genre")
    assert rules_of(raw, NAMES[0]) == GENRES["laws"]
    assert rules_of(raw, NAMES[1]) == GENRES["drama"]
    raw = with_genres(ALL_LAWS, preset="fineweb2")  # a genre is information if the preset does not use it
    assert rules_of(raw, NAMES[0]) == PRESETS["fineweb2"]
    assert rules_of(with_genres({}, preset="web"), NAMES[0]) == GENRES["web"]


def test_card_lists_the_rules_of_the_genres_in_the_corpus() -> None:
    for raw, genres in (
        (with_genres(ALL_LAWS | {NAMES[1]: "web"}, preset="genre"), {"laws", "web"}),
        (with_genres(ALL_LAWS), None),
    ):
        settings: Any = step_settings(parse_configuration(raw), "corpus.publish", {"corpus": "main"})
        assert settings.filters.keys() == {"deduplication", "languages" if genres is None else "genres"}
        assert genres is None or settings.filters["genres"].keys() == genres
        assert [source.genre for source in settings.sources][:1] == ["laws"]


def test_explicit_settings_override_the_genre() -> None:
    languages = {"nl": {"quality": {"minimum_words": 7, "symbol_ratio": 0.4}}, "en": None}
    genres = {"laws": {"nl": {"quality": {"minimum_words": 8}}}}
    raw = with_genres(ALL_LAWS | {NAMES[1]: "web"}, preset="genre", languages=languages, genres=genres)
    raw["sources"][0]["filters"] = {"nl": {"quality": {"stop_word_share": 0.01}}}
    laws, web = rules_of(raw, NAMES[0])["nl"].quality, rules_of(raw, NAMES[1])["nl"].quality
    assert laws is not None and web is not None
    assert (laws.minimum_words, laws.symbol_ratio, laws.stop_word_share) == (8, 0.4, 0.01)
    assert (web.minimum_words, web.symbol_ratio, web.stop_word_share) == (7, 0.4, 0.18)
    assert rules_of(raw, NAMES[0])["en"] == GENRES["laws"]["en"]
    assert (
        parse_configuration({**parse_configuration(raw).dump_explicit_settings(), "platform": "local"}).corpus
        == parse_configuration(raw).corpus
    )


@pytest.mark.parametrize(
    ("genres", "corpus", "message"),
    [
        (
            ALL_LAWS,
            {"preset": "standard", "genres": {"laws": {"nl": {}}}},
            "genres needs the preset genre: write preset: genre",
        ),
        (ALL_LAWS, {"preset": "genre", "genres": {"law": {}}}, "law"),
        (
            ALL_LAWS,
            {"preset": "genre", "genres": {"laws": {"fr": {}}}},
            r"genres\.laws: the corpus has no language 'fr'",
        ),
        (ALL_LAWS, {"preset": "genre", "genres": {"laws": ["nl"]}}, "genres"),
        (ALL_LAWS, {"preset": "genre", "genres": ["laws"]}, "genres"),
        (ALL_LAWS | {NAMES[0]: "poetry"}, {}, "genre"),
    ],
)
def test_genre_configuration_errors_are_reported(genres: Any, corpus: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_configuration(with_genres(genres, **corpus))


def test_corpus_with_genres_round_trips_through_json() -> None:
    corpus = Corpus.model_validate({"preset": "genre"})
    assert Corpus.model_validate_json(corpus.model_dump_json()) == corpus
    assert corpus.genres == GENRES and set(corpus.languages) == {"nl", "en"}
