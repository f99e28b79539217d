"""A trained tokenizer: reproducible bytes, no text lost, held-out text unseen, readable by transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.corpus.documents import FINAL_SCHEMA, id_hash, is_validation_cluster
from pipeline.tokenizer import settings, train
from pipeline.tokenizer.encoder import Encoder, build_vocabulary_byte_table, load_encoder
from pipeline.tokenizer.settings import TrainSettings

SMALL = TrainSettings(vocabulary_size=450, validation_fraction=0.1)
UNIGRAM = SMALL.model_copy(update={"algorithm": "unigram", "vocabulary_size": 400})
MARKERS = ["<EMAIL>", "<BSN>", "<NUMBER_PLATE>"]


def train_in(folder: Path, documents: list[Path], chosen: TrainSettings = SMALL) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    train.run(
        chosen,
        documents=documents,
        tokenizer=folder / "tokenizer.json",
        configuration=folder / "tokenizer_config.json",
    )
    return folder / "tokenizer.json"


def test_weighted_language_without_text_is_named(tmp_path: Path, documents: list[Path]) -> None:
    chosen = SMALL.model_copy(update={"sample_weights": {"nl": 1.0, "fy": 1.0}})
    with pytest.raises(InputError, match="sample_weights: there is no training text in fy: leave it out"):
        train_in(tmp_path / "x", documents, chosen)


@pytest.mark.parametrize(
    ("chosen", "threads"),
    [
        (SMALL, "4"),
        (UNIGRAM, "1"),
        pytest.param(SMALL, "1", marks=pytest.mark.thorough),
        pytest.param(UNIGRAM, "4", marks=pytest.mark.thorough),
    ],
)
def test_bytes_do_not_depend_on_threads_or_file_order(
    tmp_path: Path, documents: list[Path], chosen: TrainSettings, threads: str
) -> None:
    here = train_in(tmp_path / "here", documents, chosen)
    program = (
        "import sys; from pathlib import Path; from pipeline.tokenizer.train import run; "
        "from pipeline.tokenizer.settings import TrainSettings; "
        "run(TrainSettings.model_validate_json(sys.argv[1]), documents=[Path(p) for p in sys.argv[4:]], "
        "tokenizer=Path(sys.argv[2]), configuration=Path(sys.argv[3]))"
    )
    outputs = [tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"]
    subprocess.run(
        [sys.executable, "-c", program, chosen.model_dump_json(), *map(str, [*outputs, *reversed(documents)])],
        check=True,
        env={**os.environ, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"},
        cwd=Path(__file__).parents[2],
    )
    assert outputs[0].read_bytes() == here.read_bytes()
    assert outputs[1].read_bytes() == (here.parent / "tokenizer_config.json").read_bytes()


def test_near_duplicates_of_held_out_documents_are_not_trained_on(
    tmp_path: Path, documents: list[Path], write_documents: Callable[..., Path]
) -> None:
    rows = [row for path in documents for row in pq.read_table(path).to_pylist()]
    held_out = [row for row in rows if is_validation_cluster(str(row["id"]), SMALL.validation_fraction)]
    for row in rows[:100]:
        row["cluster"] = held_out[0]["id"]
    near = train_in(tmp_path / "near", [write_documents("near", rows)])
    rest = [row for row in rows[100:] if not is_validation_cluster(str(row["id"]), SMALL.validation_fraction)]
    assert near.read_bytes() == train_in(tmp_path / "rest", [write_documents("rest", rest)]).read_bytes()


def test_more_files_are_read_than_may_be_open(
    tmp_path: Path,
    documents: list[Path],
    write_documents: Callable[..., Path],
    few_files: Callable[[int], AbstractContextManager[None]],
) -> None:
    rows = [row for path in documents for row in pq.read_table(path).to_pylist()]
    files = [write_documents(f"{number}", rows[number::200]) for number in range(200)]
    with few_files(130):
        many = train_in(tmp_path / "many", files)
    assert many.read_bytes() == train_in(tmp_path / "few", documents).read_bytes()


def test_held_out_documents_do_not_change_the_vocabulary(
    tmp_path: Path, documents: list[Path], write_documents: Callable[..., Path]
) -> None:
    name = next(f"x/{n}" for n in range(1000) if is_validation_cluster(f"x/{n}", SMALL.validation_fraction))
    row = {"id": name, "text": "zwetsgrondel " * 500, "language": "nl", "language_score": 1.0, "source": "x"}
    extra = write_documents("extra", [{**row, "license": "CC0-1.0", "id_hash": id_hash(name)}])
    without, with_held_out = train_in(tmp_path / "a", documents), train_in(tmp_path / "b", [*documents, extra])
    assert with_held_out.read_bytes() == without.read_bytes()


@pytest.fixture(scope="module", params=[*train.DIGITS, "unigram", "llama3"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """A tokenizer with few tokens besides the bytes: every text must survive even that."""
    folder = tmp_path_factory.mktemp("bytes")
    names = [f"{n}" for n in range(40)]
    rows = [
        {
            "id": name,
            "text": "één 's morgens 1234\n\n  don’t <EMAIL> x",
            "language": "nl",
            "language_score": 1.0,
            "source": "x",
            "license": "CC0-1.0",
            "flags": [],
            "cluster": name,
            "cluster_size": 1,
            "id_hash": id_hash(name),
        }
        for name in sorted(names, key=id_hash)
    ]
    pq.write_table(pa.Table.from_pylist(rows, FINAL_SCHEMA), folder / "documents.parquet")
    key = {"unigram": "algorithm", "llama3": "pretokenizer"}.get(request.param, "digits")
    chosen = TrainSettings(vocabulary_size=265, validation_fraction=0.0, markers=MARKERS, **{key: request.param})
    return load_encoder(train_in(folder, [folder / "documents.parquet"], chosen))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_round_trips(encoder: Encoder, text: str) -> None:
    ids = encoder.encode([text])[0]
    assert encoder.tokenizer.decode(ids, skip_special_tokens=False) == text
    spelled, starts = build_vocabulary_byte_table(encoder)
    assert b"".join(spelled[starts[n] : starts[n + 1]].tobytes() for n in ids) == text.encode()


PARTS = [
    "<|end_of_text|>",
    " ",
    "\r\n",
    "\t",
    "'s",
    "’t",
    "12",
    "345",
    "é",
    "e\u0301",
    "\x00",
    "🇳🇱",
    "<EMAIL>",
    "\x85",
    "\x1c",
]


@given(st.lists(st.sampled_from(PARTS)))
def test_difficult_texts_round_trip_without_special_tokens(encoder: Encoder, parts: list[str]) -> None:
    text = "".join(parts)
    ids = encoder.encode([text])[0]
    assert encoder.tokenizer.decode(ids, skip_special_tokens=True) == text
    assert not {0, 1, 2} & set(ids)
    marker = encoder.tokenizer.token_to_id("<EMAIL>")
    assert ids.count(marker) == parts.count("<EMAIL>") and marker >= 262


@given(
    st.lists(st.sampled_from([*PARTS, "\n", "\n\n", "woord", "."])),
    st.sampled_from(list(train.DIGITS)),
    st.sampled_from(get_args(settings.Pretokenizer)),
)
def test_split_text_has_the_pieces_of_the_whole(parts: list[str], digits: str, pretokenizer: str) -> None:
    text, cutter = "".join(parts), train.new_pretokenizer(digits, pretokenizer)

    def pieces(part: str) -> list[str]:
        return [piece for piece, _ in cutter.pre_tokenize_str(part)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "TEXT_CHARACTERS", 3)
        whole = [piece for part in text.split("<EMAIL>") for piece in pieces(part)]
        assert [piece for part in train.split_text_at_line_starts(text, MARKERS) for piece in pieces(part)] == whole
        assert "".join(train.split_text_at_line_starts(text, [])) == text


def test_long_texts_are_split_at_line_ends() -> None:
    text = "regel één.\n" * 20_000
    parts = list(train.split_text_at_line_starts(text, []))
    assert "".join(parts) == text and len(parts) == 4
    assert all(train.TEXT_CHARACTERS <= len(part) <= train.TEXT_CHARACTERS + 11 for part in parts[:-1])


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("12345 678", ["123", "45", " ", "678"]),
        ("'s avonds", ["'s", " avonds"]),
        ("in 't huis", ["in", " 't", " huis"]),
        ("zag ’s avonds 'n ‘t", ["zag", " ’s", " avonds", " 'n", " ‘t"]),
        ("('t kan), \"'k zie\"", ["(", "'t", " kan", "),", ' "', "'k", " zie", '"']),
        ("in\n't  'n", ["in", "\n", "'t", " ", " 'n"]),
        ("'t\u0301 't3", ["'t\u0301", " 't", "3"]),
        ("'T is 'tis", ["'T", " is", " '", "tis"]),
        ("she 'd I'LL", ["she", " 'd", " I", "'LL"]),
        ("foto’s", ["foto", "’s"]),
        ("'sinds", ["'sinds"]),
        ("they've", ["they", "'ve"]),
        ("e\u0301e\u0301n, twee", ["e\u0301e\u0301n", ",", " twee"]),
        ("een\n\n  twee", ["een", "\n\n", " ", " twee"]),
        ("stop!\n", ["stop", "!\n"]),
    ],
)
def test_words_are_split_as_documented(text: str, pieces: list[str]) -> None:
    tokenizer = train.new_tokenizer(SMALL.special_tokens)
    assert tokenizer.pre_tokenizer is not None
    cut = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == pieces


def test_llama_3_pattern_equals_the_published_one() -> None:
    published = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    assert train.pretoken_pattern("left", "llama3") == published
    cut = train.new_pretokenizer("left", "llama3").pre_tokenize_str("in 't huis, zo'n e\u0301")
    assert [piece.replace("Ġ", " ") for piece, _ in cut] == [
        "in",
        " '",
        "t",
        " huis",
        ",",
        " zo",
        "'n",
        " e",
        "Ìģ",
    ]


@pytest.mark.parametrize(
    ("digits", "pieces"),
    [
        ("left", ["123", "456", "7", " ", "1", ".", "234", ",", "56"]),
        ("right", ["1", "234", "567", " ", "1", ".", "234", ",", "56"]),
        ("single", [*"1234567", " ", "1", ".", *"234", ",", *"56"]),
    ],
)
def test_digits_are_grouped_as_configured(digits: str, pieces: list[str]) -> None:
    cut = train.new_pretokenizer(digits).pre_tokenize_str("1234567 1.234,56")
    assert ["1234567 1.234,56"[start:end] for _, (start, end) in cut] == pieces


@given(st.text("0123456789٣", max_size=20))
def test_right_aligned_digit_groups_have_three_digits_except_the_first(number: str) -> None:
    cut = train.new_pretokenizer("right").pre_tokenize_str(f"x{number}.")
    groups = [end - start for _, (start, end) in cut][1:-1]
    assert sum(groups) == len(number) and all(group == 3 for group in groups[1:]) and all(0 < g <= 3 for g in groups)


def test_long_numbers_are_split_in_linear_time() -> None:
    began = time.process_time()
    train.new_pretokenizer("right").pre_tokenize_str("7" * 200_000)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("chosen", [SMALL, UNIGRAM])
def test_token_length_is_limited(tmp_path: Path, documents: list[Path], chosen: TrainSettings) -> None:
    short = chosen.model_copy(update={"longest_token_bytes": 5, "vocabulary_size": 330})
    for settings_of, longest in ((chosen, 6), (short, 5)):
        encoder = load_encoder(train_in(tmp_path / str(longest), documents, settings_of))
        lengths = np.diff(build_vocabulary_byte_table(encoder)[1])
        assert lengths.max() >= 6 if longest == 6 else lengths.max() == 5


@pytest.mark.parametrize("chosen", [SMALL, UNIGRAM])
def test_markers_are_tokens_and_change_no_others(
    tmp_path: Path, write_documents: Callable[..., Path], documents: list[Path], chosen: TrainSettings
) -> None:
    rows = [
        {**row, "text": row["text"].replace(" ", " <EMAIL> ", 3)} for row in pq.read_table(documents[0]).to_pylist()
    ]
    marked = write_documents("marked", rows)
    with_markers = chosen.model_copy(update={"markers": [*MARKERS, "<|pad|>"], "vocabulary_size": 350})
    encoder = load_encoder(train_in(tmp_path / "a", [marked, documents[1]], with_markers))
    assert encoder.vocabulary_size == 350
    assert [encoder.tokenizer.token_to_id(marker) for marker in MARKERS] == [347, 348, 349]
    assert [encoder.tokenizer.id_to_token(n) for n in range(3)] == chosen.special_tokens
    assert encoder.tokenizer.token_to_id("EMAIL") is None and encoder.tokenizer.token_to_id("<EM") is None
    ids = encoder.encode(["mail <EMAIL>, <EMAIL> of <IBAN>"])[0]
    assert ids.count(347) == 2
    assert encoder.tokenizer.decode(ids, skip_special_tokens=True) == "mail <EMAIL>, <EMAIL> of <IBAN>"


def test_sample_is_trained_on_and_counted(tmp_path: Path, documents: list[Path]) -> None:
    small = SMALL.model_copy(
        update={"sample_bytes": 20_000, "sample_weights": {"nl": 3, "en": 1}, "vocabulary_size": 300}
    )
    counts = train.run(
        small,
        documents=documents,
        tokenizer=tmp_path / "tokenizer.json",
        configuration=tmp_path / "tokenizer_config.json",
    )
    of = {language: part for result in counts["sample"]["sources"].values() for language, part in result.items()}
    assert of["nl"]["bytes"] <= 15_000 < of["nl"]["bytes"] + 500 and of["en"]["bytes"] <= 5_000
    assert counts["documents"] == of["nl"]["documents"] + of["en"]["documents"]
    assert counts["bytes"] == of["nl"]["bytes"] + of["en"]["bytes"] and len(counts["sample"]["ids_sha256"]) == 64
    dutch = train_in(tmp_path / "nl", documents, small.model_copy(update={"sample_weights": {"nl": 1, "en": 0}}))
    alone = train_in(tmp_path / "alone", documents[:1], small.model_copy(update={"sample_weights": {}}))
    assert dutch.read_bytes() == alone.read_bytes()


@pytest.mark.parametrize("chosen", [SMALL, UNIGRAM], ids=["bpe", "unigram"])
def test_transformers_loads_the_folder_and_encodes_the_same(
    tmp_path: Path, documents: list[Path], chosen: TrainSettings
) -> None:
    transformers = pytest.importorskip("transformers")
    path = train_in(tmp_path / "model", documents, chosen.model_copy(update={"markers": MARKERS}))
    text = "'s Morgens telde zij in 't land 12345 koeien: <EMAIL>.\n  They've gone , don’t you know ?"
    ours = load_encoder(path)
    for described in (None, {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}):
        if described:
            (path.parent / "config.json").write_text(json.dumps(described), encoding="utf-8")
        loaded = transformers.AutoTokenizer.from_pretrained(str(path.parent))
        assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (0, 1, 2)
        assert len(loaded) == chosen.vocabulary_size == ours.vocabulary_size
        assert loaded(text)["input_ids"] == [ours.begin_of_text_id, *ours.encode([text])[0]]
        assert loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True) == text


def test_too_little_text_is_refused_with_the_size_reached(tmp_path: Path, documents: list[Path]) -> None:
    with pytest.raises(InputError, match=r"vocabulary_size 100000 cannot be reached.* give \d+ tokens"):
        train_in(tmp_path / "big", documents, TrainSettings(vocabulary_size=100_000, validation_fraction=0.1))
    assert not (tmp_path / "big" / "tokenizer.json").exists()


def test_vocabulary_below_the_byte_alphabet_is_refused_with_the_minimum() -> None:
    with pytest.raises(ValidationError, match=r"vocabulary_size 258 is smaller .* give at least 259"):
        settings.Tokenizer(vocabulary_size=258)
    assert settings.Tokenizer(vocabulary_size=259).vocabulary_size == 259


@pytest.mark.parametrize("tokens", [["<a>", "<b>"], ["<a>", "<b>", "<a>"], ["<a>", "<b>", ""]])
def test_special_tokens_must_be_three_and_different(tokens: list[str]) -> None:
    with pytest.raises(ValidationError, match="special_tokens needs at least three different"):
        settings.Tokenizer(special_tokens=tokens)


def test_file_that_is_not_a_tokenizer_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    for content in (b"{", b"{}", b"\xff\xfe"):
        broken.write_bytes(content)
        with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer"):
            load_encoder(broken)
