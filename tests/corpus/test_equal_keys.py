"""Jobs that share the keys of a corpus find the copies of a single job, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.corpus import equal_keys, find_duplicates
from pipeline.corpus.duplicates.signature_files import SignatureWriter
from pipeline.corpus.settings import (
    Deduplication,
    DuplicateSelection,
    EqualKeysSettings,
    FindDuplicatesSettings,
    KeyComparison,
)

SECTION = Deduplication(bands=2, prefer=["b"], minimum_jaccard=0, paragraphs=True)
Unit = tuple[str, int]


def write(folder: Path, units: dict[Unit, list[dict[str, Any]]]) -> list[Path]:
    """Write signatures that are given as rows, a file for each unit."""
    folder.mkdir()
    paths = []
    for (source, unit), rows in units.items():
        paths.append(folder / f"{source}.{unit}")
        writer = SignatureWriter(paths[-1], SECTION, {"source": source, "unit": unit})
        for place, row in enumerate(rows):
            writer.add({"id": f"{source}/{unit}/{place}", "ngrams": 1, **row})
        writer.close()
    return paths


def divided(
    section: Deduplication, signatures: list[Path], reserved: list[Path], folder: Path, shares: int
) -> list[Path]:
    """Compare the keys in several jobs, the last share first, and return their files."""
    folder.mkdir()
    keys = section.model_dump(include=set(KeyComparison.model_fields))
    files = [folder / f"{share}.parquet" for share in range(shares)]
    for share in reversed(range(shares)):
        step = EqualKeysSettings(share=share, shares=shares, **keys)
        equal_keys.run(step, signatures=signatures, reserved=reserved, pairs=files[share])
    return files


def find_equal_keys(
    section: DuplicateSelection, signatures: list[Path], reserved: list[Path], pairs: Sequence[Path], duplicates: Path
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the files of the found copies, and the counts."""
    step = FindDuplicatesSettings(deduplication=section)
    files = {"signatures": signatures, "documents": signatures, "reserved": reserved, "pairs": [*pairs]}
    counts = find_duplicates.run(step, **files, duplicates=duplicates)
    return {path.name: path.read_bytes() for path in duplicates.iterdir()}, counts


KEYS = st.integers(0, 30).map(lambda number: number * (2**64 // 31))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "characters": st.integers(1, 3),
            "content_0": KEYS.map(lambda number: number + 1),
            "content_1": st.integers(0, 1),
            "bucket_000": KEYS,
            "bucket_001": KEYS,
            "paragraphs": st.lists(KEYS, max_size=2),
        }
    ),
    max_size=6,
)
UNITS = st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), ROWS, min_size=1, max_size=5)
LISTED = st.one_of(st.just({}), st.dictionaries(st.just(("d", 0)), ROWS))


@pytest.mark.slow
@given(UNITS, LISTED, st.integers(1, 17), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_result_does_not_depend_on_the_number_of_jobs(
    units: dict[Unit, Any], listed: dict[Unit, Any], shares: int, exact: bool, random: Any
) -> None:
    section = SECTION.model_copy(update={"exact": exact, "prefer": random.choice([[], ["b"], ["c", "a"]])})
    with TemporaryDirectory() as name:
        folder = Path(name)
        signatures, reserved = write(folder / "signatures", units), write(folder / "reserved", listed)
        one = find_equal_keys(section, signatures, reserved, [], folder / "one")
        random.shuffle(signatures)
        random.shuffle(reserved)
        pairs = divided(section, signatures, reserved, folder / "pairs", shares)
        # Another preferred source needs the same keys.
        assert find_equal_keys(section, signatures, reserved, pairs, folder / "several") == one


def row(content: int, *bands: int) -> dict[str, Any]:
    """Return the signature of a document without paragraphs."""
    keys = dict(zip(("bucket_000", "bucket_001"), bands, strict=True))
    return {"characters": 1, "content_0": content, "content_1": 1, "paragraphs": [], **keys}


def test_random_columns_are_not_compressed(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "units", {("a", 0): [row(1, 2, 3)]})
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    compressed = {column.path_in_schema for column in columns if column.compression == "ZSTD"}
    assert compressed == {"id", "characters", "ngrams"} and len(columns) > 3
    assert {column.compression for column in columns} == {"ZSTD", "UNCOMPRESSED"}


def test_each_job_compares_its_share_of_the_keys(tmp_path: Path) -> None:
    low, high = 5, 2**63 + 5
    rows = [row(low, 1, low), row(low, 2, high), row(high, 3, low), row(high, 2, high)]
    signatures = write(tmp_path / "signatures", {("s", 0): rows[:3], ("s", 1): rows[3:]})
    for shares, expected in (
        (1, [{(1, 0), (2, 0), (3, 0)}]),
        (3, [{(1, 0), (3, 2)}, {(3, 1)}, {(2, 0), (3, 1)}]),
        (6, [{(1, 0)}, {(3, 2)}, {(3, 1)}, set(), {(2, 0)}, {(3, 1)}]),
    ):
        files = divided(SECTION, signatures, [], tmp_path / f"{shares}", shares)
        tables = [pq.read_table(file).to_pylist() for file in files]
        assert [{(pair["document"], pair["first"]) for pair in table} for table in tables] == expected


def test_shares_of_other_documents_or_divisions_are_refused(tmp_path: Path) -> None:
    rows = [row(1, 2, 3), row(1, 2, 3)]
    signatures = write(tmp_path / "signatures", {("s", 0): rows})
    others = write(tmp_path / "others", {("s", 0): rows[:1], ("s", 1): rows[1:]})
    pairs = divided(SECTION, signatures, [], tmp_path / "pairs", 3)
    with_listed = divided(SECTION, signatures, others[:1], tmp_path / "with listed", 3)
    for section, given_signatures, given_pairs in (
        (SECTION, signatures, pairs[:2]),
        (SECTION, signatures, [pairs[1], pairs[0], pairs[2]]),
        (SECTION, signatures, with_listed),
        (SECTION, others, pairs),
        (SECTION.model_copy(update={"exact": False}), signatures, pairs),
    ):
        with pytest.raises(InputError, match=r"parquet is not share \d of \d of these keys: rerun corpus\.equal_keys"):
            find_equal_keys(section, given_signatures, [], given_pairs, tmp_path / "duplicates")
        assert not (tmp_path / "duplicates").exists()


def test_insufficient_memory_is_one_sentence(tmp_path: Path) -> None:
    signatures = write(tmp_path / "signatures", {("s", 0): [row(1, 2, 3)]})
    with pytest.raises(InputError, match=r"memory_bytes is 20, and 1 documents need 48: raise it to 96"):
        divided(SECTION.model_copy(update={"memory_bytes": 20}), signatures, [], tmp_path / "pairs", 2)
    assert list((tmp_path / "pairs").iterdir()) == []
