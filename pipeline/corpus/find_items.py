"""Finds the documents of a corpus that contain evaluation items, by n-grams that few documents have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.corpus.decontamination.item_search import ContaminationDecision
from pipeline.corpus.decontamination.settings import ContaminationThresholds
from pipeline.corpus.documents import make_non_nullable_fields, read_file_metadata, write_table

HIT_SCHEMA = pa.schema(
    make_non_nullable_fields(id=pa.string(), task=pa.string(), item=pa.string(), found=pa.int64(), ngrams=pa.int64())
)


def _document_ngram_pairs(table: pa.Table) -> Any:
    return np.stack([table["document"].to_numpy(), table["ngram"].to_numpy()], axis=1)


def run(
    settings: ContaminationThresholds, *, ngrams: Path, matches: list[Path], hits: Path, contamination: Path
) -> dict[str, Any]:
    """Write the items found in each unit's documents, and a summary by task; return documents by task.

    Memory is bounded by the n-grams and the matches of one unit.
    """
    decision = ContaminationDecision(pq.read_table(ngrams), settings)
    for path in matches:
        decision.count_documents(_document_ngram_pairs(pq.read_table(path, columns=["document", "ngram"])))
    hits.mkdir()
    for path in sorted(matches):
        unit, table = read_file_metadata(path), pq.read_table(path)
        ids = dict(zip(table["document"].to_pylist(), table["id"].to_pylist(), strict=True))
        sizes = {language: counted["bytes"] for language, counted in unit["languages"].items()}
        unit_hits = decision.find_contaminated(
            unit["source"], sizes, table["language"].to_pylist(), _document_ngram_pairs(table)
        )
        listed = pa.Table.from_pylist(
            [dict(zip(HIT_SCHEMA.names, (ids[document], *hit), strict=True)) for document, *hit in unit_hits],
            schema=HIT_SCHEMA,
        ).sort_by([(name, "ascending") for name in HIT_SCHEMA.names])
        metadata = {key: unit[key] for key in ("source", "unit")}
        write_table(hits / f"{unit['source']}.{unit['unit']}.parquet", listed, metadata)
    tasks = decision.summary()
    contamination.write_text(json.dumps(tasks, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"tasks": {task: counts["documents"] for task, counts in tasks.items() if counts["documents"]}}
