"""The step `report page`: the account of energy, the auditor's page, the model card, the papers that European law asks.

All are computed from the records and artifacts of a run, so the same files give the same bytes. What comes from
data is escaped, and the page asks nothing of any network.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from pipeline.core import markup
from pipeline.core.display_text import format_duration
from pipeline.energy.run_energy_report_reader import validate_accounting
from pipeline.evaluate.score_export_formats import format_model_index
from pipeline.evaluate.trivial_baseline_tests import has_mostly_truncated_prompts
from pipeline.report import amount_formatting, charts, footprint, training_section
from pipeline.report.energy_accounting import compute_energy_accounting
from pipeline.report.evaluation_section import SHOWN_CHECKPOINTS
from pipeline.report.experiment_page_content import FINISHED, summarize_experiment
from pipeline.report.key_figures import compute_key_figures
from pipeline.report.papers.paper import LANGUAGES
from pipeline.report.papers.write import CYCLONEDX, DOCUMENT_NAMES, SPDX, write_compliance_documents
from pipeline.report.run_reader import REPLACED_ATTEMPT, Json, RunReader, link_job
from pipeline.report.score_charts import LEAST_SIGNAL_TO_NOISE, METRICS, draw_score_charts
from pipeline.report.settings import PageSettings, ProviderStatements
from pipeline.report.template_context import build_template_context
from pipeline.report.translator import Translator, translator

SECTIONS = (
    ("summary", "Summary"),
    ("sources", "Sources and rights"),
    ("corpus", "From raw text to corpus"),
    ("tokenizer", "Tokenizer"),
    ("tokens", "Token sets"),
    ("training", "Training"),
    ("evaluation", "Evaluation"),
    ("energy", "Energy and carbon"),
    ("steps", "Jobs and machines"),
    ("attempts", "Lost attempts"),
    ("verify", "How to verify the run"),
)
FORGETTING = ("forgetting", "Forgetting")  # of runs with an opt-out list
SLURM = ("slurm", "Slurm jobs")  # of runs that had some
PAGE = "page.html.jinja"
JOBS_PAGE = "jobs.html.jinja"
PAGE_PARTS = (
    *("macros.html.jinja", "page_overview.html.jinja", "page_first.html.jinja", "page_data.html.jinja"),
    *("page_tokenizer.html.jinja", "page_training.html.jinja", "page_evaluation.html.jinja"),
    *("page_samples.html.jinja", "page_energy.html.jinja", "page_records.html.jinja"),
    *("page_forgetting.html.jinja", "page_slurm.html.jinja"),
)
STYLE, SCRIPT = "page.css", "page.js"
EXPERIMENT = "experiment.html.jinja"
LONG_TABLE_ROWS = 100  # a table of more rows than this is folded, and has a search
SHOWN_ENTRIES = 8  # sources, hosts and files that are named before "and n more"
OWN_PAGES = ("index.html", "jobs.html")
LINKED_SUFFIXES = (".html", ".json", ".md")  # what is linked of the folder of the report
MODEL_CARD = "model_card.md.jinja"
PAPER_PARTS = ("not_stated.md.jinja",)


def _format_setting(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.6f}".rstrip("0").rstrip(".") if 1e-3 <= abs(value) < 1e15 else f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FILTERS: dict[str, Any] = {
    "brief": training_section.format_duration_below_minute,
    "command": lambda words: shlex.join(words) if words else "not recorded",
    "link_job": link_job,
    "duration": format_duration,
    "joules": lambda value: f"{value:,.0f} J" if value >= 1000 or value == 0 else f"{value:,.1f} J",
    "kwh": amount_formatting.format_kwh,
    "mass": amount_formatting.format_mass,
    "moment": lambda text: f"{text[:10]} {text[11:19]} UTC" if text else "–",
    "plain": lambda value: Markup(f"{value:.4g}"),
    "scientific": lambda value: Markup(f"{value:.2e}"),
    "quoted": lambda value: Markup(json.dumps(value, ensure_ascii=False)),
    "score": lambda value: "–" if value is None else f"{value:.4f}",
    "p_value": lambda value: "–" if value is None else "< 0.0001" if value < 0.0001 else f"{value:.4f}",
    "points": lambda value: f"{round(value)}",
    "setting": _format_setting,
    "share": lambda value: f"{100 * value:.1f} %",
}

NUMBER_FILTERS = [
    *("brief", "duration", "joules", "kwh", "mass", "number", "p_value", "percent"),
    *("points", "scientific", "score", "share", "size"),
]


def _localize_filter(words: Translator, format: Callable[..., str]) -> Callable[..., str]:
    """Return a filter that formats numbers with the marks of a language."""
    return lambda *values: words.localize_marks(markup.use_minus_sign(format(*values)))


@cache
def load_template_environment(words: Translator, *, html: bool) -> jinja2.Environment:
    """Return the environment of the templates here, with the bars of their tables and the words of a language.

    It is kept, since its templates take seconds to compile.
    """
    environment = markup.template_environment(Path(__file__).parent, FILTERS, html=html)
    environment.globals |= {"bar": partial(charts.draw_stacked_bar, gettext=words.gettext)}
    environment.add_extension("jinja2.ext.i18n")
    environment.install_gettext_callables(words.gettext, words.ngettext, newstyle=True)  # type: ignore[attr-defined]
    environment.policies["ext.i18n.trimmed"] = True
    if html:  # cards are for programs too
        formats = {name: environment.filters[name] for name in NUMBER_FILTERS}
        environment.filters |= {name: _localize_filter(words, format) for name, format in formats.items()}
    environment.filters |= {"gettext": words.gettext, "translate_amount": words.figure}
    environment.filters |= {
        "language_name": words.language_name,
        "has_mostly_truncated_prompts": has_mostly_truncated_prompts,
    }
    return environment


def _list_other_documents(page: Path, *written: str) -> list[str]:
    """Return the other documents in the folder of the page, with those that this step writes itself."""
    names = {path.name for path in page.absolute().parent.iterdir() if path.suffix in LINKED_SUFFIXES}
    return sorted(name for name in {*names, *written} - {*OWN_PAGES} if not name.startswith("."))


def _write_template(
    environment: jinja2.Environment, name: str, parts: Sequence[str], path: Path, content: Json
) -> None:
    """Write a template's text; its parts are named, so that an edit of one makes the step run again."""
    for part in parts:
        environment.get_template(part)
    path.write_text(environment.get_template(name).render(content), encoding="utf-8", newline="\n")


