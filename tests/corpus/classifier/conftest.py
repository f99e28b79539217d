"""Seed texts of two classes: sentences, and lists of the same words."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.corpus.classifier.settings import SeedFile

TEXT = "de boot ligt bij een oude brug en het water stroomt langzaam naar zee want de wind is gaan liggen"
WORDS = TEXT.split()


def sentences(number: int, seed: int) -> list[str]:
    """Return the given number of different texts of a few sentences."""
    draw = random.Random(seed)
    return [
        " ".join(" ".join(draw.choices(WORDS, k=8)).capitalize() + "." for _ in range(draw.randint(3, 9)))
        for _ in range(number)
    ]


def menus(number: int, seed: int) -> list[str]:
    """Return the given number of different word lists."""
    draw = random.Random(seed)
    return ["\n".join(f"* {draw.choice(WORDS)} |" for _ in range(draw.randint(20, 60))) for _ in range(number)]


@pytest.fixture
def seeds(tmp_path: Path) -> Callable[..., tuple[SeedFile, Path]]:
    """Return a function that writes a seed file and returns its step settings."""

    def write(name: str, label: Any, texts: list[Any], held_out: bool = False) -> tuple[SeedFile, Path]:
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        known = {"license": "CC0-1.0", "text_key": "text", "held_out": held_out}
        return SeedFile(name=path.name, sha256=sha256, label=label, **known), path

    return write
