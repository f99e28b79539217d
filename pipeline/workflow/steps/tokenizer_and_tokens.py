"""The steps of the stages tokenizer and tokens."""

from __future__ import annotations

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.settings import Settings
from pipeline.tokenizer.settings import FertilitySettings, TrainSettings
from pipeline.tokens.settings import IndexSettings, ShardSettings, Tokens, TokenUse
from pipeline.workflow.expected_run_files import RunFiles, Wildcards
from pipeline.workflow.shared_step_settings import select_matching_fields
from pipeline.workflow.steps.declaration import (
    QUICK_BYTES_PER_MINUTE,
    SOURCES_READ,
    Input,
    JobInstances,
    Output,
    ResourceNeeds,
    Step,
    untracked_input,
    wait_for_input,
)

TOKENIZER = JobInstances(("tokenizer",), lambda c: [(name,) for name in c.tokenizer])


def _held_out_fraction(config: Config, tokenizer: str) -> float:
    """The held-out share is that of the token sets of its corpus, so that a tokenizer never trains on validation text.

    All tokenizers of a corpus have the same, so that they are compared on the same text. Another corpus has other
    clusters and holds out others: tokens by the tokenizer of another corpus may hold out what that one has read.
    """
    corpus = config.tokenizer[tokenizer].corpus
    users = [t.validation_fraction for t in config.tokens.values() if tokenizer == t.tokenizer or corpus == t.corpus]
    return max(users, default=Tokens().validation_fraction)


def train_settings(config: Config, i: Wildcards) -> Settings:
    name = i["tokenizer"]
    return TrainSettings(
        validation_fraction=_held_out_fraction(config, name),
        markers=config.personal_data_markers(name),
        **select_matching_fields(TrainSettings, config.tokenizer[name]),
    )


def fertility_settings(config: Config, i: Wildcards) -> Settings:
    section = config.tokenizer[i["tokenizer"]]
    return FertilitySettings(
        validation_fraction=_held_out_fraction(config, i["tokenizer"]),
        parallel=sorted(section.parallel),
        **{
            key: value for key, value in select_matching_fields(FertilitySettings, section).items() if key != "parallel"
        },
    )


def _corpus_name(run: RunFiles, w: Wildcards) -> str:
    section = run.config.tokens[w["tokens"]] if "tokens" in w else run.config.tokenizer[w["tokenizer"]]
    return section.corpus


DOCUMENTS = untracked_input("documents", lambda run, w: run.corpus_files(layout.FINAL_DOCUMENTS, _corpus_name(run, w)))
# Nothing is made of a corpus that lost documents, or more files than it may.
CORPUS_COUNTED = wait_for_input(
    "counted", lambda run, w: run.file(layout.STATISTICS, corpus=_corpus_name(run, w)), is_ancient=True
)
TOKENS = JobInstances(("tokens",), lambda c: [(name,) for name in c.tokens])
SHARD = JobInstances(
    ("tokens", "shard"), lambda c: [(name, str(n)) for name, section in c.tokens.items() for n in range(section.shards)]
)
SORTED_SHARD = JobInstances(
    ("tokens", "shard"),
    lambda c: [(name, str(n)) for name, section in c.tokens.items() if section.suffixes for n in range(section.shards)],
)
TRAIN, VALIDATION = layout.TOKEN_SHARD.fill(split="train"), layout.TOKEN_SHARD.fill(split="validation")


def shard_settings(config: Config, i: Wildcards) -> Settings:
    section = config.tokens[i["tokens"]]
    sources = [config.source(name) for name in config.corpus_sources(section.corpus)]
    genres = {source.name: source.genre for source in sources if section.strata.genre and source.genre is not None}
    licenses = {source.name: source.license for source in sources if section.strata.license and not source.license_key}
    return ShardSettings(
        shard=int(i["shard"]), genres=genres, licenses=licenses, **select_matching_fields(ShardSettings, section)
    )


def index_settings(config: Config, i: Wildcards) -> Settings:
    uses: dict[str, TokenUse] = {}
    for name, model in config.models.items():
        if model.tokens == i["tokens"]:
            needed = select_matching_fields(TokenUse, model.training) | {
                "validates": bool(model.training.validation_every)
            }
            use = TokenUse(model=name, **needed)
            uses.setdefault(use.model_dump_json(exclude={"model"}), use)  # cells of an experiment need the same
    return IndexSettings(shards=config.tokens[i["tokens"]].shards, uses=[*uses.values()])


