"""How much each step of a run does, by its configuration and the bytes of its sources: what its time grows with.

Work is counted from what is known before anything runs: bytes of the raw files as they lie on disk up to the tokens,
floating-point operations of training, parameters of models that are exported, and of those that are evaluated, once for
each milestone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pipeline.config.configuration import Config
from pipeline.config.evaluation_items import counted
from pipeline.model.size import parameter_count, training_flops

Raw = Mapping[str, float]
BYTES, FLOP, PARAMETERS = "bytes of raw text", "FLOP", "parameters"


class Work(NamedTuple):
    """How much of what a step does, by the configuration and the raw bytes of each source; None: no such jobs."""

    unit: str
    amount: Callable[[Config, Raw], float | None]


def _sources(config: Config, raw: Raw) -> float:
    return sum(raw[source.name] for source in config.sources)


def _reserving(config: Config, raw: Raw) -> float | None:
    return sum(raw[name] for name in config.reserving()) if config.reserving() else None


def _corpus(config: Config, raw: Raw, name: str) -> float:
    return sum(raw[source] for source in config.corpus_sources(name))


def _corpora(config: Config, raw: Raw) -> float:
    return sum(_corpus(config, raw, name) for name in config.corpus)


def _reserved(config: Config, raw: Raw) -> float | None:
    return len(config.corpus) * sum(raw[name] for name in config.reserving()) if config.reserving() else None


def _forgotten(config: Config, raw: Raw) -> float | None:
    return _corpora(config, raw) if config.reserving() else None


def _divided(config: Config, raw: Raw) -> float | None:
    return sum(_corpus(config, raw, name) for name, of in config.corpus.items() if of.deduplication.jobs > 1) or None


def _scored(config: Config, raw: Raw) -> float | None:
    return sum(_corpus(config, raw, name) for name in config.scored("quality")) or None


def _read_by_model(config: Config, raw: Raw) -> float | None:
    return sum(_corpus(config, raw, name) for name in config.scored("perplexity")) or None


def _later_suites(config: Config, raw: Raw) -> float | None:
    return sum(_corpus(config, raw, name) for name in config.corpus if counted(config, name)) or None


def _tokenizers(config: Config, raw: Raw) -> float:
    return sum(min(_corpus(config, raw, section.corpus), section.sample_bytes) for section in config.tokenizer.values())


def _tokens(config: Config, raw: Raw) -> float:
    return sum(_corpus(config, raw, section.corpus) for section in config.tokens.values())


def _sorted(config: Config, raw: Raw) -> float | None:
    return sum(_corpus(config, raw, section.corpus) for section in config.tokens.values() if section.suffixes) or None


def vocabulary(config: Config, model: str) -> int:
    return config.tokenizer[config.tokens[config.models[model].tokens].tokenizer].vocabulary_size


def _parameters(config: Config, model: str) -> float:
    return parameter_count(config.models[model].architecture, vocabulary(config, model))


def _training(config: Config, raw: Raw) -> float | None:
    total = 0.0
    for name, model in config.models.items():
        t = model.training
        total += training_flops(model.architecture, vocabulary(config, name), t.batches, t.first_step, t.steps)
    return total or None


def _exported(config: Config, raw: Raw) -> float | None:
    return sum(_parameters(config, name) for name in config.models) or None


def _adopted(config: Config, raw: Raw) -> float | None:
    return sum(_parameters(config, name) for name, model in config.models.items() if model.pretrained) or None


def _searched(config: Config, raw: Raw) -> float | None:
    return sum(_parameters(config, name) for name in config.searched_models()) or None


def _evaluated(config: Config, raw: Raw) -> float | None:
    return sum(_parameters(config, name) for name, _ in config.evaluated()) or None


def _baselines(config: Config, raw: Raw) -> float | None:
    """A baseline in a folder counts by its bytes, two of them for a parameter."""
    sizes = [
        config.baseline_bytes(name) / 2 if model is None else _parameters(config, model)
        for name, model in config.baselines().items()
    ]
    return sum(sizes) or None


# In the order of the steps. Of cut files and of data sets the planned run has jobs only where it has such sources.
WORK: dict[str, Work] = {
    "sources.split": Work(BYTES, _sources),
    "sources.dataset": Work(BYTES, _sources),
    "sources.listing": Work(BYTES, _sources),
    "sources.fingerprint": Work(BYTES, _sources),
    "opt_out.entries": Work(BYTES, _reserving),
    "sources.manifest": Work(BYTES, _sources),
    "corpus.filter": Work(BYTES, _corpora),
    # The seeds of the classifiers are taken to be those of the calibration runs, and so is the model that reads.
    "corpus.quality": Work(BYTES, _scored),
    "corpus.scores": Work(BYTES, _scored),
    "corpus.perplexity": Work(BYTES, _read_by_model),
    "corpus.signatures": Work(BYTES, _corpora),
    "opt_out.reserved": Work(BYTES, _reserved),
    "corpus.equal_keys": Work(BYTES, _divided),
    "corpus.find_duplicates": Work(BYTES, _corpora),
    "corpus.deduplicate": Work(BYTES, _corpora),
    "corpus.ngrams": Work(BYTES, _corpora),
    "corpus.matches": Work(BYTES, _corpora),
    "corpus.find_items": Work(BYTES, _corpora),
    "corpus.decontaminate": Work(BYTES, _corpora),
    "corpus.count_items": Work(BYTES, _later_suites),
    "corpus.statistics": Work(BYTES, _corpora),
    "corpus.publish": Work(BYTES, _corpora),
    "opt_out.forgotten": Work(BYTES, _forgotten),
    "tokenizer.train": Work(BYTES, _tokenizers),
    "tokenizer.fertility": Work(BYTES, _tokenizers),
    "tokens.shard": Work(BYTES, _tokens),
    "tokens.suffixes": Work(BYTES, _sorted),
    "tokens.index": Work(BYTES, _tokens),
    "pretrain.adopt": Work(PARAMETERS, _adopted),
    "pretrain.segment": Work(FLOP, _training),
    "pretrain.export": Work(PARAMETERS, _exported),
    "evaluate.suites": Work(PARAMETERS, _evaluated),
    "evaluate.baselines": Work(PARAMETERS, _baselines),
    "evaluate.samples": Work(PARAMETERS, _searched),
    "evaluate.differences": Work(PARAMETERS, _evaluated),
}