def _format_model_index(run: str, reader: RunReader) -> Markup:
    """Return the scores of each model's last evaluated checkpoint as YAML of a model card's metadata."""
    last = {one.content["model"]: one.content for one in reader.evaluation}
    entries = [
        entry
        for model, content in last.items()
        for entry in format_model_index(f"{run}/{model}-{content['step']}", content)
    ]
    return Markup(yaml.safe_dump({"model-index": entries}, sort_keys=False, allow_unicode=True) if entries else "")


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8", newline="\n")


def run(
    settings: PageSettings,
    *,
    records: list[Path],
    files: list[Path],
    carbon_intensity: list[Path],
    page: Path,
    jobs: Path,
    model_card: Path,
    papers: Path,
    energy: Path,
    figures: Path,
    experiments: Path | None = None,
) -> Json:
    """Write the account, page, key figures, card and papers; return what they are made of and how many checks hold.

    Attempts, accounting data of Slurm and meter readings are read from the run's folder. All joules of page and
    documents are those of the file `energy`.

    Args:
        records: the records of the jobs before the report.
        files: the artifacts of the run, which `RunReader` identifies by their paths.
        carbon_intensity: the table of the grid's intensity over time, where one is configured and is there.
        experiments: the folder of a page for each experiment, where there are some. The models that are their cells
            are on these pages; the main page has only their jobs and joules, and the key figures have them too.

    Raises:
        InputError: a file is not what its name says.
    """
    everything = RunReader(page.parent.parent, [*records, *files], page)
    account = compute_energy_accounting(everything, settings, carbon_intensity)
    cells = {cell.name for experiment_page in settings.experiments.values() for cell in experiment_page.cells}
    reader = everything.exclude_models(cells)
    _write_json(energy, account)
    words = translator(settings.language)
    checked_account = validate_accounting(account, energy.name)
    content = build_template_context(reader, settings, checked_account, words.gettext)
    css, script = (
        markup.read_style_sheet(Path(__file__).parent / STYLE),
        (Path(__file__).parent / SCRIPT).read_text("utf-8"),
    )
    experiment_contents = {
        name: summarize_experiment(everything, name, experiment_page, checked_account, words.gettext)
        for name, experiment_page in settings.experiments.items()
    }
    finished_cells = [
        cell
        for one in experiment_contents.values()
        for cell in one["cells"]
        if cell["outcome"] == FINISHED and cell["link"]
    ]
    stated = ProviderStatements(settings.disclosure, settings.provider, settings.contact)
    fates = Counter(attempt.fate for attempt in content["energy"].attempts)
    content |= {
        "stated": stated,
        "missing_answers": len(stated.missing),
        "asked_answers": stated.provider_question_count,
        "model_index": _format_model_index(settings.run, reader),
        "key_figures": compute_key_figures(everything, content, finished_cells),
        "fates": sorted(fates.items()),
        "failures": [(fate, times) for fate, times in sorted(fates.items()) if fate != REPLACED_ATTEMPT],
        "replaced": fates[REPLACED_ATTEMPT],
        "homes": content["energy"].homes(words.gettext),
        "folded_from": LONG_TABLE_ROWS,
        "few": SHOWN_ENTRIES,
        "metrics_in_words": METRICS,
        "score_charts": draw_score_charts(reader, words),
        "least_signal": LEAST_SIGNAL_TO_NOISE,
        "shown_checkpoints": SHOWN_CHECKPOINTS,
        "papers": _list_other_documents(page, "energy.json", "figures.json", "model-card.md")
        + [f"papers/{name}.{language}.html" for language in LANGUAGES for name in DOCUMENT_NAMES]
        + [f"papers/{SPDX}", f"papers/{CYCLONEDX}"],
        "css_hash": markup.content_security_hash(css),
        "script": Markup(script),
        "script_hash": markup.content_security_hash(script),
        "sections": (*SECTIONS, *[FORGETTING] * bool(reader.forgotten), *[SLURM] * bool(reader.accounting)),
        "results": f"results/{settings.run}",
        "home": (footprint.HOME_KWH_PER_YEAR, footprint.HOME_SOURCE, footprint.HOME_ADDRESS),
        "css": css,
    }
    _write_json(figures, [figure.as_json() for figure in content["key_figures"].values()])
    html = load_template_environment(words, html=True)
    _write_template(html, PAGE, PAGE_PARTS, page, content)
    _write_template(html, JOBS_PAGE, PAGE_PARTS[:1], jobs, content)
    if experiments is not None:
        experiments.mkdir()
        for name, experiment_content in experiment_contents.items():
            _write_template(
                html, EXPERIMENT, PAGE_PARTS[:1], experiments / f"{name}.html", content | experiment_content
            )
    markdown = load_template_environment(translator("en"), html=False)
    _write_template(markdown, MODEL_CARD, PAPER_PARTS, model_card, content)
    points = write_compliance_documents(papers, reader, content, stated)
    failed = len(content["failed_checks"])
    print(f"report: {len(reader.records)} records, {len(content['checks'])} checks, {failed} fail", flush=True)
    return {
        "records": len(reader.records),
        "files_unreadable": len(reader.unreadable),
        "attempts_lost": len(content["energy"].attempts),
        "points_of_papers": points["points"],
        "points_not_stated": points["not_stated"],
        "energy_problems": len(content["account"].problems),
        "checks": len(content["checks"]),
        "checks_failed": failed,
    }
