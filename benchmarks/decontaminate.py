"""Speed of the search for evaluation items in a corpus, and matches by source and task.

    python benchmarks/decontaminate.py CONFIG [data=DATA]

It searches raw sources of JSON lines, before any filter.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from pipeline.config.configuration import parse_configuration
from pipeline.config.evaluation_item_paths import list_decontamination_item_files
from pipeline.corpus.decontamination.item_ngrams import hash_item_ngrams
from pipeline.corpus.decontamination.item_search import ContaminationDecision, ItemSearch
from pipeline.workflow.steps import step_settings

DOCUMENTS_AT_ONCE = 1000


def texts_of(path: Path) -> list[str]:
    """Return the texts of a file of JSON lines, plain or compressed by gzip."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line)["text"] for line in content.split(b"\n") if line.strip()]


def main(configuration: str, *pairs: str) -> int:
    """Print documents with items by source and task, what of them is chance, and the speed on one core."""
    given = dict(pair.split("=", 1) for pair in pairs)
    config = parse_configuration({**yaml.safe_load(Path(configuration).read_text()), **given})
    words: Any = step_settings(config, "corpus.ngrams", {"corpus": "main"})
    table = hash_item_ngrams(
        words, words.items, [file.path for file in list_decontamination_item_files(config, "main")]
    )
    search, decision = ItemSearch(table), ContaminationDecision(table, config.corpus["main"].decontamination)
    size, seconds = 0, 0.0
    results: dict[str, tuple[Counter[str], Any, list[str]]] = {}
    for source in sorted(source.name for source in config.sources):
        texts = [text for path in config.raw_files(source).values() for text in texts_of(path)]
        parts = [np.empty((0, 2), dtype=np.int64)]
        for start in range(0, len(texts), DOCUMENTS_AT_ONCE):
            began = time.process_time()
            parts.append(search.find_matches(texts[start : start + DOCUMENTS_AT_ONCE]) + np.array([start, 0]))
            seconds += time.process_time() - began
        matches = np.concatenate(parts)
        decision.count_documents(matches)
        language = config.source(source).language
        sizes = Counter({language: sum(len(text.encode()) for text in texts)})
        size += sizes.total()
        results[source] = sizes, matches, [language] * len(matches)
    for source, (sizes, matches, languages) in results.items():
        hits = decision.find_contaminated(source, sizes, languages, matches)
        documents = Counter(task for _, task in {hit[:2] for hit in hits})
        if documents:
            print(f"{source}: documents with items {dict(sorted(documents.items()))}")
    for task, counts in decision.summary().items():
        keys = ("items", "searched", "found", "phrases", "documents", "by_chance")
        print(f"{task}: { ({name: counts[name] for name in keys}) }")
    print(f"{size / 1e6:.0f} MB at {size / 1e6 / seconds:.1f} MB/s of one core")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