def _documents_record(run: RunFiles, w: Wildcards) -> str | list[str]:
    """Return what stands for the documents of a token set: the record of the tokenizer that was trained on them."""
    section = run.config.tokens[w["tokens"]]
    if section.corpus == run.config.tokenizer[section.tokenizer].corpus:
        return run.record_path("tokenizer.train", section.tokenizer)
    return run.corpus_batch_record_paths("corpus.decontaminate", section.corpus)


def _suffix_array_files(run: RunFiles, w: Wildcards) -> list[str]:
    return run.shard_files(layout.SUFFIXES, w["tokens"]) if run.config.tokens[w["tokens"]].suffixes else []


TOKENIZER_OF_TOKENS = Input(
    "tokenizer", lambda run, w: run.file(layout.TOKENIZER, tokenizer=run.config.tokens[w["tokens"]].tokenizer)
)

STEPS = (
    Step(
        "tokenizer.train",
        TOKENIZER,
        "Train the tokenizer {wildcards.tokenizer}",
        train_settings,
        inputs=(
            SOURCES_READ,
            wait_for_input(
                "batches", lambda run, w: run.corpus_batch_record_paths("corpus.decontaminate", _corpus_name(run, w))
            ),
            CORPUS_COUNTED,
            DOCUMENTS,
        ),
        outputs=(Output("tokenizer", layout.TOKENIZER), Output("configuration", layout.TOKENIZER_CONFIGURATION)),
        need=ResourceNeeds("tokenizer", 60, memory_megabytes=4000, memory_bytes_per_byte=1.0, cpus=8),
        threads=8,
    ),
    Step(
        "tokenizer.fertility",
        TOKENIZER,
        "Measure the fertility of the tokenizer {wildcards.tokenizer} on held-out text",
        fertility_settings,
        inputs=(
            SOURCES_READ,
            Input("tokenizer", layout.TOKENIZER),
            # It stands for the documents that the tokenizer was trained on.
            wait_for_input("trained", lambda run, w: run.record_path("tokenizer.train", w["tokenizer"])),
            DOCUMENTS,
            Input("parallel", lambda run, w: [*map(str, run.config.parallel_files(w["tokenizer"]))]),
        ),
        outputs=(Output("fertility", layout.FERTILITY, is_target=True),),
        need=ResourceNeeds("tokenizer", memory_megabytes=1500),
    ),
    Step(
        "tokens.shard",
        SHARD,
        "Tokenize shard {wildcards.shard} of the token set {wildcards.tokens}",
        shard_settings,
        inputs=(
            SOURCES_READ,
            TOKENIZER_OF_TOKENS,
            wait_for_input("batches", _documents_record),
            CORPUS_COUNTED,
            DOCUMENTS,
        ),
        outputs=(Output("train", TRAIN), Output("validation", VALIDATION)),
        need=ResourceNeeds("shard", 60, 20_000_000, memory_megabytes=700, memory_bytes_per_byte=4.0),
        threads=8,
    ),
    Step(
        "tokens.suffixes",
        SORTED_SHARD,
        "Sort the suffixes of shard {wildcards.shard} of the token set {wildcards.tokens}",
        inputs=(SOURCES_READ, Input("train", TRAIN), TOKENIZER_OF_TOKENS),
        outputs=(Output("suffixes", layout.SUFFIXES),),
        need=ResourceNeeds("shard", 60, 20_000_000, memory_megabytes=700, memory_bytes_per_byte=36.0),
    ),
    Step(
        "tokens.index",
        TOKENS,
        "Index the token set {wildcards.tokens}",
        index_settings,
        inputs=(
            SOURCES_READ,
            Input("train", lambda run, w: run.shard_files(TRAIN, w["tokens"]), is_short=True),
            Input("validation", lambda run, w: run.shard_files(VALIDATION, w["tokens"]), is_short=True),
            # Behind this Snakemake checkpoint nothing of the tokens is made any more, so that equal bytes stop what
            # follows.
            wait_for_input("suffixes", _suffix_array_files),
        ),
        outputs=(Output("index", layout.TOKEN_INDEX, is_target=True),),
        need=ResourceNeeds("tokens", bytes_per_minute=QUICK_BYTES_PER_MINUTE),
        options=("operation",),
        is_checkpoint=True,
    ),
)
