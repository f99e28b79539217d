"""The datatrove block that repairs characters: mojibake, control characters, line breaks, Unicode NFC, white space."""

from __future__ import annotations

import re

import ftfy
from datatrove.pipeline.formatters.base import BaseFormatter
from ftfy.badness import is_bad

from pipeline.corpus.settings import Normalisation

# Characters that only the repair of mojibake may change: letters of Latin-1 and Latin Extended-A without ligatures, and
# the punctuation of European languages. Text of these and ASCII, in which nothing looks like mojibake, stays as it is.
_HARMLESS = "\xa0-\u0131\u0134-\u0148\u014a-\u017f‐-―‘’‚“”„†‡•…‰′″‹›€™−"
_SUSPECT = re.compile(rf"[^\n\t\x20-\x7e{_HARMLESS}]|&")
# All mojibake has two neighbours outside ASCII or one of these characters, which is far quicker to see.
_BAD = re.compile("[^\x00-\x7f]{2}|[\x80-\x9fÂÃŒœ]")

# Soft hyphens, zero-width spaces and joiners of words, marks of direction; the joiners of emoji and scripts stay.
_INVISIBLE = re.compile("[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_BLANK = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
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


def _repaired(text: str) -> str:
    """Return what ftfy makes of each line; lines that it would leave as they are, which most are, do not get there."""
    if not _SUSPECT.search(text) and (text.isascii() or not _BAD.search(text)):
        return text
    # As ftfy does for a whole text: HTML entities are only a mistake where there are no tags.
    config = ftfy.TextFixerConfig(uncurl_quotes=False, explain=False, unescape_html="<" not in text)
    return "\n".join(ftfy.fix_text(line, config) if _harmed(line) else line for line in text.split("\n"))


def _harmed(line: str) -> bool:
    return bool(_SUSPECT.search(line)) or (bool(_BAD.search(line)) and is_bad(line))


def _tidy(text: str, collapse: bool) -> str:
    """Return the text with its white space as the settings say; most of what is looked for first is not there."""
    if "\x0c" in text:
        text = text.replace("\x0c", "\n")
    if not text.isascii():
        text = _BLANK.sub(" ", _INVISIBLE.sub("", text))
    if collapse:
        text = _RUN.sub(" ", _LINE_BEGIN.sub("", text))
    if " \n" in text or "\t\n" in text:
        text = _LINE_END.sub("", text)
    if "\n\n\n" in text:
        text = _EMPTY_LINES.sub("\n\n", text)
    return text.strip("\n").rstrip()


class Normalise(BaseFormatter):  # type: ignore[misc]
    """Repairs a text line by line with ftfy, then its punctuation and white space as the settings say."""

    name = "Normalise characters"

    def __init__(self, settings: Normalisation | None = None) -> None:
        super().__init__()
        self.settings = settings or Normalisation()

    def format(self, text: str) -> str:
        """Return the repaired text in NFC."""
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = _repaired(text)
        if self.settings.punctuation and not text.isascii():
            text = _TYPOGRAPHIC.sub(lambda mark: _ASCII[mark.group()], text)
        return text if self.settings.white_space == "keep" else _tidy(text, self.settings.white_space == "collapse")
