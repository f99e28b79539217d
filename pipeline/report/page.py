"""The step `report page`: the auditor's page, the model card and the summary of training content.

All three are computed from the records and artefacts of a run, so the same files give the same bytes. What comes from
data is escaped, and the page asks nothing of any network.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pipeline.ground import markup
from pipeline.report import charts, formats, training
from pipeline.report.consumption import Consumption
from pipeline.report.read import Json, Material, read_material
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
    *("macros.html.jinja", "page_data.html.jinja", "page_training.html.jinja", "page_records.html.jinja"),
    *("page_forgetting.html.jinja", "page_slurm.html.jinja"),
)
STYLE = "page.css"
MODEL_CARD = "model_card.md.jinja"
TRAINING_CONTENT_SUMMARY = "training_content_summary.md.jinja"
SIZE_RANGES = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))


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


def _energy(sum_: Consumption) -> str:
    return "not measured" if sum_.jobs and sum_.label == "not measured" else formats.kwh(sum_.joules)


def _command(words: list[str] | None) -> str:
    return shlex.join(words) if words else "not recorded"


FILTERS: dict[str, Any] = {
    "brief": training.brief,
    "command": _command,
    "duration": formats.duration,
    "energy": _energy,
    "joules": lambda value: f"{value:,.0f} J" if value >= 1000 or value == 0 else f"{value:,.1f} J",
    "kwh": formats.kwh,
    "mass": formats.mass,
    "moment": _moment,
    "plain": lambda value: Markup(f"{value:.4g}"),
    "quoted": lambda value: Markup(json.dumps(value, ensure_ascii=False)),
    "score": lambda value: "–" if value is None else f"{value:.4f}",
    "setting": _setting,
    "share": lambda value: f"{100 * value:.1f} %",
}


def _environment(*, html: bool) -> jinja2.Environment:
    """Return the environment of the templates here, with the bars of their tables."""
    environment = markup.environment(Path(__file__).parent, FILTERS, html=html)
    environment.globals["bar"] = charts.bar
    return environment


def _write(environment: jinja2.Environment, name: str, path: Path, content: Json) -> None:
    path.write_text(environment.get_template(name).render(content), encoding="utf-8", newline="\n")


def _size_range(material: Material) -> str:
    tokens = sum(index.content["train"]["tokens"] for index in material.indexes)
    return next((text for limit, text in SIZE_RANGES if tokens < limit), "more than 10 trillion tokens")


def run(
    settings: PageSettings,
    *,
    records: list[Path],
    statistics: list[Path],
    fertility: list[Path],
    metrics: list[Path],
    evaluation: list[Path],
    plan: Path,
    manifests: list[Path],
    indexes: list[Path],
    forgotten: list[Path],
    remains: list[Path],
    page: Path,
    model_card: Path,
    training_content_summary: Path,
) -> Json:
    """Write the page and both documents; return how much they are computed from and how many checks hold.

    Where a source has an opt-out list, `forgotten` has the proof of each corpus and `remains` the search elsewhere.
    The attempts and Slurm's books are read from the folders `attempts` and `accounting` beside that of the records.

    Raises:
        InputError: a file is not what its name says.
    """
    material = read_material(
        page,
        records=records,
        statistics=statistics,
        fertility=fertility,
        metrics=metrics,
        evaluation=evaluation,
        plan=plan,
        manifests=manifests,
        indexes=indexes,
        forgotten=forgotten,
        remains=remains,
    )
    content = context(material, settings)
    content |= {
        "sections": (*SECTIONS, *[FORGETTING] * bool(material.forgotten), *[SLURM] * bool(material.accounting)),
        "results": f"results/{settings.run}",
        "css": markup.style(Path(__file__).parent / STYLE),
        "languages": sorted({row["source"]["language"] for row in content["sources"] if row["source"].get("language")}),
        "latest_read": max((row["fingerprinted"] for row in content["sources"]), default=""),
        "size_range": _size_range(material),
    }
    _write(_environment(html=True), PAGE, page, content)
    markdown = _environment(html=False)
    _write(markdown, MODEL_CARD, model_card, content)
    _write(markdown, TRAINING_CONTENT_SUMMARY, training_content_summary, content)
    failed = len(content["failed_checks"])
    print(f"report: {len(material.records)} records, {len(content['checks'])} checks, {failed} fail", flush=True)
    return {
        "records": len(material.records),
        "attempts_lost": len(content["energy"].attempts),
        "checks": len(content["checks"]),
        "checks_failed": failed,
    }
