"""The datatrove block that reads the raw files of a unit as documents and counts every record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from pipeline.corpus.raw_file_quarantine import RawFiles
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.sources.decompression import DamagedFile
from pipeline.sources.raw_documents import BROKEN_REASONS, WITHHELD_ID, RawDocument


class RawTextReader(PipelineStep):  # type: ignore[misc]
    """Reads raw files in the formats that their names indicate; `make_raw_documents` assigns the ids.

    Raises:
        DamagedFile: a file is truncated or damaged, or more than `broken_share` of all records are broken.
    """

    type = "📖 - READER"
    name = "Raw files"

    def __init__(self, raw: RawFiles, removed: RemovedDocuments) -> None:
        super().__init__()
        self.raw = raw
        self.removed = removed
        self.records_in = self.bytes_in = self.broken = 0
        self.first_broken = ""
        self.encodings: Counter[str] = Counter()
        """Counts of how the encodings of web pages were detected, and of undecodable characters as `errors`."""

    def run(self, data: Iterator[Document] | None = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield the documents of every `world_size`-th file."""
        if data:
            yield from data
        for name, path in sorted(self.raw.files)[rank::world_size]:
            raw = self.raw.read_file_documents(name, path)
            while True:
                with self.track_time():
                    document = next(raw, None)
                    if document is None:
                        break
                    self.records_in += 1
                    self.bytes_in += document.size
                    self.stat_update("total")
                    if document.encoding_known_by is not None:
                        self.encodings[document.encoding_known_by] += 1
                        self.encodings["errors"] += document.decoding_errors
                if document.text is None:
                    self._remove_record(document, name)
                else:
                    yield self._make_document(document, name)
        if self.broken > self.raw.broken_share * self.records_in:
            raise DamagedFile(
                f"source {self.raw.source}: {self.broken / self.records_in:.1%} of {self.records_in} lines are broken, "
                f"first {self.first_broken}: repair the files, or raise broken_share above {self.raw.broken_share}",
                "broken_records",
            )

    def _make_document(self, raw_document: RawDocument, name: str) -> Document:
        return Document(
            text=str(raw_document.text),
            id=raw_document.id,
            metadata={
                "source": self.raw.source,
                "license": None,
                "url": raw_document.url,
                "title": raw_document.title,
                "date": raw_document.date,
                "holder": raw_document.holder,
                "own_license": raw_document.license,
                "own_language": raw_document.language,
                "reservation": raw_document.reservation,
                "original_id": raw_document.original_id,
                "withheld_id": f"{self.raw.source}/{name}/{WITHHELD_ID}-{raw_document.number}",
                "bytes": raw_document.size,
            },
        )

    def _remove_record(self, raw_document: RawDocument, name: str) -> None:
        self.stat_update(f"dropped_{raw_document.reason}")
        if raw_document.reason in BROKEN_REASONS:
            self.broken += 1
            if not self.first_broken:
                self.first_broken = f"{name} line {raw_document.number} ({raw_document.reason})"
        value = raw_document.value or f"line {raw_document.number}, {raw_document.size} bytes"
        metadata = {"filter_reason": raw_document.reason, "filter_value": value, "bytes": raw_document.size}
        self.removed.write(Document(text="", id=raw_document.id, metadata=metadata))
