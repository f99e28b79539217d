"""Facts for the papers from the records of a run: its sources, models and domains."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from pipeline import layout
from pipeline.core.job_records import Attempt, Record, is_training_segment
from pipeline.core.markup import safe_url
from pipeline.corpus.documents import (
    HARMFUL,
    LANGUAGE,
    LANGUAGE_DIFFERS,
    LENGTHS_PER_DOUBLING,
    MIXED_LANGUAGE,
    RIGHTS_REASONS,
    URL_BLOCKED,
    URL_NOT_ALLOWED,
)
from pipeline.energy.run_energy_report_reader import ENERGY_UNITS, EnergyFigure
from pipeline.energy.settings import JOULES_PER_KWH
from pipeline.report.jobs_section import format_machine_gpus, format_processor
from pipeline.report.run_reader import Artifact, Json, RunReader
from pipeline.report.settings import Category, SourceDescription
from pipeline.report.translator import Translator
from pipeline.tokens.data_order import tabulate_epochs

LARGE_SHARE = 0.03
"""Of all public data sets of a modality: the template asks to name each that is larger (Commission, July 2025)."""
TOP_DOMAINS_SHARE, SMALL_TOP_DOMAINS_SHARE, SMALL_TOP_DOMAINS = 0.10, 0.05, 1000
"""The template's share of the domains, by the size of their texts; that of small providers, and at most so many."""
CURATION_STEPS = {
    "filter": "{number} removed by rules of language and quality, {rights} because rights are reserved or unclear",
    "deduplicate": "{number} removed because they repeat another document",
    "decontaminate": "{number} removed because they contain questions that the model is tested with",
}
"""By the name of a step of the corpus in its statistics: a sentence for readers who are no engineers."""
LEFT_OUT = {
    "rights": "{number} because rights are reserved or unclear",
    "language": "{number} in another language, or in none that is recognized",
    "list": "{number} from websites that the provider's lists exclude",
    "harm": "{number} flagged as harmful",
    "quality": "{number} by rules of quality, or because they are damaged",
    "deduplicate": "{number} because they repeat another document",
    "decontaminate": "{number} because they contain questions that the model is tested with",
}
"""By the rule that left out documents of a source: a sentence for readers who are no engineers."""
GENRES = {
    "prose": "stories and other prose",
    "laws": "laws",
    "drama": "plays",
    "documentation": "manuals and other documentation",
    "web": "web pages",
    "speech": "speech in writing",
    "historical": "historical texts",
}
"""By the genre of a source: its name for readers who are no engineers."""
HUB = "https://huggingface.co/datasets"
HUB_NAME = re.compile(rf"{re.escape(HUB)}/([\w.-]+(?:/[\w.-]+)?)/tree/")
REPOSITORY = re.compile(r"https?://(?:(?:www\.)?github\.com|gitlab\.com|huggingface\.co/datasets)/([\w.-]+/[\w.-]+)")
PERSONAL_DATA = {
    "address": "postal addresses",
    "bsn": "citizen service numbers (BSN)",
    "credit_card": "credit card numbers",
    "email": "e-mail addresses",
    "iban": "bank account numbers (IBAN)",
    "ip": "IP addresses",
    "kvk": "numbers of the trade register (KvK)",
    "name": "names of persons",
    "number_plate": "number plates",
    "passport": "passport numbers",
    "telephone": "telephone numbers",
}
"""By the kind of personal data in the statistics of a corpus: its name for readers who are no engineers."""
SIGNIFICANT = 2  # digits of an energy, which the Model Documentation Form asks for
PARAMETER_BANDS = (
    *((5 * 10**8, "1 to 500 million"), (5 * 10**9, "500 million to 5 billion"), (15 * 10**9, "5 to 15 billion")),
    *((50 * 10**9, "15 to 50 billion"), (100 * 10**9, "50 to 100 billion"), (500 * 10**9, "100 to 500 billion")),
    (10**12, "500 billion to 1 trillion"),
)
LARGEST_PARAMETER_BAND = "more than 1 trillion"
SIZE_BANDS = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))
LARGEST_BAND = "more than 10 trillion tokens"
CATEGORIES = {
    "public": "publicly available data sets",
    "licensed": "private data sets licensed by their holders",
    "third-party": "private data sets of other third parties",
    "crawled": "data crawled and scraped from online sources",
    "user": "data of users",
    "synthetic": "synthetic data",
    "other": "other sources",
}
UNION_LANGUAGES = frozenset(
    [
        *("bg", "cs", "da", "de", "el", "en", "es", "et", "fi", "fr", "ga", "hr"),
        *("hu", "it", "lt", "lv", "mt", "nl", "pl", "pt", "ro", "sk", "sl", "sv"),
    ]
)
"""The official languages of the European Union (Regulation No 1 of 1958, as amended in 2013), ISO 639-1."""
MODEL_KEYS = (
    *("name", "parameters", "active_parameters", "energy", "branch_of", "began_with"),
    *("validation_loss", "validation_bits_per_byte"),
)
"""What the papers say of a model as the page does."""


