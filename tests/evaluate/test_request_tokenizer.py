"""The tokens of a request decode to it, whatever the tokenizer adds, joins, normalizes or splits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pipeline.evaluate.request_tokenizer import RequestTokenizer


def fast(tokenizer: Tokenizer, **special: str) -> RequestTokenizer:
    return RequestTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special))


def byte_level(merges: list[tuple[str, str]], normalizer: Any = None) -> Tokenizer:
    pieces = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=merges))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


MERGES = [("a", "b"), ("ab", "a"), ("Ġ", "a"), ("Ċ", "Ċ"), ("Ã", "©"), ("Ã©", "a"), ("b", "Ã"), ("Ġ", "Ġ")]
ROLES = {"bos_token": "<s>", "eos_token": "</s>"}
TOKENIZER = PreTrainedTokenizerFast(tokenizer_object=byte_level(MERGES), **ROLES)
Texts = st.text("abé \n\u0301", max_size=6)


@given(Texts, st.lists(Texts, min_size=1, max_size=3))
def test_pair_tokens_decode_to_the_pair_and_equal_lm_eval_where_possible(
    context: str, continuations: list[str]
) -> None:
    requests = RequestTokenizer(TOKENIZER)
    pairs = requests.encode_pairs([(context, continuation) for continuation in continuations])
    space = context[len(context.rstrip()) :]
    theirs = []
    for continuation in continuations:  # `TemplateLM._encode_pair` of lm-eval 0.4.13, where nothing is added
        before = TOKENIZER.encode(context.rstrip())
        theirs.append((before, TOKENIZER.encode(context + continuation)[len(before) :]))
    are_right = [
        TOKENIZER.decode(before) == context.rstrip() and TOKENIZER.decode(after) == space + continuation
        for (before, after), continuation in zip(theirs, continuations, strict=True)
    ]
    for (before, tokens), continuation in zip(pairs, continuations, strict=True):
        assert before[0] == 0 and 0 not in before[1:] + tokens
        assert TOKENIZER.decode(before[1:]) + TOKENIZER.decode(tokens) == context + continuation
        assert bool(tokens) == bool(space + continuation)
    if all(are_right):
        assert [(before[1:], tokens) for before, tokens in pairs] == theirs


def test_sentencepiece_tokenizer_adds_no_space_inside_a_word() -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁komtenij", "ko", "kom", "komt"]
    merges = [("k", "o"), ("ko", "m"), ("kom", "t")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(dict.fromkeys(pieces))},
            merges=merges,
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    vocabulary = tokenizer.get_vocab()
    requests = fast(tokenizer, **ROLES)
    for before, tokens in requests.encode_pairs([("ij kom", "t"), ("ij kom", "t")]):
        assert before == [1, *(vocabulary[piece] for piece in ("▁", "i", "j", "▁", "kom"))]
        assert tokens == [vocabulary["t"]]
    assert requests.encode_pairs([("ij", " komt")])[0][1] == [vocabulary["▁"], vocabulary["komt"]]


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC"])
def test_characters_merged_or_split_by_a_normalizer_are_evaluated(form: str) -> None:
    requests = fast(byte_level(MERGES, getattr(normalizers, form)()), **ROLES)
    for context, continuation in (("caf", "é"), ("cafe", "\u0301"), ("cafe", "\u0301 a"), ("a", "ﬁ")):
        (before, tokens), (_, other) = requests.encode_pairs([(context, continuation), (context, "b")])
        assert before[0] == 0 and tokens and other


def test_prompt_without_begin_of_text_is_encoded_unchanged() -> None:
    """A tokenizer such as Qwen's: end-of-text precedes a request without context, and nothing precedes a context."""
    requests = fast(byte_level(MERGES), eos_token="</s>")
    assert requests.prefix_id == 1
    assert requests.encode_pairs([("", "ab"), ("b", "b")]) == [
        ([1], requests.encode("ab")),
        (requests.encode("b"),) * 2,
    ]
    assert requests.encode_pairs([("  ", "b")])[0] == ([1], requests.encode("  b"))
    assert requests.encode_prompt("") == [1]
    tokenizer = byte_level(MERGES)
    tokenizer.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 1)])
    named = fast(tokenizer, **ROLES)
    assert named.encode_prompt("ab") == [1, *named.encode("ab")], "the model knows the beginning of the template"


def test_unknown_character_that_merges_into_one_token_is_evaluated() -> None:
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", fuse_unk=True))
    requests = fast(tokenizer, **ROLES)
    assert requests.encode("xy") == [0]
    assert requests.encode_pairs([("x", "y"), ("x", "a")]) == [([1, 0], [0]), ([1, 0], [3])]
