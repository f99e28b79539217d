"""Presets of filter rules for Dutch and English, and how a configuration completes them.

- `standard`: the thresholds of Gopher (Rae et al. 2021, table A1) for English and of FineWeb-2 for Dutch; punctuation
  belongs to words.
- `fineweb2`: the recipe of FineWeb-2 for Dutch (configs/nld_Latn.yml of huggingface/fineweb-2) and of FineWeb for
  English (examples/fineweb.py of datatrove), with their words. Only the order differs (see `RULE_BLOCKS`).
- `gptnl`: GPT-NL's public data-curation pipeline: the defaults of its stage heuristic_filtering and its filters, with
  NLTK's words.
- `genre`: the genre of each source selects one of GENRES, because normal text of a law or a play differs from an
  article.

The rules of genres are Gopher's with four differences. Repetition is measured within 200 words, because its share of a
document grows with the document's length. Single marks, such as the bars of tables, are no words. A share of function
words separates text from menus, tables and lists of names, instead of counts of bullets and different stop words. A
share of brackets and semicolons identifies code and markup. `benchmarks/genre_presets.py` measures the kept texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pipeline.corpus.rules.settings import C4, FineWeb, LanguageRules, NordicPile, Quality, Repetition
from pipeline.sources.settings import Genre

# The most common words of NLTK's lists, which are not in NLTK's package.
_WORDS = {
    "nl": "de het een en van in is dat op te zijn met voor niet aan die er om bij ook als dan maar of uit naar over "
    "door tot was werd worden wordt hebben heeft had kan zal dit deze wat wie hij zij ze ik je u we men hun zich nog "
    "al geen",
    "en": "the be to of and that have with a an in is are was were been it its on for as at by from this these those "
    "or but not no if then than so he she they we you i his her their our your my me him them which who what when "
    "will can do does did has had there here",
}
FUNCTION_WORDS = {language: words.split() for language, words in _WORDS.items()}
# Function words of 1500 to 1900 that those lists lack: the most frequent ones of letters of 1610 to 1767, plays of 1500
# to 1800 and sermons of around 1600, in their spellings.
_PERIOD_WORDS = {
    "nl": "aen aende aldaar aldaer alhier alle allen also alsoo alzoo binnen boven buiten buyten by can connen daar "
    "daer datmen dattet dees deeze den denselven der des dese deselve desen deser deur dewelke dewijl dezen dezer "
    "dien dier doch doe doen doet dog dus eene eenen eener eens ende es ge geene gelijck gelijk geweest gheen "
    "ghij ghy gij gy haar hadde hadden haer haere hare haren heb hebbe hebbende hebt hem hen heur hier hoe hunne "
    "hy ic ick inde indien int ist jou jy kon konnen kunnen laat laet laten mach maer mag magh mede meer metten "
    "mij mijn mijne mijnen moet moeten mogen my myn myne mynen na nae naer niets noch nooit noyt nu off oft ofte "
    "omdat onder ons onse onsen onze oock opde opden sal se seer sich sig sij sijn sijnde sijne sijnen so sonder "
    "soo soude souden sullen sult sy syn syne tegen tegens ten ter toe toen tusschen uw uwe uwen uyt vande vanden "
    "veel vele voort waar waer wanneer want ware waren weer wel welck welcke welk welke werden wert wesen wezen "
    "wien wiens wierd wierden wij wil willen wilt word wort wt wy zeer zig zijnde zijne zijnen zo zonder zoo zou "
    "zoude zouden zullen zult zy zyn zyne",
    "en": "aboue about above after against all also although am among any art because bee beene before being bene "
    "between betweene both could doe done dost doth each either euery every eyther hast hath haue hauing hee "
    "heere hereof himselfe hir how into let like many may mee might more most much must myselfe neither nether "
    "non nor now one onely only other ouer out over own owne self selfe shal shall shalt shee shold should some "
    "such thee themselues therby therefore therein thereof therfore theyr thine thorow thou though through thus "
    "thy till too under until unto upon us very vnder vnto vp vpon vs wch wee well wert where wherefore wherein "
    "whereof whom whose why whych wil wilt within without wolde would wth ye yee yet yf yor yow yt",
}


def _list_period_words(language: str) -> list[str]:
    """Return the function words of 1500 to 1900, also with a long s, which never ends a word."""
    words = [*FUNCTION_WORDS[language], *_PERIOD_WORDS[language].split()]
    return [*dict.fromkeys(form for word in words for form in (word, word[:-1].replace("s", "ſ") + word[-1]))]


_MINIMUM_SCORE = {"nl": 0.689, "en": 0.65}
_MAXIMUM_MEAN_WORD_LENGTH = {"nl": 17.0, "en": 10.0}

_QUALITY: dict[Genre, dict[str, Any]] = {
    "prose": {"stop_word_share": 0.25},
    "laws": {"stop_word_share": 0.2, "alphabetic_words": 0.65, "symbol_ratio": None},  # forms have dotted lines
    # Verse of before 1800 spells most function words otherwise.
    "drama": {"stop_word_share": 0.15, "ellipsis_lines": None},
    # Manuals contain lists of commands and tables of fields, but running text too; menus, data and code do not.
    "documentation": {
        "stop_word_share": 0.06,
        "running_words": 0.1,
        "alphabetic_words": 0.5,
        "code_characters": 0.04,
        "minimum_words": 30,
        "symbol_ratio": None,
    },
    "web": {"stop_word_share": 0.18, "alphabetic_words": 0.75, "minimum_words": 10, "ellipsis_lines": 0.5},
    "speech": {"stop_word_share": 0.2, "minimum_words": 10, "symbol_ratio": None, "ellipsis_lines": None},
    # With its own list, old spelling has 0.3 and more; a text with a wrong character in five 0.2, a register 0.1.
    "historical": {
        "stop_word_share": 0.25,
        "alphabetic_words": 0.65,
        "code_characters": 0.04,  # lists of goods have semicolons
        "minimum_words": 10,
        "symbol_ratio": None,
        "ellipsis_lines": None,
    },
}
_LINES: dict[str, Any] = {"duplicate_lines": 0.5, "duplicate_line_characters": 0.3, "duplicate_paragraphs": 0.5}
# Statutes repeat phrases up to twice as often as Gopher allows, and manuals three times.
_DOUBLE_NGRAM_SHARES = {5: 0.3, 6: 0.28, 7: 0.26, 8: 0.24, 9: 0.22, 10: 0.2}
_REPETITION: dict[Genre, dict[str, Any]] = {
    "prose": {},
    "laws": _LINES | {"duplicate_n_grams": _DOUBLE_NGRAM_SHARES},
    "drama": _LINES,  # names of speakers
    "documentation": {
        "duplicate_lines": 0.7,
        "duplicate_line_characters": 0.5,
        "duplicate_paragraphs": 0.7,
        "duplicate_paragraph_characters": 0.6,
        "duplicate_n_grams": {5: 0.45, 6: 0.42, 7: 0.39, 8: 0.36, 9: 0.33, 10: 0.3},
        "top_n_grams": {},
    },
    # GPT-NL's thresholds; the most common n-gram of a text of 20 words is always a large share of it.
    "web": _LINES | {"duplicate_n_grams": {5: 0.2, 6: 0.19, 7: 0.18, 8: 0.17, 9: 0.16, 10: 0.15}, "top_n_grams": {}},
    "speech": _LINES | {"duplicate_n_grams": _DOUBLE_NGRAM_SHARES, "top_n_grams": {}},
}
_REPETITION["historical"] = _REPETITION["web"]  # short items of newspapers, and refrains
_HISTORICAL_MINIMUM_SCORE = 0.4
"""Models of languages know modern spelling; the share of function words identifies other languages."""


def _genre_language_rules(genre: Genre, language: str) -> LanguageRules:
    quality = {
        "maximum_words": None,
        "maximum_mean_word_length": _MAXIMUM_MEAN_WORD_LENGTH[language],
        "code_characters": 0.02,
        "bullet_lines": None,
        "minimum_stop_words": 0,
        "stop_words": _list_period_words(language) if genre == "historical" else FUNCTION_WORDS[language],
    }
    return LanguageRules(
        minimum_score=_HISTORICAL_MINIMUM_SCORE if genre == "historical" else _MINIMUM_SCORE[language],
        words="lexical",
        repetition=Repetition.model_validate({"within_words": 200} | _REPETITION[genre]),
        quality=Quality.model_validate(quality | _QUALITY[genre]),
    )


GENRES: dict[Genre, dict[str, LanguageRules]] = {
    genre: {language: _genre_language_rules(genre, language) for language in FUNCTION_WORDS}
    for genre in get_args(Genre)
}


DUTCH_STOP_WORDS = ["de", "het", "een", "en", "van", "in", "is", "dat", "op", "te", "zijn", "met", "voor", "niet"]

ENGLISH = LanguageRules()
DUTCH = LanguageRules(
    minimum_score=0.689,
    repetition=Repetition(
        duplicate_lines=0.296,
        top_n_grams={2: 0.213, 3: 0.182, 4: 0.158},
        duplicate_n_grams={5: 0.156, 6: 0.146, 7: 0.136, 8: 0.126, 9: 0.115, 10: 0.104},
    ),
    quality=Quality(maximum_mean_word_length=17.0, alphabetic_words=0.828, stop_words=DUTCH_STOP_WORDS),
)
_FINEWEB2_STOP_WORDS = "de van in het een en is op voor met door zijn werd hij uit"
_DUTCH_FINEWEB2 = LanguageRules(
    minimum_score=0.689,
    words="spacy",
    repetition=Repetition(
        duplicate_lines=0.296,
        duplicate_line_characters=None,
        duplicate_paragraphs=None,
        duplicate_paragraph_characters=None,
        top_n_grams={2: 0.213, 3: 0.182, 4: 0.158},
        duplicate_n_grams={5: 0.156, 6: 0.146, 7: 0.136, 8: 0.126, 9: 0.115, 10: 0.104},
    ),
    quality=Quality(
        maximum_mean_word_length=17.0,
        alphabetic_words=0.828,
        stop_words=_FINEWEB2_STOP_WORDS.split(),
    ),
    fineweb=FineWeb(punctuated_lines=0.102, short_lines=None, duplicate_line_characters=0.1, new_lines=0.154),
)
_ENGLISH_FINEWEB = LanguageRules(words="spacy", c4=C4(terminal_punctuation=False), fineweb=FineWeb())
# GPT-NL counts each occurrence of a word of NLTK's lists; FUNCTION_WORDS has the most common ones.
_GPTNL = LanguageRules(
    minimum_score=0.65,
    words="nltk",
    repetition=Repetition(
        duplicate_lines=0.35,
        duplicate_paragraphs=0.35,
        top_n_grams={2: 0.25, 3: 0.23, 4: 0.21},
        duplicate_n_grams={5: 0.2, 6: 0.19, 7: 0.18, 8: 0.17, 9: 0.16, 10: 0.15},
    ),
    quality=Quality(
        minimum_words=None,
        maximum_words=None,
        minimum_mean_word_length=None,
        maximum_mean_word_length=None,
        repeated_stop_words=True,
        stop_words=FUNCTION_WORDS["en"],
    ),
    nordic_pile=NordicPile(),
)
_DUTCH_QUALITY = {**dict(_GPTNL.quality or {}), "stop_words": FUNCTION_WORDS["nl"]}
_DUTCH_GPTNL = _GPTNL.model_copy(update={"quality": Quality.model_validate(_DUTCH_QUALITY)})

Preset = Literal["standard", "gptnl", "fineweb2", "genre", Genre]
# With the preset `genre`, the rules of a language are merged into those of each genre; `prose` represents the corpus
# where only the language is known.
PRESETS: dict[str, dict[str, LanguageRules]] = {
    "standard": {"nl": DUTCH, "en": ENGLISH},
    "gptnl": {"nl": _DUTCH_GPTNL, "en": _GPTNL},
    "fineweb2": {"nl": _DUTCH_FINEWEB2, "en": _ENGLISH_FINEWEB},
    "genre": GENRES["prose"],
    **{str(genre): rules for genre, rules in GENRES.items()},
}


# FineWeb-2's `language_score`, valid only for GlotLID (configs/*_Latn.yml of huggingface/fineweb-2); none for English.
MODEL_SCORES = {"glotlid": {"nl": 0.689, "fy": 0.723, "gos": 0.675, "li": 0.3, "zea": 0.3, "af": 0.3, "sco": 0.3}}


def merge_rules(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults updated with given values; nested settings are merged key by key."""
    result = dict(defaults)
    for key, value in given.items():
        nested = isinstance(value, Mapping) and isinstance(result.get(key), dict) and not key.endswith("n_grams")
        result[key] = merge_rules(result[key], value) if nested else value
    return result


