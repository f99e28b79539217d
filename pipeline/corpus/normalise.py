"""The datatrove block that repairs characters: mojibake, control characters, line breaks, Unicode NFC."""

from __future__ import annotations

import re

import ftfy
from datatrove.pipeline.formatters.base import BaseFormatter

# A line without any of these is one that ftfy leaves as it is; most lines are, and the test is fifty times faster.
_SUSPECT = re.compile(r"[^\t\x20-\x7e]|&")


class Normalise(BaseFormatter):  # type: ignore[misc]
    """Repairs a text line by line with ftfy; quotation marks stay as they were written."""

    name = "Normalise characters"

    def format(self, text: str) -> str:
        """Return the repaired text in NFC."""
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        # As ftfy does for a whole text: HTML entities are only a mistake where there are no tags.
        config = ftfy.TextFixerConfig(uncurl_quotes=False, explain=False, unescape_html="<" not in text)
        return "\n".join(ftfy.fix_text(line, config) if _SUSPECT.search(line) else line for line in lines)
