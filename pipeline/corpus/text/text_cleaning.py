"""Datatrove block that normalizes characters: mojibake, control characters, line breaks, Unicode NFC, white space."""

from __future__ import annotations

import re
from collections.abc import Iterator

import ftfy
import numpy as np
import numpy.typing as npt
import regex
from datatrove.pipeline.formatters.base import BaseFormatter
from ftfy.badness import is_bad

from pipeline.corpus.settings import Normalization
from pipeline.corpus.text.cached_numba_compilation import cached_njit

# Characters that only the repair of mojibake changes: letters of Latin-1 and Latin Extended-A without ligatures, and
# European punctuation. Text of these and ASCII stays unchanged if nothing looks like mojibake.
_HARMLESS = "\xa0-\u0131\u0134-\u0148\u014a-\u017f‐-―‘’‚“”„†‡•…‰′″‹›€™−"
_SUSPECT = re.compile(rf"[^\n\t\x20-\x7e{_HARMLESS}]")
_ENTITY = re.compile("&#?[0-9A-Za-z]{1,24};")
# All mojibake has one of these characters or two neighbors outside ASCII, which is much faster to check. Each pattern
# begins with a character set, so that `re` skips to it.
_BAD = (re.compile("[\x80-\x9fÂÃŒœ]"), re.compile(r"[^\x00-\x7f][^\x00-\x7f]"))
_ODD, _NEAR = re.compile(r"[^\x00-\x7f]{2,}|[\x80-\x9fÂÃŒœ]"), 8  # characters of context for ftfy

# Soft hyphens, zero-width spaces, word joiners and direction marks; joiners of emoji and scripts are kept.
_INVISIBLE = re.compile("[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
# Control characters that separate words and lines, and that ftfy deletes: as characters and as entities.
_SEPARATOR = re.compile("[\x0b\x1c-\x1f]")
_SEPARATED = str.maketrans("\x0b\x1c\x1d\x1e\x1f", "\n\n\n\n ")
_SEPARATOR_ENTITY = re.compile("&#(?:0*(?:11|2[89]|3[01])|x0*(?:b|1[c-f]))(?:;|(?![0-9a-f]))", re.IGNORECASE)
_BLANK = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
# One pass over a text finds which of these patterns can match: a bit per pattern, and one for two neighbors outside
# ASCII.
_PATTERN_BITS = {_SUSPECT: 1, _BAD[0]: 2, _BAD[1]: 4, _INVISIBLE: 8, _BLANK: 16, _SEPARATOR: 32}
_PAIR = _PATTERN_BITS[_BAD[1]]
_CHARACTERS = "".join(map(chr, range(0x3000)))


def _mark_characters(pattern: re.Pattern[str], bit: int) -> npt.NDArray[np.uint8]:
    """Return the bit of a pattern of one character for each of the characters, shape (0x3000,)."""
    bits = np.zeros(len(_CHARACTERS), np.uint8)
    bits[[match.start() for match in pattern.finditer(_CHARACTERS)]] = bit
    return bits


_BITS = np.bitwise_or.reduce([_mark_characters(*pair) for pair in _PATTERN_BITS.items() if pair[1] != _PAIR])
# No script has more than 30 marks on a letter (Unicode Standard Annex 15, Stream-Safe Text Format), and the time of NFC
# is quadratic in their number.
_MARKS = regex.compile(r"(\p{M}{30})\p{M}+")
_LINE_END = re.compile(r"[ \t]+$", re.M)
_EMPTY_LINES = re.compile(r"\n{3,}")
_LINE_BEGIN = re.compile(r"^[ \t]+", re.M)
_RUN = re.compile(r"[ \t]{2,}|\t")

# An em dash becomes two hyphens: with one, the words around it would be a compound.
_ASCII = (
    dict.fromkeys("“”„‟«»″〝〞", '"')
    | dict.fromkeys("‘’‚‛‹›′´", "'")
    | dict.fromkeys("‐‑‒–−", "-")
    | {"—": "--", "―": "--", "…": "..."}
)
_TYPOGRAPHIC = re.compile(f"[{''.join(_ASCII)}]")


@cached_njit
def _scan_pattern_bits(data: npt.NDArray[np.uint8]) -> int:
    """Return the pattern bits of a text in UTF-8; all bits if a character is beyond U+2FFF."""
    bits, place, before = 0, 0, False
    while place < len(data):
        code = np.int64(data[place])
        if code < 0x80:
            bits |= _BITS[code]
            place, before = place + 1, False
            continue
        if code < 0xE0:
            bits |= _BITS[(code & 0x1F) << 6 | data[place + 1] & 0x3F]
            place += 2
        elif code < 0xE3:
            bits |= _BITS[(code & 0x0F) << 12 | (data[place + 1] & 0x3F) << 6 | data[place + 2] & 0x3F]
            place += 3
        else:
            return 0xFF
        bits |= _PAIR if before else 0
        before = True
    return bits


def _pattern_bits(text: str) -> int:
    return _scan_pattern_bits(np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8))


