"""The steps of the stage corpus that leave evaluation items out of it."""

from __future__ import annotations

from typing import Any

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.config.evaluation_items import counted, leaving
from pipeline.core.settings import Settings
from pipeline.corpus.items.settings import (
    CountItemsSettings,
    Decisive,
    NgramsSettings,
    TaskFile,
)
from pipeline.evaluate.task_files import ItemFile
from pipeline.workflow.common_settings import shared
from pipeline.workflow.run_files import RunFiles, Wildcards
from pipeline.workflow.steps.corpus import CORPUS, CORPUS_BATCH, this_batch
from pipeline.workflow.steps.declaration import (
    SOURCES_READ,
    UNIT,
    Input,
    Need,
    Output,
    Per,
    Step,
    all_batches,
    all_units,
    unseen,
    waits_for,
)

# Where a suite is evaluated that the decontamination does not know.
COUNTING_CORPUS = Per(("corpus",), lambda c: [(corpus,) for corpus in c.corpus if counted(c, corpus)])


def corpus_ngrams(config: Config, i: Wildcards) -> Settings:
    section = config.corpus[i["corpus"]].decontamination
    return NgramsSettings(items=_items(leaving(config, i["corpus"])), **shared(NgramsSettings, section))


def _items(files: list[ItemFile]) -> list[TaskFile]:
    return [
        TaskFile(task=file.task, name=file.path.name, fields=file.fields and [*file.fields], named=file.named)
        for file in files
    ]


def _deciding(settings: type[Settings], config: Config, corpus: str) -> dict[str, Any]:
    """Return how it is decided what is an item; the sources that cannot hold any are those of this corpus, sorted."""
    keys = shared(settings, config.corpus[corpus].decontamination)
    own = set(config.corpus_sources(corpus)) & set(keys["cannot_hold_items"])
    return {**keys, "cannot_hold_items": sorted(own)}


def corpus_count_items(config: Config, i: Wildcards) -> Settings:
    return CountItemsSettings(
        corpus=i["corpus"],
        items=_items(counted(config, i["corpus"])),
        **_deciding(CountItemsSettings, config, i["corpus"]),
    )


def scores(run: RunFiles, w: Wildcards) -> list[str]:
    """Return what a batch of a corpus waits for so that its documents have scores; nothing where they get none."""
    return [run.batch_of(step, w["corpus"], w["source"], w["batch"]) for step, _ in _scored(run.config, w["corpus"])]


def unit_scores(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the scores of a unit of a corpus, whose number %unit stands for; nothing where it has none."""
    places = [place for _, place in _scored(run.config, w["corpus"])]
    return [run.file(place, corpus=w["corpus"], source=w["source"], unit="%unit") for place in places]


def _scored(config: Config, corpus: str) -> list[tuple[str, layout.Place]]:
    """Return the steps that score a corpus, and the files that they write."""
    steps = {"quality": ("corpus.scores", layout.SCORES), "perplexity": ("corpus.perplexity", layout.PERPLEXITY)}
    return [step for score, step in steps.items() if getattr(config.corpus[corpus], score)]


DEDUPLICATED_BATCH = (
    SOURCES_READ,
    this_batch("corpus.deduplicate"),
    unseen("documents", layout.FILTERED),
    unseen("deduplicated", layout.DEDUPLICATED),
)

STEPS = (
    Step(
        "corpus.ngrams",
        CORPUS,
        corpus_ngrams,
        "Hash the n-grams of the evaluation items for the corpus {wildcards.corpus}",
        inputs=(Input("files", lambda run, w: [str(file.path) for file in leaving(run.config, w["corpus"])]),),
        outputs=(Output("ngrams", layout.ITEM_NGRAMS),),
    ),
    Step(
        "corpus.matches",
        CORPUS_BATCH,
        lambda config, i: Settings(),
        "Search {wildcards.source}, batch {wildcards.batch}, for evaluation items",
        inputs=(*DEDUPLICATED_BATCH, Input("ngrams", layout.ITEM_NGRAMS)),
        outputs=(Output("matches", layout.MATCHES),),
        need=UNIT,
    ),
    Step(
        "corpus.find_items",
        CORPUS,
        lambda config, i: Decisive(**_deciding(Decisive, config, i["corpus"])),
        "Decide which documents of the corpus {wildcards.corpus} hold evaluation items",
        inputs=(
            SOURCES_READ,
            Input("ngrams", layout.ITEM_NGRAMS),
            all_batches("batches", "corpus.matches"),
            all_units("matches", layout.MATCHES),
        ),
        outputs=(
            Output("hits", layout.CONTAMINATED_FOLDER, is_folder=True),
            Output("contamination", layout.CONTAMINATION),
        ),
        need=Need("corpus"),
    ),
    Step(
        "corpus.decontaminate",
        CORPUS_BATCH,
        lambda config, i: Settings(),
        "Write the final documents of {wildcards.source}, batch {wildcards.batch}",
        inputs=(
            *DEDUPLICATED_BATCH,
            waits_for("found", layout.CONTAMINATED_FOLDER),
            waits_for("scored", scores),
            unseen("hits", layout.CONTAMINATED),
            unseen("scores", unit_scores),
        ),
        outputs=(Output("final", layout.FINAL_DOCUMENTS), Output("removed", layout.REMOVED.fill(step="decontaminate"))),
        need=UNIT,
    ),
    Step(
        "corpus.count_items",
        COUNTING_CORPUS,
        corpus_count_items,
        "Count the items of later evaluation suites in the corpus {wildcards.corpus}",
        inputs=(
            SOURCES_READ,
            Input("files", lambda run, w: [str(file.path) for file in counted(run.config, w["corpus"])]),
            all_batches("batches", "corpus.decontaminate"),
            all_units("final", layout.FINAL_DOCUMENTS),
        ),
        outputs=(Output("contamination", layout.LATER_SUITES),),
        need=Need("corpus", 60),
    ),
)
