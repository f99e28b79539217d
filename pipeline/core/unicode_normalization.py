"""Unicode normalization for comparing texts; stored, shown and tokenized text stays unchanged."""

from __future__ import annotations

import unicodedata
from typing import Any


def normalize_nfc(text: str) -> str:
    """Return a text in Unicode's composed form (NFC): é is one character."""
    return unicodedata.normalize("NFC", text)


def normalize_nfc_recursively(value: Any) -> Any:
    """Return a value with all strings in NFC, in nested lists, tuples and mappings too."""
    if isinstance(value, str):
        return normalize_nfc(value)
    if isinstance(value, dict):
        return {key: normalize_nfc_recursively(each) for key, each in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(normalize_nfc_recursively, value))
    return value