def _merge_defaults(languages: Any, defaults: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return the given rules of languages, completed with defaults.

    Values of another type are returned unchanged, for the validation of the settings.
    """
    if not isinstance(languages, Mapping):
        return languages
    return {
        code: merge_rules(defaults[code], rules or {})
        if code in defaults and (rules is None or isinstance(rules, Mapping))
        else rules
        for code, rules in languages.items()
    }


def complete_language_rules(languages: Any, preset: Any) -> Any:
    """Complete the given rules for Dutch or English with the rules of the preset."""
    return _merge_defaults(languages, {code: rules.model_dump() for code, rules in PRESETS.get(preset, {}).items()})


def complete_genre_rules(languages: Any, genres: Any) -> Any:
    """Return the rules of each genre, updated with the given rules of languages and of the genre.

    Values of another type are returned unchanged, for the validation of the settings.
    """
    if not isinstance(languages, Mapping) or not isinstance(genres, Mapping):
        return genres
    changes_by_genre: dict[Any, Any] = {genre: genres.get(genre) or {} for genre in GENRES}
    return {**genres} | {
        genre: complete_language_rules(merge_rules(languages, changes), genre)
        if isinstance(changes, Mapping)
        else changes
        for genre, changes in changes_by_genre.items()
    }


def add_language_identification_minimum_scores(languages: Any, model: Any, preset: str) -> Any:
    """Complete the given rules of languages with the known minimum scores of a language model.

    Rules of genres have scores for Dutch and English (0.4 for `historical`), which stay.
    """
    name = model.get("known_scores") if isinstance(model, Mapping) else None
    scores = MODEL_SCORES.get(name, {}) if isinstance(name, str) else {}
    kept = FUNCTION_WORDS if preset == "genre" or preset in GENRES else ()
    defaults = {code: {"minimum_score": score} for code, score in scores.items() if code not in kept}
    return _merge_defaults(languages, defaults)


def merge_source_rule_changes(
    languages: Mapping[str, LanguageRules], changes: Mapping[str, Any]
) -> dict[str, LanguageRules]:
    """Return the rules of a corpus, updated with the changes of one source.

    Raises:
        ValueError: the source changes a language outside the corpus, or has invalid rules.
    """
    unknown = sorted(changes.keys() - languages.keys())
    if unknown:
        raise ValueError(f"the corpus has no language {unknown[0]!r}; choose one of {', '.join(sorted(languages))}")
    return {
        code: LanguageRules.model_validate(merge_rules(rules.model_dump(), changes[code])) if code in changes else rules
        for code, rules in languages.items()
    }
