"""A document that contains an evaluation item is removed, and hits are listed by task."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.corpus.documents import FINAL_SCHEMA
from pipeline.corpus.settings import Corpus
from tests.corpus.decontamination.conftest import rows

SHORT = "Nine words make this sentence short but long enough."


def test_contaminated_documents_are_removed_and_counts_add_up(
    new_chain: Any, texts: dict[str, str], as_json_lines: Any
) -> None:
    results = set()
    sentence = "Hij weegt het meel, mengt het met gist en zout, en laat het deeg rusten"
    tasks = {"bread.jsonl": rows({"q": sentence}, {"q": SHORT}), "birds.jsonl": rows({"q": sentence.upper()})}
    for order in ([0, 1, 2], [2, 1, 0]):
        chain = new_chain()
        names = ["nl_water", "nl_bakker", "en_garden"]
        chain.filter("s", {"x.jsonl": as_json_lines({names[place]: texts[names[place]] for place in order})})
        chain.filter("t", {"x.jsonl": as_json_lines({"fiets": texts["nl_fiets"] + " " + SHORT})})
        chain.deduplicate(["s", "t"])
        counts = chain.decontaminate(["s", "t"], tasks)
        assert counts["s"]["removed"] == counts["t"]["removed"] == {"contaminated": 1}
        removed = chain.rows("s.decontaminate")
        assert [(row["id"], row["reason"], row["value"]) for row in removed] == [
            ("s/x.jsonl/nl_bakker", "contaminated", "birds: 1")
        ]
        assert removed[0]["bytes"] == len(texts["nl_bakker"].encode()) and removed[0]["language"] == "nl"
        hits = [(row["task"], row["item"]) for row in chain.rows("contaminated/s.0.parquet")]
        assert hits == [("birds", "1"), ("bread", "1")]
        assert {row["id"] for row in chain.rows("s.final")} == {"s/x.jsonl/nl_water", "s/x.jsonl/en_garden"}
        statistics = chain.statistics(["s", "t"])
        assert statistics["totals"]["stages"][2] == {
            "stage": "decontaminate",
            "in": 4,
            "kept": 2,
            "removed": {"contaminated": 2},
        }
        assert statistics["contamination"] == {
            "birds": {
                "items": 1,
                "searched": 1,
                "not_searched": 0,
                "found": 1,
                "found_items": ["1"],
                "items_with_common_n_grams": 0,
                "documents": 1,
                "sources": {"s": 1},
                "by_chance": None,
            },
            "bread": {
                "items": 2,
                "searched": 2,
                "not_searched": 0,
                "found": 2,
                "found_items": ["1", "2"],
                "items_with_common_n_grams": 0,
                "documents": 2,
                "sources": {"s": 1, "t": 1},
                "by_chance": None,
            },
        }
        files = ["statistics.json", "ngrams", *(f"s.{kind}" for kind in ("final", "decontaminate"))]
        files += ["contaminated/s.0.parquet", "contaminated/t.0.parquet"]
        results.add(tuple((chain.folder / name).read_bytes() for name in files))
    assert len(results) == 1


def test_corpus_without_contamination_is_unchanged(chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    chain.filter("s", {"x.jsonl": as_json_lines(texts)})
    chain.deduplicate(["s"])
    filtered = {row["id"]: row for row in chain.rows("s.filtered")}
    assert chain.rows("s.final") == [{**row, **filtered[row["id"]]} for row in chain.rows("s.final")]
    assert [row["id"] for row in chain.rows("s.final")] == list(filtered)
    stored = pq.read_metadata(chain.folder / "s.final").metadata[b"ARROW:schema"]
    schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(stored)))
    flags = schema.field("flags")
    assert schema == pa.schema([flags if field.name == "flags" else field for field in FINAL_SCHEMA])
    # Parquet's name for it: another name would change every final file, and all that is trained on it.
    assert flags.type.value_field.name == "element"


def test_minimum_words_above_the_ngram_length_is_refused() -> None:
    with pytest.raises(ValueError, match="minimum_words is 9, more than the 8 words"):
        Corpus.model_validate({"decontamination": {"ngram": 8, "minimum_words": 9}})
