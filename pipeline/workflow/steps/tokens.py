"""The steps of the stages tokenizer and tokens."""

from __future__ import annotations

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.settings import Settings
from pipeline.tokenizer.settings import FertilitySettings, TrainSettings
from pipeline.tokens.settings import IndexSettings, ShardSettings, Tokens, TokenUse
from pipeline.workflow.common_settings import shared
from pipeline.workflow.run_files import RunFiles, Wildcards
from pipeline.workflow.steps.declaration import QUICK, SOURCES_READ, Input, Need, Output, Per, Step, unseen, waits_for

TOKENIZER = Per(("tokenizer",), lambda c: [(name,) for name in c.tokenizer])


def _held_out(config: Config, tokenizer: str) -> float:
    """The held-out share is that of the token sets of its corpus, so that a tokenizer never trains on validation text.

    All tokenizers of a corpus have the same, so that they are compared on the same text. Another corpus has other
    clusters and holds out others: tokens by the tokenizer of another corpus may hold out what that one has read.
    """
    corpus = config.tokenizer[tokenizer].corpus
    users = [t.validation_fraction for t in config.tokens.values() if tokenizer == t.tokenizer or corpus == t.corpus]
    return max(users, default=Tokens().validation_fraction)


def tokenizer_train(config: Config, i: Wildcards) -> Settings:
    name = i["tokenizer"]
    return TrainSettings(
        validation_fraction=_held_out(config, name),
        markers=config.markers(name),
        **shared(TrainSettings, config.tokenizer[name]),
    )


def tokenizer_fertility(config: Config, i: Wildcards) -> Settings:
    section = config.tokenizer[i["tokenizer"]]
    return FertilitySettings(
        validation_fraction=_held_out(config, i["tokenizer"]),
        parallel=sorted(section.parallel),
        **{key: value for key, value in shared(FertilitySettings, section).items() if key != "parallel"},
    )


def _corpus(run: RunFiles, w: Wildcards) -> str:
    section = run.config.tokens[w["tokens"]] if "tokens" in w else run.config.tokenizer[w["tokenizer"]]
    return section.corpus


DOCUMENTS = unseen("documents", lambda run, w: run.corpus_files(layout.FINAL_DOCUMENTS, _corpus(run, w)))
# Nothing is made of a corpus that lost documents, or more files than it may.
COUNTED = waits_for("counted", lambda run, w: run.file(layout.STATISTICS, corpus=_corpus(run, w)), is_ancient=True)
TOKENS = Per(("tokens",), lambda c: [(name,) for name in c.tokens])
SHARD = Per(
    ("tokens", "shard"), lambda c: [(name, str(n)) for name, section in c.tokens.items() for n in range(section.shards)]
)
SORTED_SHARD = Per(
    ("tokens", "shard"),
    lambda c: [(name, str(n)) for name, section in c.tokens.items() if section.suffixes for n in range(section.shards)],
)
TRAIN, VALIDATION = layout.TOKEN_SHARD.fill(split="train"), layout.TOKEN_SHARD.fill(split="validation")


def tokens_shard(config: Config, i: Wildcards) -> Settings:
    section = config.tokens[i["tokens"]]
    sources = [config.source(name) for name in config.corpus_sources(section.corpus)]
    genres = {source.name: source.genre for source in sources if section.strata.genre and source.genre is not None}
    licenses = {source.name: source.license for source in sources if section.strata.license and not source.license_key}
    return ShardSettings(shard=int(i["shard"]), genres=genres, licenses=licenses, **shared(ShardSettings, section))


def tokens_index(config: Config, i: Wildcards) -> Settings:
    uses: dict[str, TokenUse] = {}
    for name, model in config.models.items():
        if model.tokens == i["tokens"]:
            needed = shared(TokenUse, model.training) | {"validates": bool(model.training.validation_every)}
            use = TokenUse(model=name, **needed)
            uses.setdefault(use.model_dump_json(exclude={"model"}), use)  # cells of an experiment need the same
    return IndexSettings(shards=config.tokens[i["tokens"]].shards, uses=[*uses.values()])


