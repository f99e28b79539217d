"""Compute signatures of the reserved documents of a unit, so that their copies elsewhere are found.

No text is kept: the file holds the ids, and the hashes that the deduplication compares.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.data import Document

from pipeline.corpus.duplicates.signature_files import KEY_LIST, signature_schema
from pipeline.corpus.personal_data.metadata_masking import MetadataMasker
from pipeline.corpus.personal_data.text_masking import PersonalDataMaskingStep
from pipeline.corpus.raw_file_quarantine import RawFiles
from pipeline.corpus.raw_text_reader import RawTextReader
from pipeline.corpus.removed_documents import RemovedDocuments
from pipeline.corpus.rights_filters import OptOutFilter
from pipeline.corpus.rules.settings import C4
from pipeline.corpus.rules.web_text import C4Quality
from pipeline.corpus.signatures import write_document_signatures
from pipeline.corpus.text.text_cleaning import TextCleaner
from pipeline.opt_out.lists import mask_personal_data
from pipeline.opt_out.settings import LineRules, ReservedSettings


def _redact_entry(entry: str) -> str:
    """Return an entry, its kind before it, as the manifest shows it."""
    kind, _, value = entry.partition(" ")
    return entry if kind == "domain" else f"{kind} {mask_personal_data(value)}"


class _OptedOutDocuments:
    """The reserved documents of a unit, in each form that a copy of them may have in the corpus."""

    def __init__(self, settings: ReservedSettings, raw: RawFiles, opt_out: dict[str, Any]) -> None:
        self.fields = MetadataMasker(settings.personal_data)
        removed = RemovedDocuments(settings.source, "reserved", self.fields)
        self.reader = RawTextReader(raw, removed)
        self.filter = OptOutFilter.from_unit(opt_out)
        self.normalise = TextCleaner(settings.normalization)
        self.line_rules = settings.line_rules
        self.mask = PersonalDataMaskingStep(settings.personal_data)
        self.documents = self.bytes = 0
        self.entries: Counter[str] = Counter()

    def text_variants(self) -> Iterator[tuple[str, str, None]]:
        """Yield id and masked text of each reserved document, whole and as the rules on lines leave it, and no URL."""
        for document in self.reader.run():
            entries = list(self.filter.matching_entries(document))
            if not entries:
                continue
            self.documents += 1
            self.bytes += document.metadata["bytes"]
            self.entries.update(_redact_entry(entry) for entry in entries)
            whole = self.normalise.format(document.text)
            shown_id = self.fields.mask_id(document)
            for text in dict.fromkeys([whole, *(_drop_lines(whole, rules) for rules in self.line_rules)]):
                if text:
                    masked = next(iter(self.mask.run(iter([Document(text=text, id=shown_id)]))))
                    yield shown_id, masked.text, None


def _drop_lines(text: str, rules: LineRules) -> str:
    """Return a text without the lines that the filter drops."""
    no_document = {"lorem_ipsum": False, "curly_bracket": False, "minimum_sentences": None}
    block = C4Quality({rules.language: C4(**dict(rules.c4) | no_document)}, None, {rules.language: rules.words})
    document = Document(text=text, id="", metadata={"language": rules.language})
    block.filter(document)
    return str(document.text)


def run(settings: ReservedSettings, *, unit: Path, files: list[Path], reserved: Path) -> dict[str, Any]:
    """Write the signatures of the documents that the opt-out entries of the unit name; without entries, read nothing.

    A document whose lines the corpus may drop has a row for each form. Its paragraphs, lines and passages are not
    signed: they would be cut out of documents that only quote them. The file's metadata counts the documents, their
    bytes, and, for each entry, the documents that it names. Damaged files are left out, as the filter leaves them out.

    Args:
        unit: the unit's file of the manifest: names of the files, and what of them is reserved.

    Raises:
        InputError: a file is damaged, or not that of the manifest.
    """
    content = json.loads(unit.read_text(encoding="utf-8"))
    schema = signature_schema(settings.signatures)
    table = schema.empty_table()
    counts: dict[str, Any] = {"documents": 0, "bytes": 0, "entries": {}}
    if content["opt_out"]:
        raw = RawFiles.from_unit(settings, content, files)
        known = {"source": settings.source, "unit": content["unit"]}

        def compute_reserved_signatures(chosen: RawFiles) -> tuple[_OptedOutDocuments, pa.Table]:
            documents = _OptedOutDocuments(settings, chosen, content["opt_out"])
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "signed.parquet"
                write_document_signatures(documents.text_variants(), path, settings.signatures, known)
                return documents, pq.read_table(path)

        (opted_out_documents, table), _ = raw.run_undamaged(compute_reserved_signatures, quarantine=settings.quarantine)
        for place, field in enumerate(schema):
            if field.type == KEY_LIST:
                table = table.set_column(place, field, pa.array([[]] * len(table), KEY_LIST))
        counts = {
            "documents": opted_out_documents.documents,
            "bytes": opted_out_documents.bytes,
            "entries": dict(sorted(opted_out_documents.entries.items())),
        }
    stored = {"source": settings.source, "unit": content["unit"], "paragraphs": 0, **counts}
    table = table.sort_by([("id", "ascending"), ("content_0", "ascending")]).cast(schema)
    table = table.replace_schema_metadata({"polder": json.dumps(stored, sort_keys=True, ensure_ascii=False)})
    pq.write_table(table, reserved, compression="zstd")
    print(f"{settings.source}.{content['unit']}: {counts['documents']} documents are reserved", flush=True)
    return {"documents": counts["documents"], "bytes": counts["bytes"], "entries": len(counts["entries"])}
