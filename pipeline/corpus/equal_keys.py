"""Finds which documents of a corpus have equal keys, of a share of all keys: what finding the copies is divided into.

A corpus of many documents has several such jobs, at the same time and on other machines; each reads only the columns
that its share is of. `corpus.find_duplicates` joins what they find, and finds the same copies as without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.corpus.duplicates.key_groups import DOCUMENT_BYTES, SignedCorpus, memory_for_keys
from pipeline.corpus.settings import EqualKeysSettings


def run(settings: EqualKeysSettings, *, signatures: list[Path], reserved: list[Path], pairs: Path) -> dict[str, Any]:
    """Write which documents the keys of one share join, by their numbers in the order of source, unit and place.

    Args:
        reserved: the signatures of what is on the opt-out lists, which is no document of the corpus.

    Raises:
        InputError: the signatures were made with other settings, or there is too little memory.
    """
    signed = SignedCorpus(signatures, reserved, settings)
    left_bytes = memory_for_keys(settings, signed.total, signed.total * DOCUMENT_BYTES)
    groups = signed.group_equal_keys(left_bytes, settings.share, settings.shares)
    return {"documents": signed.documents, "pairs": signed.write_pairs(pairs, groups, settings.share, settings.shares)}
