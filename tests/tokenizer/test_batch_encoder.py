"""tiktoken gives the ids of tokenizers for any text, or does not encode it."""

from __future__ import annotations

import json
import os
import random
import unicodedata
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE

from pipeline.core.errors import InputError
from pipeline.tokenizer.batch_encoder import BatchEncoder, explain_tiktoken_mismatch
from pipeline.tokenizer.encoder import Encoder, encode_byte_level, load_encoder
from pipeline.tokenizer.train import new_pretokenizer, new_tokenizer

SPECIAL_TOKENS = ["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"]
MARKERS = ["<EMAIL>", "<PHONE>"]
PAGES = Path(__file__).parents[2] / "docs"
PATTERNS = [("left", "dutch"), ("left", "llama3"), ("right", "dutch"), ("single", "llama3")]
PARTS = [
    *(" ", "  ", "\t", "\n", "\r\n", " \n \n", "\u00a0", "\u3000", "\u2028", "\x85", "\x1c", "\x00", "\x7f", "\u200b"),
    *("'s", "’t", "‘n", " 'k", "'S", "'ll", "'d", "'m", "zo'n", "don't", "'\u017f", "'K", "'sé", "''", "’’s"),
    *("1", "12", "1234567", "١٢٣", "Ⅷ", "½", "e\u0301", "\u0301", "é", "ß", "ŉ", "日本語", "🙂", "👩‍👩‍👧", "🇳🇱"),
    *("de polder", " the dyke", "<|end_of_text|>", "<EMAIL>", "<EMAIL", "EMAIL>", "<PHONE>", "<|pad|>", "...", "€!?"),
]


