"""The bytes of a text's tokens join to the text: for every readable kind of tokenizer."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from pipeline.core.errors import InputError
from pipeline.pretrain.adopt import map_vocabularies
from pipeline.tokenizer.encoder import read_token_bytes

TEXTS = ["De zon gaat om 's-gravenhage onder; één café, 12 €.", "Über naïve façades:\n\tja — 日本 🙂", "  twee spaties"]


def byte_level(folder: Path, *, unigram: bool) -> Path:
    tokenizer = Tokenizer(models.Unigram() if unigram else models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "special_tokens": ["<begin>"]}
    trainer = trainers.UnigramTrainer if unigram else trainers.BpeTrainer
    tokenizer.train_from_iterator(TEXTS * 5, trainer(vocab_size=320, **kinds))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def sentence_piece(folder: Path) -> Path:
    """A tokenizer like Llama 2's: spaces are one letter, and unknown characters their bytes."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "d", "e", "\u2581d", "\u2581de"]
    merges = [("\u2581", "d"), ("\u2581d", "e")]
    bpe = models.BPE({piece: n for n, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<s>", "<unk>"])
    tokenizer.add_tokens([AddedToken("[naam]", special=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("kind", ["byte-level", "unigram", "SentencePiece"])
def test_token_bytes_join_to_the_text(kind: str, tmp_path: Path) -> None:
    path = sentence_piece(tmp_path) if kind == "SentencePiece" else byte_level(tmp_path, unigram=kind == "unigram")
    tokenizer, result = Tokenizer.from_file(str(path)), read_token_bytes(path)
    assert len(result) == tokenizer.get_vocab_size()
    for text in TEXTS:
        parts = [result[number] for number in tokenizer.encode(text, add_special_tokens=False).ids]
        assert None not in parts and b"".join(part or b"" for part in parts) == text.encode()
    special = "<s>" if kind == "SentencePiece" else "<begin>"
    assert result[tokenizer.token_to_id(special)] is None
    if kind == "SentencePiece":
        assert (
            result[tokenizer.token_to_id("[naam]")] == b"[naam]" and result[tokenizer.token_to_id("\u2581de")] == b" de"
        )


def test_piece_precedes_the_fallback_byte_of_unknown_letters(tmp_path: Path) -> None:
    path = sentence_piece(tmp_path)
    result, tokenizer = read_token_bytes(path), Tokenizer.from_file(str(path))
    assert [number for number, text in enumerate(result) if text == b"d"] == [102, tokenizer.token_to_id("d")]
    assert map_vocabularies([b"d", b"de", b"x"], result, {}, 3).rows == [
        [tokenizer.token_to_id("d")],
        [tokenizer.token_to_id("d"), tokenizer.token_to_id("e")],
        [tokenizer.token_to_id("<0x78>")],
    ]


def test_tokenizer_with_unknown_text_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordPiece({"[UNK]": 0, "##de": 1}, unk_token="[UNK]")).save(str(path))
    with pytest.raises(InputError, match="neither byte-level nor SentencePiece's"):
        read_token_bytes(path)
    path.write_text("{}")
    with pytest.raises(InputError, match=r"is no tokenizer\.json that can be read"):
        read_token_bytes(path)
