"""Near duplicates follow the theory of MinHash, and datatrove finds the same ones."""

from __future__ import annotations

import hashlib
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from datatrove.data import Document
from datatrove.pipeline.dedup.minhash import MinhashDedupBuckets
from datatrove.utils.text import simplify_text
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from pipeline.corpus import find_duplicates
from pipeline.corpus.duplicates.minhash import MinhashSigner, simplify
from pipeline.corpus.duplicates.signature_files import band_columns, content_hash
from pipeline.corpus.filter import run_blocks
from pipeline.corpus.settings import Deduplication, FindDuplicatesSettings, SignatureSettings
from pipeline.corpus.signatures import write_document_signatures
from tests.corpus.duplicates.datatrove_minhash import configuration, datatrove_block

WORDS, PAIRS = 120, 2500
OURS = MinhashSigner(Deduplication())
THEIRS = datatrove_block("nothing", Deduplication())


@pytest.fixture(scope="module")
def graded() -> list[str]:
    """Return pairs of texts: one, and the same with 0 to 13 words replaced."""
    random = np.random.default_rng(1)
    vocabulary = np.array([f"w{''.join(letters)}" for letters in random.choice(list("abcdefghij"), (5000, 6))])
    texts = []
    for pair in range(PAIRS):
        one = random.choice(vocabulary, WORDS)
        other = one.copy()
        other[random.choice(WORDS, pair % 14, replace=False)] = random.choice(vocabulary, pair % 14)
        texts += [" ".join(one), " ".join(other)]
    return texts


