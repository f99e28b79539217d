"""A language model of fastText from a local file, such as lid.176.bin, lid.176.ftz or GlotLID's model.bin."""

from __future__ import annotations

import csv
from collections.abc import Collection
from functools import cache
from pathlib import Path

import fasttext
from datatrove.utils._import_utils import ASSETS_PATH

from pipeline.core.errors import InputError
from pipeline.corpus.text.capitals import without_capitals
from pipeline.corpus.text.stretches import cut

_LABEL = "__label__"


@cache
def _two_letter_codes() -> dict[str, str]:
    """Return the codes of ISO 639-1 by those of ISO 639-3, from the table that comes with datatrove."""
    with Path(ASSETS_PATH, "tokenizer_assignment.csv").open(encoding="utf-8", newline="") as table:
        return {row["code_3"]: row["code_1"] for row in csv.DictReader(table) if row["code_1"]}


def language_of(label: str) -> str:
    """Return the code of a label: nl for __label__nl, __label__nld and __label__nld_Latn."""
    code = label.removeprefix(_LABEL).split("_")[0]
    return _two_letter_codes().get(code, code)


class FastTextIdentifier:
    """Chooses among all languages of the model."""

    def __init__(self, path: Path, languages: Collection[str]) -> None:
        try:
            self._model = fasttext.load_model(str(path))
        except ValueError as error:
            raise InputError(f"language_model: {path.name} is no model of fastText: {error}") from None
        known = {language_of(label) for label in self._model.get_labels()}
        unknown = sorted(set(languages) - known)
        if unknown:
            raise InputError(
                f"corpus.languages: {', '.join(unknown)} cannot be identified by {path.name}: "
                "use another model, or leave the language out"
            )

    def _predicted(self, text: str) -> tuple[str, float]:
        labels, shares = self._model.predict(text.replace("\n", " "))
        # The model's probabilities may exceed 1 by a rounding.
        return (language_of(labels[0]), min(1.0, float(shares[0]))) if labels else ("und", 0.0)

    def identify(self, text: str, stretches: bool = False) -> tuple[str, float, list[tuple[str, int]]]:
        """Return the language of a text and its probability, and the language and bytes of stretches if asked."""
        text = without_capitals(text)
        data = text.encode()
        parts = list(cut(data)) if stretches else []
        judged = [(self._predicted(data[start:end].decode("utf-8", "ignore"))[0], end - start) for start, end in parts]
        return *self._predicted(text), judged
