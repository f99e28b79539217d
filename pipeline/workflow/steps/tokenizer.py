"""The steps of the stage tokenizer."""

from __future__ import annotations

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.settings import Settings
from pipeline.tokenizer.settings import FertilitySettings, TrainSettings
from pipeline.tokens.settings import Tokens
from pipeline.workflow.common_settings import shared
from pipeline.workflow.run_files import RunFiles, Wildcards
from pipeline.workflow.steps.declaration import SOURCES_READ, Input, Need, Output, Per, Step, unseen, waits_for

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
    return run.config.tokenizer[w["tokenizer"]].corpus


DOCUMENTS = unseen("documents", lambda run, w: run.corpus_files(layout.FINAL_DOCUMENTS, _corpus(run, w)))

STEPS = (
    Step(
        "tokenizer.train",
        TOKENIZER,
        "Train the tokenizer {wildcards.tokenizer}",
        tokenizer_train,
        inputs=(
            SOURCES_READ,
            waits_for("batches", lambda run, w: run.corpus_batches("corpus.decontaminate", _corpus(run, w))),
            # Nothing is made of a corpus that lost documents, or more files than it may.
            waits_for("counted", lambda run, w: run.file(layout.STATISTICS, corpus=_corpus(run, w)), is_ancient=True),
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
)
