"""Read the forms of the papers from `forms.yaml`, and fill them with the answers of a run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationInfo, field_validator

from pipeline.core.settings import Settings
from pipeline.core.yaml_files import load_yaml
from pipeline.report.papers.answers import Answers, is_answer, is_table
from pipeline.report.papers.paper import Paper, Point, Section

FORMS = "forms.yaml"


class SectionForm(Settings):
    """A section: the answer to each point and the rows of each table, by title."""

    title: str
    points: dict[str, str]
    tables: dict[str, str] = {}

    @field_validator("points", "tables")
    @classmethod
    def _are_known(cls, named: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        is_known = is_answer if info.field_name == "points" else is_table
        for title, name in named.items():
            if not is_known(name):
                raise ValueError(f"{title}: {name} is neither computed nor asked for")
        return named


class PaperForm(Settings):
    """A paper: its title, the law that asks for it, and its sections by number."""

    title: str
    law: str
    sections: dict[str, SectionForm]

    def fill(self, name: str, answers: Answers) -> Paper:
        """Return the paper of a run in the language of the answers; points are numbered `SECTION.1` and so on."""
        w = answers.words
        sections = []
        for number, part in self.sections.items():
            points = [
                Point(f"{number}.{place}", w(title), answers.answer(key))
                for place, (title, key) in enumerate(part.points.items(), start=1)
            ]
            tables = [table for title, rows in part.tables.items() for table in answers.tables(w(title), rows)]
            sections.append(Section(number, w(part.title), tuple(points), tuple(tables)))
        title = w(self.title, run=answers.page["settings"].run)
        return Paper(name, w.language, title, w(self.law), tuple(sections))


@cache
def read_forms() -> dict[str, PaperForm]:
    """Return the form of each paper by its name."""
    return TypeAdapter(dict[str, PaperForm]).validate_python(load_yaml(Path(__file__).parent / FORMS))
