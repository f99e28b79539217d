"""Tokenize a request once, for the model, the word models and the published columns.

The post-processor of a tokenizer may put begin-of-text before a text, end-of-text after it, both or neither. It is not
used here: a model reads begin-of-text once, before the request, and predicts the tokens of the text alone. So the same
weights have the same scores whatever their tokenizer adds.

lm-eval 0.4.13 encodes with the post-processor. Where that adds begin-of-text, `loglikelihood_rolling` predicts it after
another one (`HFLM.loglikelihood_rolling` puts `prefix_token_id` before `tok_encode(string)`); where it adds
end-of-text, `TemplateLM._encode_pair` counts one token of the context too many.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Pair = tuple[list[int], list[int]]
"""The tokens that a model reads first, at least one, and the tokens whose probability is asked."""


class RequestTokenizer:
    """Encodes texts, prompts and continuations for a causal language model.

    The name of a special token in a text is spelled out as text, as in the corpus.

    Attributes:
        prefix_id: the token before a text without a context: begin-of-text; end-of-text of a tokenizer without one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        plain, processed = self.encode("a"), tokenizer.encode("a")
        begin = tokenizer.bos_token_id if plain[:1] == processed[:1] else processed[0]
        self._begin: list[int] = [] if begin is None else [begin]
        self.prefix_id: int = tokenizer.eos_token_id if begin is None else begin

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special ones."""
        return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def encode_prompt(self, text: str) -> list[int]:
        """Return the tokens that a model reads of a prompt: begin-of-text, where the tokenizer has it, and the text."""
        return self._prepend_begin(self.encode(text))

    def encode_pairs(self, texts: Sequence[tuple[str, str]]) -> list[Pair]:
        """Return the tokens of each (context, continuation) of one item.

        White space at the end of a context belongs to the continuation. The tokens of a continuation are those of both
        texts together after those of the context. If these do not begin with the context's tokens, as for `werk` + `t`
        with a token `werkt`, no token spells the continuation alone: each continuation of the item is then encoded
        separately. lm-eval uses the remaining tokens in such a case, which may be none or spell another text.
        """
        moved = [move_trailing_space(*one) for one in texts]
        together = [self._encode_joint(*one) for one in moved]
        if all(tokens or not continuation for (_, tokens), (_, continuation) in zip(together, moved, strict=True)):
            return together
        return [
            (self.encode_prompt(context), self._encode_separate(context, continuation))
            for context, continuation in moved
        ]

    def _encode_joint(self, context: str, continuation: str) -> Pair:
        """Return both as they are encoded together; no continuation where no token begins with it."""
        before, both = self.encode(context), self.encode(context + continuation)
        return self._prepend_begin(before), both[len(before) :] if both[: len(before)] == before else []

    def _prepend_begin(self, tokens: list[int]) -> list[int]:
        return [*self._begin, *tokens] or [self.prefix_id]

    def _encode_separate(self, context: str, continuation: str) -> list[int]:
        """Return tokens that spell a continuation after the tokens of its context."""
        line, after_line = self.encode("\n"), self.encode("\n" + continuation)
        # SentencePiece puts a space before a text that is encoded by itself, and none after a line break.
        # Where unknown characters are one token together, that of a second one may be in the first spelling only.
        spellings = [tokens for tokens in (self.encode(continuation), after_line[len(line) :]) if tokens] or [[]]
        before, spelled = self.encode(context), self._decode(self.encode(context + continuation))
        return next((tokens for tokens in spellings if self._decode(before + tokens) == spelled), spellings[0])

    def _decode(self, tokens: list[int]) -> str:
        return unicodedata.normalize("NFC", str(self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)))


def move_trailing_space(context: str, continuation: str) -> tuple[str, str]:
    """Return a context without the white space at its end, and the continuation with it, as lm-eval asks for them."""
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation
