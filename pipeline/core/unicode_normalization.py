"""One form of Unicode, in which texts are compared; what is stored, shown or given to a model stays as it is."""

from __future__ import annotations

import unicodedata
from typing import Any


def normalize_nfc(text: str) -> str:
    """Return a text in Unicode's composed form (NFC): é as one character, not as e and an accent behind it."""
    return unicodedata.normalize("NFC", text)


def normalize_nfc_recursively(value: Any) -> Any:
    """Return a value with every text in it in the composed form, whatever lists and mappings it is nested in."""
    if isinstance(value, str):
        return normalize_nfc(value)
    if isinstance(value, dict):
        return {key: normalize_nfc_recursively(each) for key, each in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(normalize_nfc_recursively, value))
    return value
