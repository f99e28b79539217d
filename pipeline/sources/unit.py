"""A unit of a source as its manifest describes it, and the files that are read for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of


def refuse_other_files(content: dict[str, Any], files: list[Path]) -> None:
    """Raise InputError where a raw file has other bytes than when the manifest was made.

    Args:
        content: what the unit's file of the manifest says: names, sizes and hashes of the files.
        files: the raw files, or a part of one, in the order of their names.
    """
    for entry, path in zip(content["files"], files, strict=True):
        if path.stat().st_size != entry["bytes"] or sha256_of(path) != entry["sha256"]:
            raise InputError(
                f"source {content['source']}, unit {content['unit']}: {path} has other bytes than the manifest "
                "describes: start snakemake again, which reads it anew"
            )
