"""Score a run's summary of training content by `criteria.yaml`, and say which key would raise the score by how much."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError, model_validator

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.settings import Settings
from pipeline.core.yaml_files import load_yaml
from pipeline.report.papers.facts import CATEGORIES
from pipeline.report.papers.write import SectionForm, read_forms

CRITERIA, SUMMARY = "criteria.yaml", "training-content-summary"
Dimension = Literal["clarity", "completeness", "consistency", "correctness", "accessibility", "comprehension"]
Group = Literal["transparency", "usefulness"]
GROUPS: dict[Dimension, Group] = {
    **dict.fromkeys(("clarity", "completeness", "consistency", "correctness"), "transparency"),
    **dict.fromkeys(("accessibility", "comprehension"), "usefulness"),
}
"""The rubric's two scores, each a sum over its dimensions."""
FILE_NAME = re.compile(r"\b[\w/-]+\.(?:json|yaml|parquet|py|safetensors)\b")
SENTENCE_END = re.compile(r"[.!?;]\s|[.!?;]$|\n")
LEAST_TEXT_WORDS = 3
"""Of a statement of the provider that counts as a text, and not as a name, a date or a version."""
OPEN_CELL = re.compile(r"–|not stated|read on .*")  # of a table: no address; no version, only the day of reading
EXPLAINED = r"(?:\s+\S+){0,2}\s*\("  # in brackets, right behind it or behind the name of what it is


class Criterion(Settings):
    """One or more metrics of the rubric that the same answer decides."""

    of: list[str]
    weights: dict[Dimension, int]
    asks: str = ""
    answer: str | list[str] = []
    mentions: list[str] = []
    table: str = ""
    column: str = ""
    plain: str = ""
    form: str = ""
    category: str | None = Field(default=None, alias="if")

    @property
    def required_answers(self) -> list[str]:
        """The answers of the form that must not be open."""
        return [self.answer] if isinstance(self.answer, str) else self.answer

    @property
    def question(self) -> str:
        """What a reader would want to know."""
        return self.asks or self.plain or self.form

    @model_validator(mode="after")
    def _is_decided(self) -> Criterion:
        sections = read_forms()[SUMMARY].sections.values()
        answers = {name for section in sections for name in section.points.values()}
        if unknown := sorted({*self.required_answers} - answers):
            raise ValueError(f"{', '.join(self.of)}: the summary has no answer {unknown[0]}")
        if self.table and self.table not in {name for section in sections for name in section.tables.values()}:
            raise ValueError(f"{', '.join(self.of)}: the summary has no table {self.table}")
        if not (self.required_answers or self.table or self.plain or self.form) or self.category not in (
            None,
            *CATEGORIES,
        ):
            raise ValueError(f"{', '.join(self.of)}: nothing decides it")
        return self


class SectionCriteria(Settings):
    """The criteria of a section of the rubric, and the numbers of the summary's sections in it; none means all."""

    title: str
    parts: list[str]
    criteria: list[Criterion]


class Criteria(Settings):
    """The file of criteria: all sections, and what a plain text may not have."""

    sentence_words: int
    words: list[str]
    sections: dict[str, SectionCriteria]


@cache
def read_criteria() -> Criteria:
    return Criteria.model_validate(load_yaml(Path(__file__).parent / CRITERIA))


class _Answer(BaseModel):
    text: str | None
    key: str | None


class _Point(BaseModel):
    number: str
    title: str
    answer: _Answer


class _Table(BaseModel):
    title: str
    head: list[str]
    rows: list[list[str]]


class _Section(BaseModel):
    number: str
    points: list[_Point]
    tables: list[_Table]


class _Summary(BaseModel):
    title: str
    sections: list[_Section]


class ScoredPoint(NamedTuple):
    """A point of the summary: its section, its number, its text, and the key that would state it."""

    part: str
    number: str
    text: str | None
    key: str | None

    @property
    def is_own_text(self) -> bool:
        """Whether the provider wrote a text, and not a name, a date, a version or that there is none."""
        words = len((self.text or "").split())
        return (self.key or "").startswith("disclosure.") and words >= LEAST_TEXT_WORDS


class SummaryContent(NamedTuple):
    """A run's summary in English: its title, its points by their answers and its tables by their rows in the form."""

    title: str
    points: dict[str, ScoredPoint]
    tables: dict[str, _Table]


@dataclass(frozen=True)
class Improvement:
    """What would raise the score: the key, what to state, the metrics of the rubric, and percentage points by score."""

    key: str
    advice: str
    metrics: tuple[str, ...]
    gain: dict[Group, float]


