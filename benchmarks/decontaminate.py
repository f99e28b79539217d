"""How fast a corpus is searched for evaluation items, and which documents of which source contain those of which task.

    python benchmarks/decontaminate.py CONFIG [data=DATA]

Raw sources of JSON lines are searched, before any filter.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from pipeline.corpus import ngrams
from pipeline.corpus.contamination_settings import NgramsSettings
from pipeline.corpus.decontaminate import Items
from pipeline.run.config import load
from pipeline.run.steps import step_settings

DOCUMENTS_AT_ONCE = 1000


def texts_of(path: Path) -> list[str]:
    """Return the texts of a file of JSON lines, plain or compressed by gzip."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line)["text"] for line in content.split(b"\n") if line.strip()]


def main(configuration: str, *pairs: str) -> int:
    """Print documents with items by source and task, and the speed on one core."""
    given = dict(pair.split("=", 1) for pair in pairs)
    config = load({**yaml.safe_load(Path(configuration).read_text()), **given})
    files = config.items("main")
    settings = NgramsSettings.model_validate(step_settings(config, "corpus.ngrams", {"corpus": "main"}).model_dump())
    with tempfile.TemporaryDirectory() as folder:
        ngrams.run(settings, files=[path for _, path in files], ngrams=Path(folder, "ngrams"))
        items = Items(Path(folder, "ngrams"), config.corpus["main"].decontamination.minimum_overlap)
    size, seconds = 0, 0.0
    for source in sorted(source.name for source in config.sources):
        documents: Counter[str] = Counter()
        texts = [text for path in config.files(source).values() for text in texts_of(path)]
        for start in range(0, len(texts), DOCUMENTS_AT_ONCE):
            part = texts[start : start + DOCUMENTS_AT_ONCE]
            size += sum(len(text.encode()) for text in part)
            began = time.process_time()
            found = {(document, task) for document, task, *_ in items.find(part)}
            seconds += time.process_time() - began
            documents.update(task for _, task in found)
        if documents:
            print(f"{source}: {len(texts)} documents, with items {dict(sorted(documents.items()))}")
    print(f"{size / 1e6:.0f} MB at {size / 1e6 / seconds:.1f} MB/s of one core")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
