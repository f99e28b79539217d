"""Codes of languages: of the labels of models, and of what documents state about their language in any form."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path

from babel import Locale, UnknownLocaleError
from babel.core import get_global

_LABEL = "__label__"
# Bibliographic codes of ISO 639-2, which differ from ISO 639-3: https://www.loc.gov/standards/iso639-2/
_BIBLIOGRAPHIC = {
    **{"alb": "sq", "arm": "hy", "baq": "eu", "bur": "my", "chi": "zh", "cze": "cs", "dut": "nl", "fre": "fr"},
    **{"geo": "ka", "ger": "de", "gre": "el", "ice": "is", "mac": "mk", "mao": "mi", "may": "ms", "per": "fa"},
    **{"rum": "ro", "slo": "sk", "tib": "bo", "wel": "cy"},
}
UNKNOWN = "und"
_PLACEHOLDERS = {"", "und", "unknown", "mis", "mul", "zxx", "n/a", "na", "null", "none", "nan", "-", "?"}


@cache
def _two_letter_codes() -> dict[str, str]:
    """Return ISO 639-1 codes by ISO 639-3 code, from datatrove's table, and by bibliographic code."""
    from datatrove.utils._import_utils import ASSETS_PATH

    with Path(ASSETS_PATH, "tokenizer_assignment.csv").open(encoding="utf-8", newline="") as table:
        return _BIBLIOGRAPHIC | {row["code_3"]: row["code_1"] for row in csv.DictReader(table) if row["code_1"]}


def language_from_label(label: str) -> str:
    """Return the language code of a label: nl for __label__nl, __label__nld and __label__nld_Latn."""
    code = label.removeprefix(_LABEL).split("_")[0]
    return _two_letter_codes().get(code, code)


@cache
def _codes_by_name() -> dict[str, str]:
    """Return codes by Dutch and English name, without territory: en of American English, nl of Flemish."""
    named = [*Locale("nl").languages.items(), *Locale("en").languages.items()]
    return {name.casefold(): code.split("_")[0] for code, name in named}


@cache
def _own_name(language: str) -> str | None:
    """Return what a language calls itself: deutsch for de."""
    try:
        return Locale(language).languages.get(language, "").casefold() or None
    except (UnknownLocaleError, ValueError):
        return None


def _first_statement(stated: str) -> str:
    """Return the first of several languages, in lower case; empty where there is none."""
    whole = stated.strip(" []'\"\n\t\r").casefold()
    return "" if whole in _PLACEHOLDERS else re.split(r"[,;|/]", whole)[0].strip(" '\"")


def normalize_language(stated: str) -> str:
    """Return the language code of a statement, or `und` where it names none.

    nl for nl, nl-BE, nld, dut, nld_Latn, __label__nl, `nld,eng`, `nl|en`, Dutch, Nederlands and Flemish; und for zxx,
    N/A and null. Two and three letters are a code, also where a language has that name (ga is Irish, not Ga).
    """
    first = _first_statement(stated).removeprefix(_LABEL)
    if first in _PLACEHOLDERS:
        return UNKNOWN
    word = first.split()[0]
    code = re.split("[-_]", word)[0]
    names = _codes_by_name()
    language = None if len(code) <= 3 else names.get(first) or names.get(word)
    return language or language_from_label(code)


def advise_language(code: str) -> str | None:
    """Return what to write instead of a language that is no code in the form of documents; None if it is one.

    Codes are of ISO 639-1, and of ISO 639-3 for a language that has none of those and that Unicode's CLDR lists.
    """
    languages = Locale("en").languages
    if len(code) == 2 and code in languages:  # without datatrove, which takes a while to import
        return None
    near = normalize_language(code)
    if near == code and len(code) == 3 and code in {tag.split("_")[0] for tag in get_global("likely_subtags")}:
        return None
    return f"write {near}" if near != code and near in languages else "write a code of ISO 639-1, such as nl or en"


def states_other_language(stated: str | None, language: str) -> bool:
    """Return whether a document states another language than that of its source; an unknown one is no other."""
    known = normalize_language(language)
    return normalize_language(stated or "") not in (known, UNKNOWN) and _first_statement(stated or "") != _own_name(
        known
    )
