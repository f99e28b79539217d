"""Skips damaged raw files of a unit, and checks that a source does not lose too much by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from pipeline.core.errors import InputError
from pipeline.corpus.settings import UnitSettings
from pipeline.sources.decompression import DamagedFile, QuarantinedFile
from pipeline.sources.raw_documents import BROKEN_REASONS, FieldNames, RawDocument, make_raw_documents
from pipeline.sources.record_formats import read_records
from pipeline.sources.source_units import check_unit_files, count_raw_bytes, read_part

SHOWN_FILES = 5
T = TypeVar("T")


@dataclass(frozen=True)
class RawFiles:
    """The raw files of a unit, name and path, or its part of a larger file, and how to read them.

    Attributes:
        document_bytes: the largest record to read; a larger one is removed as `too_large`.
        broken_share: the largest allowed share of broken records.
        is_part: whether the paths are parts of the named files, written by `pipeline.sources.source_units`.
    """

    source: str
    files: list[tuple[str, Path]]
    keys: FieldNames = field(default_factory=FieldNames)
    document_bytes: int = 20_000_000
    broken_share: float = 0.05
    is_part: bool = False

    @classmethod
    def from_unit(cls, settings: UnitSettings, unit: dict[str, Any], paths: list[Path]) -> Self:
        """Return the files of a unit.

        Args:
            unit: the unit's entry of the manifest.

        Raises:
            InputError: the bytes of a file differ from the manifest.
        """
        check_unit_files(unit, paths)
        files = list(zip([entry["name"] for entry in unit["files"]], paths, strict=True))
        shares = settings.document_bytes, settings.broken_share
        return cls(settings.source, files, settings.field_names(), *shares, unit["is_part"])

    def read_file_documents(self, name: str, path: Path) -> Iterator[RawDocument]:
        """Yield the documents of a file, including unreadable ones.

        Raises:
            DamagedFile: the file is truncated or damaged.
        """
        if self.is_part:
            yield from read_part(path)
            return
        records = read_records(path, name, self.keys, self.document_bytes)
        for document, _ in make_raw_documents(records, f"{self.source}/{name}", self.keys):
            yield document

    def run_undamaged(self, work: Callable[[Self], T], *, quarantine: bool) -> tuple[T, list[QuarantinedFile]]:
        """Return the result of `work` on the undamaged files, and the damaged ones.

        If the work stops at a damaged file, all files are checked and the work restarts with the undamaged ones. So
        nothing of a damaged file is used, and the result does not depend on the position of the damage.

        Raises:
            DamagedFile: a file is damaged, and `quarantine` is False.
        """
        try:
            return work(self), []
        except DamagedFile:
            if not quarantine:
                raise
        damaged_files = self._find_damaged_files()
        names = {one.file for one in damaged_files}
        return work(
            replace(self, files=[(name, path) for name, path in self.files if name not in names])
        ), damaged_files

    def summarize_files(self, quarantined: list[QuarantinedFile]) -> dict[str, Any]:
        """Return the counts of the raw files: bytes on disk, bytes read, and the quarantined files."""
        damaged = {one.file for one in quarantined}
        return {
            "raw_bytes": sum(self._size_on_disk(path) for _, path in self.files),
            "read_bytes": sum(self._size_on_disk(path) for name, path in self.files if name not in damaged),
            "quarantined": [asdict(one) for one in quarantined],
        }

    def _size_on_disk(self, path: Path) -> int:
        return count_raw_bytes(path) if self.is_part else path.stat().st_size

    def _find_damaged_files(self) -> list[QuarantinedFile]:
        """Return truncated and damaged files, and, if the others have too many broken records, those with too many.

        If the files together have few broken records, a single file may have any share of them.
        """
        damaged_files: dict[str, QuarantinedFile] = {}
        records: dict[str, tuple[int, int, str]] = {}
        for name, path in self.files:
            try:
                records[name] = self._count_broken_records(name, path)
            except DamagedFile as damaged:
                damaged_files[name] = QuarantinedFile(name, self._size_on_disk(path), damaged.damage, damaged.value)
        record_count = sum(number for number, _, _ in records.values())
        broken = sum(bad for _, bad, _ in records.values())
        for name, path in self.files if broken > self.broken_share * record_count else ():
            number, bad, first = records.get(name, (0, 0, ""))
            if bad > self.broken_share * number:
                value = f"{bad} of {number} records, first {first}"
                damaged_files[name] = QuarantinedFile(name, self._size_on_disk(path), "broken_records", value)
        return [damaged_files[name] for name in sorted(damaged_files)]

    def _count_broken_records(self, name: str, path: Path) -> tuple[int, int, str]:
        number = bad = 0
        first = ""
        for document in self.read_file_documents(name, path):
            number += 1
            if document.reason in BROKEN_REASONS:
                bad += 1
                first = first or f"{document.number} ({document.reason})"
        return number, bad, first


def sum_unit_reports(units: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over units of one source: bytes on disk, read and in damaged files, and the damaged files."""
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


def check_damaged_share(source: str, totals: dict[str, Any], share: float) -> None:
    """Raise InputError if more than a share of the bytes of a source is in damaged files.

    Args:
        totals: the result of `sum_unit_reports` for its units.
    """
    rows, size = totals["quarantined"], totals["raw_bytes"]
    if totals["quarantined_bytes"] > share * size:
        listed = ", ".join(f"{row['file']} ({row['damage']})" for row in rows[:SHOWN_FILES])
        more = f" and {len(rows) - SHOWN_FILES} more" if len(rows) > SHOWN_FILES else ""
        raise InputError(
            f"source {source}: {totals['quarantined_bytes'] / size:.2%} of its {size} bytes are in damaged files, "
            f"{listed}{more}: fetch or repair the files, or raise damaged_share of the source above {share}"
        )
