r"""How a text is cut into words, numbers, punctuation and white space before a tokenizer reads it.

A pattern in the manner of Llama 3 (Grattafiori et al. 2024, https://arxiv.org/abs/2407.21783), here also for Dutch:
combining marks belong to their word, and a clitic after an apostrophe stands alone: with the space before it where it
is free ('t huis, 's avonds, zo'n, don't). No token goes beyond such a piece, and each piece can be one token.

Numbers are cut in groups of three digits from the left, as in Llama 3, or from the right, so that the same place of two
numbers is the same place of a group, which makes sums easier (Singh and Strouse 2024,
https://arxiv.org/abs/2402.14903).
"""

from __future__ import annotations

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

_CLITIC = r"(?i:['’‘](?:[dkmnst]|ll|re|ve))(?![\p{L}\p{M}])"
DIGITS = {
    "left": r"\p{N}{1,3}",
    # The rest of a number decides only where it begins, so that a long one is read twice and not once a group.
    "right": r"(?<!\p{N})\p{N}{1,2}(?=(?>(?:\p{N}{3})+)(?!\p{N}))|\p{N}{3}|\p{N}{1,2}",
    "single": r"\p{N}",
}


def pattern(digits: str) -> str:
    """The pattern of one piece; `digits` is a key of DIGITS."""
    return "|".join(
        (
            rf" ?{_CLITIC}",  # clitics: 's, 't, 'll, with the space before a free one
            r"[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]+",  # a word with the space or sign before it
            DIGITS[digits],
            rf" ?(?:(?!{_CLITIC})[^\s\p{{L}}\p{{M}}\p{{N}}])+[\r\n]*",  # punctuation with the line end after it
            r"\s*[\r\n]+",  # line ends with the white space before them
            r"\s+(?!\S)",  # white space, but for the one space that belongs to the next word
            r"\s+",
        )
    )


def pretokenizer(digits: str) -> Sequence:
    """What cuts a text by the pattern and spells the pieces in bytes."""
    return Sequence(
        [Split(Regex(pattern(digits)), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