def _documents_made(run: RunFiles, w: Wildcards) -> str | list[str]:
    """Return what stands for the documents of a token set: the record of the tokenizer that was trained on them."""
    section = run.config.tokens[w["tokens"]]
    if section.corpus == run.config.tokenizer[section.tokenizer].corpus:
        return run.record_of("tokenizer.train", section.tokenizer)
    return run.corpus_batches("corpus.decontaminate", section.corpus)


def _suffixes(run: RunFiles, w: Wildcards) -> list[str]:
    return run.shards(layout.SUFFIXES, w["tokens"]) if run.config.tokens[w["tokens"]].suffixes else []


TOKENIZER_OF_TOKENS = Input(
    "tokenizer", lambda run, w: run.file(layout.TOKENIZER, tokenizer=run.config.tokens[w["tokens"]].tokenizer)
)

STEPS = (
    Step(
        "tokenizer.train",
        TOKENIZER,
        "Train the tokenizer {wildcards.tokenizer}",
        tokenizer_train,
        inputs=(
            SOURCES_READ,
            waits_for("batches", lambda run, w: run.corpus_batches("corpus.decontaminate", _corpus(run, w))),
            COUNTED,
            DOCUMENTS,
        ),
        outputs=(Output("tokenizer", layout.TOKENIZER), Output("configuration", layout.TOKENIZER_CONFIGURATION)),
        need=Need("tokenizer", 60, memory_megabytes=4000, memory_bytes_per_byte=1.0, cpus=8),
        threads=8,
    ),
    Step(
        "tokenizer.fertility",
        TOKENIZER,
        "Measure the fertility of the tokenizer {wildcards.tokenizer} on held-out text",
        tokenizer_fertility,
        inputs=(
            SOURCES_READ,
            Input("tokenizer", layout.TOKENIZER),
            # It stands for the documents that the tokenizer was trained on.
            waits_for("trained", lambda run, w: run.record_of("tokenizer.train", w["tokenizer"])),
            DOCUMENTS,
            Input("parallel", lambda run, w: [*map(str, run.config.parallel_files(w["tokenizer"]))]),
        ),
        outputs=(Output("fertility", layout.FERTILITY, is_target=True),),
        need=Need("tokenizer", memory_megabytes=1500),
    ),
    Step(
        "tokens.shard",
        SHARD,
        "Tokenize shard {wildcards.shard} of the token set {wildcards.tokens}",
        tokens_shard,
        inputs=(
            SOURCES_READ,
            TOKENIZER_OF_TOKENS,
            waits_for("batches", _documents_made),
            COUNTED,
            DOCUMENTS,
        ),
        outputs=(Output("train", TRAIN), Output("validation", VALIDATION)),
        need=Need("shard", 60, 20_000_000, memory_megabytes=700, memory_bytes_per_byte=4.0),
        threads=8,
    ),
    Step(
        "tokens.suffixes",
        SORTED_SHARD,
        "Sort the suffixes of shard {wildcards.shard} of the token set {wildcards.tokens}",
        inputs=(SOURCES_READ, Input("train", TRAIN), TOKENIZER_OF_TOKENS),
        outputs=(Output("suffixes", layout.SUFFIXES),),
        need=Need("shard", 60, 20_000_000, memory_megabytes=700, memory_bytes_per_byte=36.0),
    ),
    Step(
        "tokens.index",
        TOKENS,
        "Index the token set {wildcards.tokens}",
        tokens_index,
        inputs=(
            SOURCES_READ,
            Input("train", lambda run, w: run.shards(TRAIN, w["tokens"]), is_short=True),
            Input("validation", lambda run, w: run.shards(VALIDATION, w["tokens"]), is_short=True),
            # Behind this Snakemake checkpoint nothing of the tokens is made any more, so that equal bytes stop what
            # follows.
            waits_for("suffixes", _suffixes),
        ),
        outputs=(Output("index", layout.TOKEN_INDEX, is_target=True),),
        need=Need("tokens", bytes_per_minute=QUICK),
        options=("operation",),
        is_checkpoint=True,
    ),
)
