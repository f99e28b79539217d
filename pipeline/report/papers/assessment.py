"""A self-assessment of the papers: each point by what it is answered from, and what is open."""

from __future__ import annotations

from pipeline.report.papers.paper import Answer, Paper, Table, Words, section

ASSESSMENT = "self-assessment"


def _basis(answer: Answer, words: Words) -> str:
    if answer.text is None:
        return words("not stated")
    return words("the provider") if answer.key else words("records")


def assessment(papers: list[Paper], run: str, words: Words) -> Paper:
    """Return what each point of the other papers rests on: files of the run, a statement, or nothing yet."""
    w = words
    sections = []
    for place, paper in enumerate(papers, start=1):
        points = paper.points
        recorded = sum(point.answer.key is None for point in points)
        missing = len(paper.missing)
        told = w(
            "{all} points: {recorded} answered from records, {stated} stated by the provider, {missing} not stated",
            all=len(points),
            recorded=recorded,
            stated=len(points) - recorded - missing,
            missing=missing,
        )
        rows = tuple(
            (point.number, point.title, _basis(point.answer, w), point.answer.key or ", ".join(point.answer.origin[:3]))
            for point in points
        )
        head = (w("Point"), w("Question"), w("Answered from"), w("Files of the run, or key of the configuration"))
        table = Table(w("Every point"), head, rows)
        sections.append(section(str(place), paper.title, [(w("Points"), Answer(told, (f"{paper.name}.json",)))], table))
    law = w("The provider's own reading; no authority has looked at it")
    return Paper(ASSESSMENT, w.language, w("Self-assessment of the papers of {run}", run=run), law, tuple(sections))
