"""The presets have the published thresholds and no other rule."""

from __future__ import annotations

import inspect
from typing import Any

from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter

from pipeline.corpus.rules.presets import FUNCTION_WORDS, PRESETS
from pipeline.corpus.rules.settings import C4

# Rae et al. 2021, section A.1.1 and table A1.
GOPHER_REPETITION = {
    "duplicate_lines": 0.3,
    "duplicate_line_characters": 0.2,
    "duplicate_paragraphs": 0.3,
    "duplicate_paragraph_characters": 0.2,
    "top_n_grams": {2: 0.2, 3: 0.18, 4: 0.16},
    "duplicate_n_grams": {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1},
}
GOPHER_QUALITY = {
    "minimum_words": 50,
    "maximum_words": 100_000,
    "minimum_mean_word_length": 3,
    "maximum_mean_word_length": 10,
    "symbol_ratio": 0.1,
    "bullet_lines": 0.9,
    "ellipsis_lines": 0.3,
    "alphabetic_words": 0.8,
    "minimum_stop_words": 2,
    "repeated_stop_words": False,
    "stop_words": ["the", "be", "to", "of", "and", "that", "have", "with"],
}
# configs/nld_Latn.yml of huggingface/fineweb-2, "updated configs with paper version".
FINEWEB2_REPETITION = {
    "duplicate_lines": 0.296,
    "top_n_grams": {2: 0.213, 3: 0.182, 4: 0.158},
    "duplicate_n_grams": {5: 0.156, 6: 0.146, 7: 0.136, 8: 0.126, 9: 0.115, 10: 0.104},
}
FINEWEB2_WORDS = "de van in het een en is op voor met door zijn werd hij uit"
OWN_WORDS = "de het een en van in is dat op te zijn met voor niet"
FINEWEB2_QUALITY = {"minimum_mean_word_length": 3, "maximum_mean_word_length": 17, "alphabetic_words": 0.828}
# The defaults of the stage heuristic_filtering and its filters in GPT-NL/data-curation-pipeline.
GPTNL_REPETITION = {
    "duplicate_lines": 0.35,
    "duplicate_line_characters": 0.2,
    "duplicate_paragraphs": 0.35,
    "duplicate_paragraph_characters": 0.2,
    "top_n_grams": {2: 0.25, 3: 0.23, 4: 0.21},
    "duplicate_n_grams": {5: 0.2, 6: 0.19, 7: 0.18, 8: 0.17, 9: 0.16, 10: 0.15},
}
GPTNL_QUALITY = {
    "minimum_words": None,
    "maximum_words": None,
    "minimum_mean_word_length": None,
    "maximum_mean_word_length": None,
    "symbol_ratio": 0.1,
    "bullet_lines": 0.9,
    "ellipsis_lines": 0.3,
    "alphabetic_words": 0.8,
    "minimum_stop_words": 2,
    "repeated_stop_words": True,
}
NORDIC_PILE = {
    "digits": 0.2,
    "minimum_characters": 50,
    "minimum_line_characters": 9.0,
    "minimum_line_words": 2.1,
}
FINEWEB = {
    "punctuated_lines": 0.12,
    "short_lines": 0.67,
    "short_line_length": 30,
    "duplicate_line_characters": 0.01,
    "new_lines": 0.3,
}
NO_PARAGRAPHS = {
    "duplicate_line_characters": None,
    "duplicate_paragraphs": None,
    "duplicate_paragraph_characters": None,
}
OFF = {"within_words": None}, {"stop_word_share": None, "code_characters": None, "running_words": None}


def published(
    score: float, words: str, repetition: dict[str, Any], quality: dict[str, Any], **others: Any
) -> dict[str, Any]:
    """Return all keys of a language's rules; rules without a datatrove equivalent are off."""
    sections = {"c4": None, "fineweb": None, "nordic_pile": None} | others
    rules = {"minimum_score": score, "mixed_language": None, "words": words}
    return {**rules, "repetition": repetition | OFF[0], "quality": quality | OFF[1], **sections}


