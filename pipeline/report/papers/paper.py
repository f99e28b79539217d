"""A paper as data: sections of points, each answered from records, by the provider, or not stated with its key."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.markup import number
from pipeline.report.disclosure import Language

LANGUAGES: tuple[Language, ...] = ("en", "nl")
TABLE = "nl.json"
_DUTCH_MARKS = str.maketrans(".,", ",.")


@cache
def _dutch() -> dict[str, str]:
    words: dict[str, str] = json.loads((Path(__file__).parent / TABLE).read_text(encoding="utf-8"))
    return words


@dataclass(frozen=True)
class Words:
    """The words of the papers in one language; what is said in English has to stand in the table of the other."""

    language: Language

    def __call__(self, english: str, /, **values: object) -> str:
        """Return a sentence with its values.

        Raises:
            KeyError: the table has no translation, which is a fault of this package.
        """
        return (_dutch()[english] if self.language == "nl" else english).format(**values)

    def number(self, value: float | None, digits: int = 4) -> str:
        """Return a number as the language writes it."""
        text = number(value, digits)
        return text.translate(_DUTCH_MARKS) if self.language == "nl" else text

    def figure(self, text: str) -> str:
        """Return an amount with its unit, interval and label as the language writes it."""
        if self.language == "en":
            return text
        words = [_dutch().get(word, word) for word in text.translate(_DUTCH_MARKS).replace(";", " ;").split(" ")]
        return " ".join(words).replace(" ;", ";")


@dataclass(frozen=True)
class Answer:
    """What a point says: a text and the files of the run that it is from, or the key by which a provider states it."""

    text: str | None
    origin: tuple[str, ...] = ()
    key: str | None = None


@dataclass(frozen=True)
class Point:
    """A question of a paper, by its number and title, and its answer."""

    number: str
    title: str
    answer: Answer


@dataclass(frozen=True)
class Table:
    """Rows of text under a title; figures stand right."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    origin: tuple[str, ...] = ()
    figures_from: int = 99


@dataclass(frozen=True)
class Section:
    """A numbered part of a paper."""

    number: str
    title: str
    points: tuple[Point, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Paper:
    """One paper in one language: what it is by which law, and its sections."""

    name: str
    language: Language
    title: str
    law: str
    sections: tuple[Section, ...]

    @property
    def points(self) -> list[Point]:
        """Return the points of all sections."""
        return [point for section in self.sections for point in section.points]

    @property
    def missing(self) -> list[Point]:
        """Return the points that only the provider can answer and did not."""
        return [point for point in self.points if point.answer.text is None]

    def as_json(self) -> dict[str, Any]:
        """Return the paper for programs; `origin` has paths within the run."""
        return {**asdict(self), "points": len(self.points), "not_stated": [p.answer.key for p in self.missing]}


def section(head: str, title: str, answers: Iterable[tuple[str, Answer]], *tables: Table) -> Section:
    """Return a section whose points are numbered `HEAD.1` and so on."""
    points = [Point(f"{head}.{place}", name, answer) for place, (name, answer) in enumerate(answers, start=1)]
    return Section(head, title, tuple(points), tables)
