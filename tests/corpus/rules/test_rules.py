"""The rules on lines, numbers and words decide as datatrove's blocks, and split a text once; presets choose."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
import spacy
import yaml
from datatrove.data import Document
from datatrove.pipeline.filters import C4QualityFilter
from datatrove.utils.word_tokenizers import load_word_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.tokenize import NLTKWordTokenizer

from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.corpus.filter import rule_blocks
from pipeline.corpus.rules.gopher import GopherQuality
from pipeline.corpus.rules.presets import DUTCH, PRESETS
from pipeline.corpus.rules.settings import C4, NordicPile, Quality
from pipeline.corpus.rules.web_text import C4Quality, NordicPileQuality
from pipeline.corpus.settings import Corpus
from pipeline.corpus.text.word_splitting import WordSequence, _cached_splitter, split_words, word_tokenize
from pipeline.corpus.text.word_tokenizers import nltk_tokenizer, spacy_tokenizer
from pipeline.workflow.steps import step_settings
from tests.corpus.rules.peers import agreement, our_decisions, their_decisions
from tests.corpus.rules.test_gopher import demonstration_texts

PLACE = Path(__file__).parents[3]
NLTK = NLTKWordTokenizer()
SPACY = {language: spacy.blank(language).tokenizer for language in ("nl", "en")}


def spoilt(real: list[str]) -> list[str]:
    """Return the texts, and variants as lists, menus, with code, with marks and with citations."""
    changed: list[Callable[[str], str]] = [
        lambda text: text,
        lambda text: text.replace(". ", ".\n"),
        lambda text: text.replace(". ", "\n").replace(", ", "\n"),
        lambda text: text.replace(" de ", " [1] ").replace(" the ", " [edit]\n"),
        lambda text: f"Lees de privacy policy.\n{text}\nDit is javascript.\n{text[:90]}...",
        lambda text: text.replace("e", "{", 1) if len(text) % 2 else text.replace(". ", '." \n'),
    ]
    return [change(text) for text in real for change in changed]


def test_decisions_agree_with_datatrove() -> None:
    real = demonstration_texts()[:30]
    documents = [(text, language) for text in spoilt(real) for language in ("nl", "en")]
    result = agreement(our_decisions(documents, "plain"), their_decisions(documents, "plain"))
    for key, (same, total) in result.items():
        assert same >= 0.999 * total, key
    result = agreement(our_decisions(documents[::3], "spacy"), their_decisions(documents[::3], "spacy"))
    for key, (same, total) in result.items():
        assert same >= 0.999 * total, key


def has_words(words: WordSequence, expected: list[str]) -> bool:
    number_of = {word: int(words.vocabulary.word_numbers([word])[0]) for word in set(expected)}
    assert len(set(number_of.values())) == len(number_of)
    return words.numbers_W.tolist() == [number_of[word] for word in expected]


@pytest.mark.parametrize("language", ["nl", "en"])
def test_words_equal_those_of_spacy(language: str) -> None:
    theirs = load_word_tokenizer({"nl": "nld", "en": "eng"}[language])
    for text in [
        *spoilt(demonstration_texts()[:20]),
        "XD a.b. 's-Hertogenbosch (bijv. 12.000 km/u) e-mail@x.nl don't…",
    ]:
        words = split_words(text, "spacy", language)
        assert has_words(words, theirs.word_tokenize(text))


PARTS = "de Huis HUIS bijv CoA can not é A xD 's ’S -- '' ,, US$ 2 3 km km/h m² C GB :) www .nl http://"
PRETOKENS = st.lists(
    st.sampled_from([*"(['\"“‘„,.;:!?)]”’…-/—`´_|*<>=+€%°@", *PARTS.split()]), min_size=1, max_size=9
).map("".join)


@settings(max_examples=4 * settings.default.max_examples)
@given(PRETOKENS, st.sampled_from(["nl", "en"]))
def test_fast_word_split_equals_spacy(pretoken: str, language: str) -> None:
    theirs = [token.text for token in SPACY[language](pretoken)]
    assert spacy_tokenizer(language)([pretoken]) == [theirs]


LETTERS_AND_MARKS = st.text(st.sampled_from("aAéÉdtnoCTNgN19.,;:?!'’\"-(/€"), min_size=1, max_size=9)
CONTRACTED = st.sampled_from(["cannot", "Gonna", "don't", "bijv", "a.u.b", "km", "U.S", "XD", "'s"])


@given(LETTERS_AND_MARKS | st.tuples(CONTRACTED, st.sampled_from([*",;:?!.", ""])).map("".join))
def test_fast_word_split_equals_the_tokenizer(pretoken: str) -> None:
    assert nltk_tokenizer()([pretoken]) == [NLTK.tokenize(pretoken)]
    for language, tokenizer in SPACY.items():
        assert spacy_tokenizer(language)([pretoken]) == [[token.text for token in tokenizer(pretoken)]]


def test_stop_words_count_once_or_per_occurrence() -> None:
    text = "de man de vrouw de hond"
    for repeated, expected in ((False, (False, "few_stop_words")), (True, True)):
        rules = Quality(minimum_words=None, stop_words=["de", "het"], repeated_stop_words=repeated)
        document = Document(text=text, id="", metadata={"language": "nl"})
        assert GopherQuality({"nl": rules}).filter(document) == expected


def test_language_without_spacy_words_is_refused() -> None:
    with pytest.raises(InputError, match=r"spaCy has no words for 'qq': write words: plain"):
        split_words("tekst", "spacy", "qq")


SPACY = {language: spacy.blank(language).tokenizer for language in ("nl", "en")}
WORDS = st.lists(st.sampled_from(["de", "Zo.", "en,", "\n", "\n\n", "3", '"', "...", "zin!", " "]), max_size=60)


@settings(max_examples=80)
@given(WORDS.map(" ".join))
def test_words_of_a_text_are_those_of_its_lines(text: str) -> None:
    words = split_words(text)
    assert has_words(words, word_tokenize(text))
    assert words.words_L.tolist() == [len(word_tokenize(line)) for line in text.splitlines()]
    assert words.lengths_W.tolist() == [len(word) for word in word_tokenize(text)]
    assert words.count_distinct_matches(["de", "zin!", "niets", "de de", ""]) == len(
        {"de", "zin!"} & set(word_tokenize(text))
    )


@settings(max_examples=80)
@given(WORDS.map(" ".join) | st.text(st.sampled_from("a| -1_.,\n"), max_size=40))
def test_lexical_words_are_plain_words_without_pure_marks(text: str) -> None:
    words = split_words(text, "lexical")
    expected = [
        [word for word in word_tokenize(line) if word[0].isalnum() or word[0] == "_"] for line in text.splitlines()
    ]
    assert has_words(words, list(chain.from_iterable(expected)))
    assert words.words_L.tolist() == list(map(len, expected))


def test_c4_drops_and_counts_lines(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["Menu", texts["nl_water"], "Home > Contact", "Lees onze privacy[2] policy.", "zet javascript aan."]
    text = "\n".join([*lines, texts["nl_bakker"]])
    rules = {"nl": C4(minimum_sentences=3)}
    document = Document(text=text, id="", metadata={"language": "nl"})
    assert C4Quality(rules).filter(document) is True
    assert document.text == f"{texts['nl_water']}\n{texts['nl_bakker']}"
    assert document.metadata["dropped_lines"] == {"no_terminal_punctuation": 2, "policy": 1, "javascript": 1}
    kept = split_words(document.text)
    _cached_splitter.cache_clear()
    fresh = split_words(document.text)
    assert kept.words_L.tolist() == fresh.words_L.tolist() and kept.lengths_W.tolist() == fresh.lengths_W.tolist()

    document = Document(text=text, id="", metadata={"language": "nl"})
    assert C4Quality({"nl": C4(drop_lines=False)}).filter(document) is True
    assert document.text == text and "dropped_lines" not in document.metadata

    few = Document(text="Een zin. Nog een zin.", id="", metadata={"language": "nl"})
    assert C4Quality(rules).filter(few) == (False, "too_few_sentences")
    assert few.metadata["filter_value"] == "2"


def test_c4_edits_equal_those_of_datatrove(texts: dict[str, str]) -> None:
    text = f" {texts['en_garden']}\n{texts['en_lighthouse']}\nHome".replace(". ", ".[12] ")
    mine, other = (Document(text=text, id="", metadata={"language": "en"}) for _ in range(2))
    assert C4Quality({"en": C4()}).filter(mine) is C4QualityFilter().filter(other) is True
    assert mine.text == other.text and "[" not in mine.text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("In 1648 kwam er vrede, en daarna werd het rustiger in het hele land.", None),
        ("1234 5678 90 12 34 56 78 90 12 34 prijs 12,50 euro 13,50 euro 99", "digits"),
        ("Veel te kort.", "too_few_characters"),
        ("\n".join(["kort"] * 30), "short_line_characters"),
        ("\n".join(["langewoorden"] * 9), "short_line_words"),
    ],
)
def test_nordic_pile(text: str, reason: str | None) -> None:
    document = Document(text=text, id="", metadata={"language": "nl"})
    result = NordicPileQuality({"nl": NordicPile()}).filter(document)
    assert result == (True if reason is None else (False, reason))


def by_definition(text: str, rules: NordicPile) -> str | None:
    """Return the first rule of the Nordic Pile that a text fails, implemented from its description."""
    stripped, lines = text.strip(), [line for line in text.splitlines() if line.strip()]
    characters = [len("".join(line.split())) for line in lines]
    words = [sum(len(NLTK.tokenize(pretoken)) for pretoken in line.split()) for line in lines]
    typical = [(mean(values) + median(values)) / 2 for values in (characters, words)]
    fails = {
        "digits": sum(map(str.isdigit, stripped)) / len(stripped) > (rules.digits or 1),
        "too_few_characters": sum(characters) < (rules.minimum_characters or 0),
        "short_line_characters": typical[0] < (rules.minimum_line_characters or 0),
        "short_line_words": typical[1] < (rules.minimum_line_words or 0),
    }
    return next((reason for reason, failed in fails.items() if failed), None)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"digits": 0.004}, "digits"),
        ({"minimum_characters": 700}, "too_few_characters"),
        ({"minimum_line_characters": 60.0}, "short_line_characters"),
        ({"minimum_line_words": 12.5}, "short_line_words"),
    ],
)
def test_nordic_pile_rules_follow_their_description(changed: dict[str, Any], reason: str) -> None:
    rules, result = NordicPile(**changed), set()
    for text in spoilt(demonstration_texts()[:30:2]):
        document = Document(text=text, id="", metadata={"language": "nl"})
        expected = by_definition(text, rules)
        decision = NordicPileQuality({"nl": rules}, None, {"nl": "nltk"}).filter(document)
        assert decision == (True if expected is None else (False, expected)), text
        result.add(expected)
    assert result == {None, reason}


def test_all_rules_share_one_word_split(texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    count: Callable[[str], list[str]] = lambda text: calls.append(text) or word_tokenize(text)  # type: ignore[func-returns-value]  # noqa: E731
    monkeypatch.setattr("pipeline.corpus.text.word_splitting.word_tokenize", count)
    _cached_splitter.cache_clear()
    rules = DUTCH.model_copy(
        update={
            "c4": C4(minimum_sentences=1),
            "fineweb": PRESETS["fineweb2"]["nl"].fineweb,
            "nordic_pile": NordicPile(),
        }
    )
    document = Document(text=f"Menu\n{texts['nl_water']}", id="", metadata={"language": "nl"})
    result: list[Any] = rule_blocks({"nl": rules})
    assert len(result) == 5 and all(block.filter(document) is True for block in result)
    assert sorted(" ".join(calls).split()) == sorted({"Menu", *texts["nl_water"].split()})
    _cached_splitter.cache_clear()


def test_presets_are_applied() -> None:
    assert Corpus.model_validate({"preset": "fineweb2"}).languages == PRESETS["fineweb2"]
    written = {"preset": "gptnl", "languages": {"nl": {"quality": {"minimum_words": 9}, "c4": {}}}}
    corpus = Corpus.model_validate(written)
    default = PRESETS["gptnl"]["nl"]
    assert default.quality is not None and default.nordic_pile == NordicPile()
    expected = {"quality": default.quality.model_copy(update={"minimum_words": 9}), "c4": C4()}
    assert corpus.languages == {"nl": default.model_copy(update=expected)}
    off = Corpus.model_validate({"languages": {"nl": {"repetition": None}}})
    assert off.languages["nl"].repetition is None and rule_blocks(off.languages)[0].name == "Gopher quality"
    for name in ("standard", "gptnl", "fineweb2"):
        assert Corpus.model_validate_json(Corpus.model_validate({"preset": name}).model_dump_json()).preset == name


def test_source_can_override_rules_and_language_model() -> None:
    raw = yaml.safe_load((PLACE / "config" / "micro.yaml").read_text())
    name = raw["sources"][0]["name"]
    changed = [{**raw["sources"][0], "filters": {"nl": {"quality": {"minimum_words": 5}}}}, *raw["sources"][1:]]
    model = {"path": "{data}/lid.bin", "sha256": hashlib.sha256(b"model").hexdigest()}
    config = parse_configuration(
        {
            **raw,
            "sources": changed,
            "corpus": {"main": {"preset": "standard", "language_model": model}},
            "data": "there",
        }
    )
    unit = {"corpus": "main", "source": name, "unit": next(iter(config.unit_files(name)))}
    of_source: Any = step_settings(config, "corpus.filter", unit)
    assert of_source.languages["nl"].quality.minimum_words == 5
    assert of_source.language_model_sha256 == model["sha256"]
    assert config.resolve_data_path("the model", model["path"]) == "there/lid.bin"
    other: Any = step_settings(config, "corpus.filter", {**unit, "source": raw["sources"][1]["name"], "unit": "0"})
    assert other.languages["nl"].quality.minimum_words == 50
    for filters, message in (
        ({"nl": {"qualty": {}}}, rf"sources\.{name}\.filters: qualty: Extra inputs"),
        ({"fr": {}}, "the corpus has no language 'fr'; choose one of en, nl"),
    ):
        with pytest.raises(InputError, match=message):
            parse_configuration({**raw, "sources": [{**raw["sources"][0], "filters": filters}, *raw["sources"][1:]]})
