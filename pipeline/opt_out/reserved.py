"""Signs the documents of one unit that its holders reserved, so that their copies are found wherever else they stand.

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

from pipeline.corpus.copies.signature_files import signature_schema
from pipeline.corpus.personal_data import Fields, MaskPersonalData
from pipeline.corpus.quarantine import Files, RawFiles
from pipeline.corpus.reader import RawTextReader, RemovedDocuments
from pipeline.corpus.rights_filters import OptOutFilter
from pipeline.corpus.rules.settings import C4
from pipeline.corpus.rules.web_text import C4Quality
from pipeline.corpus.signatures import SignDocuments
from pipeline.corpus.text.normalise import Normalise
from pipeline.opt_out.lists import shown
from pipeline.opt_out.settings import LineRules, ReservedSettings
from pipeline.sources.opt_out_list import KINDS, OptOut
from pipeline.sources.units import refuse_other_files


def _line_block(rules: LineRules) -> C4Quality:
    """Return the block that drops lines as the filter does, and no document."""
    every = {**dict(rules.c4), "lorem_ipsum": False, "curly_bracket": False, "minimum_sentences": None}
    return C4Quality({rules.language: C4(**every)}, None, {rules.language: rules.words})


def _shown(entry: str) -> str:
    """Return an entry, its kind before it, as the manifest shows it."""
    kind, _, value = entry.partition(" ")
    return entry if kind == "domain" else f"{kind} {shown(value)}"


class _Reserved:
    """The reserved documents of a unit, in each form that a copy of them may have in the corpus."""

    def __init__(self, settings: ReservedSettings, files: Files, described: dict[str, Any]) -> None:
        self.fields = Fields(settings.personal_data)
        removed = RemovedDocuments(settings.source, "reserved", self.fields)
        self.reader = RawTextReader(
            settings.source,
            [name for name, _ in files],
            [path for _, path in files],
            removed,
            settings.keys(settings.license_key),
            settings.broken_share,
            settings.document_bytes,
            described["is_part"],
        )
        opt_out = OptOut(**{kind: described["opt_out"][kind] for kind in KINDS})
        self.filter = OptOutFilter(opt_out, described["opt_out"]["holder"])
        self.normalise = Normalise(settings.normalisation)
        self.lines = [(rules.language, _line_block(rules)) for rules in settings.line_rules]
        self.mask = MaskPersonalData(settings.personal_data)
        self.documents = self.bytes = 0
        self.entries: Counter[str] = Counter()

    def forms(self) -> Iterator[Document]:
        """Yield each reserved document whole, and as the rules on lines leave it, masked as the corpus is."""
        for document in self.reader.run():
            found = list(self.filter.entries(document))
            if not found:
                continue
            self.documents += 1
            self.bytes += document.metadata["bytes"]
            self.entries.update(_shown(entry) for entry in found)
            whole = self.normalise.format(document.text)
            shown_id = self.fields.document_id(document)
            forms = dict.fromkeys([whole, *(self._without_lines(whole, *entry) for entry in self.lines)])
            for text in forms:
                if text:
                    yield from self.mask.run(iter([Document(text=text, id=shown_id)]))

    @staticmethod
    def _without_lines(text: str, language: str, block: C4Quality) -> str:
        document = Document(text=text, id="", metadata={"language": language})
        block.filter(document)
        return str(document.text)


def run(settings: ReservedSettings, *, unit: Path, files: list[Path], reserved: Path) -> dict[str, Any]:
    """Write the signatures of the documents that the opt-out entries of the unit name; without entries, read nothing.

    A document whose lines the corpus may drop has a row for each form. Paragraphs are not signed: they would be cut
    out of documents that only quote them. The file's metadata counts the documents, their bytes, and, for each entry,
    the documents that it names. Damaged files are left out, as the filter leaves them out.

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
        refuse_other_files(content, files)
        known = {"source": settings.source, "unit": content["unit"]}

        def sign(chosen: Files) -> tuple[_Reserved, pa.Table]:
            found = _Reserved(settings, chosen, content)
            with tempfile.TemporaryDirectory() as folder:
                signed = Path(folder) / "signed.parquet"
                SignDocuments(signed, settings.signatures, known).run(found.forms())
                return found, pq.read_table(signed)

        named = [entry["name"] for entry in content["files"]]
        raw = RawFiles(
            list(zip(named, files, strict=True)),
            settings.keys(settings.license_key),
            settings.document_bytes,
            settings.broken_share,
            is_part=content["is_part"],
        )
        (found, table), _ = raw.without_damage(sign, quarantine=settings.quarantine)
        if settings.signatures.paragraphs:
            nothing = pa.array([[]] * len(table), schema.field("paragraphs").type)
            table = table.set_column(table.schema.get_field_index("paragraphs"), "paragraphs", nothing)
        counts = {
            "documents": found.documents,
            "bytes": found.bytes,
            "entries": dict(sorted(found.entries.items())),
        }
    stored = {"source": settings.source, "unit": content["unit"], "paragraphs": 0, **counts}
    table = table.sort_by([("id", "ascending"), ("content_0", "ascending")]).cast(schema)
    table = table.replace_schema_metadata({"polder": json.dumps(stored, sort_keys=True, ensure_ascii=False)})
    pq.write_table(table, reserved, compression="zstd")
    print(f"{settings.source}.{content['unit']}: {counts['documents']} documents are reserved", flush=True)
    return {"documents": counts["documents"], "bytes": counts["bytes"], "entries": len(counts["entries"])}