def train_tokenizer(path: Path, digits: str, pretokenizer: str) -> Path:
    from tokenizers import AddedToken
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    tokenizer = new_tokenizer(SPECIAL_TOKENS, digits, pretokenizer)
    texts = [page.read_text(encoding="utf-8") for page in sorted(PAGES.rglob("*.md"))]
    kinds = {"special_tokens": SPECIAL_TOKENS, "initial_alphabet": ByteLevel.alphabet(), "show_progress": False}
    tokenizer.train_from_iterator([*texts, *PARTS * 3], BpeTrainer(vocab_size=2000, **kinds))
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module", params=PATTERNS, ids="-".join)
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load_encoder(train_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json", *request.param))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tokenizer(tmp_path_factory.mktemp("plain") / "tokenizer.json", "left", "dutch")


def assert_equal_ids(encoder: Encoder, batch_encoder: BatchEncoder, texts: list[str]) -> None:
    assert [ids.tolist() for ids in batch_encoder.encode(texts)] == encoder.encode(texts)


def test_random_texts_have_the_same_ids(encoder: Encoder) -> None:
    batch_encoder = BatchEncoder(encoder)
    assert batch_encoder.describe() == {"library": "tiktoken", "documents_with_tokenizers": 0}
    texts = st.lists(st.lists(st.sampled_from(PARTS) | st.text(max_size=4), max_size=12).map("".join), max_size=5)

    @settings(max_examples=300, deadline=None)
    @given(texts)
    def check(texts: list[str]) -> None:
        assert_equal_ids(encoder, batch_encoder, texts)

    check()
    pages = [page.read_text(encoding="utf-8") for page in PAGES.rglob("*.md")]
    assert_equal_ids(encoder, batch_encoder, pages)


def _pair_tokenizer(digits: str, pretokenizer: str) -> Tokenizer:
    """Return a tokenizer with a token for each byte pair, for which nearly any other split of a text has other ids."""
    pairs = [bytes([one, other]) for one in range(256) for other in range(256)]
    random.Random(1).shuffle(pairs)
    spelled = [*map(encode_byte_level, [bytes([byte]) for byte in range(256)] + pairs)]
    vocabulary = {token: number for number, token in enumerate(spelled)}
    tokenizer = Tokenizer(BPE(vocabulary, [(token[0], token[1]) for token in spelled[256:]]))
    tokenizer.pre_tokenizer = new_pretokenizer(digits, pretokenizer)
    return tokenizer


def _check_characters(digits: str, pretokenizer: str, characters: list[str]) -> None:
    encoder = Encoder(_pair_tokenizer(digits, pretokenizer), "", 0, 1, 2)
    batch_encoder = BatchEncoder(encoder)
    assert batch_encoder.reason is None
    rest = iter(characters)
    while some := [*islice(rest, 4096)]:
        texts = [f"a{c}b 1{c}2 {c} '{c} x'{c}!s'{c}'\n{c}\n {c}{c}12345{c}67\t{c} x'{c}s" for c in some]
        assert_equal_ids(encoder, batch_encoder, texts)


@pytest.mark.parametrize(("digits", "pretokenizer"), PATTERNS[:2])
def test_sampled_characters_are_in_the_same_class_in_both_libraries(digits: str, pretokenizer: str) -> None:
    """Unicode's classes of letters, marks, numbers and white space depend on the version of a library."""
    known = [chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    early = [c for c in known[:0x300] if c != "'"]
    white = [c for c in known if c.isspace() or unicodedata.category(c) in ("Cf", "Zs")]
    _check_characters(digits, pretokenizer, [*early, *white, *known[0x300::97]])


@pytest.mark.thorough
@pytest.mark.parametrize(("digits", "pretokenizer"), PATTERNS)
def test_all_characters_are_in_the_same_class_in_both_libraries(digits: str, pretokenizer: str) -> None:
    codes = [*range(0xD800), *range(0xF900, 0x40000), *range(0xE0000, 0xE0200)]  # the others are private or unassigned
    _check_characters(digits, pretokenizer, [*map(chr, codes)])


@pytest.mark.parametrize(
    ("run", "length", "exceptions"),
    [(" ", 10**6, 1), ("!", 10**6, 1), ("a", 10**5, 0), ("1", 10**5, 0), ("\n", 10**5, 0), ("'", 10**5, 0)],
)
def test_repeated_character_has_the_same_ids_at_any_length(plain: Path, run: str, length: int, exceptions: int) -> None:
    encoder = load_encoder(plain)
    batch_encoder = BatchEncoder(encoder)
    assert_equal_ids(encoder, batch_encoder, ["x " + run * length, run * 99, run * 100, run * 101, "short"])
    assert batch_encoder.describe() == {"library": "tiktoken", "documents_with_tokenizers": exceptions}


def test_tokenizer_without_markers_encodes_each_character_as_text(plain: Path, tmp_path: Path) -> None:
    content = json.loads(plain.read_text(encoding="utf-8"))
    del content["added_tokens"][3:]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    encoder = load_encoder(path)
    assert_equal_ids(encoder, BatchEncoder(encoder), ["a\0b\0\0", "<EMAIL><|pad|>", "é" * 9])


def test_encoding_uses_as_many_threads_as_tokenizers(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYON_NUM_THREADS", "3")
    assert BatchEncoder(load_encoder(plain)).threads == 3
    monkeypatch.delenv("RAYON_NUM_THREADS")
    assert BatchEncoder(load_encoder(plain)).threads == len(os.sched_getaffinity(0))


def test_lone_surrogate_is_rejected_by_both_libraries(plain: Path) -> None:
    encoder = load_encoder(plain)
    errors = []
    for encode in (encoder.encode, BatchEncoder(encoder).encode):
        with pytest.raises(Exception) as error:
            encode(["a\ud800b"])
        errors.append(error.type)
    assert errors[0] is errors[1]


def _change(part: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: (content[part] if part else content).update(values)


def _swap_ids(content: dict[str, Any]) -> None:
    vocabulary = content["model"]["vocab"]
    first, second = ("".join(merge) for merge in content["model"]["merges"][:2])
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def _drop_byte(content: dict[str, Any]) -> None:
    vocabulary, byte = content["model"]["vocab"], encode_byte_level(b"\xff")
    vocabulary["unused"] = vocabulary.pop(byte)


def _change_added(index: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["added_tokens"][index].update(values)


def _pretokenizer(index: int, **values: Any) -> dict[str, Any]:
    parts = [{**part, **(values if number == index else {})} for number, part in enumerate(LLAMA3)]
    return {"type": "Sequence", "pretokenizers": parts}


NFC = {"type": "NFC"}
CUT = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
PADDING = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 2, "pad_type_id": 0}
LLAMA3 = json.loads(new_tokenizer(SPECIAL_TOKENS, pretokenizer="llama3").to_str())["pre_tokenizer"]["pretokenizers"]
GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_change("", normalizer=NFC), "it has a normalizer"),
        (_change("", truncation=CUT), "it has a truncation"),
        (_change("", padding={**PADDING, "pad_token": "<|pad|>"}), "it has a padding"),
        (_change("model", ignore_merges=True), "its model has ignore_merges"),
        (_change("model", dropout=0.5), "its model has dropout"),
        (_change("model", unk_token="<|pad|>"), "its model has unk_token"),
        (_change("", pre_tokenizer=GPT2), "its pattern is none of this version's tokenizer.train"),
        (_change("", pre_tokenizer=_pretokenizer(0, behavior="Removed")), "its pattern is none of this version's"),
        (_change("", pre_tokenizer=_pretokenizer(0, invert=True)), "its pattern is none of this version's"),
        (_change("", pre_tokenizer=_pretokenizer(1, add_prefix_space=True)), "its pattern is none of this version's"),
        (_change_added(3, lstrip=True), "the added token '<EMAIL>' does more than stand for its text"),
        (_change_added(4, content="<EMAIL"), "the added tokens '<EMAIL' and '<EMAIL>' may overlap in a text"),
        (_change_added(4, content="MAIL"), "the added tokens 'MAIL' and '<EMAIL>' may overlap in a text"),
        (_change_added(4, content="L><PHONE>"), "the added tokens '<EMAIL>' and 'L><PHONE>' may overlap in a text"),
        (_swap_ids, "are not in the order of their merges"),
        (_drop_byte, r"the byte b'\xff' is no token"),
    ],
)
def test_tokenizer_unsupported_by_tiktoken_is_encoded_with_tokenizers(
    plain: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    content = json.loads(plain.read_text(encoding="utf-8"))
    change(content)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    encoder = load_encoder(path)
    batch_encoder = BatchEncoder(encoder)
    assert batch_encoder.threads == 1 and batch_encoder.describe()["library"] == "tokenizers"
    assert reason in batch_encoder.describe()["reason"]
    if "dropout" not in reason:
        assert_equal_ids(encoder, batch_encoder, ["<EMAIL> 's avonds  in de polder\n", "", "x"])


@pytest.mark.parametrize(
    ("merges", "reason"),
    [
        (["a b", "b c", "a bc"], "the merges do not turn the bytes of 'abc' into it"),
        (["b c", "a b", "a bc", "ab c"], "the ids of 'abc' and 'abc' are not in the order of their merges"),
        (["b c", "a b", "a bc"], None),
    ],
)
def test_merges_that_tiktoken_applies_differently_are_detected(merges: list[str], reason: str | None) -> None:
    pairs = [(one, other) for one, other in map(str.split, merges)]
    spelled = [encode_byte_level(bytes([byte])) for byte in range(256)]
    tokens = [*spelled, *dict.fromkeys(map("".join, pairs))]
    tokenizer = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = new_pretokenizer("left")
    assert explain_tiktoken_mismatch(json.loads(tokenizer.to_str()), tokenizer) == reason
    ranks = {token.encode(): number for number, token in enumerate(tokens) if number >= 256}
    ranks |= {bytes([byte]): byte for byte in range(256)}
    theirs = tiktoken.Encoding("test", pat_str=r"\w+", mergeable_ranks=ranks, special_tokens={})
    assert (theirs.encode_ordinary("abc") == tokenizer.encode("abc").ids) or reason is not None


def test_difference_in_a_batch_ends_the_step(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load_encoder(plain)
    batch_encoder = BatchEncoder(encoder)
    checked = []

    def encode(self: Encoder, texts: list[str]) -> list[list[int]]:
        checked.extend(texts)
        return [[0] for _ in texts]

    monkeypatch.setattr(Encoder, "encode", encode)
    with pytest.raises(InputError, match="encode a part of a document differently: install the versions of the lock"):
        batch_encoder.encode(["de polder " * 1000, "the dyke " * 1000])
    assert [len(part) for part in checked] == [18] and set(checked[0].split()) & {"polder", "dyke"}
    assert batch_encoder.encode(["", ""])[0].dtype == np.uint32
