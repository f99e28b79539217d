"""Equal keys are found for any values and any memory limit, and joined keys form one group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.corpus.document_streams import remove_paragraphs_from_text
from pipeline.corpus.duplicates import key_groups
from pipeline.corpus.duplicates.key_groups import RECORD_BYTES, DisjointSets, pair_equal_keys
from pipeline.corpus.duplicates.signature_files import Keys, Numbers, SignedUnit, paragraph_keys
from pipeline.corpus.settings import Corpus, Deduplication

UNITS = [SignedUnit(Path(str(place)), "s", place, 0, 0, 0, 0, 0, 0) for place in range(3)]


def find_pairs(records: list[tuple[int, ...]], columns: int, memory_bytes: int) -> list[tuple[int, int]]:
    """Return the pairs of records in three units, the third of which is empty, sorted by the second."""
    keys = np.array(records, dtype=np.uint64).reshape(-1, columns).T
    half = len(records) // 2
    shares = {0: slice(0, half), 1: slice(half, None), 2: slice(0, 0)}

    def read(unit: SignedUnit) -> tuple[Keys, Numbers]:
        return keys[:, shares[unit.unit]], np.arange(keys.shape[1])[shares[unit.unit]]

    pairs = [zip(*entry, strict=True) for entry in pair_equal_keys(UNITS, read, len(records), memory_bytes)]
    return sorted(((int(one), int(other)) for some in pairs for one, other in some), key=lambda pair: pair[1])


def expected(records: list[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Return the same with a dictionary."""
    first: dict[tuple[int, ...], int] = {}
    pairs = [(first.setdefault(key, place), place) for place, key in enumerate(records) if key[0]]
    return [(one, other) for one, other in pairs if one != other]


# Few and many different keys, from all of the 64 bits and from a corner of them.
KEYS = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1), st.sampled_from([2**64 - 1, 2**63, 2**32, 2**32 - 1]))


@given(
    st.integers(1, 2).flatmap(lambda columns: st.lists(st.tuples(*[KEYS] * columns), max_size=60)),
    st.sampled_from([1, 7, 1000]),
    st.integers(1, 20),
)
@example([(2**32 * (number % 700), 1) for number in range(2000)], 1000, 1)
@settings(max_examples=60)
def test_pairs_equal_those_of_a_dictionary(records: list[tuple[int, ...]], bucket_records: int, parts: int) -> None:
    memory_bytes = max(1, -(-len(records) * RECORD_BYTES // parts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_groups, "BUCKET_RECORDS", bucket_records)
        assert find_pairs(records, len(records[0]) if records else 1, memory_bytes) == expected(records)


def test_bucket_overflow_finds_all_keys() -> None:
    records = [(number % 3000 + 1,) for number in range(9000)]
    assert find_pairs(records, 1, 10**9) == expected(records)


def test_no_units_give_no_pairs() -> None:
    def read(unit: SignedUnit) -> Any:
        raise AssertionError

    assert list(pair_equal_keys([], read, 0, 100)) == []


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=30), st.integers(0, 30))
def test_joined_documents_have_the_smallest_index_of_their_group(pairs: list[tuple[int, int]], cut: int) -> None:
    joined = DisjointSets(20)
    for some in (pairs[:cut], pairs[cut:]):
        ones, others = np.array(some, dtype=np.int64).reshape(-1, 2).T
        joined.join(ones.copy(), others.copy())
    smallest = list(range(20))
    for _ in smallest:
        for one, other in pairs:
            smallest[one] = smallest[other] = min(smallest[one], smallest[other])
    assert joined.roots().tolist() == smallest


SECTION = Deduplication(paragraphs=True, paragraph_characters=40, prefer=["b"])


@pytest.mark.slow
def test_paragraph_is_kept_at_its_first_occurrence(new_chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    chain = new_chain(Corpus(deduplication=SECTION))
    notice = "Overname van deze tekst is toegestaan, mits met een duidelijke bronvermelding."
    water, baker, bicycle = texts["nl_water"], texts["nl_bakker"], texts["nl_fiets"]
    chain.filter(
        "a",
        {"x.jsonl": as_json_lines({"1": f"{water}\n\nKort.\n\n{notice}", "2": f"{notice}\n\n{texts['en_garden']}"})},
    )
    chain.filter(
        "b", {"x.jsonl": as_json_lines({"1": f"{baker}\n\nKort.\n\n{notice}\n\n{bicycle}\n\n{notice.upper()}"})}
    )
    chain.filter("c", {"x.jsonl": as_json_lines({"1": f"{bicycle}\n\n{water}"})})
    counts = chain.deduplicate(["a", "b", "c"])
    assert (counts["paragraphs_cut"], counts["near_duplicate"], counts["exact_duplicate"]) == (5, 0, 0)
    final = {row["id"]: row["text"] for source in "abc" for row in chain.rows(f"{source}.final")}
    assert final == {
        "a/x.jsonl/1": f"{water}\n\nKort.",
        "a/x.jsonl/2": texts["en_garden"],
        "b/x.jsonl/1": f"{baker}\n\nKort.\n\n{notice}\n\n{bicycle}",
    }
    assert [(row["id"], row["reason"]) for row in chain.rows("c.deduplicate")] == [
        ("c/x.jsonl/1", "duplicate_paragraphs")
    ]
    stage = chain.statistics(["a", "b", "c"])["totals"]["stages"][1]
    assert (stage["in"], stage["kept"], stage["removed"]) == (4, 3, {"duplicate_paragraphs": 1})
    for source in "ab":
        chain.refilter(source)
    assert chain.deduplicate(["a", "b"])["paragraphs_cut"] == 0


def test_paragraphs_of_removed_copies_are_ignored(new_chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    chain = new_chain(Corpus(deduplication=SECTION))
    chain.filter("a", {"x.jsonl": as_json_lines({"1": texts["nl_water"], "2": texts["nl_water"]})})
    counts = chain.deduplicate(["a"])
    assert (counts["exact_duplicate"], counts["paragraphs_cut"]) == (1, 0)
    assert [row["text"] for row in chain.rows("a.final")] == [texts["nl_water"]]


@given(st.lists(st.text("ab \n", max_size=12)))
def test_remaining_text_is_unchanged(paragraphs: list[str]) -> None:
    text = "\n\n".join(paragraphs)
    keys = paragraph_keys(text, 4)
    assert remove_paragraphs_from_text(text, []) == text.strip()
    left = [place for place, key in enumerate(keys) if key not in keys[:place] or not key]
    shorter = remove_paragraphs_from_text(text, set(range(len(keys))) - set(left))
    again = [key for key in paragraph_keys(shorter, 4) if key]
    assert again == list(dict.fromkeys(key for key in keys if key))


@pytest.mark.parametrize(("text", "expected"), [("", [0]), ("kort", [0]), ("a\n\n \n\nb", [0, 0])])
def test_short_paragraphs_have_no_key(text: str, expected: list[int]) -> None:
    assert paragraph_keys(text, 5) == expected