@dataclass(frozen=True)
class SummaryScore:
    """Points that were reached and can be reached, by section and dimension, and what would raise them."""

    title: str
    reached: dict[tuple[str, Dimension], int]
    possible: dict[tuple[str, Dimension], int]
    by_form: int
    improvements: list[Improvement]

    def percent(self, group: Group) -> float:
        """Return one of the two scores of the rubric, from 0 to 100."""
        reached, possible = (
            sum(points for (_, dimension), points in counts.items() if GROUPS[dimension] == group)
            for counts in (self.reached, self.possible)
        )
        return 100 * reached / possible

    def as_json(self) -> dict[str, Any]:
        rows = [
            {"section": title, "dimension": dimension, "reached": self.reached[title, dimension], "possible": possible}
            for (title, dimension), possible in self.possible.items()
        ]
        scores = {group: self.percent(group) for group in dict.fromkeys(GROUPS.values())}
        improvements = [asdict(entry) for entry in self.improvements]
        return {"scores": scores, "points": rows, "points_by_form": self.by_form, "improvements": improvements}


def read_summary(run_directory: Path) -> SummaryContent:
    """Return a run's summary of training content.

    Raises:
        InputError: there is no summary, it is damaged, or another version of Polder wrote it.
    """
    path = run_directory / layout.PAPERS / f"{SUMMARY}.en.json"
    if not path.is_file():
        raise InputError(f"{path} is missing: finish the run first, polder run CONFIG report")
    try:
        summary = _Summary.model_validate_json(path.read_bytes())
    except ValidationError:
        raise InputError(
            f"{path} is damaged: remove {path.parent} and write it again, polder run CONFIG report"
        ) from None
    form = read_forms()[SUMMARY].sections
    points: dict[str, ScoredPoint] = {}
    tables: dict[str, _Table] = {}
    problem = f"{path} has other points or columns than this version of Polder: polder run CONFIG report"
    if [section.number for section in summary.sections] != [*form] or not all(
        _has_form(section, form[section.number]) for section in summary.sections
    ):
        raise InputError(problem)
    for section in summary.sections:
        part = form[section.number]
        for point, name in zip(section.points, part.points.values(), strict=True):
            points[name] = ScoredPoint(section.number, point.number, point.answer.text, point.answer.key)
        tables |= {part.tables[table.title]: table for table in section.tables}
    for criterion in (one for section in read_criteria().sections.values() for one in section.criteria if one.table):
        if criterion.table in tables and criterion.column not in tables[criterion.table].head:
            raise InputError(problem)
    return SummaryContent(summary.title, points, tables)


def _has_form(section: _Section, form: SectionForm) -> bool:
    is_complete = [point.title for point in section.points] == [*form.points]
    return is_complete and all(table.title in form.tables for table in section.tables)


def find_unclear_texts(points: dict[str, ScoredPoint], criteria: Criteria) -> Iterator[tuple[str, str]]:
    """Yield answers with a long sentence, a file name or a word of the trade that nothing explains, and what it is."""
    unexplained = {
        words: re.compile(
            rf"(?<![\w.-])(?:{'|'.join(map(re.escape, words.split('|')))})(?:e?s)?(?![\w-])", re.IGNORECASE
        )
        for words in criteria.words
    }
    for name, point in points.items():
        text = point.text or ""
        for sentence in SENTENCE_END.split(text):
            if (length := len(sentence.split())) > criteria.sentence_words:
                yield (
                    name,
                    f"{point.number} has a sentence of {length} words: make it {criteria.sentence_words} or fewer",
                )
        if file := FILE_NAME.search(text):
            yield name, f"{point.number} has the file name {file[0]}: say what it is"
        for words, pattern in list(unexplained.items()):
            if match := pattern.search(text):
                del unexplained[words]
                if not re.match(EXPLAINED, text[match.end() :]):
                    yield name, f"{point.number} does not explain {match[0]}: explain it in brackets behind it"


