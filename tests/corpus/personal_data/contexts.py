"""Read the labeled passages of contexts.txt, in which the words around a value decide."""

from __future__ import annotations

import re
from pathlib import Path

from tests.corpus.personal_data.texts import Text, Truth

_FILE = Path(__file__).with_suffix(".txt")
_LABEL = re.compile(r"\{\{(\w+):(.+?)\}\}")
_PART = re.compile(r"# part (\w)")


def read_contexts() -> dict[str, list[Text]]:
    """Return the passages by part; for an address, the required minimum begins with its number."""
    parts: dict[str, list[Text]] = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if part := _PART.match(line):
            parts[part[1]] = []
        elif line and not line.startswith("#"):
            [*parts.values()][-1].append(_parse(line))
    return parts


def _parse(line: str) -> Text:
    passage, last = Text(), 0
    for label in _LABEL.finditer(line):
        kind, value = label.groups()
        passage.text += line[last : label.start()]
        start = len(passage.text)
        passage.text += value
        core = start
        if kind == "address" and (number := re.search(r"(?<= )\d", value)):
            core += number.start()
        passage.truth.append(Truth(kind, start, len(passage.text), core, len(passage.text)))
        last = label.end()
    passage.text += line[last:]
    return passage
