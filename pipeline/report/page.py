"""The step `report page`: the account of energy, the auditor's page, the model card, the papers that European law asks.

All are computed from the records and artefacts of a run, so the same files give the same bytes. What comes from
data is escaped, and the page asks nothing of any network.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pipeline.core import markup
from pipeline.energy.energy_accounting import validate_accounting
from pipeline.evaluate.verdict import is_mostly_truncated
from pipeline.report import charts, footprint, formats, training
from pipeline.report.consumption import attempt_of, computed_by
from pipeline.report.disclosure import Stated
from pipeline.report.energy import energy_of
from pipeline.report.experiments import experiment, without_cells
from pipeline.report.key_figures import key_figures
from pipeline.report.language import Language, language
from pipeline.report.language_names import name_of
from pipeline.report.papers.paper import LANGUAGES
from pipeline.report.papers.write import NAMES, SPDX, write
from pipeline.report.read import Json, read_material
from pipeline.report.settings import PageSettings
from pipeline.report.view import context

SECTIONS = (
    ("summary", "Summary"),
    ("sources", "Sources and rights"),
    ("corpus", "From raw text to corpus"),
    ("tokenizer", "Tokenizer"),
    ("tokens", "Token sets"),
    ("training", "Training"),
    ("evaluation", "Evaluation"),
    ("energy", "Energy and carbon"),
    ("steps", "Every job"),
    ("attempts", "Attempts whose result was lost"),
    ("verify", "How to verify all of it"),
)
FORGETTING = ("forgetting", "Forgetting")  # of runs with an opt-out list
SLURM = ("slurm", "Jobs of Slurm")  # of runs that had some
PAGE = "page.html.jinja"
PAGE_PARTS = (
    *("macros.html.jinja", "page_first.html.jinja", "page_data.html.jinja", "page_training.html.jinja"),
    *("page_samples.html.jinja", "page_records.html.jinja", "page_energy.html.jinja", "page_forgetting.html.jinja"),
    *("page_slurm.html.jinja", "page_comparison.html.jinja", "page_tokenizer.html.jinja"),
)
STYLE, SCRIPT = "page.css", "page.js"
EXPERIMENT = "experiment.html.jinja"
FOLDED_FROM = 100  # a table of more rows than this is folded, and has a search
FEW = 8  # sources and scores that the first page names
PAPERS = (".html", ".json", ".md")  # what is linked of the folder of the report
MODEL_CARD = "model_card.md.jinja"
PAPER_PARTS = ("not_stated.md.jinja",)


def _moment(text: str | None) -> str:
    return f"{text[:10]} {text[11:19]} UTC" if text else "–"


def _setting(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.6f}".rstrip("0").rstrip(".") if 1e-3 <= abs(value) < 1e15 else f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _command(words: list[str] | None) -> str:
    return shlex.join(words) if words else "not recorded"


FILTERS: dict[str, Any] = {
    "attempt_of": attempt_of,
    "brief": training.brief,
    "command": _command,
    "computed_by": computed_by,
    "duration": formats.duration,
    "joules": lambda value: f"{value:,.0f} J" if value >= 1000 or value == 0 else f"{value:,.1f} J",
    "kwh": formats.kwh,
    "mass": formats.mass,
    "moment": _moment,
    "plain": lambda value: Markup(f"{value:.4g}"),
    "scientific": lambda value: Markup(f"{value:.2e}"),
    "quoted": lambda value: Markup(json.dumps(value, ensure_ascii=False)),
    "score": lambda value: "–" if value is None else f"{value:.4f}",
    "p_value": lambda value: "–" if value is None else "< 0.0001" if value < 0.0001 else f"{value:.4f}",
    "setting": _setting,
    "share": lambda value: f"{100 * value:.1f} %",
}


@cache
def environment_of(words: Language, *, html: bool) -> jinja2.Environment:
    """Return the environment of the templates here, with the bars of their tables and the words of a language.

    It is kept, since its templates take seconds to compile.
    """
    environment = markup.environment(Path(__file__).parent, FILTERS, html=html)
    environment.globals |= {"bar": partial(charts.bar, told=words.told), "told": words.told}
    environment.add_extension("jinja2.ext.i18n")
    environment.install_gettext_callables(words.told, words.told_many, newstyle=True)  # type: ignore[attr-defined]
    environment.policies["ext.i18n.trimmed"] = True
    environment.filters |= {"known": words.known, "told": words.told, "is_mostly_truncated": is_mostly_truncated}
    environment.filters["language_name"] = partial(name_of, page=words.code)
    return environment


def _beside(page: Path, *written: str) -> list[str]:
    """Return what lies beside the page for a person or a program to read, with what this step writes itself."""
    found = {path.name for path in page.absolute().parent.iterdir() if path.suffix in PAPERS}
    return sorted(name for name in found | {*written} if name != "index.html" and not name.startswith("."))


def _write(environment: jinja2.Environment, name: str, parts: Sequence[str], path: Path, content: Json) -> None:
    """Write a template's text; its parts are named, so that an edit of one makes the step run again."""
    for part in parts:
        environment.get_template(part)
    path.write_text(environment.get_template(name).render(content), encoding="utf-8", newline="\n")


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8", newline="\n")