def _find_shortcoming(
    criterion: Criterion, summary: SummaryContent, unclear: dict[str, list[str]], parts: list[str]
) -> tuple[str, str] | None:
    """Return the key and the advice of a criterion that is not met; None if it is."""
    points = summary.points
    open_texts = (None, "none") if criterion.category else (None,)  # what is used cannot be none
    for name in criterion.required_answers:
        if points[name].text in open_texts:
            return points[name].key or name, f"state {criterion.question}"
    for words in criterion.mentions:
        text = " ".join(points[name].text or "" for name in criterion.required_answers).lower()
        if not any(word.lower() in text for word in words.split("|")):
            key = points[criterion.required_answers[0]].key or criterion.required_answers[0]
            return key, f"also say {criterion.question} ({words.replace('|', ' or ')})"
    if criterion.table and (table := summary.tables.get(criterion.table)):
        place = table.head.index(criterion.column)
        if names := [row[0] for row in table.rows if OPEN_CELL.fullmatch(row[place])]:
            return "sources", f"state {criterion.question}: {', '.join(names)}"
    if criterion.plain:
        read = criterion.required_answers or [
            name for name, point in points.items() if not parts or point.part in parts
        ]
        if not any(points[name].is_own_text for name in read):
            return "disclosure", f"state a text of your own, so that {criterion.plain}"
        if advice := [(name, text) for name in read for text in unclear.get(name, ())]:
            return points[advice[0][0]].key or advice[0][0], "; ".join(text for _, text in advice)
    return None


def score_summary(run_directory: Path) -> SummaryScore:
    """Return the score of a run's summary of training content.

    Raises:
        InputError: there is no summary, it is damaged, or another version of Polder wrote it.
    """
    summary = read_summary(run_directory)
    criteria = read_criteria()
    unclear: dict[str, list[str]] = defaultdict(list)
    for name, advice in find_unclear_texts(summary.points, criteria):
        unclear[name].append(advice)
    reached: dict[tuple[str, Dimension], int] = defaultdict(int)
    possible: dict[tuple[str, Dimension], int] = defaultdict(int)
    missed: list[tuple[Criterion, tuple[str, str]]] = []
    by_form = 0
    for section in criteria.sections.values():
        for criterion in section.criteria:
            if criterion.category and not (summary.points[f"sources.{criterion.category}"].text or "").startswith(
                "yes"
            ):
                continue
            shortcoming = _find_shortcoming(criterion, summary, unclear, section.parts)
            by_form += sum(criterion.weights.values()) if criterion.form else 0
            for dimension, weight in criterion.weights.items():
                possible[section.title, dimension] += weight
                reached[section.title, dimension] += 0 if shortcoming else weight
            if shortcoming:
                missed.append((criterion, shortcoming))
    score = SummaryScore(summary.title, reached, possible, by_form, [])
    score.improvements.extend(_list_improvements(missed, possible))
    return score


def _list_improvements(
    missed: list[tuple[Criterion, tuple[str, str]]], possible: dict[tuple[str, Dimension], int]
) -> list[Improvement]:
    """Return what would raise the score, one entry for each key and advice, the largest gain first."""
    totals: dict[Group, int] = defaultdict(int)
    for (_, dimension), points in possible.items():
        totals[GROUPS[dimension]] += points
    gains: dict[tuple[str, str], dict[Group, float]] = defaultdict(lambda: defaultdict(float))
    metrics: dict[tuple[str, str], list[str]] = defaultdict(list)
    for criterion, shortcoming in missed:
        metrics[shortcoming] += criterion.of
        for dimension, weight in criterion.weights.items():
            group = GROUPS[dimension]
            gains[shortcoming][group] += 100 * weight / totals[group]
    entries = [
        Improvement(key, advice, tuple(metrics[key, advice]), dict(gain)) for (key, advice), gain in gains.items()
    ]
    return sorted(entries, key=lambda entry: (-sum(entry.gain.values()), entry.key))


def format_score(score: SummaryScore) -> Iterator[str]:
    """Yield the lines that `polder papers check` prints."""
    transparency, usefulness = score.percent("transparency"), score.percent("usefulness")
    yield f"{score.title}: transparency {transparency:.1f} of 100, usefulness {usefulness:.1f} of 100"
    yield ""
    yield f"{'':32}" + "".join(f"{dimension:>14}" for dimension in GROUPS)
    for title in dict.fromkeys(title for title, _ in score.possible):
        cells = []
        for dimension in GROUPS:
            possible = score.possible.get((title, dimension), 0)
            cells.append(f"{score.reached[title, dimension]}/{possible}" if possible else "–")
        yield f"{title:32}" + "".join(f"{cell:>14}" for cell in cells)
    yield ""
    total = sum(score.possible.values())
    yield f"The form that Polder fills gives {score.by_form} of {total} points; a reader may judge these otherwise."
    if score.improvements:
        yield "What would raise it, in percentage points of transparency and of usefulness:"
    for entry in score.improvements:
        gain = f"{entry.gain.get('transparency', 0):6.1f} {entry.gain.get('usefulness', 0):6.1f}"
        yield f"{gain}  {entry.key}: {entry.advice} ({entry.metrics[0]}{' …' if len(entry.metrics) > 1 else ''})"
