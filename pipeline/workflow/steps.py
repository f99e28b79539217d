"""Every step of the DAG, one line each: from it follow its jobs, their records, what they are told and ask for.

The step FOLDER.NAME is the function `run` of `pipeline/FOLDER/NAME.py`, which the rule FOLDER_NAME calls. Adding one
is its module, its rule and its line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.config.configuration import Config
from pipeline.config.evaluation_items import counted
from pipeline.core.settings import Settings
from pipeline.workflow import corpus_step_settings as of_text
from pipeline.workflow import step_settings as of

Instances = Callable[[Config], list[tuple[str, ...]]]
Bytes = Literal["nothing", "batch", "file", "source", "corpus", "tokenizer", "tokens", "shard", "everything"]


@dataclass(frozen=True)
class Per:
    """What a step has one job for.

    Attributes:
        wildcards: those of its rule.
        jobs: the values of the wildcards of a run's jobs.
        units: where a job works on a batch, the same for its units: each has a record of its own.
    """

    wildcards: tuple[str, ...]
    jobs: Instances
    units: Instances | None = None


def _per_batch(wildcards: tuple[str, ...], parents: Instances) -> Per:
    """Return what has a job for each batch of some sources; a source is the last of its parents' values."""
    return Per(
        (*wildcards, "batch"),
        lambda c: [(*parent, batch) for parent in parents(c) for batch in c.batches(parent[-1])],
        lambda c: [(*parent, unit) for parent in parents(c) for unit in c.units(parent[-1])],
    )


def _sources(config: Config) -> list[tuple[str, ...]]:
    return sorted((source.name,) for source in config.sources)


RUN = Per((), lambda c: [()])
SOURCE = Per(("source",), _sources)
DATASET = Per(("source",), lambda c: [name for name in _sources(c) if c.source(*name).dataset is not None])
LARGE_FILE = Per(
    ("source", "file"), lambda c: [(*name, file) for name in _sources(c) for file in c.source_units(*name).large_files]
)
SOURCE_BATCH = _per_batch(("source",), _sources)
CORPUS = Per(("corpus",), lambda c: [(corpus,) for corpus in c.corpus])
# Where a suite is evaluated that the decontamination does not know.
COUNTING_CORPUS = Per(("corpus",), lambda c: [(corpus,) for corpus in c.corpus if counted(c, corpus)])
CORPUS_BATCH = _per_batch(
    ("corpus", "source"), lambda c: [(corpus, source) for corpus in c.corpus for source in c.corpus_sources(corpus)]
)
# Where documents get a score.
SCORED_CORPUS = Per(("corpus",), lambda c: [(corpus,) for corpus in c.scored("quality")])
SCORED_CORPUS_BATCH = _per_batch(
    ("corpus", "source"),
    lambda c: [(name, source) for name in c.scored("quality") for source in c.corpus_sources(name)],
)
READ_CORPUS_BATCH = _per_batch(
    ("corpus", "source"),
    lambda c: [(name, source) for name in c.scored("perplexity") for source in c.corpus_sources(name)],
)
# Where several jobs share the keys that are compared.
CORPUS_SHARE = Per(
    ("corpus", "share"),
    lambda c: [
        (corpus, str(share))
        for corpus, section in c.corpus.items()
        if section.deduplication.jobs > 1
        for share in range(section.deduplication.jobs)
    ],
)
TOKENIZER = Per(("tokenizer",), lambda c: [(name,) for name in c.tokenizer])
TOKENS = Per(("tokens",), lambda c: [(name,) for name in c.tokens])
SHARD = Per(
    ("tokens", "shard"), lambda c: [(name, str(n)) for name, section in c.tokens.items() for n in range(section.shards)]
)
SORTED_SHARD = Per(
    ("tokens", "shard"),
    lambda c: [(name, str(n)) for name, section in c.tokens.items() if section.suffixes for n in range(section.shards)],
)
MODEL = Per(("model",), lambda c: [(name,) for name in c.models])
ADOPTED_MODEL = Per(("model",), lambda c: [(name,) for name, model in c.models.items() if model.pretrained])
SEARCHED_MODEL = Per(("model",), lambda c: [(name,) for name in c.searched_models()])
SEGMENT = Per(
    ("model", "step"),
    lambda c: [(name, str(step)) for name, model in c.models.items() for step in model.training.milestones()],
)
EVALUATION = Per(("model", "step"), lambda c: [(name, str(step)) for name, step in c.evaluated()])
BASELINE = Per(("baseline",), lambda c: [(name,) for name in c.baselines()])
EVALUATED_RUN = Per((), lambda c: [()] if c.evaluated() else [])
# Of sources with an opt-out list.
RESERVING_BATCH = _per_batch(("source",), lambda c: [(name,) for name in c.reserving()])
RESERVING_CORPUS_BATCH = _per_batch(
    ("corpus", "source"), lambda c: [(corpus, name) for corpus in c.corpus for name in c.reserving()]
)
# Where any source has one.
RESERVING_CORPUS = Per(("corpus",), lambda c: [(corpus,) for corpus in c.corpus if c.reserving()])
RESERVING_RUN = Per((), lambda c: [()] if c.reserving() else [])


