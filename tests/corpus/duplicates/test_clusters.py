"""Clusters and kept copies do not depend on the order of files, units, processes or on memory."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.corpus import find_duplicates, signatures
from pipeline.corpus.documents import FINAL_SCHEMA, DocumentCollector, id_hash, read_documents
from pipeline.corpus.duplicates import key_groups
from pipeline.corpus.duplicates.signature_files import SignatureWriter
from pipeline.corpus.settings import Deduplication, FindDuplicatesSettings, SignatureSettings

ROOT = Path(__file__).parents[3]
FEW = Deduplication(bands=2, prefer=["b"], minimum_jaccard=0)


def find_clusters(
    folder: Path, units: dict[tuple[str, int], list[dict[str, Any]]], section: Deduplication
) -> list[Any]:
    """Return the deduplication result of signatures given as rows, sorted by id."""
    paths = []
    for (source, unit), rows in units.items():
        paths.append(folder / f"{source}.{unit}")
        writer = SignatureWriter(paths[-1], section, {"source": source, "unit": unit})
        for row in rows:
            writer.add(row)
        writer.close()
    step = FindDuplicatesSettings(deduplication=section)
    shutil.rmtree(folder / "duplicates", ignore_errors=True)
    find_duplicates.run(
        step, signatures=paths, documents=paths, reserved=[], pairs=[], duplicates=folder / "duplicates"
    )
    rows = pq.read_table(folder / "duplicates").to_pylist()
    return sorted((row["id"], row["reason"], row["value"], row["cluster_size"]) for row in rows)


def expected(documents: list[dict[str, Any]], prefer: list[str]) -> list[Any]:
    """Return the same by joining equal keys until nothing changes."""
    clusters = [{row["id"]} for row in documents]
    kinds = [("content_0", "content_1"), ("bucket_000",), ("bucket_001",)]
    keys = [{(kind, *(row[name] for name in kind)) for kind in kinds if row[kind[0]]} for row in documents]
    for one in range(len(documents)):
        for other in range(one):
            if keys[one] & keys[other] and clusters[one] is not clusters[other]:
                joined = clusters[one] | clusters[other]
                clusters = [joined if entry & joined else entry for entry in clusters]
    by_id = {row["id"]: row for row in documents}
    result = []
    for row, cluster in zip(documents, clusters, strict=True):
        best = min(
            (by_id[name] for name in cluster),
            key=lambda other: (other["source"] not in prefer, -other["characters"], other["id"]),
        )
        if len(cluster) > 1:
            same = (row["content_0"], row["content_1"]) == (best["content_0"], best["content_1"])
            reason = None if row is best else "exact_duplicate" if same else "near_duplicate"
            result.append((row["id"], reason, best["id"], len(cluster)))
    return sorted(result, key=lambda entry: entry[0])


KEYS = st.integers(0, 9).map(lambda number: number * (2**64 // 10))


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "source": st.sampled_from("abc"),
                "characters": st.integers(1, 3),
                "ngrams": st.just(1),
                "content_0": KEYS.map(lambda number: number + 1),
                "content_1": st.integers(0, 1),
                "bucket_000": KEYS,
                "bucket_001": KEYS,
            }
        ),
        max_size=25,
    ),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
@settings(max_examples=25)
def test_clusters_do_not_depend_on_division_order_or_memory(
    documents: list[dict[str, Any]], divided: int, random: Any
) -> None:
    for number, row in enumerate(documents):
        row["id"] = f"{row['source']}/{number * 7 % 25}"
    results = []
    for units_of_a_source, record_bytes in ((1, 100), (divided, 100), (divided, 10**9)):
        units: dict[tuple[str, int], list[dict[str, Any]]] = {(source, 0): [] for source in "abc"}
        random.shuffle(documents)
        for row in documents:
            unit = (row["source"], random.randrange(units_of_a_source))
            units.setdefault(unit, []).append({key: value for key, value in row.items() if key != "source"})
        shuffled = list(units.items())
        random.shuffle(shuffled)
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(key_groups, "RECORD_BYTES", record_bytes)
            results.append(find_clusters(Path(folder), dict(shuffled), FEW))
    assert results == [expected(documents, FEW.prefer)] * 3


def test_kept_copy_is_from_the_preferred_source_then_longest_then_first(tmp_path: Path) -> None:
    def row(name: str, characters: int) -> dict[str, Any]:
        keys = {"content_0": 1, "content_1": 1, "bucket_000": 0, "bucket_001": 0}
        return {"id": name, "characters": characters, "ngrams": 1, **keys}

    units = {("a", 0): [row("a/long", 9)], ("b", 0): [row("b/2", 5), row("b/1", 5), row("b/short", 1)]}
    assert {entry[2] for entry in find_clusters(tmp_path, units, FEW)} == {"b/1"}
    assert {entry[2] for entry in find_clusters(tmp_path, units, FEW.model_copy(update={"prefer": []}))} == {"a/long"}
    assert {entry[2] for entry in find_clusters(tmp_path, units, FEW.model_copy(update={"prefer": ["c"]}))} == {
        "a/long"
    }


def test_deduplicating_a_deduplicated_corpus_changes_nothing(
    chain: Any, texts: dict[str, str], as_json_lines: Any
) -> None:
    variants = {f"{name}-{cut}": text[: len(text) - cut] for name, text in texts.items() for cut in (0, 20, 60, 150)}
    chain.filter("s", {"x.jsonl": as_json_lines(variants)})
    chain.filter("t", {"x.jsonl": as_json_lines(texts)})
    first = chain.deduplicate(["s", "t"])
    assert first["near_duplicate"] > 4 and first["exact_duplicate"] > 2
    chain.statistics(["s", "t"])
    final = [row for source in "st" for row in chain.rows(f"{source}.final")]
    assert sum(row["cluster_size"] for row in final) == first["documents"]
    assert {row["cluster"] for row in final} == {row["id"] for row in final if row["cluster"] == row["id"]}
    assert len({row["cluster"] for row in final}) < len(final)
    removed = [row for source in "st" for row in chain.rows(f"{source}.deduplicate")]
    assert {row["value"] for row in removed} == {row["id"] for row in final if row["cluster_size"] > 1}
    for source in "st":
        chain.refilter(source)
    again = chain.deduplicate(["s", "t"])
    assert again == {
        "documents": len(final),
        "exact_duplicate": 0,
        "near_duplicate": 0,
        "opt_out": 0,
        "paragraphs_cut": 0,
    }


def test_final_documents_are_skipped_by_hash(chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    chain.filter("s", {"x.jsonl": as_json_lines(texts)})
    chain.deduplicate(["s"])
    path = chain.folder / "s.final"
    assert pq.read_schema(path).equals(FINAL_SCHEMA)
    assert FINAL_SCHEMA.names[-1] == "id_hash"
    ids = [row["id"] for row in chain.rows("s.final")]
    half = id_hash(ids[2])
    assert [row["id"] for row in read_documents([path], (0, half), columns=["id"])] == ids[:3]
    assert list(read_documents([path], (0, id_hash(ids[0]) - 1))) == []


def _sign(folder: Path, number: int) -> bytes:
    documents, signed = folder / f"{number}.documents", folder / f"{number}.signatures"
    signatures.run(SignatureSettings(), documents=documents, signatures=signed)
    return signed.read_bytes()


def collected(path: Path, texts: dict[str, str], **unit: Any) -> Path:
    """Write documents as the filter does."""
    collector = DocumentCollector()
    for name, text in texts.items():
        row = {"id": name, "text": text, "language": "nl", "language_score": 1.0, "source": "s"}
        collector.add({**row, "license": "CC0-1.0", "url": None, "title": None})
    collector.write(path, {"source": "s", "unit": 0, **unit})
    return path


def test_signatures_do_not_depend_on_the_number_of_processes(texts: dict[str, str], tmp_path: Path) -> None:
    for number in range(4):
        collected(tmp_path / f"{number}.documents", {name: text * (number + 1) for name, text in texts.items()})
    with ProcessPoolExecutor(2) as pool:
        parallel = list(pool.map(partial(_sign, tmp_path), range(4)))
    assert parallel == [_sign(tmp_path, number) for number in (3, 2, 1, 0)][::-1]


def test_insufficient_memory_and_foreign_signatures_are_refused(tmp_path: Path) -> None:
    section = Deduplication(minhash=False)
    for name in ("one", "other"):
        writer = SignatureWriter(tmp_path / name, section, {"source": "s", "unit": 0})
        writer.write(
            pa.RecordBatch.from_pylist([{"id": name, "characters": 1, "content_0": 1, "content_1": 1}], writer.schema)
        )
        writer.close()

    def run(section: Deduplication, *names: str) -> None:
        step = FindDuplicatesSettings(deduplication=section)
        find_duplicates.run(
            step,
            signatures=[tmp_path / name for name in names],
            documents=[tmp_path / name for name in names],
            reserved=[],
            pairs=[],
            duplicates=tmp_path / "duplicates",
        )

    with pytest.raises(InputError, match=r"memory_bytes is 20, and 1 documents need 48: raise it to 96"):
        run(section.model_copy(update={"memory_bytes": 20}), "one")
    with pytest.raises(InputError, match=r"one has signatures of another kind: rerun corpus\.signatures"):
        run(Deduplication(), "one")
    with pytest.raises(InputError, match=r"(one|other) and .*(one|other) are the same unit: remove one of them"):
        run(section, "one", "other")


def test_output_of_a_unit_changes_only_with_its_own_clusters(tmp_path: Path) -> None:
    def row(name: str, key: int) -> dict[str, Any]:
        return {
            "id": name,
            "characters": 9,
            "ngrams": 1,
            "content_0": key,
            "content_1": 1,
            "bucket_000": 0,
            "bucket_001": 0,
        }

    units = {
        ("a", 0): [row("a/1", 1), row("a/2", 2)],
        ("a", 7): [row("a/3", 3)],
        ("c", 0): [row("c/1", 1)],
        ("c", 1): [row("c/3", 3)],
        ("c", 2): [],
    }

    def files(name: str) -> dict[str, bytes]:
        (tmp_path / name).mkdir()
        find_clusters(tmp_path / name, units, FEW)
        return {path.name: path.read_bytes() for path in (tmp_path / name / "duplicates").iterdir()}

    before = files("before")
    assert sorted(before) == ["a.0.parquet", "a.7.parquet", "c.0.parquet", "c.1.parquet", "c.2.parquet"]
    units["c", 1] = [row("c/4", 4)]
    after = files("after")
    assert sorted(name for name in before if before[name] != after[name]) == ["a.7.parquet", "c.1.parquet"]


@pytest.mark.slow
def test_hundred_thousand_documents_are_clustered_in_bounded_memory() -> None:
    """The limit is on all memory that the process writes to: 400 MB with Python and its libraries."""
    limit_bytes = 400_000_000
    done = subprocess.run(
        [sys.executable, "benchmarks/deduplication.py", "--documents", "100000", "--memory-bytes", "30000000"],
        cwd=ROOT,
        env={"PYTHONPATH": ".", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PATH": ""},
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes)),
    )
    assert done.returncode == 0, done.stderr
    assert "20000 of 20000 copies found" in done.stdout
