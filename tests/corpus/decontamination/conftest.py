"""Evaluation items that are searched in texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.corpus.decontamination.item_ngrams import hash_item_ngrams
from pipeline.corpus.decontamination.item_search import ContaminationDecision, ItemHit, ItemSearch
from pipeline.corpus.decontamination.settings import ContaminationThresholds, NgramSelection, TaskItemsFile


def rows(*items: Any) -> bytes:
    return "".join(json.dumps(item) + "\n" for item in items).encode()


class IndexedItems:
    """The items of some files, by the settings of a run."""

    def __init__(self, folder: Path, contents: dict[str, bytes], entries: dict[str, Any], settings: Any) -> None:
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        files = [TaskItemsFile(task=name.split(".")[0], name=name, **entries.get(name, {})) for name in contents]
        words = {key: value for key, value in settings.items() if key in NgramSelection.model_fields}
        self.table: pa.Table = hash_item_ngrams(NgramSelection(**words), files, [folder / name for name in contents])
        self.tasks = json.loads(self.table.schema.metadata[b"polder"])["tasks"]
        self.settings = ContaminationThresholds(**{key: value for key, value in settings.items() if key not in words})

    def units(self, units: dict[str, list[str]]) -> tuple[dict[str, list[ItemHit]], dict[str, Any]]:
        """Return the hits of each source's Dutch texts, and the summary."""
        search, decision = ItemSearch(self.table), ContaminationDecision(self.table, self.settings)
        matches = {source: search.find_matches(texts) for source, texts in units.items()}
        for result in matches.values():
            decision.count_documents(result)
        hits = {
            source: decision.find_contaminated(
                source, {"nl": sum(map(len, units[source]))}, ["nl"] * len(result), result
            )
            for source, result in matches.items()
        }
        return hits, decision.summary()

    def find(self, texts: list[str]) -> list[ItemHit]:
        """Return (number of the text, task, item, n-grams found, n-grams)."""
        return self.units({"s": texts})[0]["s"]


@pytest.fixture
def index_items(tmp_path: Path) -> Callable[..., IndexedItems]:
    """Return a function that indexes item files, name to content; `entries` has the fields of some."""

    def make(contents: dict[str, bytes], entries: dict[str, Any] | None = None, **settings: Any) -> IndexedItems:
        return IndexedItems(tmp_path, contents, entries or {}, settings)

    return make
