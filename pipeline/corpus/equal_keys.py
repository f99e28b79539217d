"""Finds the documents of a corpus that have equal keys (content hashes or MinHash bands), for one share of all keys.

A large corpus runs several such jobs in parallel, on any machine; each reads only the columns of its share.
`corpus.find_duplicates` joins their results into the same clusters as one job would.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.corpus.duplicates.key_groups import SignedCorpus, memory_left_for_keys
from pipeline.corpus.duplicates.signature_files import DOCUMENT_BYTES
from pipeline.corpus.settings import EqualKeysSettings


def run(settings: EqualKeysSettings, *, signatures: list[Path], reserved: list[Path], pairs: Path) -> dict[str, Any]:
    """Write pairs of documents with an equal key of one share; documents are numbered by source, unit and row.

    Args:
        reserved: signatures of documents on opt-out lists, which are not part of the corpus.

    Raises:
        InputError: the signatures were made with other settings, or memory_bytes is too small.
    """
    signed = SignedCorpus(signatures, reserved, settings)
    left_bytes = memory_left_for_keys(settings, signed.total, signed.total * DOCUMENT_BYTES)
    groups = signed.group_equal_keys(left_bytes, settings.share, settings.shares)
    return {"documents": signed.documents, "pairs": signed.write_pairs(pairs, groups, settings.share, settings.shares)}
