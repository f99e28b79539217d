"""Finds names of persons with a spaCy pipeline in a local folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import spacy

from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_folder
from pipeline.corpus.personal_data.spans import PersonalDataSpan

_LABELS = {"PER", "PERSON"}
_CHARACTERS = 50_000
# Pieces of complete lines; a longer line is split, because the model's memory grows with the length of a text.
_PIECE = re.compile(rf".{{1,{_CHARACTERS}}}(?:\n|\Z)|.{{1,{_CHARACTERS}}}", re.DOTALL)


@cache
def load_spacy_pipeline(folder: str, sha256: str | None) -> Any:
    """Return the spaCy pipeline in a folder.

    Raises:
        InputError: the folder has no pipeline, the pipeline finds no names, or its sha256 is not the one of the
            settings.
    """
    if sha256 is not None and hash_folder(folder, "personal_data.names", "a spaCy pipeline") != sha256:
        raise InputError(
            f"personal_data.names: the files in {Path(folder).name} are not those of names_sha256: "
            "run snakemake again, or correct the hash where it was written"
        )
    try:
        model = spacy.load(Path(folder))
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:200]
        raise InputError(f"personal_data.names: {Path(folder).name} is no pipeline of spaCy: {reason}") from None
    if not {"ner", "entity_ruler", "span_ruler"} & set(model.pipe_names):
        raise InputError(f"personal_data.names: {Path(folder).name} has no component that finds names (ner)")
    return model


def find_person_names(text: str, model: Any) -> Iterator[PersonalDataSpan]:
    """Yield the names of persons in a text; a long text is processed in pieces of complete lines."""
    pieces = list(_PIECE.finditer(text))
    for piece, parsed in zip(pieces, model.pipe(piece.group() for piece in pieces), strict=True):
        for entity in parsed.ents:
            written = entity.text.strip()
            if entity.label_ in _LABELS and written:
                start = piece.start() + entity.start_char + entity.text.index(written)
                yield PersonalDataSpan(start, start + len(written), "name", " ".join(written.split()))
