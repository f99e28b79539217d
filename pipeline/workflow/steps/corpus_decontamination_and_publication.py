"""The steps of the stage corpus that leave evaluation items out of it, count it and describe it as a data set."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.config.evaluation_item_paths import list_count_only_item_files, list_decontamination_item_files
from pipeline.core.settings import Settings
from pipeline.corpus.decontamination.settings import (
    ContaminationThresholds,
    CountItemsSettings,
    NgramsSettings,
    TaskItemsFile,
)
from pipeline.corpus.settings import (
    DISCLOSURE_KEYS,
    Corpus,
    DecontaminateSettings,
    DescribedSource,
    DuplicateSelection,
    PublishedSource,
    PublishSettings,
    StatisticsSettings,
)
from pipeline.evaluate.task_file_reader import ItemFile
from pipeline.report.settings import ProviderStatements
from pipeline.sources.settings import Genre
from pipeline.workflow.expected_run_files import RunFiles, Wildcards
from pipeline.workflow.shared_step_settings import select_matching_fields
from pipeline.workflow.steps.corpus_preparation import CORPUS, CORPUS_BATCH, classifiers_of, wait_for_matching_batch
from pipeline.workflow.steps.declaration import (
    SOURCES_READ,
    UNIT_NEEDS,
    Input,
    JobInstances,
    Output,
    ReportEntry,
    ResourceNeeds,
    Step,
    untracked_corpus_input,
    untracked_input,
    wait_for_all_batches,
    wait_for_input,
)

# Where a suite is evaluated that the decontamination does not know.
COUNTING_CORPUS = JobInstances(
    ("corpus",), lambda c: [(corpus,) for corpus in c.corpus if list_count_only_item_files(c, corpus)]
)


def ngrams_settings(config: Config, i: Wildcards) -> Settings:
    section = config.corpus[i["corpus"]].decontamination
    return NgramsSettings(
        items=_list_task_items_files(list_decontamination_item_files(config, i["corpus"])),
        **select_matching_fields(NgramsSettings, section),
    )


def _list_task_items_files(files: list[ItemFile]) -> list[TaskItemsFile]:
    return [
        TaskItemsFile(task=file.task, name=file.path.name, fields=file.fields and [*file.fields], named=file.named)
        for file in files
    ]


def _decision_settings(settings: type[Settings], config: Config, corpus: str) -> dict[str, Any]:
    """Return how it is decided what is an item; the sources that cannot hold any are those of this corpus, sorted."""
    keys = select_matching_fields(settings, config.corpus[corpus].decontamination)
    own = set(config.corpus_sources(corpus)) & set(keys["cannot_hold_items"])
    return {**keys, "cannot_hold_items": sorted(own)}


def count_items_settings(config: Config, i: Wildcards) -> Settings:
    return CountItemsSettings(
        corpus=i["corpus"],
        items=_list_task_items_files(list_count_only_item_files(config, i["corpus"])),
        **_decision_settings(CountItemsSettings, config, i["corpus"]),
    )


def required_score_batches(run: RunFiles, w: Wildcards) -> list[str]:
    """Return what a batch of a corpus waits for so that its documents have scores; nothing where they get none."""
    return [run.batch_record_path(*step, w["source"], w["batch"]) for step, _ in _score_steps(run.config, w["corpus"])]


def unit_score_files(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the scores of a unit of a corpus, whose number %unit stands for; nothing where it has none."""
    places = [place for _, place in _score_steps(run.config, w["corpus"])]
    return [run.file(place, corpus=w["corpus"], source=w["source"], unit="%unit") for place in places]


def _score_steps(config: Config, corpus: str) -> list[tuple[tuple[str, ...], layout.PathTemplate]]:
    """Return the steps that score a corpus, each with its wildcards before the source, and their places."""
    steps = {"quality": ("corpus.scores", layout.SCORES), "perplexity": ("corpus.perplexity", layout.PERPLEXITY)}
    own = [((step, corpus), place) for score, (step, place) in steps.items() if getattr(config.corpus[corpus], score)]
    return own + [
        (("corpus.classify", corpus, name), layout.CLASSIFIER_SCORES.fill(classifier=name))
        for name in sorted(config.corpus[corpus].classifiers)
    ]