def test_preset_thresholds_equal_the_published_ones() -> None:
    dutch_gopher = GOPHER_REPETITION | FINEWEB2_REPETITION
    own_words = {"stop_words": OWN_WORDS.split()}
    dutch_fineweb = {"punctuated_lines": 0.102, "new_lines": 0.154, "short_lines": None}
    dutch_fineweb |= {"short_line_length": 30, "duplicate_line_characters": 0.1}
    sentences = C4().model_dump() | {"terminal_punctuation": False}
    gptnl = {language: GPTNL_QUALITY | {"stop_words": FUNCTION_WORDS[language]} for language in ("nl", "en")}
    expected = {
        ("standard", "nl"): published(0.689, "plain", dutch_gopher, GOPHER_QUALITY | FINEWEB2_QUALITY | own_words),
        ("standard", "en"): published(0.65, "plain", GOPHER_REPETITION, GOPHER_QUALITY),
        ("fineweb2", "nl"): published(
            0.689,
            "spacy",
            FINEWEB2_REPETITION | NO_PARAGRAPHS,
            GOPHER_QUALITY | FINEWEB2_QUALITY | {"stop_words": FINEWEB2_WORDS.split()},
            fineweb=dutch_fineweb,
        ),
        ("fineweb2", "en"): published(0.65, "spacy", GOPHER_REPETITION, GOPHER_QUALITY, fineweb=FINEWEB, c4=sentences),
        ("gptnl", "nl"): published(0.65, "nltk", GPTNL_REPETITION, gptnl["nl"], nordic_pile=NORDIC_PILE),
        ("gptnl", "en"): published(0.65, "nltk", GPTNL_REPETITION, gptnl["en"], nordic_pile=NORDIC_PILE),
    }
    for (preset, language), rules in expected.items():
        assert PRESETS[preset][language].model_dump() == rules, (preset, language)
    c4 = {"minimum_words_per_line": 3, "maximum_word_length": 1000, "minimum_sentences": 5}
    assert sentences.items() >= c4.items()


def test_defaults_equal_those_of_datatrove() -> None:
    names = {
        GopherRepetitionFilter: {
            "dup_line_frac": GOPHER_REPETITION["duplicate_lines"],
            "dup_para_frac": GOPHER_REPETITION["duplicate_paragraphs"],
            "dup_line_char_frac": GOPHER_REPETITION["duplicate_line_characters"],
            "dup_para_char_frac": GOPHER_REPETITION["duplicate_paragraph_characters"],
            "top_n_grams": tuple(GOPHER_REPETITION["top_n_grams"].items()),  # type: ignore[attr-defined]
            "dup_n_grams": tuple(GOPHER_REPETITION["duplicate_n_grams"].items()),  # type: ignore[attr-defined]
        },
        GopherQualityFilter: {
            "min_doc_words": GOPHER_QUALITY["minimum_words"],
            "max_doc_words": GOPHER_QUALITY["maximum_words"],
            "min_avg_word_length": GOPHER_QUALITY["minimum_mean_word_length"],
            "max_avg_word_length": GOPHER_QUALITY["maximum_mean_word_length"],
            "max_symbol_word_ratio": GOPHER_QUALITY["symbol_ratio"],
            "max_bullet_lines_ratio": GOPHER_QUALITY["bullet_lines"],
            "max_ellipsis_lines_ratio": GOPHER_QUALITY["ellipsis_lines"],
            "max_non_alpha_words_ratio": GOPHER_QUALITY["alphabetic_words"],
            "min_stop_words": GOPHER_QUALITY["minimum_stop_words"],
        },
        FineWebQualityFilter: {
            "line_punct_thr": FINEWEB["punctuated_lines"],
            "short_line_thr": FINEWEB["short_lines"],
            "short_line_length": FINEWEB["short_line_length"],
            "char_duplicates_ratio": FINEWEB["duplicate_line_characters"],
            "new_line_ratio": FINEWEB["new_lines"],
        },
    }
    for block, expected in names.items():
        parameters = inspect.signature(block).parameters
        assert {name: parameters[name].default for name in expected} == expected
