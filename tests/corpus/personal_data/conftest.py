"""Fixtures of the personal data tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import spacy


@pytest.fixture(scope="session")
def names_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a real pipeline of spaCy that knows two persons and a place."""
    folder = tmp_path_factory.mktemp("names") / "model"
    pipeline = spacy.blank("nl")
    known = [("PER", "Jan Jansen"), ("PERSON", "Fatima Öz"), ("LOC", "Tiel")]
    pipeline.add_pipe("entity_ruler").add_patterns([{"label": label, "pattern": name} for label, name in known])
    pipeline.to_disk(folder)
    return folder
