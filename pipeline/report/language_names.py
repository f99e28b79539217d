"""Names of languages, in the language of the page: those of the Unicode Common Locale Data Repository."""

from __future__ import annotations

from babel import Locale

# What CLDR has no name for.
_OTHERS = {"gos": {"nl": "Gronings", "en": "Gronings"}}


def name_of(code: str, page: str) -> str:
    """Return the name of a language by its code of ISO 639-1 or 639-3, with the code; the code alone of an unknown one.

    Args:
        page: the code of the language that the name is to be in.
    """
    name = _OTHERS.get(code, {}).get(page) or Locale(page).languages.get(code)
    return f"{name} ({code})" if name else code