def run(
    settings: PageSettings,
    *,
    records: list[Path],
    statistics: list[Path],
    fertility: list[Path],
    metrics: list[Path],
    evaluation: list[Path],
    answers: list[Path],
    samples: list[Path],
    differences: list[Path],
    plan: Path,
    manifests: list[Path],
    data_sets: list[Path],
    indexes: list[Path],
    later_suites: list[Path],
    forgotten: list[Path],
    remains: list[Path],
    carbon_intensity: list[Path],
    page: Path,
    model_card: Path,
    papers: Path,
    energy: Path,
    figures: Path,
    experiments: Path | None = None,
) -> Json:
    """Write the account, page, key figures, card and papers; return what they are made of and how many checks hold.

    Where suites are evaluated that the decontamination of a corpus does not know, `later_suites` has what was counted.
    Where a source has an opt-out list, `forgotten` has the proof of each corpus and `remains` the search elsewhere.
    `carbon_intensity` is the table of the grid's intensity over time, where one is configured and is there.
    `experiments` is the folder of a page for each experiment, where there are some: the models that are their cells
    stand there, and not on the page, but for their jobs and joules.
    The attempts, Slurm's books and the readings of meters are read from the folders `attempts`, `accounting` and
    `readings` beside that of the records. All joules that page and documents tell are those of the file `energy`.

    Raises:
        InputError: a file is not what its name says.
    """
    everything = read_material(
        page,
        records=records,
        statistics=statistics,
        fertility=fertility,
        metrics=metrics,
        evaluation=evaluation,
        answers=answers,
        samples=samples,
        differences=differences,
        plan=plan,
        manifests=manifests,
        data_sets=data_sets,
        indexes=indexes,
        later_suites=later_suites,
        forgotten=forgotten,
        remains=remains,
        carbon_intensity=carbon_intensity,
    )
    account = energy_of(everything, settings)
    material = without_cells(everything, settings.experiments)
    _write_json(energy, account)
    words = language(settings.language)
    checked_account = validate_accounting(account, energy.name)
    content = context(material, settings, checked_account, words.told)
    css, script = markup.style(Path(__file__).parent / STYLE), (Path(__file__).parent / SCRIPT).read_text("utf-8")
    content |= {
        "stated": Stated(settings.disclosure, settings.provider, settings.contact),
        "key_figures": key_figures(material, content),
        "fates": sorted(Counter(attempt.fate for attempt in content["energy"].attempts).items()),
        "homes": content["energy"].homes(words.told),
        "folded_from": FOLDED_FROM,
        "few": FEW,
        "papers": _beside(page, "energy.json", "figures.json", "model-card.md")
        + [f"papers/{name}.{language}.html" for language in LANGUAGES for name in NAMES]
        + [f"papers/{SPDX}"],
        "css_hash": markup.allowed(css),
        "script": Markup(script),
        "script_hash": markup.allowed(script),
        "sections": (*SECTIONS, *[FORGETTING] * bool(material.forgotten), *[SLURM] * bool(material.accounting)),
        "results": f"results/{settings.run}",
        "home": (footprint.HOME_KWH_PER_YEAR, footprint.HOME_SOURCE, footprint.HOME_ADDRESS),
        "css": css,
    }
    _write_json(figures, [figure.as_json() for figure in content["key_figures"].values()])
    html = environment_of(words, html=True)
    _write(html, PAGE, PAGE_PARTS, page, content)
    if experiments is not None:
        experiments.mkdir()
        for name, told in settings.experiments.items():
            found = experiment(everything, name, told, checked_account, words.told)
            _write(html, EXPERIMENT, PAGE_PARTS[:1], experiments / f"{name}.html", content | found)
    markdown = environment_of(language("en"), html=False)
    _write(markdown, MODEL_CARD, PAPER_PARTS, model_card, content)
    points = write(papers, material, content, content["stated"])
    failed = len(content["failed_checks"])
    print(f"report: {len(material.records)} records, {len(content['checks'])} checks, {failed} fail", flush=True)
    return {
        "records": len(material.records),
        "files_unreadable": len(material.unreadable),
        "attempts_lost": len(content["energy"].attempts),
        "points_of_papers": points["points"],
        "points_not_stated": points["not_stated"],
        "energy_problems": len(content["account"].problems),
        "checks": len(content["checks"]),
        "checks_failed": failed,
    }
