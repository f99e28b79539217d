"""Counts items of evaluation suites in the final documents of a corpus, for suites outside the decontamination.

This lets a suite join a finished run: no document is removed and no model is retrained. Its scores are reported with
the items that the corpus contains.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.corpus.decontamination.item_ngrams import Numbers, hash_item_ngrams
from pipeline.corpus.decontamination.item_search import ContaminationDecision, ItemSearch
from pipeline.corpus.decontamination.settings import CountItemsSettings
from pipeline.corpus.documents import read_file_metadata, read_row_groups


def run(settings: CountItemsSettings, *, files: list[Path], final: list[Path], contamination: Path) -> dict[str, Any]:
    """Write the items found of each task; return the number of documents by task.

    Memory is bounded by the n-grams, each in at most `maximum_documents` documents, and by 1,000 documents.

    Raises:
        InputError: a file of items cannot be read, or lacks a searched field.
    """
    table = hash_item_ngrams(settings, settings.items, files)
    search, decision = ItemSearch(table), ContaminationDecision(table, settings)
    units: list[tuple[Path, Numbers, list[str]]] = []
    for path in sorted(final):
        source = read_file_metadata(path)["source"]
        unit_pairs, languages, first = [np.empty((0, 2), dtype=np.int64)], list[str](), 0
        for documents in read_row_groups(path, ["text", "language"]):
            pairs = search.find_matches(documents["text"].to_pylist())
            decision.note_items(source, pairs)
            decision.count_documents(pairs)
            pairs = pairs[~decision.is_common_ngram(pairs[:, 1])]
            languages += documents["language"].take(pa.array(pairs[:, 0])).to_pylist()
            unit_pairs.append(pairs + np.array([first, 0]))
            first += documents.num_rows
        units.append((path, np.concatenate(unit_pairs), languages))
    for path, matches, languages in units:
        metadata = read_file_metadata(path)
        sizes = {language: counted["bytes"] for language, counted in metadata["languages"].items()}
        decision.find_contaminated(metadata["source"], sizes, languages, matches)
    tasks = decision.summary()
    content = {"corpus": settings.corpus, "contamination": tasks}
    contamination.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"tasks": {task: counts["documents"] for task, counts in tasks.items() if counts["documents"]}}
