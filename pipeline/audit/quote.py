"""From a text to its sources: `python -m pipeline provenance quote RUN MODEL "a text"`.

Told are the longest parts of the text that stand in the documents that a model was trained on, with source, licence,
holder and training steps of each document. Nothing is printed of a document but its name and what was asked for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.audit.training_documents import Audit
from pipeline.core.errors import InputError
from pipeline.core.formatting import counted
from pipeline.core.normalization import composed
from pipeline.tokens.settings import MINIMUM_CHARACTERS
from pipeline.tokens.text_search import TextMatch, TextSearch, count_covered

SHOWN_DOCUMENTS = 3
SHOWN_STEPS = 10
UNSEEN = (
    "not searched: documents held out for validation, documents that a filter or an opt-out removed before the "
    "training, and what says the same in other words, letters or spaces"
)


class Quote:
    """Finds texts in the training documents of a model.

    Raises:
        InputError: the run has no training of that model, or its tokens or their suffix arrays are gone or others.
    """

    def __init__(self, run_directory: Path, model: str) -> None:
        self.audit = Audit(run_directory, model)
        self.search = TextSearch(self.audit.index, self.audit.tokenizer)

    def rights(self, source: str) -> str:
        """The holder and the basis of the rights on a source, in words, from its manifest."""
        described = self.audit.source(source)
        if not described:
            return "holder not known: its manifest is not here"
        rights = described.get("rights") or {}
        stated = [f"{key} {rights[key]}" for key in ("holder", "basis") if rights.get(key)]
        return ", ".join(stated) or "holder not stated"

    def steps(self, document: str) -> str:
        """The training steps that saw a document, in words."""
        visits = self.audit.visits(document)
        seen = sorted({visit["step"] for visit in visits if visit["step"] is not None})
        if not seen:
            return "seen in no step"
        first, more = ", ".join(map(str, seen[:SHOWN_STEPS])), len(seen) - SHOWN_STEPS
        return f"seen in {counted(len(seen), 'step')}: {first}{f' and {more} more' if more > 0 else ''}"

    def told(self, text: str, minimum: int, most: int | None) -> Iterator[str]:
        """Yield what is found of a text, line by line; of each part at most so many documents."""
        parts = self.search.parts(text, minimum)
        where = f"the training documents of {self.audit.model}"
        if not parts:
            least = "it" if minimum == len(text) else f"no part of it of {minimum} characters or more"
            yield f"not found: {least} stands in {where}"
            return
        share = count_covered(parts) / len(text)
        whole = parts[0].start == 0 and parts[0].end == len(text)
        what = "the whole text stands" if whole else f"{100 * share:.1f} % of the {len(text)} characters stand"
        yield f"found: {what} in {where}, in {counted(len(parts), 'part')} of at least {minimum} characters"
        for part in parts:
            yield from self._part(text, part, most)

    def _part(self, text: str, part: TextMatch, most: int | None) -> Iterator[str]:
        documents = self.search.count_documents(part)
        stands = f"{counted(part.occurrences, 'time')} in {counted(documents, 'document')}"
        yield f"characters {part.start + 1} to {part.end}, {stands}: {text[part.start : part.end]!r}"
        for row in islice(self.search.documents(part), most):
            yield f"  {row['id']}: {self._document(row)}"
        if most is not None and documents > most:
            yield f"  and {counted(documents - most, 'document')} more, which --all names"

    def _document(self, row: dict[str, Any]) -> str:
        described = f"source {row['source']}, licence {self.audit.license(row)}, {self.rights(row['source'])}"
        return f"{counted(row['occurrences'], 'time')}; {described}; {self.steps(row['id'])}"


def main(arguments: list[str]) -> int:
    """Answer where a text comes from; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipeline provenance quote", description=__doc__)
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("model")
    parser.add_argument("text", help="the text, or - for standard input")
    parser.add_argument(
        "--minimum", type=int, default=MINIMUM_CHARACTERS, metavar="CHARACTERS", help="shorter parts are left out"
    )
    parser.add_argument("--all", action="store_true", help=f"name all documents, not the first {SHOWN_DOCUMENTS}")
    options = parser.parse_args(arguments)
    try:
        text = sys.stdin.buffer.read().decode() if options.text == "-" else options.text
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is no UTF-8 ({error.reason} at byte {error.start}): give it so") from None
    text = composed(text.strip("\r\n"))
    if not text.strip():
        raise InputError("the text is empty: give at least one word")
    if options.minimum < 1:
        raise InputError(f"--minimum {options.minimum} is no length: give 1 or more")
    quote = Quote(options.run_directory, options.model)
    print(quote.audit.header())
    for line in quote.told(text, min(options.minimum, len(text)), None if options.all else SHOWN_DOCUMENTS):
        print(line)
    print(UNSEEN)
    return 0
