"""Publishes the corpus as a data set: a card, Croissant metadata, statistics and a page of plots.

The documents stay in `final/`; the card next to that folder lists its files. `datasets.load_dataset` opens the folder
of the corpus. Licenses and rights of the sources have their own table, `sources.parquet`, so that editing them changes
no file of documents.
"""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from markupsafe import Markup

from pipeline.core import markup
from pipeline.corpus.data_set import plots
from pipeline.corpus.data_set.croissant import SOURCE_COLUMNS, SOURCES_FILE, croissant_metadata
from pipeline.corpus.data_set.document_counts import SCORE_BINS, describe_data_set
from pipeline.corpus.documents import LENGTHS_PER_DOUBLING
from pipeline.corpus.removed_documents import SAMPLE_CHARACTERS, SAMPLES_PER_REASON
from pipeline.corpus.settings import PublishSettings

CARD, PAGE, STYLE = "data_set/dataset_card.md.jinja", "data_set/dataset.html.jinja", "data_set/dataset.css"
SECTIONS = (
    ("funnel", "What was removed, and why"),
    ("composition", "Sources, languages, licenses, years"),
    ("length", "How long the documents are"),
    ("duplicates", "Duplicates within and across sources"),
    ("confidence", "How sure the language is"),
    ("samples", "Samples of what each rule removed"),
    ("use", "Use and verify"),
)
SIZE_CATEGORIES = (
    *((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M")),
    *((10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"), (10**11, "10B<n<100B")),
)
# The hub's names of licenses that are not the SPDX identifier in lower case; unknown licenses are `other`.
HUB_LICENSES = {"ODC-By-1.0": "odc-by", "PDDL-1.0": "pddl", "ODbL-1.0": "odbl", "etalab-2.0": "etalab-2.0"}
LOWERCASED_LICENSES = re.compile(
    r"CC0-1\.0|CC-BY(-NC)?(-SA|-ND)?-[1-4]\.[05]|Apache-2\.0|MIT|ISC|Unlicense|BSD-[23]-Clause"
)
FILTERS = {"compact": lambda text: re.sub(r"\s*\n\s*\n\s*", "\n", text).strip()}


@cache
def _environment(*, html: bool) -> jinja2.Environment:
    return markup.template_environment(Path(__file__).parent, FILTERS, html=html)


def _front_matter(data: dict[str, Any]) -> str:
    """Return the YAML front matter of the card; it lists each file, so that files of an earlier run are not loaded."""
    paths = [file["path"] for file in data["files"]]
    documents = data["totals"]["documents_out"]
    same = {license: license.lower() for license in data["licenses"] if LOWERCASED_LICENSES.fullmatch(license)}
    content = {
        "pretty_name": f"{data['run']}: corpus {data['corpus']}",
        "language": list(data["languages"]),
        "license": sorted({(same | HUB_LICENSES).get(license, "other") for license in data["licenses"]}),
        "size_categories": [next((name for limit, name in SIZE_CATEGORIES if documents < limit), "n>100B")],
        "task_categories": ["text-generation"],
        "configs": [
            {"config_name": "default", "data_files": [{"split": "train", "path": paths}]},
            {"config_name": "sources", "data_files": [{"split": "train", "path": [SOURCES_FILE]}]},
        ],
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _write_sources(settings: PublishSettings, path: Path) -> None:
    rows = [
        source.model_dump(mode="json") | source.rights.model_dump(mode="json") | {"source": source.name}
        for source in sorted(settings.sources, key=lambda source: source.name)
    ]
    schema = pa.schema([(name, pa.string()) for name in SOURCE_COLUMNS])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def _funnel_steps(data: dict[str, Any]) -> list[tuple[dict[str, Any], list[tuple[str, int, int]]]]:
    """Return each step with its removal reasons, the largest first: reason, documents before, documents removed."""
    steps = []
    for step in data["totals"]["stages"]:
        left, reasons = step["in"], []
        for reason, number in sorted(step["removed"].items(), key=lambda item: (-item[1], item[0])):
            reasons.append((reason, left, number))
            left -= number
        steps.append((step, reasons))
    return steps


def _duplicate_matrix(data: dict[str, Any]) -> tuple[list[str], list[tuple[str, list[tuple[int, int]]]]]:
    """Return columns and rows of the matrix of duplicates; a cell is a count and its heat, 1 to 4, logarithmic."""
    numbers = {(pair["removed"], pair["kept"]): pair["documents"] for pair in data["duplicates"]}
    columns = sorted({kept for _, kept in numbers})
    most = max(numbers.values(), default=1).bit_length()
    rows = []
    for removed in sorted({removed for removed, _ in numbers}):
        row_counts = [numbers.get((removed, kept), 0) for kept in columns]
        rows.append((removed, [(number, (4 * number.bit_length() + most - 1) // most) for number in row_counts]))
    return columns, rows


def run(
    settings: PublishSettings,
    *,
    statistics: Path,
    removed: list[Path],
    final: list[Path],
    sources: Path,
    card: Path,
    croissant: Path,
    dataset: Path,
    page: Path,
) -> dict[str, Any]:
    """Write the table of sources, the card, the metadata, the counts and the page; return counts of the data set.

    Raises:
        InputError: the statistics belong to other files.
    """
    data = describe_data_set(settings, statistics, removed, final)
    dataset.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    languages = ", ".join(data["languages"]) or "none"
    description = (
        f"Texts for pre-training language models, from {len(data['sources'])} sources with stated rights: normalized, "
        f"filtered by language and quality, without duplicates, with personal data replaced. Languages: {languages}."
    )
    _write_sources(settings, sources)
    described = croissant_metadata(settings, data, description, min(final), sources)
    croissant.write_text(json.dumps(described, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    columns, matrix = _duplicate_matrix(data)
    samples = groupby(data["samples"] or [], key=lambda sample: (sample["stage"], sample["reason"]))
    content = {
        "settings": settings,
        "data": data,
        "bytes": data["totals"]["bytes_out"],
        "description": description,
        "funnel": _funnel_steps(data),
        "front_matter": Markup(_front_matter(data)),
        "filters": Markup(yaml.safe_dump(settings.filters, sort_keys=False, allow_unicode=True)),
        "columns": columns,
        "matrix": matrix,
        "sampled": [(step, reason, list(reason_samples)) for (step, reason), reason_samples in samples],
        "sections": SECTIONS,
        "plots": plots,
        "per_doubling": LENGTHS_PER_DOUBLING,
        "score_bins": SCORE_BINS,
        "per_reason": SAMPLES_PER_REASON,
        "characters": SAMPLE_CHARACTERS,
        "css": markup.read_style_sheet(Path(__file__).parent / STYLE),
    }
    for name, path in ((CARD, card), (PAGE, page)):
        written = _environment(html=name == PAGE).get_template(name).render(content)
        path.write_text(written, encoding="utf-8", newline="\n")
    print(f"{settings.corpus}: {data['totals']['documents_out']} documents described", flush=True)
    return {
        "documents": data["totals"]["documents_out"],
        "files": len(data["files"]),
        "bytes": sum(file["bytes"] for file in data["files"]),
        "samples": len(data["samples"] or []),
    }