def _matching_lines(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    match = pattern.search(text)
    while match:
        end = text.find("\n", match.start())
        end = len(text) if end < 0 else end
        yield text.rfind("\n", 0, match.start()) + 1, end
        match = pattern.search(text, end)


def _may_be_mojibake(line: str) -> bool:
    """Return whether a line may contain mojibake; ftfy's own check is slow on long lines."""
    return any(is_bad(line[max(0, match.start() - _NEAR) : match.end() + _NEAR]) for match in _ODD.finditer(line))


def _repair_lines(text: str, seen: int) -> str:
    """Return the text with lines repaired by ftfy; lines that ftfy would not change, the majority, are skipped."""
    lines = {
        pattern: set(_matching_lines(text, pattern))
        for pattern in (_SUSPECT, _ENTITY, *_BAD)
        if pattern is _ENTITY or seen & _PATTERN_BITS[pattern]
    }
    harmed = lines.pop(_ENTITY) | lines.pop(_SUSPECT, set())
    unsure = set().union(*lines.values()) - harmed
    harmed |= {(start, end) for start, end in unsure if _may_be_mojibake(text[start:end])}
    if not harmed:
        return text
    # As ftfy does for a complete text: unescape HTML entities only if there are no tags.
    config = ftfy.TextFixerConfig(uncurl_quotes=False, explain=False, unescape_html="<" not in text)
    pieces, last = [], 0
    for start, end in sorted(harmed):
        line = _SEPARATOR_ENTITY.sub(" ", text[start:end]) if config.unescape_html else text[start:end]
        pieces += [text[last:start], ftfy.fix_text(_MARKS.sub(r"\1", line), config)]
        last = end
    return "".join([*pieces, text[last:]])


def _tidy_white_space(text: str, collapse: bool, seen: int) -> str:
    """Return the text with normalized white space; the quick checks avoid most substitutions."""
    if "\x0c" in text:
        text = text.replace("\x0c", "\n")
    if seen & _PATTERN_BITS[_INVISIBLE]:
        text = _INVISIBLE.sub("", text)
    if seen & _PATTERN_BITS[_BLANK]:
        text = _BLANK.sub(" ", text)
    if collapse:
        text = _RUN.sub(" ", _LINE_BEGIN.sub("", text))
    if " \n" in text or "\t\n" in text:
        text = _LINE_END.sub("", text)
    if "\n\n\n" in text:
        text = _EMPTY_LINES.sub("\n\n", text)
    return text.strip("\n").rstrip()


class TextCleaner(BaseFormatter):  # type: ignore[misc]
    """Repairs texts line by line with ftfy, then normalizes punctuation and white space as configured."""

    name = "Normalize characters"

    def __init__(self, settings: Normalization | None = None) -> None:
        super().__init__()
        self.settings = settings or Normalization()

    def format(self, text: str) -> str:
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        seen = _pattern_bits(text)
        if seen & _PATTERN_BITS[_SEPARATOR]:
            text = text.translate(_SEPARATED)
            seen = _pattern_bits(text)
        repaired = _repair_lines(text, seen)
        if repaired is not text:
            text, seen = repaired, _pattern_bits(repaired)
        if self.settings.punctuation and not text.isascii():
            text = _TYPOGRAPHIC.sub(lambda mark: _ASCII[mark.group()], text)
        return (
            text
            if self.settings.white_space == "keep"
            else _tidy_white_space(text, self.settings.white_space == "collapse", seen)
        )
