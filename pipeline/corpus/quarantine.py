"""Damaged raw files: which of a unit are left out, and whether a source loses more by them than it may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from pipeline.core.errors import InputError
from pipeline.sources.byte_streams import DamagedFile, Quarantined
from pipeline.sources.parts import raw_bytes, read_part
from pipeline.sources.raw_documents import BROKEN, Keys, raw_documents
from pipeline.sources.record_formats import read_records

SHOWN = 5
Files = list[tuple[str, Path]]
T = TypeVar("T")


class RawFiles:
    """The raw files of a unit, name and path, or the part that it is, and how they are read.

    Args:
        broken_share: the largest share of records that may be broken.
        is_part: whether the one file is a part of that which has the name.
    """

    def __init__(
        self, files: Files, keys: Keys, document_bytes: int, broken_share: float, *, is_part: bool = False
    ) -> None:
        self.files = files
        self.keys = keys
        self.document_bytes = document_bytes
        self.broken_share = broken_share
        self.is_part = is_part

    def without_damage(self, work: Callable[[Files], T], *, quarantine: bool) -> tuple[T, list[Quarantined]]:
        """Return what `work` makes of the files, and those that were left out for their damage.

        The files are looked at only where the work stops at one of them; then it begins anew with the others, so that
        nothing of a damaged file is used, and the result does not depend on where it was met.

        Raises:
            DamagedFile: there is one, and nothing may be left out.
        """
        try:
            return work(self.files), []
        except DamagedFile:
            if not quarantine:
                raise
        found = self._damaged()
        names = {one.file for one in found}
        return work([(name, path) for name, path in self.files if name not in names]), found

    def described(self, quarantined: list[Quarantined]) -> dict[str, Any]:
        """Return what the unit says of its raw files: bytes on disk, those that were read, and what was left out."""
        damaged = {one.file for one in quarantined}
        return {
            "raw_bytes": sum(self._bytes(path) for _, path in self.files),
            "read_bytes": sum(self._bytes(path) for name, path in self.files if name not in damaged),
            "quarantined": [one.described() for one in quarantined],
        }

    def _bytes(self, path: Path) -> int:
        return raw_bytes(path) if self.is_part else path.stat().st_size

    def _damaged(self) -> list[Quarantined]:
        """Return the files that cannot be read whole, and, where all others have too many, those with broken records.

        Of files that together have few broken records, one may have any share of them.
        """
        found: dict[str, Quarantined] = {}
        records: dict[str, tuple[int, int, str]] = {}
        for name, path in self.files:
            try:
                records[name] = self._count(name, path)
            except DamagedFile as damaged:
                found[name] = Quarantined(name, self._bytes(path), damaged.damage, damaged.value)
        read = sum(number for number, _, _ in records.values())
        broken = sum(bad for _, bad, _ in records.values())
        for name, path in self.files if broken > self.broken_share * read else ():
            number, bad, first = records.get(name, (0, 0, ""))
            if bad > self.broken_share * number:
                value = f"{bad} of {number} records, first {first}"
                found[name] = Quarantined(name, self._bytes(path), "broken_records", value)
        return [found[name] for name in sorted(found)]

    def _count(self, name: str, path: Path) -> tuple[int, int, str]:
        """Return records and broken records of a file, and the first of these."""
        if self.is_part:
            documents = read_part(path)
        else:
            raw = raw_documents(read_records(path, name, self.keys, self.document_bytes), name, self.keys)
            documents = (document for document, _ in raw)
        number = bad = 0
        first = ""
        for document in documents:
            number += 1
            if document.reason in BROKEN:
                bad += 1
                first = first or f"{document.number} ({document.reason})"
        return number, bad, first


def joined(units: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of what units of one source say: bytes on disk, read, and in damaged files, and these by name."""
    totals: Counter[str] = Counter(raw_bytes=0, read_bytes=0)
    listed: dict[tuple[str, str, str | None], int] = Counter()
    for unit in units:
        totals.update({key: unit.get(key, 0) for key in totals})
        for one in unit.get("quarantined", []):
            listed[one["file"], one["damage"], one["value"]] += one["bytes"]
    rows = [
        {"file": file, "bytes": size, "damage": damage, "value": value}
        for (file, damage, value), size in sorted(listed.items(), key=lambda item: (item[0][:2], str(item[0][2])))
    ]
    return {**totals, "quarantined_bytes": sum(listed.values()), "quarantined": rows}


def refuse_too_much(source: str, found: dict[str, Any], share: float) -> None:
    """Raise InputError where the damaged files of a source are more than a share of its bytes.

    Args:
        found: what `joined` says of its units.
    """
    rows, size = found["quarantined"], found["raw_bytes"]
    if found["quarantined_bytes"] > share * size:
        told = ", ".join(f"{row['file']} ({row['damage']})" for row in rows[:SHOWN])
        more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
        raise InputError(
            f"source {source}: {found['quarantined_bytes'] / size:.2%} of its {size} bytes are in damaged files, "
            f"{told}{more}: fetch or repair the files, or raise damaged_share of the source above {share}"
        )
