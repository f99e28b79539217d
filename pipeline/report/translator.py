"""Translate the words of the report: one gettext catalog for the page and the papers, names and numbers of CLDR.

Templates and modules hold the English. What comes from records is shown as it is, in every language.
"""

from __future__ import annotations

import datetime
import re
from functools import cache
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path

from babel import Locale
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

from pipeline.core.markup import format_number
from pipeline.report.settings import Language, format_day

CATALOGUES = {"nl": "nl.po"}  # English needs none
_AMOUNT_WORDS = re.compile(r"\b(?:not measured|not known|measured|estimated|stated|to)\b")
_MARKS = re.compile(r"(?<=\d)[.,](?=\d)")  # of decimals and thousands, which Dutch writes the other way round
_NUMBER = re.compile(r"-?\d[\d.,]*(e[-+]\d+)?")
_LANGUAGES_NOT_IN_CLDR = {"gos": {"nl": "Gronings", "en": "Gronings"}}


def _read_catalogue(language: Language) -> NullTranslations:
    if language not in CATALOGUES:
        return NullTranslations()
    compiled = BytesIO()
    with open(Path(__file__).parent / CATALOGUES[language], "rb") as file:
        write_mo(compiled, read_po(file, locale=language))
    compiled.seek(0)
    return GNUTranslations(compiled)


class Translator:
    """A language of the report; `ngettext` and `pgettext` are those of the catalog."""

    def __init__(self, language: Language) -> None:
        self.language = language
        catalogue = _read_catalogue(language)
        self._catalogue, self.ngettext, self.pgettext = catalogue, catalogue.ngettext, catalogue.pgettext

    def gettext(self, english: str) -> str:
        """Return the translation of a message; a number alone gets the marks of the language."""
        return self.localize_marks(english) if _NUMBER.fullmatch(english) else self._catalogue.gettext(english)

    def __call__(self, english: str, context: str = "", /, **values: object) -> str:
        """Return the translation of a sentence with its values.

        Args:
            context: distinguishes translations of the same English words.
        """
        return (self.pgettext(context, english) if context else self.gettext(english)).format(**values)

    def translate_amount(self, text: str) -> str:
        """Return an amount of energy with the words between its numbers and its label translated."""
        return _AMOUNT_WORDS.sub(lambda word: self.gettext(word[0]), text)

    def number(self, value: float | None, digits: int = 4) -> str:
        """Return a number with the language's decimal and thousands marks."""
        return self.localize_marks(format_number(value, digits))

    def figure(self, text: str) -> str:
        """Return an amount with its unit, interval and label in the language, marks of its numbers included."""
        return self.translate_amount(self.localize_marks(text))

    def language_name(self, code: str) -> str:
        """Return the name of a language by its code of ISO 639-1 or 639-3, with the code; an unknown code alone."""
        known = _LANGUAGES_NOT_IN_CLDR.get(code, {}).get(self.language)
        name = known or Locale(self.language).languages.get(code)
        return f"{name} ({code})" if name else code

    def day(self, day: str) -> str:
        """Return a day of ISO 8601 as DD/MM/YYYY and in words."""
        return format_day(datetime.date.fromisoformat(day), self.language)

    def localize_marks(self, text: str) -> str:
        """Return a text in which the decimal and thousands marks of numbers are those of the language."""
        return _MARKS.sub(lambda mark: "," if mark[0] == "." else ".", text) if self.language == "nl" else text


@cache
def translator(language: Language) -> Translator:
    """Return the translator of a language, one and the same each time."""
    return Translator(language)