@pytest.fixture(scope="module")
def signed(graded: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the signatures of the graded texts."""
    path = tmp_path_factory.mktemp("graded") / "signatures"
    documents = ((f"{number:05d}", text, None) for number, text in enumerate(graded))
    write_document_signatures(documents, path, SignatureSettings(), {"source": "s", "unit": 0})
    return path


def jaccard(texts: list[str]) -> sparse.coo_matrix:
    """Return the similarity of each pair of texts that share an n-gram, the first text before the second."""
    sets = [set(zip(*(text.split()[start:] for start in range(5)), strict=False)) for text in texts]
    number = {n_gram: place for place, n_gram in enumerate(set().union(*sets))}
    bounds = np.cumsum([0, *map(len, sets)])
    columns = [number[n_gram] for entry in sets for n_gram in entry]
    has = sparse.csr_matrix((np.ones(len(columns)), columns, bounds), shape=(len(texts), len(number)))
    pairs = sparse.triu(has @ has.T, 1).tocoo()
    sizes = np.diff(bounds)
    pairs.data /= sizes[pairs.row] + sizes[pairs.col] - pairs.data
    return pairs


def test_precision_and_recall_follow_the_analytic_curve(graded: list[str], signed: Path) -> None:
    section, pairs = Deduplication(), jaccard(graded)
    table = pq.read_table(signed)
    bands = [table[name].to_numpy() for name in band_columns(section)]
    result = np.logical_or.reduce([keys[pairs.row] == keys[pairs.col] for keys in bands])
    expected = 1 - (1 - pairs.data**section.rows) ** section.bands
    for threshold in (0.5, 0.6, 0.7, 0.8):
        similar = pairs.data >= threshold
        assert similar.sum() > 500
        assert result[similar].mean() == pytest.approx(expected[similar].mean(), abs=0.02)
        precision, promised = similar[result].mean(), expected[similar].sum() / expected.sum()
        assert precision == pytest.approx(promised, abs=0.02)
    everywhere = [set(map(frozenset, _equal(keys))) for keys in bands]
    assert len(set().union(*everywhere)) == result.sum()


def _equal(keys: npt.NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Return all pairs of texts with equal keys, by brute force."""
    order = np.argsort(keys)
    assert not (keys[order[2:]] == keys[order[:-2]]).any()
    same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    return list(zip(order[same].tolist(), order[same + 1].tolist(), strict=True))


def test_clusters_equal_those_of_datatrove(graded: list[str], signed: Path, tmp_path: Path) -> None:
    theirs = datatrove_block(str(tmp_path / "theirs"), Deduplication())
    documents = [Document(text=text, id=str(number)) for number, text in enumerate(graded[:400])]
    theirs.run(iter(documents))
    files = sorted((tmp_path / "theirs").rglob("*.sig"))
    assert len(files) == 14
    values = [OURS.minhash(OURS.shingles.hash_text(document.text)) for document in documents]
    for band, file in enumerate(files):
        rows = sorted((*value[band].tolist(), number) for number, value in enumerate(values))
        assert file.read_bytes() == b"".join(struct.pack("<8QI", *row) for row in rows)
    buckets = MinhashDedupBuckets(
        str(tmp_path / "theirs"), str(tmp_path / "pairs"), config=configuration(Deduplication())
    )
    run_blocks([buckets], tasks=14)
    cluster = list(range(len(documents)))
    for file in sorted((tmp_path / "pairs").glob("*.dups")):
        for _, one, _, other in struct.iter_unpack("<4I", file.read_bytes()):
            joined = {cluster[one], cluster[other]}
            cluster = [min(joined) if entry in joined else entry for entry in cluster]
    path = tmp_path / "signatures"
    write_document_signatures(
        ((document.id, document.text, None) for document in documents),
        path,
        SignatureSettings(),
        {"source": "s", "unit": 0},
    )
    section = FindDuplicatesSettings(deduplication=Deduplication(minimum_jaccard=0))
    find_duplicates.run(
        section, signatures=[path], documents=[path], reserved=[], pairs=[], duplicates=tmp_path / "duplicates"
    )
    kept = {int(row["id"]): row["value"] for row in pq.read_table(tmp_path / "duplicates").to_pylist()}
    assert 100 < len(kept) < 400
    for one, other in pairwise(sorted(range(len(documents)), key=lambda number: (cluster[number], number))):
        assert (cluster[one] == cluster[other]) == (kept.get(one, str(one)) == kept.get(other, str(other)))


@given(st.text())
def test_text_simplification_equals_datatrove(text: str) -> None:
    assert simplify(text) == simplify_text(text)
    assert simplify(f"é{text}") == simplify_text(f"é{text}")


PIECES = [
    "Zee-",
    "3.14",
    " ",
    "\n",
    "’s",
    "ΟΔΟΣ",
    "\u0301",
    "é",
    "€5",
    "\x00",
    "a_b",
    "İ",
    ",",
    "\x85",
    "x" * 40,
    "١٢",
    "ß.",
]


@settings(max_examples=200)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=60).map("".join))
def test_shingles_equal_those_of_datatrove(text: str) -> None:
    assert np.array_equal(OURS.shingles.hash_text(text), THEIRS.get_shingles(text)[:, 0])


@given(st.text())
def test_exact_deduplication_ignores_case_and_white_space(text: str) -> None:
    plain = " ".join(text.casefold().split())
    assert content_hash(text) == (len(plain), hashlib.sha256(plain.encode()).digest())


@pytest.mark.parametrize("words", [0, 4, 5, 259, 260, 261, 1200])
def test_signatures_of_any_length_equal_those_of_datatrove(words: int, tmp_path: Path) -> None:
    section = Deduplication(bands=3, rows=7, seed=5)
    ours, theirs = MinhashSigner(section), datatrove_block(str(tmp_path / "theirs"), section)
    text = " ".join(f"woord{number * number % 97}" for number in range(words))
    shingles = theirs.get_shingles(text)
    assert np.array_equal(ours.shingles.hash_text(text), shingles[:, 0])
    if len(shingles):
        assert ours.minhash(shingles[:, 0]).tolist() == theirs.get_signature(shingles)
        assert ours.band_keys(text)[0] == len(shingles) and len(set(ours.band_keys(text)[1])) == 3
    else:
        assert ours.band_keys(text) == (0, [0, 0, 0])
