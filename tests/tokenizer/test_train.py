"""A trained tokenizer: same bytes always, no text lost, held-out text unseen, readable by transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as property_settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer

from pipeline.corpus.documents import id_hash, is_validation
from pipeline.ground.errors import InputError
from pipeline.tokenizer import settings, train
from pipeline.tokenizer.encoder import load_encoder
from pipeline.tokenizer.settings import TrainSettings

SMALL = TrainSettings(vocabulary_size=450, validation_fraction=0.1)


def train_in(folder: Path, documents: list[Path], chosen: TrainSettings = SMALL) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    train.run(
        chosen,
        documents=documents,
        tokenizer=folder / "tokenizer.json",
        configuration=folder / "tokenizer_config.json",
    )
    return folder / "tokenizer.json"


@pytest.mark.parametrize("threads", ["1", "4"])
def test_bytes_do_not_depend_on_threads_or_on_the_order_of_files(
    tmp_path: Path, documents: list[Path], threads: str
) -> None:
    here = train_in(tmp_path / "here", documents)
    program = (
        "import sys; from pathlib import Path; from pipeline.tokenizer.train import run; "
        "from pipeline.tokenizer.settings import TrainSettings; "
        "run(TrainSettings.model_validate_json(sys.argv[1]), documents=[Path(p) for p in sys.argv[4:]], "
        "tokenizer=Path(sys.argv[2]), configuration=Path(sys.argv[3]))"
    )
    outputs = [tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"]
    subprocess.run(
        [sys.executable, "-c", program, SMALL.model_dump_json(), *map(str, [*outputs, *reversed(documents)])],
        check=True,
        env={**os.environ, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "true"},
        cwd=Path(__file__).parents[2],
    )
    assert outputs[0].read_bytes() == here.read_bytes()
    assert outputs[1].read_bytes() == (here.parent / "tokenizer_config.json").read_bytes()


def test_what_is_near_a_held_out_document_is_not_trained_on(
    tmp_path: Path, documents: list[Path], write_documents: Callable[..., Path]
) -> None:
    rows = [row for path in documents for row in pq.read_table(path).to_pylist()]
    held_out = [row for row in rows if is_validation(str(row["id"]), SMALL.validation_fraction)]
    for row in rows[:100]:
        row["cluster"] = held_out[0]["id"]
    near = train_in(tmp_path / "near", [write_documents("near", rows)])
    rest = [row for row in rows[100:] if not is_validation(str(row["id"]), SMALL.validation_fraction)]
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


def test_held_out_documents_do_not_shape_the_vocabulary(
    tmp_path: Path, documents: list[Path], write_documents: Callable[..., Path]
) -> None:
    name = next(f"x/{n}" for n in range(1000) if is_validation(f"x/{n}", SMALL.validation_fraction))
    row = {"id": name, "text": "zwetsgrondel " * 500, "language": "nl", "language_score": 1.0, "source": "x"}
    extra = write_documents("extra", [{**row, "license": "CC0-1.0", "id_hash": id_hash(name)}])
    without, with_held_out = train_in(tmp_path / "a", documents), train_in(tmp_path / "b", [*documents, extra])
    assert with_held_out.read_bytes() == without.read_bytes()


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """A tokenizer with no merges at all: every text must survive even that."""
    tokenizer = train.new_tokenizer(SMALL.special_tokens)
    trainer = train.BpeTrainer(
        special_tokens=SMALL.special_tokens, initial_alphabet=train.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["één 's morgens 1234\n\n  don’t"] * 20, trainer)
    tokenizer.encode_special_tokens = True
    return tokenizer


@property_settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back(byte_level: Tokenizer, text: str) -> None:
    encoding = byte_level.encode(text, add_special_tokens=False)
    assert byte_level.decode(encoding.ids, skip_special_tokens=False) == text


@property_settings(deadline=None)
@given(
    st.lists(st.sampled_from(["<|end_of_text|>", " ", "\r\n", "\t", "'s", "’t", "12", "é", "e\u0301", "\x00", "🇳🇱"]))
)
def test_difficult_texts_come_back_and_hold_no_special_token(byte_level: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    encoding = byte_level.encode(text, add_special_tokens=False)
    assert byte_level.decode(encoding.ids, skip_special_tokens=False) == text
    assert not {0, 1, 2} & set(encoding.ids)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("12345 678", ["123", "45", " ", "678"]),
        ("'s avonds", ["'s", " avonds"]),
        ("foto’s", ["foto", "’s"]),
        ("'sinds", ["'sinds"]),
        ("they've", ["they", "'ve"]),
        ("e\u0301e\u0301n, twee", ["e\u0301e\u0301n", ",", " twee"]),
        ("een\n\n  twee", ["een", "\n\n", " ", " twee"]),
        ("stop!\n", ["stop", "!\n"]),
    ],
)
def test_words_are_cut_as_documented(text: str, pieces: list[str]) -> None:
    tokenizer = train.new_tokenizer(SMALL.special_tokens)
    assert tokenizer.pre_tokenizer is not None
    cut = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == pieces


def test_transformers_loads_the_folder_and_encodes_the_same(tmp_path: Path, documents: list[Path]) -> None:
    transformers = pytest.importorskip("transformers")
    path = train_in(tmp_path / "model", documents)
    text = "'s Morgens telde zij 12345 koeien.\n  They've gone , don’t you know ?"
    ours = load_encoder(path)
    for described in (None, {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}):
        if described:
            (path.parent / "config.json").write_text(json.dumps(described), encoding="utf-8")
        loaded = transformers.AutoTokenizer.from_pretrained(str(path.parent))
        assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (0, 1, 2)
        assert len(loaded) == 450 == ours.vocabulary_size
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


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    for content in (b"{", b"{}", b"\xff\xfe"):
        broken.write_bytes(content)
        with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer"):
            load_encoder(broken)
