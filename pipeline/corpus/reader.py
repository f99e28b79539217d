"""The datatrove block at the beginning: raw files to documents, every record counted, the broken ones set aside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from pipeline.corpus.files import Record, read_records
from pipeline.corpus.removed_texts import RemovedTexts
from pipeline.errors import InputError


class RemovedDocuments:
    """Collects removed documents without their text; serves as the `exclusion_writer` of datatrove's filters.

    Their texts go to `texts`, where the run asks for them.
    """

    def __init__(self, source: str, stage: str, texts: RemovedTexts | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.texts = texts
        self._source = source
        self._stage = stage

    def __enter__(self) -> RemovedDocuments:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, document: Document, rank: int = 0) -> None:
        """Add one document, whose metadata holds `filter_reason` and may hold `filter_value` and `bytes`."""
        self.rows.append(
            {
                "id": document.id,
                "source": self._source,
                "stage": self._stage,
                "reason": document.metadata["filter_reason"],
                "value": document.metadata.get("filter_value"),
                "bytes": document.metadata.get("bytes", len(document.text.encode())),
                "language": document.metadata.get("language"),
            }
        )
        if self.texts is not None:
            self.texts.add(self.rows[-1], document)


class Reader(PipelineStep):  # type: ignore[misc]
    """Reads raw files, named `names[i]` and lying at `files[i]`.

    A document gets the id SOURCE/NAME OF FILE/ORIGINAL ID, or its row number, from 0, where it has no id; where an id
    stands twice in a file, the later one gets #2, #3, …. A broken record is set aside under its line number, from 1.

    Raises:
        InputError: a file is damaged, or more than `broken_share` of all records are broken.
    """

    type = "📖 - READER"
    name = "Raw files"

    def __init__(
        self,
        source: str,
        license: str,
        names: list[str],
        files: list[Path],
        removed: RemovedDocuments,
        text_key: str = "text",
        id_key: str = "id",
        broken_share: float = 0.05,
    ) -> None:
        super().__init__()
        self.source = source
        self.license = license
        self.files = sorted(zip(names, files, strict=True))
        self.removed = removed
        self.text_key = text_key
        self.id_key = id_key
        self.broken_share = broken_share
        self.records_in = 0
        self.bytes_in = 0
        self.broken = 0
        self.first_broken = ""

    def run(self, data: Iterator[Document] | None = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield the documents of every `world_size`-th file."""
        if data:
            yield from data
        for name, path in self.files[rank::world_size]:
            seen: set[str] = set()
            for record in read_records(path, name, [self.text_key, self.id_key, "url", "title"]):
                with self.track_time():
                    document = self._document(record, f"{self.source}/{name}", seen)
                    self.records_in += 1
                    self.bytes_in += document.metadata["bytes"]
                    self.stat_update("total")
                if "filter_reason" in document.metadata:
                    self._set_aside(document, name, record)
                else:
                    yield document
        if self.broken > self.broken_share * self.records_in:
            raise InputError(
                f"source {self.source}: {self.broken / self.records_in:.1%} of {self.records_in} lines are broken, "
                f"first {self.first_broken}: repair the files, or raise broken_share above {self.broken_share}"
            )

    def _document(self, record: Record, place: str, seen: set[str]) -> Document:
        fields, reason = record.fields, record.reason
        text = fields.get(self.text_key) if fields is not None else None
        size = record.size
        if fields is not None:
            if not isinstance(text, str) or not text.strip():
                reason = "missing_text"
            else:
                try:
                    size = len(text.encode())
                except UnicodeEncodeError:  # half of a surrogate pair, written as an escape
                    reason = "invalid_utf8"
        if reason is not None or fields is None:
            broken = {"bytes": size, "filter_reason": reason, "filter_value": f"line {record.number}, {size} bytes"}
            return Document(text="", id=_unique(f"{place}/{record.number}", seen), metadata=broken)
        original = _string(fields.get(self.id_key))
        return Document(
            text=str(text),
            id=_unique(f"{place}/{record.number - 1 if original is None else original}", seen),
            metadata={
                "source": self.source,
                "license": self.license,
                "url": _string(fields.get("url")),
                "title": _string(fields.get("title")),
                "bytes": size,
            },
        )

    def _set_aside(self, document: Document, name: str, record: Record) -> None:
        self.broken += 1
        reason = document.metadata["filter_reason"]
        self.stat_update(f"dropped_{reason}")
        if not self.first_broken:
            self.first_broken = f"{name} line {record.number} ({reason})"
        self.removed.write(document)


def _string(value: object) -> str | None:
    """Return a string or a number as a valid string, anything else as None."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        return None
    return str(value).encode("utf-8", "replace").decode()


def _unique(document_id: str, seen: set[str]) -> str:
    """Return the id, numbered where it was seen before, and remember it."""
    candidate, copies = document_id, 1
    while candidate in seen:
        copies += 1
        candidate = f"{document_id}#{copies}"
    seen.add(candidate)
    return candidate