@dataclass(frozen=True)
class SourceFacts:
    """A source: its rights from the manifest, its documents from the statistics, its tokens from the indexes.

    `license_text` counts the licenses of its documents, where they have their own, and `own_licenses` names them.
    `title` is the name of the data set at its address. `left_out` counts documents by the rules of `LEFT_OUT`.
    """

    name: str
    title: str | None
    category: Category
    is_described: bool
    language: str
    license: str
    license_text: str
    own_licenses: list[str]
    basis: str
    holder: str
    address: str | None
    version: str | None
    bytes_read: int
    files: int
    read_last: str
    documents_read: int
    documents_used: int
    split: str | None
    left_out: dict[str, int]
    tokens: int


@dataclass(frozen=True)
class ModelFacts:
    """A model, from the records of its segments."""

    name: str
    parameters: int
    active_parameters: int
    tokens: int
    architecture: Json
    training: Json
    seed: int | None
    vocabulary_size: int | None
    started: datetime
    ended: datetime
    seconds: float
    hardware: tuple[str, ...]
    lost_attempts: int
    energy: EnergyFigure
    branch_of: tuple[str, int] | None
    began_with: Json | None
    epochs: dict[str, float]
    validation_loss: float | None
    validation_bits_per_byte: float | None
    scores: tuple[Json, ...]

    def flops(self, factor: int) -> float:
        """Return the floating-point operations by a convention of so many per token and parameter that it uses."""
        return float(factor * self.active_parameters * self.tokens)

    @property
    def records_pattern(self) -> str:
        return layout.SEGMENT_RECORD.glob_pattern(model=self.name)

    @property
    def duration(self) -> timedelta:
        """The time of the jobs of its segments, in whole seconds."""
        return timedelta(seconds=round(self.seconds))


def format_parameter_band(parameters: int) -> str:
    """Return the band of the form that a number of parameters is in."""
    return next((text for limit, text in PARAMETER_BANDS if parameters < limit), LARGEST_PARAMETER_BAND)


def format_energy(figure: EnergyFigure, words: Translator) -> str:
    """Return an energy with its interval, MWh and label, with the digits that the Model Documentation Form asks."""
    if not figure.is_known:
        return words("not measured")
    unit = next((unit for unit in ENERGY_UNITS if figure.joules >= unit.size), ENERGY_UNITS[-1])
    value, low, high = (
        words.figure(_format_decimal(joules / unit.size))
        for joules in (figure.joules, figure.low_joules, figure.high_joules)
    )
    return words(
        "{value} {unit} ({megawatt_hours} MWh; 95 % interval {low} to {high} {unit}; {label})",
        value=value,
        unit=unit.name,
        megawatt_hours=words.figure(_format_decimal(figure.joules / (1000 * JOULES_PER_KWH))),
        low=low,
        high=high,
        label=words.figure(figure.label),
    )


def _format_decimal(value: float) -> str:
    """Return a number with as many digits as the papers have, without an exponent."""
    return f"{Decimal(f'{value:.{SIGNIFICANT - 1}e}'):f}"


def format_kilowatt_hours(joules: float) -> str:
    """Return an energy in kWh as a decimal number without exponent, with as many digits as the papers have."""
    return _format_decimal(joules / JOULES_PER_KWH)


def format_share(value: float) -> str:
    """Return a part of a whole as a percentage, a very small one as a fraction."""
    return f"{value:,.0%}".replace("%", " %") if value >= 0.01 else f"1 / {float(f'{1 / value:.1e}'):,.0f}"


