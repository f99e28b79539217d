"""The equivalent blocks of datatrove with the same thresholds and words, and the decisions of both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from datatrove.data import Document
from datatrove.pipeline import filters
from datatrove.pipeline.filters import (
    c4_filters,
    fineweb_quality_filter,
    gopher_quality_filter,
    gopher_repetition_filter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter

from pipeline.corpus.filter import rule_blocks
from pipeline.corpus.rules.presets import PRESETS
from pipeline.corpus.rules.settings import C4, FineWeb, LanguageRules
from pipeline.corpus.text.word_splitting import split_words, word_tokenize
from pipeline.corpus.text.word_tokenizers import Splitter

LANGUAGES = {"nl": "nld", "en": "eng"}


def stock(rules: LanguageRules, language: str) -> dict[str, BaseFilter]:
    """Return datatrove's blocks with the same thresholds, by the key of their rules, in our order."""
    results: dict[str, BaseFilter] = {}
    if (c4 := rules.c4) is not None:
        results["c4"] = filters.C4QualityFilter(
            remove_citations=c4.citations,
            filter_no_terminal_punct=c4.terminal_punctuation,
            min_num_sentences=c4.minimum_sentences or -1,
            min_words_per_line=c4.minimum_words_per_line or -1,
            max_word_length=c4.maximum_word_length or -1,
            filter_lorem_ipsum=c4.lorem_ipsum,
            filter_javascript=c4.javascript,
            filter_curly_bracket=c4.curly_bracket,
            filter_policy=c4.policy,
            language=language,
        )
    if (repetition := rules.repetition) is not None:
        results["repetition"] = filters.GopherRepetitionFilter(
            dup_line_frac=repetition.duplicate_lines,
            dup_para_frac=repetition.duplicate_paragraphs,
            dup_line_char_frac=repetition.duplicate_line_characters,
            dup_para_char_frac=repetition.duplicate_paragraph_characters,
            top_n_grams=tuple(repetition.top_n_grams.items()),
            dup_n_grams=tuple(repetition.duplicate_n_grams.items()),
            language=language,
        )
    if (quality := rules.quality) is not None:
        results["quality"] = filters.GopherQualityFilter(
            min_doc_words=quality.minimum_words,
            max_doc_words=quality.maximum_words,
            min_avg_word_length=quality.minimum_mean_word_length,
            max_avg_word_length=quality.maximum_mean_word_length,
            max_symbol_word_ratio=quality.symbol_ratio,
            max_bullet_lines_ratio=quality.bullet_lines,
            max_ellipsis_lines_ratio=quality.ellipsis_lines,
            max_non_alpha_words_ratio=quality.alphabetic_words,
            min_stop_words=quality.minimum_stop_words,
            stop_words=quality.stop_words,
            language=language,
        )
    if (fineweb := rules.fineweb) is not None:
        never = 1e9
        results["fineweb"] = filters.FineWebQualityFilter(
            line_punct_thr=fineweb.punctuated_lines or 0.0,
            short_line_thr=never if fineweb.short_lines is None else fineweb.short_lines,
            short_line_length=fineweb.short_line_length,
            char_duplicates_ratio=(
                never if fineweb.duplicate_line_characters is None else fineweb.duplicate_line_characters
            ),
            new_line_ratio=never if fineweb.new_lines is None else fineweb.new_lines,
            language=language,
        )
    return results


@contextlib.contextmanager
def our_words_in_datatrove() -> Iterator[None]:
    """Replace the words and sentences of datatrove's blocks by the plain ones of this package."""

    def sentences(text: str, language: str) -> list[str]:
        return [""] * int(split_words(text).count_sentences_L().sum())

    places = [
        (gopher_quality_filter, "split_into_words", lambda text, language: word_tokenize(text)),
        (gopher_repetition_filter, "split_into_words", lambda text, language: word_tokenize(text)),
        (fineweb_quality_filter, "split_into_words", lambda text, language: word_tokenize(text)),
        (c4_filters, "split_into_sentences", sentences),
    ]
    before = [getattr(module, name) for module, name, _ in places]
    for module, name, words in places:
        setattr(module, name, words)
    try:
        yield
    finally:
        for (module, name, _), words in zip(places, before, strict=True):
            setattr(module, name, words)


KEYS = ("c4", "repetition", "quality", "fineweb")
Decisions = dict[str, list[tuple[bool, int]]]


def agreement_rules(splitter: Splitter) -> dict[str, LanguageRules]:
    """Return the compared thresholds: those of `standard`, with those of C4 and FineWeb."""
    rules = {
        code: PRESETS["standard"][code].model_copy(update={"words": splitter, "c4": C4(), "fineweb": FineWeb()})
        for code in LANGUAGES
    }
    return rules | {"nl": rules["nl"].model_copy(update={"fineweb": PRESETS["fineweb2"]["nl"].fineweb})}


def our_decisions(documents: list[tuple[str, str]], splitter: Splitter) -> Decisions:
    """Return for each block whether it keeps each document, and a hash of the remaining text."""
    result: Any = zip(KEYS, rule_blocks(agreement_rules(splitter)), strict=True)
    return _decisions(documents, [(key, dict.fromkeys(LANGUAGES, block)) for key, block in result])


def their_decisions(documents: list[tuple[str, str]], splitter: Splitter) -> Decisions:
    """Return the same for datatrove's blocks with these words."""
    theirs = {code: stock(rules, LANGUAGES[code]) for code, rules in agreement_rules(splitter).items()}
    with our_words_in_datatrove() if splitter == "plain" else contextlib.nullcontext():
        return _decisions(documents, [(key, {code: theirs[code][key] for code in LANGUAGES}) for key in KEYS])


def _decisions(documents: list[tuple[str, str]], results: list[tuple[str, dict[str, BaseFilter]]]) -> Decisions:
    """Let every block judge every text as it is given."""
    decisions: Decisions = {key: [] for key, _ in results}
    for text, language in documents:
        for key, by_language in results:
            document = Document(text=text, id="", metadata={"language": language})
            kept = by_language[language].filter(document) is True
            decisions[key].append((kept, hash(document.text)))
    return decisions


def agreement(ours: Decisions, theirs: Decisions) -> dict[str, tuple[int, int]]:
    """Return for each kind of rules the numbers of equal and all decisions; and C4's texts."""
    same = {key: [mine[0] == other[0] for mine, other in zip(ours[key], theirs[key], strict=True)] for key in KEYS} | {
        "c4 text": [mine == other for mine, other in zip(ours["c4"], theirs["c4"], strict=True)]
    }
    return {key: (sum(equal), len(equal)) for key, equal in same.items()}
