"""One catalog has every sentence of page and papers; languages are named, including those of removed documents."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from babel.messages.pofile import read_po
from markupsafe import escape

from pipeline.report import translator as module
from pipeline.report.charts import Series, draw_line_chart, draw_stacked_bar
from pipeline.report.page import EXPERIMENT, JOBS_PAGE, PAGE, PAGE_PARTS, SECTIONS, load_template_environment
from pipeline.report.papers import computed_answers, facts
from pipeline.report.papers.write import read_forms
from pipeline.report.score_charts import METRICS
from pipeline.report.training_section import METRIC_ROWS, PLANNED_ROWS
from pipeline.report.translator import translator
from tests.report.test_page import made, outline

FOLDER = Path(module.__file__).parent
ALIKE = {
    "Bytes",
    "Contact",
    "Corpus",
    "Tokens",
    "corpus {name}: {number} {kind}",
    "{number} parameters (in the class {band})",
} | {"model {name}: {answer}"}
MADE_UP = ("corpus {corpus}", "token set {tokens}", "energy: total = ")  # of parts, in `checks`


def dutch_catalogue() -> dict[str, str]:
    """Return the Dutch of each sentence in the catalog file; of two, that without a context."""
    with (FOLDER / "nl.po").open("rb") as file:
        messages = [message for message in read_po(file, locale="nl") if message.id]
    results: dict[str, str] = {}
    for message in sorted(messages, key=lambda message: message.context is None):
        pairs = zip(message.id, message.string, strict=True) if message.pluralizable else [(message.id, message.string)]
        results |= dict(pairs)
    return results


def said_by_templates() -> set[str]:
    environment = load_template_environment(translator("nl"), html=True)
    assert environment.loader is not None
    sentences: set[str] = set()
    for name in (PAGE, JOBS_PAGE, *PAGE_PARTS, EXPERIMENT):
        source, _, _ = environment.loader.get_source(environment, name)
        for _, _, result in environment.extract_translations(source):  # type: ignore[attr-defined]
            sentences |= {*result} - {None} if isinstance(result, tuple) else {result}
    return sentences


def said_by_papers() -> set[str]:
    bands = (*facts.SIZE_BANDS, *facts.PARAMETER_BANDS)
    result = {text for _, text in bands} | {*facts.CATEGORIES.values()} | {*computed_answers.CORPUS_ANSWERS.values()}
    result |= {facts.LARGEST_BAND, facts.LARGEST_PARAMETER_BAND, *facts.CURATION_STEPS.values()}
    result |= {*facts.PERSONAL_DATA.values(), *facts.LEFT_OUT.values(), *facts.GENRES.values()}
    for form in read_forms().values():
        result |= {form.title, form.law}
        for section in form.sections.values():
            result |= {section.title, *section.points, *section.tables}
    for path in (FOLDER / "papers").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                result |= {str(node.args[0].value)} if name in ("w", "words") else set()
    for path in (FOLDER / "papers").glob("*.jinja"):
        result |= {*re.findall(r'w\("([^"]+)"', path.read_text(encoding="utf-8"))}
    return result


def test_every_sentence_of_page_and_papers_is_translated() -> None:
    templates, papers = said_by_templates(), said_by_papers()
    named = (
        {title for _, title in SECTIONS}
        | {words for _, words, _ in METRIC_ROWS}
        | {words for words, _ in PLANNED_ROWS.values()}
        | {*METRICS.values()}
    )
    assert len(templates) > 400 and len(papers) > 150
    assert (templates | papers | named) - dutch_catalogue().keys() == set()


def test_each_metric_of_the_task_files_has_a_description() -> None:
    files = (Path(__file__).parents[2] / "config/tasks").rglob("*.yaml")
    listed = [yaml.safe_load(file.read_text(encoding="utf-8")).get("metric_list") or () for file in files]
    metrics = {metric["metric"] for of_task in listed for metric in of_task}
    assert "squad_em" in metrics and metrics - METRICS.keys() == set()


def test_translation_keeps_placeholders_and_marks() -> None:
    papers = said_by_papers()
    for english, dutch in dutch_catalogue().items():
        for mark in ("%(", "<code>", "<a ", "%%"):
            assert english.count(mark) == dutch.count(mark), english
        if english in papers:
            names = [
                sorted(name for _, name, _, _ in string.Formatter().parse(text) if name) for text in (english, dutch)
            ]
            assert names[0] == names[1], english
            assert dutch != english or english in ALIKE, english


def test_catalogue_has_no_unused_entries() -> None:
    message = said_by_templates() | said_by_papers()
    for path in FOLDER.parent.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        message |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for path in FOLDER.glob("*.jinja"):
        message |= {*re.findall(r'"([^"]+)"', path.read_text(encoding="utf-8"))}
    tasks = "".join(path.read_text(encoding="utf-8") for path in Path("config/tasks").rglob("*.yaml"))
    unsaid = {english for english in dutch_catalogue().keys() - message if not english.startswith(MADE_UP)}
    assert {english for english in unsaid if f"{english}:" not in tasks} == set()


def test_equal_words_with_two_translations_are_distinguished_by_context() -> None:
    dutch = translator("nl")
    assert (dutch("all"), dutch("all", "papers")) == ("alles", "alle")
    assert translator("en")("all", "papers") == "all"
    assert dutch.ngettext("job", "jobs", 1) == "taak" and dutch("no such {word}", word=1) == "no such 1"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("nl", "Gronings Limburgs Zeeuws Fries Afrikaans Schots Nederlands Engels"),
        ("en", "Gronings Limburgish Zeelandic Western_Frisian Afrikaans Scots Dutch English"),
    ],
)
def test_languages_are_named_in_the_language_of_the_page(page: str, names: str) -> None:
    codes = ["gos", "li", "zea", "fy", "af", "sco", "nl", "en"]
    expected = [f"{name.replace('_', ' ')} ({code})" for name, code in zip(names.split(), codes, strict=True)]
    assert [translator(page).language_name(code) for code in codes] == expected
    assert translator(page).language_name("xqq") == "xqq"


def test_identified_languages_are_listed_with_the_model(run_folder: Any) -> None:
    content = run_folder.read("corpus/main/statistics.json")
    read = {
        "nl": {"documents": 1030, "bytes": 700, "mixed_documents": 4},
        "<b>": {"documents": 2, "bytes": 300, "mixed_documents": 0},
    }
    content["identified"] = {
        "model": "glotlid.bin",
        "minimum_scores": {"nl": [0.4, 0.689], "en": [0.65]},
        "languages": read,
    }
    run_folder.write("corpus/main/statistics.json", content)
    text = outline(made(run_folder)["page"]).text
    assert "Languages identified by glotlid.bin, before the other filters" in text
    assert "Least scores: en 0.65, nl 0.4 / 0.689" in text
    assert "Dutch (nl) 1,030 700 70.00 % 4 1,026" in text and "<b> 2 300 30.00 % 0 0" in text
    text = outline(made(run_folder, language="nl")["page"]).text
    assert "Nederlands (nl) 1.030 700 70,00 %" in text and "Laagste scores: en 0.65" in text


def test_numbers_use_the_separators_of_the_language() -> None:
    template = "{{ 1234567 | number }} {{ 0.256 | share }} {{ 0.5 | score }} {{ 2.5 | joules }} {{ 0.00001 | p_value }}"
    for language, numbers in {
        "en": "1,234,567 25.6 % 0.5000 2.5 J < 0.0001",
        "nl": "1.234.567 25,6 % 0,5000 2,5 J < 0,0001",
    }.items():
        words = translator(language)
        environment = load_template_environment(words, html=True)
        assert environment.from_string(template).render() == escape(numbers)
        bar = draw_stacked_bar([("kept", "kept", 1500.0)], 20000.0, words.gettext)
        line = Series("a", [(0, -0.5), (20000, 0.25)])
        chart = draw_line_chart("loss", "step", "nats", [line], gettext=words.gettext)
        ticks = {"20,000", "0.2", "-0.4"} if language == "en" else {"20.000", "0,2", "-0,4"}
        assert ticks <= {*re.findall(r">([-\d.,]+)</text>", chart)}
        assert ("1,500 of 20,000" if language == "en" else "1.500 van 20.000") in bar
    assert translator("nl").gettext("1.2.3a") == "1.2.3a"
