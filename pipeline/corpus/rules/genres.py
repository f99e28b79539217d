"""The rules of each genre for Dutch and English: what is ordinary in a law or a play is not in an article.

They begin with Gopher's and differ in four ways. Repetition is looked for within 200 words, because its share of a
whole document grows with the document's length. Marks that stand alone, as the bars of tables do, are no words. A share
of function words tells text from menus, tables and lists of names, so that neither bullets nor different stop words are
counted. And a share of brackets and semicolons tells code and mark-up. `benchmarks/genres.py` measures what each
genre keeps.
"""

from __future__ import annotations

from typing import Any, get_args

from pipeline.corpus.rules.settings import FineWeb, LanguageRules, Quality, Repetition
from pipeline.sources.settings import Genre

# The commonest words of NLTK's lists, which have to be downloaded.
_WORDS = {
    "nl": "de het een en van in is dat op te zijn met voor niet aan die er om bij ook als dan maar of uit naar over "
    "door tot was werd worden wordt hebben heeft had kan zal dit deze wat wie hij zij ze ik je u we men hun zich nog "
    "al geen",
    "en": "the be to of and that have with a an in is are was were been it its on for as at by from this these those "
    "or but not no if then than so he she they we you i his her their our your my me him them which who what when "
    "will can do does did has had there here",
}
FUNCTION_WORDS = {language: words.split() for language, words in _WORDS.items()}
_MINIMUM_SCORE = {"nl": 0.689, "en": 0.65}
_MAXIMUM_MEAN_WORD_LENGTH = {"nl": 17.0, "en": 10.0}

_QUALITY: dict[Genre, dict[str, Any]] = {
    "prose": {"stop_word_share": 0.25},
    "laws": {"stop_word_share": 0.2, "alphabetic_words": 0.65, "symbol_ratio": None},  # forms have dotted lines
    # Verse of before 1800 spells most function words otherwise.
    "drama": {"stop_word_share": 0.15, "ellipsis_lines": None},
    # Lists of commands and tables of fields are what manuals are for; a menu is told by its lines, see below.
    "documentation": {
        "stop_word_share": 0.06,
        "alphabetic_words": 0.5,
        "code_characters": 0.04,
        "minimum_words": 30,
        "symbol_ratio": None,
    },
    "web": {"stop_word_share": 0.18, "alphabetic_words": 0.75, "minimum_words": 10, "ellipsis_lines": 0.5},
    "speech": {"stop_word_share": 0.2, "minimum_words": 10, "symbol_ratio": None, "ellipsis_lines": None},
}
_LINES: dict[str, Any] = {"duplicate_lines": 0.5, "duplicate_line_characters": 0.3, "duplicate_paragraphs": 0.5}
# A statute says the same of one thing after another: twice as often as Gopher allows, and a manual three times.
_TWICE = {5: 0.3, 6: 0.28, 7: 0.26, 8: 0.24, 9: 0.22, 10: 0.2}
_REPETITION: dict[Genre, dict[str, Any]] = {
    "prose": {},
    "laws": _LINES | {"duplicate_n_grams": _TWICE},
    "drama": _LINES,  # names of speakers
    "documentation": {
        "duplicate_lines": 0.7,
        "duplicate_line_characters": 0.5,
        "duplicate_paragraphs": 0.7,
        "duplicate_paragraph_characters": 0.6,
        "duplicate_n_grams": {5: 0.45, 6: 0.42, 7: 0.39, 8: 0.36, 9: 0.33, 10: 0.3},
        "top_n_grams": {},
    },
    # GPT-NL's; the commonest n-gram of a text of 20 words is always a large share of it.
    "web": _LINES | {"duplicate_n_grams": {5: 0.2, 6: 0.19, 7: 0.18, 8: 0.17, 9: 0.16, 10: 0.15}, "top_n_grams": {}},
    "speech": _LINES | {"duplicate_n_grams": _TWICE, "top_n_grams": {}},
}
# Hardly a line of a menu ends a sentence: at most one in 200 of those that were measured.
_MENUS = FineWeb(punctuated_lines=0.01, short_lines=None, duplicate_line_characters=None, new_lines=None)


def _rules(genre: Genre, language: str) -> LanguageRules:
    quality = {
        "maximum_words": None,
        "maximum_mean_word_length": _MAXIMUM_MEAN_WORD_LENGTH[language],
        "code_characters": 0.02,
        "bullet_lines": None,
        "minimum_stop_words": 0,
        "stop_words": FUNCTION_WORDS[language],
    }
    return LanguageRules(
        minimum_score=_MINIMUM_SCORE[language],
        words="lexical",
        repetition=Repetition.model_validate({"within_words": 200} | _REPETITION[genre]),
        quality=Quality.model_validate(quality | _QUALITY[genre]),
        fineweb=_MENUS if genre == "documentation" else None,
    )


GENRES: dict[str, dict[str, LanguageRules]] = {
    genre: {language: _rules(genre, language) for language in FUNCTION_WORDS} for genre in get_args(Genre)
}