DEDUPLICATED_BATCH = (
    SOURCES_READ,
    wait_for_matching_batch("corpus.deduplicate"),
    untracked_input("documents", layout.FILTERED),
    untracked_input("deduplicated", layout.DEDUPLICATED),
)


def statistics_settings(config: Config, i: Wildcards) -> Settings:
    described = [
        {"name": name, **select_matching_fields(DescribedSource, config.source(name))}
        for name in config.corpus_sources(i["corpus"])
    ]
    section = config.corpus[i["corpus"]]
    rules = [config.rules_for(i["corpus"], name) for name in config.corpus_sources(i["corpus"])]
    return StatisticsSettings(
        corpus=i["corpus"],
        language_model=section.language_model and Path(section.language_model.path).name,
        minimum_scores={
            code: sorted({of_source[code].minimum_score for of_source in rules}) for code in sorted(section.languages)
        },
        sources=[DescribedSource.model_validate(entry) for entry in described],
        classifiers=classifiers_of(config, i["corpus"]),
    )


def publish_settings(config: Config, i: Wildcards) -> Settings:
    section = config.corpus[i["corpus"]]
    answers = ProviderStatements(config.disclosure, None, None)
    sources = [config.source(name) for name in config.corpus_sources(i["corpus"])]
    estimated = config.estimated_genres() if section.preset == "genre" else {}
    return PublishSettings(
        run=config.run.name,
        corpus=i["corpus"],
        provider=config.run.provider,
        contact=config.run.contact,
        stated={key: text for key in DISCLOSURE_KEYS if (text := answers.text(key))},
        keep_removed=section.keep_removed,
        classifiers=classifiers_of(config, i["corpus"]),
        filters=_filter_thresholds(section, {config.genre(source.name) for source in sources}),
        sources=[
            PublishedSource(
                **select_matching_fields(PublishedSource, source),
                sampled_genre=estimated[source.name].genre if source.name in estimated else None,
            )
            for source in sources
        ],
    )


def _filter_thresholds(section: Corpus, genres: Collection[Genre | None]) -> dict[str, Any]:
    """Return by what a corpus is filtered and deduplicated: the rules of its languages, or of the genres it has."""
    by_genre = section.rules_by_genre
    included: dict[str, Any] = {} if by_genre else {"languages": True}
    shown = section.model_dump(mode="json", include={**included, "deduplication": set(DuplicateSelection.model_fields)})
    if not by_genre:
        return shown
    return shown | {
        "genres": {
            genre: {code: rules.model_dump(mode="json") for code, rules in languages.items()}
            for genre, languages in by_genre.items()
            if genre in genres
        }
    }


def quality_evaluation_files(run: RunFiles, w: Wildcards) -> list[str]:
    """Return what the classifiers of a corpus are worth; nothing where it has none."""
    has_quality = run.config.corpus[w["corpus"]].quality
    return [run.file(layout.QUALITY_EVALUATION, corpus=w["corpus"])] if has_quality else []


REMOVING = ("filter", "deduplicate", "decontaminate")
ALL_REMOVED = untracked_corpus_input("removed", *(layout.REMOVED.fill(step=step) for step in REMOVING))

