"""The datatrove block at the beginning: raw files to documents, every record counted, the broken ones set aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from pipeline.corpus.personal_data import Fields
from pipeline.corpus.removed_texts import RemovedTexts
from pipeline.sources.byte_streams import DamagedFile
from pipeline.sources.parts import read_part
from pipeline.sources.raw_documents import BROKEN, WITHHELD, Keys, RawDocument, raw_documents
from pipeline.sources.record_formats import read_records

NO_OTHER_KEYS = Keys()


class RemovedDocuments:
    """Collects removed documents without their text; serves as the `exclusion_writer` of datatrove's filters.

    Their ids, and the values that decided, are without personal data, as `fields` replaces it. Their texts go to
    `texts`, where the run asks for them.
    """

    def __init__(self, source: str, step: str, fields: Fields, texts: RemovedTexts | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.texts = texts
        self._source = source
        self._step = step
        self._fields = fields

    def __enter__(self) -> RemovedDocuments:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, document: Document, rank: int = 0) -> None:
        """Add one document, whose metadata holds `filter_reason` and may hold `filter_value` and `bytes`."""
        self.rows.append(
            {
                "id": self._fields.document_id(document),
                "source": self._source,
                "stage": self._step,
                "reason": document.metadata["filter_reason"],
                "value": self._fields.value(document.metadata.get("filter_value")),
                "bytes": document.metadata.get("bytes", len(document.text.encode())),
                "language": document.metadata.get("language"),
            }
        )
        if self.texts is not None:
            self.texts.add(self.rows[-1], document)


class RawTextReader(PipelineStep):  # type: ignore[misc]
    """Reads raw files, named `names[i]` and lying at `files[i]`; their formats are told by their names.

    A document gets the id SOURCE/NAME OF FILE/ORIGINAL ID, or its row number, from 0, where it has no id; where an id
    stands twice in a file, the later one gets #2, #3, …. A record without a text is set aside under its number, from 1.

    Args:
        document_bytes: the largest record that is read; a larger one is set aside as `too_large`.
        is_part: whether the files are parts, which `pipeline.sources.parts` wrote, of the files that have the names.

    Raises:
        DamagedFile: a file cannot be read whole, or more than `broken_share` of all records are broken.
    """

    type = "📖 - READER"
    name = "Raw files"

    def __init__(
        self,
        source: str,
        names: list[str],
        files: list[Path],
        removed: RemovedDocuments,
        keys: Keys = NO_OTHER_KEYS,
        broken_share: float = 0.05,
        document_bytes: int = 20_000_000,
        is_part: bool = False,
    ) -> None:
        super().__init__()
        self.source = source
        self.files = sorted(zip(names, files, strict=True))
        self.removed = removed
        self.keys = keys
        self.broken_share = broken_share
        self.document_bytes = document_bytes
        self.is_part = is_part
        self.records_in = 0
        self.bytes_in = 0
        self.broken = 0
        self.first_broken = ""
        self.encodings: Counter[str] = Counter()
        """How the encodings of web pages were known, and `errors`: characters that were in none of these."""

    def run(self, data: Iterator[Document] | None = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield the documents of every `world_size`-th file."""
        if data:
            yield from data
        for name, path in self.files[rank::world_size]:
            raw = self._raw_documents(name, path)
            while True:
                with self.track_time():
                    found = next(raw, None)
                    if found is None:
                        break
                    self.records_in += 1
                    self.bytes_in += found.size
                    self.stat_update("total")
                    self._count_encoding(found)
                if found.text is None:
                    self._set_aside(found, name)
                else:
                    yield self._document(found, name)
        if self.broken > self.broken_share * self.records_in:
            raise DamagedFile(
                f"source {self.source}: {self.broken / self.records_in:.1%} of {self.records_in} lines are broken, "
                f"first {self.first_broken}: repair the files, or raise broken_share above {self.broken_share}",
                "broken_records",
            )

    def _count_encoding(self, found: RawDocument) -> None:
        if found.encoding_known_by is not None:
            self.encodings[found.encoding_known_by] += 1
            self.encodings["errors"] += found.decoding_errors

    def _raw_documents(self, name: str, path: Path) -> Iterator[RawDocument]:
        if self.is_part:
            yield from read_part(path)
            return
        records = read_records(path, name, self.keys, self.document_bytes)
        for found, _ in raw_documents(records, f"{self.source}/{name}", self.keys):
            yield found

    def _document(self, found: RawDocument, name: str) -> Document:
        return Document(
            text=str(found.text),
            id=found.id,
            metadata={
                "source": self.source,
                "license": None,
                "url": found.url,
                "title": found.title,
                "date": found.date,
                "holder": found.holder,
                "own_license": found.license,
                "original_id": found.original_id,
                "withheld_id": f"{self.source}/{name}/{WITHHELD}-{found.number}",
                "bytes": found.size,
            },
        )

    def _set_aside(self, found: RawDocument, name: str) -> None:
        self.stat_update(f"dropped_{found.reason}")
        if found.reason in BROKEN:
            self.broken += 1
            if not self.first_broken:
                self.first_broken = f"{name} line {found.number} ({found.reason})"
        value = found.value or f"line {found.number}, {found.size} bytes"
        metadata = {"filter_reason": found.reason, "filter_value": value, "bytes": found.size}
        self.removed.write(Document(text="", id=found.id, metadata=metadata))