def find_size_band(tokens: int) -> str:
    """Return the band of the summary's template that a number of tokens is in."""
    return next((text for limit, text in SIZE_BANDS if tokens < limit), LARGEST_BAND)


def source_category(source: Json) -> Category:
    """Return the category of a source in the summary, by its rights; a text without an address is not private data."""
    rights = source.get("rights") or {}
    if safe_url(rights.get("url")) or (source.get("dataset") or {}).get("revision"):
        return "public"
    return "licensed" if rights.get("basis") == "opt-in-agreement" else "other"


def _is_category_certain(source: Json, stated: Category | None) -> bool:
    """Return whether a source has a stated category, or one that follows from its rights."""
    rights = source.get("rights") or {}
    has_agreement = rights.get("basis") == "opt-in-agreement"
    has_dataset = bool((source.get("dataset") or {}).get("revision"))
    has_address = bool(safe_url(rights.get("url")))
    if stated is not None or has_dataset:
        return True
    return has_agreement != has_address  # the address of an agreement is not that of a public data set


def find_title(description: SourceDescription | None, address: str | None) -> str | None:
    """Return the name of a data set at its address: that of the hub, as the provider states it, or its repository's."""
    if (match := HUB_NAME.match(address or "")) is None and description is not None and description.title:
        return description.title
    match = match or REPOSITORY.match(address or "")
    return match[1] if match else None


def _count_left_out(stages: list[Json]) -> dict[str, int]:
    """Return the removed documents of a source by the rules of `LEFT_OUT`, without rules that removed none."""
    groups = {
        **dict.fromkeys(RIGHTS_REASONS, "rights"),
        **dict.fromkeys((LANGUAGE, MIXED_LANGUAGE, LANGUAGE_DIFFERS), "language"),
        **dict.fromkeys((URL_BLOCKED, URL_NOT_ALLOWED), "list"),
        HARMFUL: "harm",
    }
    counts: Counter[str] = Counter()
    for stage in stages:
        for reason, number in stage["removed"].items():
            counts[groups.get(reason, "quality") if stage["stage"] == "filter" else stage["stage"]] += number
    return {rule: counts[rule] for rule in LEFT_OUT if counts[rule]}


def collect_source_facts(
    reader: RunReader,
    rows: list[Json],
    stated: dict[str, Category],
    descriptions: dict[str, SourceDescription],
) -> list[SourceFacts]:
    """Return the sources by name; of several corpora, the one that used most of it counts."""
    tokens: Counter[str] = Counter()
    for index in reader.indexes:
        for group in index.content["train"].get("groups", []):
            tokens[group["source"]] += group["tokens"]
    facts = []
    for row in sorted(rows, key=lambda row: str(row["name"])):
        source, rights, dataset = row["source"], row["rights"], row["source"].get("dataset") or {}
        parts = [part for _, part in row["corpora"]]
        most_used: Json = max(parts, key=lambda part: part["documents_out"], default={"stages": []})
        address = rights.get("url")
        if dataset.get("revision"):
            address = f"{HUB}/{dataset['name']}/tree/{dataset['revision']}"
        facts.append(
            SourceFacts(
                name=row["name"],
                title=find_title(descriptions.get(row["name"]), address),
                category=stated.get(row["name"]) or source_category(source),
                is_described=_is_category_certain(source, stated.get(row["name"])),
                language=str(source.get("language") or ""),
                license=str(source.get("license") or ""),
                license_text=row["license"],
                own_licenses=row["own_licenses"],
                basis=str(rights.get("basis") or ""),
                holder=str(rights.get("holder") or ""),
                address=address,
                version=dataset.get("revision") or rights.get("version"),
                bytes_read=row["manifest"].content["bytes"],
                files=row["manifest"].content["files"],
                read_last=row["fingerprinted"],
                documents_read=max((part["documents_in"] for part in parts), default=0),
                documents_used=max((part["documents_out"] for part in parts), default=0),
                split=dataset.get("split") if dataset.get("revision") else None,
                left_out=_count_left_out(most_used["stages"]),
                tokens=tokens[row["name"]],
            )
        )
    return facts