STEPS = (
    Step(
        "corpus.ngrams",
        CORPUS,
        "Hash the n-grams of the evaluation items for the corpus {wildcards.corpus}",
        ngrams_settings,
        inputs=(
            Input(
                "files",
                lambda run, w: [str(file.path) for file in list_decontamination_item_files(run.config, w["corpus"])],
            ),
        ),
        outputs=(Output("ngrams", layout.ITEM_NGRAMS),),
    ),
    Step(
        "corpus.matches",
        CORPUS_BATCH,
        "Search {wildcards.source}, batch {wildcards.batch}, for evaluation items",
        inputs=(*DEDUPLICATED_BATCH, Input("ngrams", layout.ITEM_NGRAMS)),
        outputs=(Output("matches", layout.MATCHES),),
        need=UNIT_NEEDS,
    ),
    Step(
        "corpus.find_items",
        CORPUS,
        "Decide which documents of the corpus {wildcards.corpus} hold evaluation items",
        lambda config, i: ContaminationThresholds(**_decision_settings(ContaminationThresholds, config, i["corpus"])),
        inputs=(
            SOURCES_READ,
            Input("ngrams", layout.ITEM_NGRAMS),
            wait_for_all_batches("batches", "corpus.matches"),
            untracked_corpus_input("matches", layout.MATCHES),
        ),
        outputs=(
            Output("hits", layout.CONTAMINATED_FOLDER, is_folder=True),
            Output("contamination", layout.CONTAMINATION),
        ),
        need=ResourceNeeds("corpus"),
    ),
    Step(
        "corpus.decontaminate",
        CORPUS_BATCH,
        "Write the final documents of {wildcards.source}, batch {wildcards.batch}",
        lambda config, i: DecontaminateSettings(classifiers=sorted(config.corpus[i["corpus"]].classifiers)),
        inputs=(
            *DEDUPLICATED_BATCH,
            wait_for_input("found", layout.CONTAMINATED_FOLDER),
            wait_for_input("scored", required_score_batches),
            untracked_input("hits", layout.CONTAMINATED),
            untracked_input("scores", unit_score_files),
        ),
        outputs=(Output("final", layout.FINAL_DOCUMENTS), Output("removed", layout.REMOVED.fill(step="decontaminate"))),
        need=UNIT_NEEDS,
    ),
    Step(
        "corpus.count_items",
        COUNTING_CORPUS,
        "Count the items of later evaluation suites in the corpus {wildcards.corpus}",
        count_items_settings,
        inputs=(
            SOURCES_READ,
            Input(
                "files", lambda run, w: [str(file.path) for file in list_count_only_item_files(run.config, w["corpus"])]
            ),
            wait_for_all_batches("batches", "corpus.decontaminate"),
            untracked_corpus_input("final", layout.FINAL_DOCUMENTS),
        ),
        outputs=(Output("contamination", layout.LATER_SUITES),),
        need=ResourceNeeds("corpus", 60),
    ),
    Step(
        "corpus.statistics",
        CORPUS,
        "Count the corpus {wildcards.corpus}: in = kept + removed",
        statistics_settings,
        inputs=(
            SOURCES_READ,
            wait_for_all_batches("filtered_batches", "corpus.filter"),
            wait_for_all_batches("deduplicated_batches", "corpus.deduplicate"),
            wait_for_all_batches("final_batches", "corpus.decontaminate"),
            untracked_corpus_input("filtered", layout.FILTERED),
            untracked_corpus_input("deduplicated", layout.DEDUPLICATED),
            ALL_REMOVED,
            Input("contamination", layout.CONTAMINATION),
            Input("quality", quality_evaluation_files),
            untracked_corpus_input("final", layout.FINAL_DOCUMENTS),
        ),
        outputs=(Output("statistics", layout.STATISTICS),),
        need=ResourceNeeds("corpus", memory_megabytes=4000),
    ),
    Step(
        "corpus.publish",
        CORPUS,
        "Describe the corpus {wildcards.corpus} as a data set",
        publish_settings,
        inputs=(
            SOURCES_READ,
            Input("statistics", layout.STATISTICS),
            ALL_REMOVED,
            untracked_corpus_input("final", layout.FINAL_DOCUMENTS),
        ),
        outputs=(
            Output("card", layout.CORPUS.child("README.md")),
            Output("croissant", layout.CORPUS.child("croissant.json")),
            Output("dataset", layout.DATASET),
            Output("sources", layout.CORPUS.child("sources.parquet")),
            Output(
                "page",
                layout.CORPUS.child("dataset.html"),
                is_target=True,
                report_entry=ReportEntry("Data sets", {"corpus": "{corpus}"}),
            ),
        ),
        need=ResourceNeeds("corpus", memory_megabytes=4000),
    ),
)
