"""Paragraphs that are removed because they occurred before: which they are, and a text without them."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from pipeline.corpus.copies.groups import equal_pairs
from pipeline.corpus.copies.signed import Keys, Numbers, SignedUnit, content_hash

Bits = npt.NDArray[np.bool_]
_BREAK = re.compile(r"(\n\s*\n)")


def paragraph_keys(text: str, least_characters: int) -> list[int]:
    """Return for each paragraph, which an empty line ends, the first 64 bits of its hash; 0 where it is too short."""
    keys = []
    for paragraph in _BREAK.split(text)[::2]:
        characters, sha256 = content_hash(paragraph)
        keys.append(int.from_bytes(sha256[:8], "big") or 1 if characters >= least_characters else 0)
    return keys


def without(text: str, places: Collection[int]) -> str:
    """Return a text without the paragraphs at these places, each with the empty lines that follow it."""
    pieces = _BREAK.split(text)
    kept = [place for place in range(0, len(pieces), 2) if place // 2 not in places]
    return "".join("".join(pieces[place : place + 2]) for place in kept).strip()


def _keys(unit: SignedUnit, removed: Bits) -> tuple[Keys, Numbers]:
    """Return the keys of the paragraphs of a unit, 0 in documents that are removed, and their numbers."""
    lists = unit.read(["paragraphs"])["paragraphs"]
    keys = pc.list_flatten(lists).to_numpy()
    gone = np.repeat(removed[unit.numbers], pc.list_value_length(lists).to_numpy())
    numbers = np.arange(unit.first_paragraph, unit.first_paragraph + unit.paragraphs)
    return np.where(gone, np.uint64(0), keys)[None], numbers


def repeated_paragraphs(units: list[SignedUnit], removed_documents: Numbers, memory_bytes: int) -> Bits:
    """Return for each paragraph of the units whether it occurred before, in documents that are not removed."""
    removed = np.zeros(sum(unit.rows for unit in units), dtype=bool)
    removed[removed_documents] = True
    repeated = np.zeros(sum(unit.paragraphs for unit in units), dtype=bool)
    if len(repeated):
        keys = partial(_keys, removed=removed)
        in_order = sorted(units, key=lambda unit: unit.first_paragraph)
        for _, others in equal_pairs(in_order, keys, len(repeated), memory_bytes):
            repeated[others] = True
    return repeated


def cuts(unit: SignedUnit, repeated: Bits) -> tuple[Numbers, Numbers]:
    """Return the rows of a unit's documents that lose paragraphs, once for each, and the place of each in its text."""
    places = np.flatnonzero(repeated[unit.first_paragraph : unit.first_paragraph + unit.paragraphs])
    if len(places) == 0:
        return places, places
    ends = np.cumsum(pc.list_value_length(unit.read(["paragraphs"])["paragraphs"]).to_numpy())
    rows = np.searchsorted(ends, places, side="right")
    return rows, places - np.append(0, ends)[rows]
