"""Document scores: a table without texts, whose rows become columns of the final documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError
from pipeline.core.settings import Settings
from pipeline.corpus import scores
from pipeline.corpus.classifier.linear_classifier import BUCKETS, LinearClassifier, save_classifiers
from pipeline.corpus.classifier.settings import ClassifySettings
from pipeline.corpus.document_streams import add_scores, read_scores, write_scores
from pipeline.corpus.documents import DEDUPLICATED_SCHEMA, FINAL_SCHEMA, DocumentCollector, read_documents
from pipeline.corpus.settings import Corpus, Deduplication


@pytest.fixture
def scored(tmp_path: Path) -> tuple[list[dict[str, Any]], Path, LinearClassifier]:
    """Return 2,500 documents in two languages, their file of scores, and the classifier of one of the languages."""
    collector = DocumentCollector()
    for number in range(2500):
        row = {"id": f"s/{number}", "text": f"tekst {number} van het {'abc'[number % 3]}", "source": "s"}
        known = {"language": ("nl", "en")[number % 2], "language_score": 1.0, "license": "CC0-1.0"}
        collector.add({**row, **known, "url": None, "title": None, "date": None})
    collector.write(tmp_path / "documents", {"source": "s", "unit": 3})
    classifier = LinearClassifier(np.random.default_rng(1).normal(size=BUCKETS).astype(np.float32), 2.0, 0.1)
    save_classifiers({"nl": classifier}, tmp_path / "model")
    files = {"documents": tmp_path / "documents", "model": tmp_path / "model", "scores": tmp_path / "scores"}
    assert scores.run(Settings(), **files) == {"documents": 2500, "scored": 1250}
    return [*read_documents([tmp_path / "documents"])], tmp_path / "scores", classifier


def test_scores_are_in_the_order_of_the_documents(scored: Any) -> None:
    documents, path, classifier = scored
    table = pq.read_table(path)
    assert table.schema.remove_metadata() == pa.schema([FINAL_SCHEMA.field("id"), FINAL_SCHEMA.field("quality")])
    assert table["id"].to_pylist() == [d["id"] for d in documents]
    for document, quality in zip(documents, table["quality"].to_pylist(), strict=True):
        expected = classifier.score_texts([document["text"]])[0] if document["language"] == "nl" else None
        assert quality == expected


def test_remaining_documents_keep_their_own_scores(scored: Any) -> None:
    documents, path, classifier = scored
    left = documents[5:2400:7]
    extra = {"flags": [], "cluster": "c", "cluster_size": 1}
    table = pa.Table.from_pylist([{**row, **extra} for row in left], schema=DEDUPLICATED_SCHEMA)
    joined = add_scores(table, read_scores([path]))
    assert joined.schema == FINAL_SCHEMA and joined["id"].to_pylist() == [row["id"] for row in left]
    assert joined["quality"].to_pylist() == [
        classifier.score_texts([row["text"]])[0] if row["language"] == "nl" else None for row in left
    ]
    without = add_scores(table, read_scores([]))
    assert without.schema == FINAL_SCHEMA
    assert without["quality"].null_count == without["perplexity"].null_count == len(left)
    other = pa.Table.from_pylist([{**documents[0], **extra, "id": "s/other"}], schema=DEDUPLICATED_SCHEMA)
    with pytest.raises(InputError, match="scores belong to other documents"):
        add_scores(other, read_scores([path]))


def test_score_files_contain_no_text(scored: Any) -> None:
    assert pq.read_schema(scored[1]).names == ["id", "quality"]


def test_scores_are_in_final_documents_and_statistics(
    new_chain: Any, texts: dict[str, str], as_json_lines: Any, tmp_path: Path
) -> None:
    chain = new_chain()
    chain.filter("s", {"x.jsonl": as_json_lines(texts)})
    chain.filter("t", {"x.jsonl": as_json_lines({"y": texts["en_garden"] + " Once more."})})
    classifier = LinearClassifier(np.random.default_rng(1).normal(size=BUCKETS).astype(np.float32), 2.0, 0.1)
    save_classifiers({"nl": classifier}, tmp_path / "model")
    for source in ("s", "t"):
        files = {"documents": chain.folder / f"{source}.filtered", "scores": chain.folder / f"{source}.scores"}
        scores.run(Settings(), model=tmp_path / "model", **files)
    chain.scored = True
    chain.deduplicate(["s", "t"])
    rows = chain.rows("s.final")
    dutch = [row for row in rows if row["language"] == "nl"]
    assert len(dutch) > 1 and all(row["quality"] is None for row in rows if row not in dutch)
    assert [row["quality"] for row in dutch] == classifier.score_texts([row["text"] for row in dutch]).tolist()
    content = chain.statistics(["s", "t"])
    expected = np.percentile([row["quality"] for row in dutch], [25, 50, 75])
    summary = content["sources"]["s"]["scores"]
    assert summary == {"quality": {"documents": len(dutch), "quartiles": pytest.approx(expected)}}
    assert "scores" not in content["sources"]["t"] and "quality" not in content


def test_scores_of_classifiers_are_columns_of_final_documents_and_in_statistics(
    new_chain: Any, texts: dict[str, str], as_json_lines: Any
) -> None:
    chain = new_chain()
    chain.filter("s", {"x.jsonl": as_json_lines(texts)})
    documents = chain.folder / "s.filtered"
    values = {"edu": lambda row: float(len(row["text"])), "hq": lambda row: 0.5 if row["language"] == "nl" else np.nan}
    for name, value in values.items():

        def compute(table: pa.Table, value: Any = value) -> Any:
            return np.array([value(row) for row in table.to_pylist()])

        write_scores(documents, chain.folder / f"s.{name}", "quality", ["text", "language"], compute)
    file = {"files": [{"name": "edu.bin", "sha256": "0" * 64}], "license": "MIT"}
    chain.classifiers = {name: ClassifySettings.model_validate(file) for name in values}
    chain.deduplicate(["s"])
    schema = pq.read_schema(chain.folder / "s.final")
    assert schema.names == [*FINAL_SCHEMA.names[:-1], "edu", "hq", "id_hash"]
    rows = chain.rows("s.final")
    assert [row["edu"] for row in rows] == [len(row["text"]) for row in rows]
    assert {(row["language"], row["hq"]) for row in rows} == {("nl", 0.5), ("en", None)}
    assert {(row["quality"], row["perplexity"]) for row in rows} == {(None, None)}
    content = chain.statistics(["s"])
    scores = content["sources"]["s"]["scores"]
    assert list(scores) == ["edu", "hq"] and scores["hq"]["quartiles"] == [0.5] * 3
    assert scores["edu"]["documents"] == len(rows)
    assert content["classifiers"]["hq"] == chain.classifiers["hq"].model_dump()


def test_score_of_a_shortened_document_is_that_of_the_text_before(
    new_chain: Any, texts: dict[str, str], as_json_lines: Any
) -> None:
    """Documented so: the scores of a unit are computed while its copies are searched."""
    chain = new_chain(Corpus(deduplication=Deduplication(minhash=False, paragraphs=True, paragraph_characters=40)))
    paragraph = next(iter(texts.values()))
    others = {name: f"{text}\n\n{paragraph}" for name, text in [*texts.items()][1:]}
    chain.filter("s", {"x.jsonl": as_json_lines(others)})
    before = {row["id"]: len(row["text"]) for row in chain.rows("s.filtered")}

    def compute(table: pa.Table) -> Any:
        return np.array([float(len(text)) for text in table["text"].to_pylist()])

    write_scores(chain.folder / "s.filtered", chain.folder / "s.edu", "quality", ["text"], compute)
    file = {"files": [{"name": "edu.bin", "sha256": "0" * 64}], "license": "MIT"}
    chain.classifiers = {"edu": ClassifySettings.model_validate(file)}
    chain.deduplicate(["s"])
    rows = chain.rows("s.final")
    assert sum(len(row["text"]) < before[row["id"]] for row in rows) == len(rows) - 1 > 0
    assert [row["edu"] for row in rows] == [before[row["id"]] for row in rows]
