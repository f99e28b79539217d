"""Fill the forms of `forms.yaml` with the answers of a run, and write its papers and bills of materials."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from pydantic import TypeAdapter, ValidationInfo, field_validator

from pipeline.core import markup
from pipeline.core.settings import Settings
from pipeline.core.yaml_files import load_yaml
from pipeline.report.papers.computed_answers import Answers, is_answer_name, is_table_name
from pipeline.report.papers.cyclonedx import build_cyclonedx_document
from pipeline.report.papers.facts import collect_model_facts, collect_source_facts
from pipeline.report.papers.paper import ASSESSMENT, LANGUAGES, ComplianceDocument, Point, Section, build_assessment
from pipeline.report.papers.spdx import build_spdx_document
from pipeline.report.run_reader import Json, RunReader, find_lost_attempts
from pipeline.report.settings import ProviderStatements
from pipeline.report.translator import translator

FORMS = "forms.yaml"


class SectionForm(Settings):
    """A section: the answer to each point and the rows of each table, by title."""

    title: str
    points: dict[str, str]
    tables: dict[str, str] = {}

    @field_validator("points", "tables")
    @classmethod
    def _are_known(cls, named: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        is_known = is_answer_name if info.field_name == "points" else is_table_name
        for title, name in named.items():
            if not is_known(name):
                raise ValueError(f"{title}: {name} is no known answer")
        return named


class DocumentForm(Settings):
    """A paper: its title, the law that asks for it, and its sections by number."""

    title: str
    law: str
    sections: dict[str, SectionForm]

    def fill(self, name: str, answers: Answers) -> ComplianceDocument:
        """Return the paper of a run in the language of the answers; points are numbered `SECTION.1` and so on."""
        w = answers.words
        sections = []
        for number, part in self.sections.items():
            points = [
                Point(f"{number}.{place}", w(title), answers.answer(key))
                for place, (title, key) in enumerate(part.points.items(), start=1)
            ]
            tables = [table for title, rows in part.tables.items() for table in answers.make_tables(w(title), rows)]
            sections.append(Section(number, w(part.title), tuple(points), tuple(tables)))
        title = w(self.title, run=answers.page["settings"].run)
        return ComplianceDocument(name, w.language, title, w(self.law), tuple(sections))


@cache
def read_forms() -> dict[str, DocumentForm]:
    """Return the form of each paper by its name."""
    return TypeAdapter(dict[str, DocumentForm]).validate_python(load_yaml(Path(__file__).parent / FORMS))


DOCUMENT_NAMES = (*read_forms(), ASSESSMENT)
SPDX, CYCLONEDX = "spdx.json", "cyclonedx.json"
HTML, MARKDOWN, STYLE = "paper.html.jinja", "paper.md.jinja", "paper.css"


def _fill_documents(
    reader: RunReader, page: Json, stated: ProviderStatements
) -> tuple[list[ComplianceDocument], dict[str, Json]]:
    """Return every paper in every language, and the documents of SPDX and CycloneDX by their files."""
    disclosure, run = page["settings"].disclosure, page["settings"].run
    sources = collect_source_facts(reader, page["sources"], disclosure.data_categories, disclosure.source_descriptions)
    lost = [one.attempt for one in find_lost_attempts(reader)]
    scores = {entry["model"]: entry["checkpoints"][0]["tasks"] for entry in page["evaluations"]}
    facts = [collect_model_facts(reader, shown, lost, scores.get(shown["name"], [])) for shown in page["models"]]
    models = [model for model in facts if model]
    papers = []
    for language in LANGUAGES:
        words = translator(language)
        answers = Answers(page, stated, sources, models, words)
        filled = [form.fill(name, answers) for name, form in read_forms().items()]
        papers += [*filled, build_assessment(filled, run, words)]
    builders = {SPDX: build_spdx_document, CYCLONEDX: build_cyclonedx_document}
    return papers, {name: build(reader, page, stated, sources, models) for name, build in builders.items()}


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8", newline="\n")


@cache
def _load_environment(*, html: bool) -> jinja2.Environment:
    return markup.template_environment(Path(__file__).parent, {}, html=html)


def write_compliance_documents(
    folder: Path, reader: RunReader, page: Json, stated: ProviderStatements
) -> dict[str, int]:
    """Write all papers below a folder, as NAME.LANGUAGE.FORMAT; return how many points they have and how many are open.

    Args:
        page: what the report's page shows, as `view.build_context` returns it.
    """
    papers, bills = _fill_documents(reader, page, stated)
    templates = {
        "html": _load_environment(html=True).get_template(HTML),
        "md": _load_environment(html=False).get_template(MARKDOWN),
    }
    css = markup.read_style_sheet(Path(__file__).parent / STYLE)
    folder.mkdir(parents=True, exist_ok=True)
    for paper in papers:
        name = f"{paper.name}.{paper.language}"
        _write_json(folder / f"{name}.json", paper.as_json())
        content = {
            "paper": paper,
            "w": translator(paper.language),
            "css": css,
            "css_hash": markup.content_security_hash(css),
        }
        for format, template in templates.items():
            text = template.render(content)
            (folder / f"{name}.{format}").write_text(text, encoding="utf-8", newline="\n")
    for file, bill in bills.items():
        _write_json(folder / file, bill)
    english = [paper for paper in papers if paper.language == "en" and paper.name != ASSESSMENT]
    return {
        "points": sum(len(paper.points) for paper in english),
        "not_stated": sum(len(paper.missing) for paper in english),
    }
