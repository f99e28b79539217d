"""One copy of exact and near duplicates is kept, the best one, in any order."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import InputError
from pipeline.corpus import deduplicate, document_streams, documents, statistics
from pipeline.corpus.duplicates.key_groups import DisjointSets
from pipeline.corpus.duplicates.minhash import MinhashSigner
from pipeline.corpus.duplicates.signature_files import content_hash
from pipeline.corpus.settings import Corpus, DeduplicateSettings, Deduplication, StatisticsSettings
from tests.corpus.duplicates.datatrove_minhash import datatrove_block


def sources(texts: dict[str, str], as_json_lines: Any) -> dict[str, bytes]:
    """Return three sources with copies: exact, in other case and space, longer, shorter, and none."""
    water, baker = texts["nl_water"], texts["nl_bakker"]
    return {
        "a": as_json_lines({"water": water, "garden": texts["en_garden"], "baker": baker}),
        "b": as_json_lines(
            {"water": water.replace("Wie", "WIE").replace(" ", "  "), "longer": water + " Dat was het."}
        ),
        "c": as_json_lines(
            {"shorter": baker.rsplit(" ", 2)[0], "fiets": texts["nl_fiets"], "garden": texts["en_garden"]}
        ),
    }


def test_longest_then_first_copy_is_kept(chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    made = sources(texts, as_json_lines)
    for source, content in made.items():
        chain.filter(source, {"x.jsonl": content})
    counts = chain.deduplicate(list(made))
    results = {row["id"]: (row["reason"], row["value"]) for row in chain.rows("duplicates") if row["reason"]}
    longest = "b/x.jsonl/longer"
    assert results["a/x.jsonl/water"] == results["b/x.jsonl/water"] == ("near_duplicate", longest)
    assert results["c/x.jsonl/garden"] == ("exact_duplicate", "a/x.jsonl/garden")
    assert results["c/x.jsonl/shorter"] == ("near_duplicate", "a/x.jsonl/baker")
    kept = {row["id"] for source in made for row in chain.rows(f"{source}.final")}
    assert kept == {longest, "a/x.jsonl/garden", "a/x.jsonl/baker", "c/x.jsonl/fiets"}
    assert counts == {"documents": 8, "exact_duplicate": 1, "near_duplicate": 3, "opt_out": 0, "paragraphs_cut": 0}
    stage = chain.statistics(list(made))["totals"]["stages"][1]
    assert stage == {
        "stage": "deduplicate",
        "in": 8,
        "kept": 4,
        "removed": {"exact_duplicate": 1, "near_duplicate": 3},
    }
    assert {row["id"]: row["value"] for row in chain.rows("c.deduplicate")} == {
        "c/x.jsonl/garden": "a/x.jsonl/garden",
        "c/x.jsonl/shorter": "a/x.jsonl/baker",
    }


def test_copies_are_compared_per_row_group(
    chain: Any, texts: dict[str, str], as_json_lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def index_in(values: Any, among: Any) -> Any:
        looked.append(len(among))
        return pc.index_in(values, among)

    monkeypatch.setattr(documents, "ROWS_PER_GROUP", 4)
    monkeypatch.setattr(document_streams, "pc", SimpleNamespace(**{**vars(pc), "index_in": index_in}))
    chain.filter("a", {"x.jsonl": as_json_lines({f"{number}": texts["nl_water"] for number in range(30)})})
    assert chain.deduplicate(["a"])["exact_duplicate"] == 29
    assert len(chain.rows("a.deduplicate")) == 29 and len(chain.rows("a.final")) == 1
    assert looked[:8] == [4] * 7 + [2] and max(looked[8:]) == 1  # then for the kept one, by its two readers


def test_unit_order_does_not_change_the_bytes(new_chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    made = sources(texts, as_json_lines)
    results = set()
    for order in itertools.islice(itertools.permutations(made), 0, 6, 2):
        chain = new_chain()
        for source in order:
            chain.filter(source, {"x.jsonl": made[source]})
        chain.deduplicate(list(order))
        chain.statistics(list(order))
        paths = [f"duplicates/{s}.0.parquet" for s in "abc"]
        names = [*paths, "statistics.json", *(f"{s}.{what}" for s in "abc" for what in ("final", "deduplicate"))]
        results.add(tuple((chain.folder / name).read_bytes() for name in names))
    assert len(results) == 1


@pytest.mark.parametrize(
    ("deduplication", "reasons"),
    [
        (Deduplication(minhash=False), ["exact_duplicate"]),
        (Deduplication(exact=False, minhash=False), []),
        (Deduplication(exact=False), ["exact_duplicate", "near_duplicate"]),
    ],
)
def test_each_kind_of_deduplication_can_be_disabled(
    new_chain: Any, texts: dict[str, str], as_json_lines: Any, deduplication: Deduplication, reasons: list[str]
) -> None:
    chain = new_chain(Corpus(deduplication=deduplication))
    water = texts["nl_water"]
    chain.filter(
        "s",
        {
            "x.jsonl": as_json_lines(
                {"1": water, "2": water.replace("Wie", "WIE"), "3": water[:-40], "4": texts["nl_fiets"]}
            )
        },
    )
    chain.deduplicate(["s"])
    assert sorted({row["reason"] for row in chain.rows("duplicates") if row["reason"]}) == reasons


def test_signatures_equal_those_of_datatrove(texts: dict[str, str], tmp_path: Any) -> None:
    ours, theirs = MinhashSigner(Deduplication()), datatrove_block(str(tmp_path / "theirs"), Deduplication())
    for text in texts.values():
        shingles = theirs.get_shingles(text)
        assert np.array_equal(ours.shingles.hash_text(text), shingles[:, 0])
        assert ours.minhash(shingles[:, 0]).tolist() == theirs.get_signature(shingles)
        assert ours.minhash(shingles[:, 0]).shape == (14, 8)


def test_duplicates_of_other_documents_are_refused(
    chain: Any, new_chain: Any, texts: dict[str, str], as_json_lines: Any
) -> None:
    chain.filter("s", {"x.jsonl": as_json_lines(texts)})
    chain.deduplicate(["s"])
    other = new_chain()
    other.filter("s", {"x.jsonl": as_json_lines({"water": texts["nl_water"]})})
    with pytest.raises(InputError, match=r"s\.0\.parquet is not made from .*s\.filtered"):
        deduplicate.run(
            DeduplicateSettings(),
            documents=other.folder / "s.filtered",
            duplicates=chain.folder / "duplicates" / "s.0.parquet",
            deduplicated=other.folder / "s.final",
            removed=other.folder / "s.deduplicate",
        )


def test_groups_join_transitively() -> None:
    groups = DisjointSets(7)
    groups.join(np.array([0, 3, 1]), np.array([1, 4, 4]))
    groups.join(np.array([6, 6, 6]), np.array([5, 2, 2]))
    assert groups.roots().tolist() == [0, 0, 2, 0, 0, 2, 2]


def test_exact_hash_ignores_case_and_space() -> None:
    assert content_hash("Een  Tekst\n") == content_hash("een tekst")
    assert content_hash("een tekst") != content_hash("eentekst")


def test_lost_document_is_detected(chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    chain.filter("s", {"x.jsonl": as_json_lines(texts)})
    chain.deduplicate(["s"])
    for name, what in (("s.filter", "filter"), ("s.deduplicated", "deduplicate"), ("s.filtered", "filter")):
        before = (chain.folder / name).read_bytes()
        stored = pq.read_metadata(chain.folder / name).metadata[b"polder"]
        table = pq.read_table(chain.folder / name).slice(1).replace_schema_metadata({"polder": stored})
        pq.write_table(table, chain.folder / name)
        with pytest.raises(InputError, match=rf"unit s\.0, step {what}: "):
            chain.statistics(["s"])
        (chain.folder / name).write_bytes(before)
    assert chain.statistics(["s"])["totals"]["documents_out"] == 5


def test_foreign_and_missing_unit_files_are_named(chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    chain.filter("s", {"x.jsonl": as_json_lines(texts)})
    chain.deduplicate(["s"])
    files = {
        "filtered": [chain.folder / "s.filtered"],
        "deduplicated": [chain.folder / "s.deduplicated"],
        "removed": [chain.folder / f"s.{stage}" for stage in statistics.STEPS],
        "contamination": chain.folder / "contamination.json",
        "final": [chain.folder / "s.final"],
    }
    settings = {"corpus": "main", "sources": [{"name": "t", "license": "CC0-1.0", "language": "nl"}]}
    with pytest.raises(InputError, match=r"unit s\.0 belongs to no source of corpus main"):
        statistics.run(StatisticsSettings.model_validate(settings), **files, statistics=chain.folder / "out")
    settings["sources"] = [{"name": "s", "license": "CC0-1.0", "language": "nl"}]
    with pytest.raises(InputError, match=r"unit s\.0 lacks a file of step decontaminate"):
        statistics.run(
            StatisticsSettings.model_validate(settings), **files | {"final": []}, statistics=chain.folder / "out"
        )
