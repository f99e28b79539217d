"""Scores the quality of the documents of one unit with the trained classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.core.settings import Settings
from pipeline.corpus.classifier.linear_classifier import load_classifiers
from pipeline.corpus.document_streams import write_scores


def run(settings: Settings, *, documents: Path, model: Path, scores: Path) -> dict[str, Any]:
    """Write the quality of each document, in order; return the numbers of documents and of scored ones.

    `quality` is null if the language of a document has no classifier.
    """
    classifiers, scored = load_classifiers(model), 0

    def compute(table: pa.Table) -> npt.NDArray[np.float64]:
        nonlocal scored
        quality = np.full(table.num_rows, np.nan)
        for language, classifier in classifiers.items():
            chosen = pc.equal(table["language"], language)
            quality[chosen.to_numpy()] = classifier.score_texts(table["text"].filter(chosen).to_pylist())
        scored += int(np.isfinite(quality).sum())
        return quality

    unit = write_scores(documents, scores, "quality", ["text", "language"], compute)
    print(f"{unit['source']}.{unit['unit']}: {scored} of {unit['documents']} documents scored", flush=True)
    return {"documents": unit["documents"], "scored": scored}
