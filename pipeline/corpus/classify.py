"""Scores the documents of one unit with a pretrained classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core.errors import InputError
from pipeline.corpus.classifier.pretrained_classifiers import load_classifier
from pipeline.corpus.classifier.settings import ClassifySettings
from pipeline.corpus.document_streams import write_scores


def run(settings: ClassifySettings, *, documents: Path, classifier: list[Path], scores: Path) -> dict[str, Any]:
    """Write the score of each document, in order; return the numbers of documents and of scored ones.

    The score is null in other languages than those of the settings, and where the model knows no word of the text. Its
    column is `quality`: the final documents name it as the configuration does.

    Args:
        classifier: the files of the model, in the order of `settings.files`.

    Raises:
        InputError: the model cannot be used, or gives no number for a text.
    """
    score_text, scored = load_classifier(settings, classifier), 0

    def score_table(table: pa.Table) -> npt.NDArray[np.float64]:
        nonlocal scored
        result = np.full(table.num_rows, np.nan)
        for place, row in enumerate(table.to_pylist()):
            if settings.languages and row["language"] not in settings.languages:
                continue
            if (score := score_text(row["text"])) is None:
                continue
            if not np.isfinite(score):
                raise InputError(
                    f"the classifier {classifier[0]} gives {score} for the document {row['id']}: use another model or "
                    "export it again"
                )
            result[place] = score
            scored += 1
        return result

    unit = write_scores(documents, scores, "quality", ["text", "language"], score_table)
    print(f"{unit['source']}.{unit['unit']}: {scored} of {unit['documents']} documents scored", flush=True)
    return {"documents": unit["documents"], "scored": scored}
