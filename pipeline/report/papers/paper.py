"""A paper as data: sections of points, each answered from records, by the provider, or not stated with its key."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.report.settings import Language
from pipeline.report.translator import Translator

LANGUAGES: tuple[Language, ...] = ("en", "nl")


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
    """Rows of text under a title; figures are aligned right."""

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
class ComplianceDocument:
    """One paper in one language: what it is by which law, and its sections."""

    name: str
    language: Language
    title: str
    law: str
    sections: tuple[Section, ...]
    counted: tuple[int, int] | None = None
    """Of a paper on others: how many points these have, and how many of them are not stated."""

    @property
    def points(self) -> list[Point]:
        return [point for section in self.sections for point in section.points]

    @property
    def missing(self) -> list[Point]:
        """Return the points that only the provider can answer and did not."""
        return [point for point in self.points if point.answer.text is None]

    def format_completeness(self, words: Translator) -> str:
        """Return how many points are answered, of this paper or of those that it is about."""
        number, missing = self.counted or (len(self.points), len(self.missing))
        if self.counted:
            text = "The papers have {all} points: {answered} answered, {missing} not stated."
        else:
            text = (
                "{answered} of {all} points are answered. Not stated: {missing}. The name after each of these is the "
                "setting with which the provider answers it."
            )
        return words(text, answered=number - missing, all=number, missing=missing)

    def as_json(self) -> dict[str, Any]:
        """Return the paper for programs; `origin` has paths within the run."""
        return {**asdict(self), "points": len(self.points), "not_stated": [p.answer.key for p in self.missing]}


ASSESSMENT = "self-assessment"


def _answer_basis(answer: Answer, words: Translator) -> str:
    if answer.text is None:
        return words("not stated")
    return words("the provider") if answer.key else words("records")


def build_assessment(papers: list[ComplianceDocument], run: str, words: Translator) -> ComplianceDocument:
    """Return what each point of the other papers rests on: files of the run, a statement, or nothing yet."""
    w = words
    sections = []
    for place, paper in enumerate(papers, start=1):
        points = paper.points
        recorded = sum(point.answer.key is None for point in points)
        missing = len(paper.missing)
        summary = w(
            "{all} points: {recorded} answered from records, {stated} stated by the provider, {missing} not stated",
            all=len(points),
            recorded=recorded,
            stated=len(points) - recorded - missing,
            missing=missing,
        )
        rows = tuple(
            (
                point.number,
                point.title,
                _answer_basis(point.answer, w),
                point.answer.key or ", ".join(point.answer.origin[:3]),
            )
            for point in points
        )
        head = (w("Point"), w("Question"), w("Answered from"), w("Files of the run, or key of the configuration"))
        table = Table(w("Every point"), head, rows)
        point = Point(f"{place}.1", w("Points"), Answer(summary, (f"{paper.name}.{paper.language}.json",)))
        sections.append(Section(str(place), paper.title, (point,), (table,)))
    law = w(
        "A count of which points are answered, and from what. No authority has reviewed it, and it does not say "
        "whether the Regulation is complied with"
    )
    counted = sum(len(paper.points) for paper in papers), sum(len(paper.missing) for paper in papers)
    title = w("Self-assessment of the papers of {run}", run=run)
    return ComplianceDocument(ASSESSMENT, w.language, title, law, tuple(sections), counted)