@dataclass(frozen=True)
class Need:
    """What the jobs of a step ask for, by the raw bytes of what they read; compressed text counts as it is stored.

    A byte on disk is up to six of text, so the rates are far below what a core does; a limit costs nothing, but memory
    is billed. Of a batch, memory is that of one unit, one of which runs on each core: the most was 750 MB for a unit
    of 64 MB (190 MB of text) and 570 MB for one of 7 MB, with `fineweb2` 300 MB more; tokens.shard took 360 MB for 16.
    """

    reads: Bytes = "nothing"
    minutes: int = 30
    bytes_per_minute: int = 100_000_000
    memory_megabytes: int = 2000
    memory_bytes_per_byte: float = 0.0
    cpus: int = 1  # or, where it is more than one, all of the smallest allocation: the threads are the library's own


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        per: what it has one job for.
        settings: what of the configuration a job is told, by its wildcards.
        need: what a job asks Slurm for; None of steps that need GPUs, which `pipeline.slurm.resources` tells itself.
        has_folders: whether it writes folders, of whose files Snakemake knows nothing.
        private: by what name its jobs may keep the texts of what they remove.
        chapter: after which chapter it is done, where that is not its folder.
    """

    per: Per
    settings: Callable[[Config, Mapping[str, str]], Settings]
    need: Need | None = Need()
    has_folders: bool = False
    private: str | None = None
    chapter: str | None = None


UNIT = Need("batch", 60, 20_000_000, 1000, 4.0)
QUICK = 1_000_000_000  # bytes in a minute
STEPS: dict[str, Step] = {
    "sources.split": Step(LARGE_FILE, of_text.sources_split, Need("file"), has_folders=True),
    "sources.dataset": Step(DATASET, of_text.sources_dataset, Need("source"), has_folders=True),
    "sources.listing": Step(SOURCE, of_text.sources_listing, has_folders=True),
    "sources.fingerprint": Step(
        SOURCE_BATCH, of_text.sources_fingerprint, Need("batch", bytes_per_minute=QUICK, memory_megabytes=500)
    ),
    "opt_out.entries": Step(RESERVING_BATCH, of_text.opt_out_entries, UNIT, chapter="sources"),
    "sources.manifest": Step(
        SOURCE, of_text.sources_manifest, Need("source", bytes_per_minute=QUICK), has_folders=True
    ),
    "corpus.filter": Step(CORPUS_BATCH, of_text.corpus_filter, UNIT, private="filter"),
    "corpus.quality": Step(SCORED_CORPUS, of_text.corpus_quality, Need(minutes=60, memory_megabytes=4000)),
    "corpus.scores": Step(SCORED_CORPUS_BATCH, of_text.corpus_scores, UNIT),
    "corpus.perplexity": Step(READ_CORPUS_BATCH, of_text.corpus_perplexity, Need("batch", 240, 1_000_000, 3000, 4.0)),
    "corpus.signatures": Step(CORPUS_BATCH, of_text.corpus_signatures, UNIT),
    "opt_out.reserved": Step(RESERVING_CORPUS_BATCH, of_text.opt_out_reserved, UNIT, chapter="corpus"),
    "corpus.equal_keys": Step(CORPUS_SHARE, of_text.corpus_equal_keys, Need("corpus", 60, memory_megabytes=1500)),
    "corpus.find_duplicates": Step(
        CORPUS, of_text.corpus_find_duplicates, Need("corpus", 60, memory_megabytes=1500), has_folders=True
    ),
    "corpus.deduplicate": Step(CORPUS_BATCH, of_text.corpus_deduplicate, UNIT, private="deduplicate"),
    "corpus.ngrams": Step(CORPUS, of_text.corpus_ngrams),
    "corpus.matches": Step(CORPUS_BATCH, of_text.corpus_matches, UNIT),
    "corpus.find_items": Step(CORPUS, of_text.corpus_find_items, Need("corpus"), has_folders=True),
    "corpus.decontaminate": Step(CORPUS_BATCH, of_text.corpus_decontaminate, UNIT),
    "corpus.count_items": Step(COUNTING_CORPUS, of_text.corpus_count_items, Need("corpus", 60)),
    "corpus.statistics": Step(CORPUS, of_text.corpus_statistics, Need("corpus", memory_megabytes=4000)),
    "corpus.publish": Step(CORPUS, of_text.corpus_publish, Need("corpus", memory_megabytes=4000)),
    "opt_out.forgotten": Step(
        RESERVING_CORPUS,
        of_text.opt_out_forgotten,
        Need("corpus", 60, memory_megabytes=4000, memory_bytes_per_byte=0.2),
        chapter="corpus",
    ),
    "tokenizer.train": Step(
        TOKENIZER,
        of.tokenizer_train,
        Need("tokenizer", 60, memory_megabytes=4000, memory_bytes_per_byte=1.0, cpus=8),
    ),
    "tokenizer.fertility": Step(TOKENIZER, of.tokenizer_fertility, Need("tokenizer", memory_megabytes=1500)),
    "tokens.shard": Step(
        SHARD, of.tokens_shard, Need("shard", 60, 20_000_000, memory_megabytes=700, memory_bytes_per_byte=4.0)
    ),
    "tokens.suffixes": Step(
        SORTED_SHARD,
        of.tokens_suffixes,
        Need("shard", 60, 20_000_000, memory_megabytes=700, memory_bytes_per_byte=36.0),
    ),
    "tokens.index": Step(TOKENS, of.tokens_index, Need("tokens", bytes_per_minute=QUICK)),
    "pretrain.adopt": Step(ADOPTED_MODEL, of.pretrain_adopt, Need(minutes=60, memory_megabytes=8000), has_folders=True),
    "pretrain.segment": Step(SEGMENT, of.pretrain_segment, None, has_folders=True),
    "pretrain.export": Step(MODEL, of.pretrain_export, Need(memory_megabytes=4000), has_folders=True),
    "evaluate.suites": Step(EVALUATION, of.evaluate_suites, None),
    "evaluate.baselines": Step(BASELINE, of.evaluate_baselines, None),
    "evaluate.samples": Step(SEARCHED_MODEL, of.evaluate_samples, Need(minutes=60)),
    "evaluate.differences": Step(EVALUATED_RUN, of.evaluate_differences),
    "plan.estimate": Step(RUN, of.plan_estimate),
    "opt_out.remains": Step(
        RESERVING_RUN, of.opt_out_remains, Need("everything", memory_megabytes=4000), chapter="report"
    ),
    "report.page": Step(RUN, of.report_page, Need(minutes=60, memory_megabytes=4000), has_folders=True),
    "provenance.crate": Step(RUN, of.provenance_crate, Need(minutes=60, memory_megabytes=4000), has_folders=True),
}


def chapter(step: str) -> str:
    """Return the chapter that a step belongs to."""
    return STEPS[step].chapter or step.partition(".")[0]


CHAPTERS = tuple(dict.fromkeys(map(chapter, STEPS)))
REPORTED = tuple(name for name in CHAPTERS if name not in ("report", "provenance"))


def step_settings(config: Config, step: str, instance: Mapping[str, str]) -> Settings:
    """Return the settings of one job, of a step such as `corpus.filter` and its source, corpus, …."""
    return STEPS[step].settings(config, instance)
