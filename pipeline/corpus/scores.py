"""Scores the documents of one unit: how likely each is of good quality."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.settings import Settings
from pipeline.corpus.classifier.linear_classifier import load_classifiers
from pipeline.corpus.document_streams import score_schema
from pipeline.corpus.documents import read_metadata


def run(settings: Settings, *, documents: Path, model: Path, scores: Path) -> dict[str, Any]:
    """Write a row for each document, in their order, without its text; return how many there are and have a score.

    A document has no `quality` where its language has no classifier.
    """
    classifiers = load_classifiers(model)
    known = read_metadata(documents)
    schema, scored = score_schema("quality"), 0
    with pq.ParquetFile(documents) as file, pq.ParquetWriter(scores, schema, compression="zstd") as writer:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=["id", "text", "language"])
            quality = np.full(table.num_rows, np.nan)
            for language, classifier in classifiers.items():
                chosen = pc.equal(table["language"], language)
                quality[chosen.to_numpy()] = classifier.scores(table["text"].filter(chosen).to_pylist())
            columns = {"id": table["id"], "quality": pa.array(quality, from_pandas=True)}
            writer.write_table(pa.table(columns).cast(schema))
            scored += int(np.isfinite(quality).sum())
        unit = {key: known[key] for key in ("source", "unit", "documents")}
        writer.add_key_value_metadata({"polder": json.dumps(unit, sort_keys=True)})
    print(f"{known['source']}.{known['unit']}: {scored} of {known['documents']} documents scored", flush=True)
    return {"documents": known["documents"], "scored": scored}