def split_by_size(sources: list[SourceFacts]) -> tuple[list[SourceFacts], list[SourceFacts]]:
    """Return the public sources that the template asks to name, those above 3 % of all of them, and the others."""
    public = [source for source in sources if source.category == "public"]
    limit = LARGE_SHARE * sum(source.bytes_read for source in public)
    large = [source for source in public if source.bytes_read > limit]
    return large, [source for source in public if source not in large]


def find_middle_length(histograms: dict[str, list[list[int]]]) -> tuple[int, int] | None:
    """Return between which numbers of characters the median document is, of all languages together.

    Args:
        histograms: by language, documents by half doublings of characters: those from 2^(bin/2) to 2^((bin+1)/2).
    """
    counts: Counter[int] = Counter()
    for bins in histograms.values():
        for place, number in bins:
            counts[place] += number
    reached = 0
    for place in sorted(counts):
        reached += counts[place]
        if 2 * reached >= counts.total():
            return round(2 ** (place / LENGTHS_PER_DOUBLING)), round(2 ** ((place + 1) / LENGTHS_PER_DOUBLING))
    return None


def rank_domains(
    data_sets: list[Artifact], crawled: set[str], *, small: bool
) -> tuple[int, list[tuple[str, int, int]]]:
    """Return how many domains the crawled sources have, and the largest as the template asks: name, documents, bytes.

    A domain of two corpora counts with the one that holds more of it.
    """
    number = 0
    sizes: dict[str, tuple[int, int]] = {}
    for data_set in data_sets:
        for source, entry in data_set.content["domains"].items():
            if source in crawled:
                number = max(number, entry["domains"])
                for name, documents, size in entry["largest"]:
                    sizes[name] = max(sizes.get(name, (0, 0)), (size, documents))
    share = SMALL_TOP_DOMAINS_SHARE if small else TOP_DOMAINS_SHARE
    most = -(-number * round(100 * share) // 100)
    most = min(most, SMALL_TOP_DOMAINS) if small else most
    ranked = sorted(sizes.items(), key=lambda item: (-item[1][0], item[0]))
    return number, [(name, documents, size) for name, (size, documents) in ranked[:most]]


def _format_hardware(segments: list[Record]) -> tuple[str, ...]:
    """Return how many processes on which devices, and the nodes by their kind, for each layout that was used."""
    layouts: dict[str, None] = {}
    for segment in segments:
        counts = segment.counts
        node_parts = (
            [format_processor(node), format_machine_gpus(node)] for node in (counts.get("nodes") or {}).values()
        )
        kinds = Counter(" / ".join(filter(None, parts)) for parts in node_parts)
        nodes = ", ".join(f"{number} × {kind}" for kind, number in sorted(kinds.items()))
        layout = f"{counts.get('world_size') or 1} × {counts.get('device') or '?'}"
        layouts[f"{layout} ({nodes})" if nodes else layout] = None
    return tuple(layouts)


def _source_epochs(index: Artifact | None, training: Json, steps: int) -> dict[str, float]:
    rows = tabulate_epochs(index.content, training, steps) if index else []
    return {row["name"]: row["times"] for row in rows if row["column"] == "source"}


def collect_model_facts(
    reader: RunReader, shown: dict[str, Any], lost: list[Attempt], scores: list[Json]
) -> ModelFacts | None:
    """Return a model of the page as facts; None where no segment of it says how large it is."""
    segments: list[Record] = shown["segments"]
    if not segments or not shown["parameters"] or not shown["tokens_seen"]:
        return None
    last = segments[-1]
    training = last.settings.get("training", {})
    index = reader.find_token_index([last])
    return ModelFacts(
        **{name: shown[name] for name in MODEL_KEYS},
        tokens=shown["tokens_seen"],
        architecture=last.settings.get("architecture", {}),
        training=training,
        seed=last.settings.get("seed"),
        vocabulary_size=index.content.get("vocabulary_size") if index else None,
        started=min(datetime.fromisoformat(segment.started) for segment in segments),
        ended=max(datetime.fromisoformat(segment.ended) for segment in segments),
        seconds=sum(segment.wall_seconds for segment in segments),
        hardware=_format_hardware(segments),
        lost_attempts=sum(is_training_segment(shown["name"], job.step, job.instance) for job in lost),
        epochs=_source_epochs(index, training, int(last.instance["step"])),
        scores=tuple(scores),
    )
