"""The datatrove block that repairs characters: mojibake, control characters, line breaks, Unicode NFC, white space."""

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
from pipeline.corpus.text.numba_cache import cached_njit

# Characters that only the repair of mojibake may change: letters of Latin-1 and Latin Extended-A without ligatures, and
# the punctuation of European languages. Text of these and ASCII, in which nothing looks like mojibake, stays as it is.
_HARMLESS = "\xa0-\u0131\u0134-\u0148\u014a-\u017f‐-―‘’‚“”„†‡•…‰′″‹›€™−"
_SUSPECT = re.compile(rf"[^\n\t\x20-\x7e{_HARMLESS}]")
_ENTITY = re.compile("&#?[0-9A-Za-z]{1,24};")
# All mojibake has one of these characters or two neighbours outside ASCII, which is far quicker to see. Each pattern
# begins with a character or a set of them: `re` skips to that.
_BAD = (re.compile("[\x80-\x9fÂÃŒœ]"), re.compile(r"[^\x00-\x7f][^\x00-\x7f]"))
_ODD, _NEAR = re.compile(r"[^\x00-\x7f]{2,}|[\x80-\x9fÂÃŒœ]"), 8  # characters around them that mojibake may take

# Soft hyphens, zero-width spaces and joiners of words, marks of direction; the joiners of emoji and scripts stay.
_INVISIBLE = re.compile("[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
# What separates words and lines though it is a control character, which ftfy deletes: as itself and as an entity.
_SEPARATOR = re.compile("[\x0b\x1c-\x1f]")
_SEPARATED = str.maketrans("\x0b\x1c\x1d\x1e\x1f", "\n\n\n\n ")
_SEPARATOR_ENTITY = re.compile("&#(?:0*(?:11|2[89]|3[01])|x0*(?:b|1[c-f]))(?:;|(?![0-9a-f]))", re.IGNORECASE)
_BLANK = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
# What a text can hold at all is seen in one pass: the bits of its characters, and that two are outside ASCII together.
_PATTERN_BITS = {_SUSPECT: 1, _BAD[0]: 2, _BAD[1]: 4, _INVISIBLE: 8, _BLANK: 16, _SEPARATOR: 32}
_PAIR = _PATTERN_BITS[_BAD[1]]
_BITS = np.array(
    [sum(bit for pattern, bit in _PATTERN_BITS.items() if pattern.fullmatch(chr(code))) for code in range(0x3000)],
    np.uint8,
)
# No script has more marks on a letter than 30 (Unicode Standard Annex 15, Stream-Safe Text Format), and the time of NFC
# grows with the square of their number.
_MARKS = regex.compile(r"(\p{M}{30})\p{M}+")
_LINE_END = re.compile(r"[ \t]+$", re.M)
_EMPTY_LINES = re.compile(r"\n{3,}")
_LINE_BEGIN = re.compile(r"^[ \t]+", re.M)
_RUN = re.compile(r"[ \t]{2,}|\t")

# An em dash becomes two hyphens, as on a typewriter: with one, the words at its sides would be one compound.
_ASCII = (
    dict.fromkeys("“”„‟«»″〝〞", '"')
    | dict.fromkeys("‘’‚‛‹›′´", "'")
    | dict.fromkeys("‐‑‒–−", "-")
    | {"—": "--", "―": "--", "…": "..."}
)
_TYPOGRAPHIC = re.compile(f"[{''.join(_ASCII)}]")


@cached_njit
def _bits(data: npt.NDArray[np.uint8]) -> int:
    """Return the bits of the characters of a text in UTF-8; all of them where one is beyond U+2FFF."""
    found, place, before = 0, 0, False
    while place < len(data):
        code = np.int64(data[place])
        if code < 0x80:
            found |= _BITS[code]
            place, before = place + 1, False
            continue
        if code < 0xE0:
            found |= _BITS[(code & 0x1F) << 6 | data[place + 1] & 0x3F]
            place += 2
        elif code < 0xE3:
            found |= _BITS[(code & 0x0F) << 12 | (data[place + 1] & 0x3F) << 6 | data[place + 2] & 0x3F]
            place += 3
        else:
            return 0xFF
        found |= _PAIR if before else 0
        before = True
    return found


def _character_bits(text: str) -> int:
    return _bits(np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8))


def _matching_lines(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the lines in which the pattern is found."""
    match = pattern.search(text)
    while match:
        end = text.find("\n", match.start())
        end = len(text) if end < 0 else end
        yield text.rfind("\n", 0, match.start()) + 1, end
        match = pattern.search(text, end)


def _may_be_mojibake(line: str) -> bool:
    """Return whether ftfy looks for mojibake in a line; it may look in vain, and its search is slow on long lines."""
    return any(is_bad(line[max(0, found.start() - _NEAR) : found.end() + _NEAR]) for found in _ODD.finditer(line))


def _repair_lines(text: str, seen: int) -> str:
    """Return what ftfy makes of each line; lines that it would leave as they are, which most are, do not get there."""
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
    # As ftfy does for a whole text: HTML entities are only a mistake where there are no tags.
    config = ftfy.TextFixerConfig(uncurl_quotes=False, explain=False, unescape_html="<" not in text)
    pieces, last = [], 0
    for start, end in sorted(harmed):
        line = _SEPARATOR_ENTITY.sub(" ", text[start:end]) if config.unescape_html else text[start:end]
        pieces += [text[last:start], ftfy.fix_text(_MARKS.sub(r"\1", line), config)]
        last = end
    return "".join([*pieces, text[last:]])


def _tidy_white_space(text: str, collapse: bool, seen: int) -> str:
    """Return the text with its white space as the settings say; most of what is looked for first is not there."""
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


class TextNormalizer(BaseFormatter):  # type: ignore[misc]
    """Repairs a text line by line with ftfy, then its punctuation and white space as the settings say."""

    name = "Normalise characters"

    def __init__(self, settings: Normalization | None = None) -> None:
        super().__init__()
        self.settings = settings or Normalization()

    def format(self, text: str) -> str:
        """Return the repaired text in NFC."""
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        seen = _character_bits(text)
        if seen & _PATTERN_BITS[_SEPARATOR]:
            text = text.translate(_SEPARATED)
            seen = _character_bits(text)
        repaired = _repair_lines(text, seen)
        if repaired is not text:
            text, seen = repaired, _character_bits(repaired)
        if self.settings.punctuation and not text.isascii():
            text = _TYPOGRAPHIC.sub(lambda mark: _ASCII[mark.group()], text)
        return (
            text
            if self.settings.white_space == "keep"
            else _tidy_white_space(text, self.settings.white_space == "collapse", seen)
        )
