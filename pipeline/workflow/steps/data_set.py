"""The steps of the stage corpus that count it and describe it as a data set."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.settings import Settings
from pipeline.corpus.settings import (
    STATED,
    Copies,
    Corpus,
    DescribedSource,
    PublishedSource,
    PublishSettings,
    StatisticsSettings,
)
from pipeline.report.settings import Stated
from pipeline.sources.settings import Genre
from pipeline.workflow.common_settings import shared
from pipeline.workflow.run_files import RunFiles, Wildcards
from pipeline.workflow.steps.corpus import CORPUS
from pipeline.workflow.steps.declaration import SOURCES_READ, Input, Need, Output, Shown, Step, all_batches, all_units


def corpus_statistics(config: Config, i: Wildcards) -> Settings:
    described = [
        {"name": name, **shared(DescribedSource, config.source(name))} for name in config.corpus_sources(i["corpus"])
    ]
    section = config.corpus[i["corpus"]]
    rules = [section.rules_for(config.source(name)) for name in config.corpus_sources(i["corpus"])]
    return StatisticsSettings(
        corpus=i["corpus"],
        language_model=section.language_model and Path(section.language_model.path).name,
        minimum_scores={
            code: sorted({of_source[code].minimum_score for of_source in rules}) for code in sorted(section.languages)
        },
        sources=[DescribedSource.model_validate(entry) for entry in described],
    )


def corpus_publish(config: Config, i: Wildcards) -> Settings:
    section = config.corpus[i["corpus"]]
    answers = Stated(config.disclosure, None, None)
    sources = [config.source(name) for name in config.corpus_sources(i["corpus"])]
    return PublishSettings(
        run=config.run.name,
        corpus=i["corpus"],
        provider=config.run.provider,
        contact=config.run.contact,
        stated={key: text for key in STATED if (text := answers.text(key))},
        keep_removed=section.keep_removed,
        filters=_thresholds(section, {source.genre for source in sources}),
        sources=[PublishedSource(**shared(PublishedSource, source)) for source in sources],
    )


def _thresholds(section: Corpus, genres: Collection[Genre | None]) -> dict[str, Any]:
    """Return by what a corpus is filtered and deduplicated: the rules of its languages, or of the genres it has."""
    rules = "genres" if section.genres else "languages"
    shown = section.model_dump(mode="json", include={rules: True, "deduplication": set(Copies.model_fields)})
    if not section.genres:
        return shown
    return shown | {"genres": {genre: rules for genre, rules in shown["genres"].items() if genre in genres}}


def quality_evaluation(run: RunFiles, w: Wildcards) -> list[str]:
    """Return what the classifiers of a corpus are worth; nothing where it has none."""
    has_quality = run.config.corpus[w["corpus"]].quality
    return [run.file(layout.QUALITY_EVALUATION, corpus=w["corpus"])] if has_quality else []


REMOVING = ("filter", "deduplicate", "decontaminate")
ALL_REMOVED = all_units("removed", *(layout.REMOVED.fill(step=step) for step in REMOVING))

STEPS = (
    Step(
        "corpus.statistics",
        CORPUS,
        corpus_statistics,
        "Count the corpus {wildcards.corpus}: in = kept + removed",
        inputs=(
            SOURCES_READ,
            all_batches("filtered_batches", "corpus.filter"),
            all_batches("deduplicated_batches", "corpus.deduplicate"),
            all_batches("final_batches", "corpus.decontaminate"),
            all_units("filtered", layout.FILTERED),
            all_units("deduplicated", layout.DEDUPLICATED),
            ALL_REMOVED,
            Input("contamination", layout.CONTAMINATION),
            Input("quality", quality_evaluation),
            all_units("final", layout.FINAL_DOCUMENTS),
        ),
        outputs=(Output("statistics", layout.STATISTICS),),
        need=Need("corpus", memory_megabytes=4000),
    ),
    Step(
        "corpus.publish",
        CORPUS,
        corpus_publish,
        "Describe the corpus {wildcards.corpus} as a data set",
        inputs=(
            SOURCES_READ,
            Input("statistics", layout.STATISTICS),
            ALL_REMOVED,
            all_units("final", layout.FINAL_DOCUMENTS),
        ),
        outputs=(
            Output("card", layout.DATA_CARD),
            Output("croissant", layout.CROISSANT),
            Output("dataset", layout.DATASET),
            Output("sources", layout.SOURCES_TABLE),
            Output("page", layout.DATASET_PAGE, is_target=True, shown=Shown("Data sets", {"corpus": "{corpus}"})),
        ),
        need=Need("corpus", memory_megabytes=4000),
    ),
)
