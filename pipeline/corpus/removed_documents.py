"""Collects removed documents and, if a run keeps them, their masked texts in a private file and samples by reason."""

from __future__ import annotations

from bisect import insort
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.data import Document

from pipeline.core import output_lease
from pipeline.core.hashing import hash_file
from pipeline.corpus.documents import HARMFUL, REMOVED_SCHEMA, RIGHTS_REASONS, ROWS_PER_GROUP, STATED_REASONS, id_hash
from pipeline.corpus.personal_data.metadata_masking import MetadataMasker
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.personal_data.text_masking import PersonalDataMaskingStep
from pipeline.corpus.settings import DeduplicateSettings
from pipeline.sources.spdx_license_parser import is_allowed

REASONS_WITHOUT_TEXT = (*RIGHTS_REASONS, *STATED_REASONS, HARMFUL)  # reasons for which no text is kept
SAMPLES_PER_REASON = 3
SAMPLE_CHARACTERS = 300
SCHEMA = REMOVED_SCHEMA.append(pa.field("text", pa.string()))


class RemovedTexts:
    """Writes removed documents with their masked texts to a private file, and keeps samples of each reason.

    All kinds of personal data are masked, regardless of the corpus settings. Samples have the smallest hashes of their
    ids, so they do not depend on the order of files. Folders get mode 0700, files 0600.

    Args:
        path: the private file; None writes no file.
        samples: whether the license of the source permits samples.
        licenses: own licenses of documents that permit samples; None if `samples` decides alone.
    """

    def __init__(self, path: Path | None, *, samples: bool, licenses: list[str] | None = None) -> None:
        self._licenses = licenses
        self._path = path
        self._partial = path and output_lease.temporary_output_path(path)
        self._samples: dict[str, list[tuple[int, str, dict[str, Any]]]] | None = {} if samples else None
        self._mask = PersonalDataMaskingStep(PersonalData())
        self._rows: list[dict[str, Any]] = []
        self._written = 0
        self._writer: pq.ParquetWriter | None = None  # opened late: datatrove's executor copies what it runs

    def add(self, row: dict[str, Any], document: Document) -> None:
        """Add a removed document: its columns of REMOVED_SCHEMA, and the document itself."""
        text = None
        if document.text and not document.metadata.get("flags") and row["reason"] not in REASONS_WITHOUT_TEXT:
            license = document.metadata.get("license")
            wanted = self._is_sample(row, license)
            if wanted or self._path is not None:
                text = self._mask_text(document)
            if wanted:
                self._add_sample(row, license, str(text))
        if self._path is not None:
            self._rows.append({**row, "text": text})
            if len(self._rows) == ROWS_PER_GROUP:
                self._flush()

    def _mask_text(self, document: Document) -> str:
        copy = Document(text=document.text, id=document.id, metadata=dict(document.metadata))
        return str(next(iter(self._mask.run(iter([copy])))).text)

    def _is_sample(self, row: dict[str, Any], license: str | None) -> bool:
        if self._samples is None or not (self._licenses is None or is_allowed(license or "", self._licenses)):
            return False
        samples = self._samples.get(row["reason"], [])
        return len(samples) < SAMPLES_PER_REASON or (id_hash(row["id"]), row["id"]) < samples[-1][:2]

    def _add_sample(self, row: dict[str, Any], license: str | None, text: str) -> None:
        assert self._samples is not None
        shown = text if len(text) <= SAMPLE_CHARACTERS else text[: SAMPLE_CHARACTERS - 1] + "…"
        sample = {key: row[key] for key in ("stage", "reason", "source", "id", "value")}
        sample |= {"license": license, "text": shown}
        samples = self._samples.setdefault(row["reason"], [])
        insort(samples, (id_hash(row["id"]), row["id"], sample), key=lambda entry: entry[:2])
        del samples[SAMPLES_PER_REASON:]

    def _flush(self) -> None:
        assert self._path is not None and self._partial is not None
        if self._writer is None:
            for folder in reversed(self._path.parents):
                if not folder.exists():
                    folder.mkdir(mode=0o700, exist_ok=True)
            for left in self._path.parent.glob(f".partial-*-{self._path.name}"):  # of a killed invocation
                left.unlink(missing_ok=True)
            self._partial.touch(mode=0o600)
            self._writer = pq.ParquetWriter(self._partial, SCHEMA, compression="zstd")
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=SCHEMA))
        self._written += len(self._rows)
        self._rows = []

    def close(self) -> dict[str, Any]:
        """Finish the private file; return its number of rows and sha256, or nothing without a file."""
        if self._path is None or self._partial is None:
            return {}
        self._flush()
        assert self._writer is not None
        self._writer.close()
        self._partial.replace(self._path)
        return {"rows": self._written, "sha256": hash_file(self._path)}

    def samples(self) -> list[dict[str, Any]]:
        """Return the samples, sorted by reason."""
        return [sample for _, entries in sorted((self._samples or {}).items()) for _, _, sample in entries]


def create_removed_text_writer(settings: DeduplicateSettings, private: Path | None) -> RemovedTexts | None:
    """Return a writer of removed texts; if the run keeps none, delete those of an earlier run and return None."""
    if settings.keep_removed:
        return RemovedTexts(private, samples=settings.samples, licenses=settings.own_sample_licenses)
    if private is not None:
        private.unlink(missing_ok=True)
    return None


class RemovedDocuments:
    """Collects removed documents without their texts; an `exclusion_writer` for datatrove's filters.

    `fields` masks personal data in their ids and values. `texts` collects the texts, if the run keeps them.
    """

    def __init__(self, source: str, step: str, fields: MetadataMasker, texts: RemovedTexts | None = None) -> None:
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
        """Add one document; its metadata has `filter_reason` and may have `filter_value` and `bytes`."""
        self.rows.append(
            {
                "id": self._fields.mask_id(document),
                "source": self._source,
                "stage": self._step,
                "reason": document.metadata["filter_reason"],
                "value": self._fields.mask_text(document.metadata.get("filter_value")),
                "bytes": document.metadata.get("bytes", len(document.text.encode())),
                "language": document.metadata.get("language"),
            }
        )
        if self.texts is not None:
            self.texts.add(self.rows[-1], document)
