"""Hash the domains, ids and holders of a unit, so that an opt-out list affects only units that it names.

They are kept as hashes of 64 bits: a unit of a million documents takes some megabytes, and names nobody. Where two
values have one hash, a unit is given an entry that hits nothing in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from pipeline.core.errors import InputError
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.core.url_hosts import domain_suffixes, extract_host
from pipeline.sources.decompression import DamagedFile, DecompressedChunks
from pipeline.sources.raw_documents import WITHHELD_ID, FieldNames, field_text, get_field, value_to_text_or_none
from pipeline.sources.record_formats import read_csv, read_records, split_format
from pipeline.sources.settings import OPT_OUT_KINDS, EntriesSettings, OptOut
from pipeline.sources.table_formats import (
    check_column_types,
    get_column,
    keys_with_columns,
    open_table,
    to_python_value,
)

HashIndex = npt.NDArray[np.uint64]
HASHES_IN_MEMORY = 500_000  # hashes that are held before they are sorted
# The suffix of the later of two documents with one id, and the number of a document with a withheld id.
_NUMBER_SUFFIX = re.compile(rf"#\d+$|(?<=/{WITHHELD_ID})-\d+$")


class RecordIdentity(NamedTuple):
    """The fields of a record that an opt-out list may name; `ids` are its own id and the full one."""

    ids: tuple[str, ...]
    url: str | None
    holder: str | None


def _hash_values(kind: str, values: Iterable[str]) -> list[int]:
    return [xxhash.xxh3_64_intdigest(f"{kind}:{normalize_nfc(value)}") for value in values]


def _record_ids(place: str, number: int, original: str | None) -> tuple[str, ...]:
    """Return the ids that a record, the `number`-th from 1, can be called by."""
    return (f"{place}/{number - 1}",) if original is None else (f"{place}/{original}", original)


def _read_columns(path: Path, wanted: list[str]) -> Iterator[list[str | None]]:
    """Yield some columns of a table as strings, None where it has no such column or no valid string."""
    with open_table(path) as table:
        present = keys_with_columns(table.schema, [*dict.fromkeys(wanted)])
        check_column_types(path, table.schema, present)
        for batch, _ in table.batches(present):
            read = {name: _read_strings(get_column(batch, name), name, str(path)) for name in present}
            nothing: list[str | None] = [None] * batch.num_rows
            yield from map(list, zip(*(read.get(name, nothing) for name in wanted), strict=True))


def _read_strings(column: pa.Array, key: str, place: str) -> list[str | None]:
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError):  # one of them is no UTF-8: a record that is removed as such
        values = [_decode_cell(column[row]) for row in range(len(column))]
    return [field_text(value, key, place) for value in values]


def _decode_cell(cell: pa.Scalar) -> Any:
    with suppress(UnicodeDecodeError):
        return to_python_value(cell)
    return None


def _read_part_identities(path: Path) -> Iterator[RecordIdentity]:
    for full, original, url, holder in _read_columns(path, ["id", "original_id", "url", "holder"]):
        yield RecordIdentity(tuple(value for value in (full, original) if value is not None), url, holder)


def _read_file_identities(path: Path, name: str, place: str, keys: FieldNames, limit: int) -> Iterator[RecordIdentity]:
    kind, compression = split_format(path, name)
    if kind == "table":
        for number, (original, url, holder) in enumerate(_read_columns(path, [keys.id, keys.url, keys.holder]), 1):
            yield RecordIdentity(_record_ids(place, number, original), url, holder)
    elif kind == "archive":
        from pipeline.sources.web_pages import read_archive_ids  # a second to import, and few sources need it

        for number, (original, url) in enumerate(
            read_archive_ids(iter(DecompressedChunks(path, compression)), path), 1
        ):
            yield RecordIdentity(_record_ids(place, number, value_to_text_or_none(original)), url, None)
    elif kind in ("json", "csv"):
        pieces = iter(DecompressedChunks(path, compression))
        for record in read_csv(pieces, path, limit, None) if kind == "csv" else read_records(path, name, keys, limit):
            fields = record.fields or {}
            original, url, holder = (
                field_text(get_field(fields, key), key, f"{path}, record {record.number}")
                for key in (keys.id, keys.url, keys.holder)
            )
            yield RecordIdentity(_record_ids(place, record.number, original), url, holder)
    else:  # the one document of a file of text or of a page has no id and no address
        yield RecordIdentity(_record_ids(place, 1, None), None, None)


def hash_unit_identities(
    source: str, files: Iterable[tuple[str, Path]], keys: FieldNames, limit: int, *, is_part: bool = False
) -> HashIndex:
    """Return the sorted hashes of all that an opt-out list can name in the files of a unit, name and path.

    Texts are not extracted, and of Parquet they are not read.

    Args:
        limit: the largest record, in bytes, that is read.

    Raises:
        InputError: a file cannot be read.
    """
    hashes = np.empty(0, dtype=np.uint64)
    waiting: set[int] = set()
    for name, path in files:
        waiting.update(_hash_values("id", [f"{source}/{name}/{WITHHELD_ID}"]))
        read = (
            _read_part_identities(path)
            if is_part
            else _read_file_identities(path, name, f"{source}/{name}", keys, limit)
        )
        with suppress(DamagedFile):  # whether anything of a damaged file is used is for the filter to decide
            for ids, url, holder in read:
                waiting.update(_hash_values("id", ids))
                if url is not None:
                    waiting.update(_hash_values("domain", domain_suffixes(extract_host(url))))
                if holder is not None:
                    waiting.update(_hash_values("holder", [holder]))
                if len(waiting) >= HASHES_IN_MEMORY:
                    hashes, waiting = np.union1d(hashes, np.array([*waiting], dtype=np.uint64)), set()
    return np.union1d(hashes, np.array([*waiting], dtype=np.uint64))


def write_identity_hashes(path: Path, entries: HashIndex) -> None:
    """Write the hashes of a unit, unreadable for others: guessed values can be looked up in them."""
    path.touch(mode=0o660)
    with path.open("wb") as stream:
        np.save(stream, entries, allow_pickle=False)


def read_identity_hashes(path: Path) -> HashIndex:
    """Return the hashes of a unit.

    Raises:
        InputError: the file holds none.
    """
    try:
        entries: HashIndex = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise InputError(f"{path} is damaged: delete it, so that its unit is read again") from None
    return entries


class ListedEntries:
    """The entries of a list, hashed once for all units.

    Args:
        holder: the holder of the rights in the source, who is the holder of each of its documents.
    """

    def __init__(self, opt_out: OptOut, holder: str) -> None:
        self.opt_out = opt_out
        self.holder = holder
        self._listed = {
            "domains": [_hash_values("domain", opt_out.domains)],
            "ids": [
                _hash_values("id", opt_out.ids),
                _hash_values("id", (_NUMBER_SUFFIX.sub("", value) for value in opt_out.ids)),
            ],
            "holders": [_hash_values("holder", opt_out.holders)],
        }
        self._hosts = np.array(_hash_values("domain", (one.host for one in opt_out.reservations)), dtype=np.uint64)

    def entries_in_unit(self, entries: HashIndex) -> OptOut:
        """Return the list with those of its entries alone that name something in a unit."""
        chosen = {kind: self._matched(kind, entries) for kind in OPT_OUT_KINDS}
        if normalize_nfc(self.holder) in self.opt_out.holders:
            chosen["holders"] = sorted({*chosen["holders"], normalize_nfc(self.holder)})
        is_there = hash_membership_mask(entries, self._hosts).tolist()
        reservations = [one for one, there in zip(self.opt_out.reservations, is_there, strict=True) if there]
        return self.opt_out.model_copy(update={**chosen, "reservations": reservations})

    def unmatched_ids(self, units: Iterable[Path]) -> list[str]:
        """Return the ids of the list that name nothing in any of the units, whose entries these files hold."""
        unmatched = {*self.opt_out.ids}
        for path in units:
            if not unmatched:
                break
            unmatched.difference_update(self._matched("ids", read_identity_hashes(path)))
        return sorted(unmatched)

    def _matched(self, kind: str, entries: HashIndex) -> list[str]:
        listed = [np.array(hashes, dtype=np.uint64) for hashes in self._listed[kind]]
        is_there = np.logical_or.reduce([hash_membership_mask(entries, hashes) for hashes in listed])
        return [value for value, there in zip(getattr(self.opt_out, kind), is_there.tolist(), strict=True) if there]


def hash_membership_mask(entries: HashIndex, wanted: HashIndex) -> npt.NDArray[np.bool_]:
    """Return for each wanted hash whether it is among the sorted ones."""
    if not len(entries):
        return np.zeros(len(wanted), dtype=bool)
    places = np.searchsorted(entries, wanted)
    return np.asarray(entries[np.minimum(places, len(entries) - 1)] == wanted)


def run(settings: EntriesSettings, *, listing: Path, files: list[Path], entries: Path) -> dict[str, Any]:
    """Write the hashes of all that an opt-out list can name in the files of a unit.

    Args:
        listing: the unit's file of the listing, which names the files in their order.

    Raises:
        InputError: a file cannot be read.
    """
    listed = json.loads(listing.read_text(encoding="utf-8"))["files"]
    is_part = any(entry["part"] is not None for entry in listed)
    named = zip((entry["name"] for entry in listed), files, strict=True)
    keys = FieldNames(id=settings.id_key, url=settings.url_key, holder=settings.holder_key)
    hashes = hash_unit_identities(settings.source, named, keys, settings.document_bytes, is_part=is_part)
    write_identity_hashes(entries, hashes)
    return {"files": len(files), "entries": len(hashes)}
