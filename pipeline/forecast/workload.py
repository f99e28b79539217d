"""How much each step of a run does, by its configuration and the bytes of its sources: what its time grows with.

Work is counted from what is known before anything runs: bytes of the raw files as they lie on disk up to the tokens,
floating-point operations of training, parameters of models that are exported, and of those that are evaluated, once for
each milestone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pipeline.config.configuration import Config, counted
from pipeline.model.size import parameter_count, training_flops

RawBytes = Mapping[str, float]
BYTES, FLOP, PARAMETERS = "bytes of raw text", "FLOP", "parameters"


class StepWorkload(NamedTuple):
    """How much of what a step does, by the configuration and the raw bytes of each source; None: no such jobs.

    `of_job` is the amount of one job, where that follows from its wildcards alone.
    """

    unit: str
    amount: Callable[[Config, RawBytes], float | None]
    of_job: Callable[..., float] | None = None


def _sources(config: Config, raw: RawBytes) -> float:
    return sum(raw[source.name] for source in config.sources)


def _reserving(config: Config, raw: RawBytes) -> float | None:
    return sum(raw[name] for name in config.reserving()) if config.reserving() else None


def _corpus(config: Config, raw: RawBytes, name: str) -> float:
    return sum(raw[source] for source in config.corpus_sources(name))


def _corpora(config: Config, raw: RawBytes) -> float:
    return sum(_corpus(config, raw, name) for name in config.corpus)


def _reserved(config: Config, raw: RawBytes) -> float | None:
    return len(config.corpus) * sum(raw[name] for name in config.reserving()) if config.reserving() else None


def _forgotten(config: Config, raw: RawBytes) -> float | None:
    return _corpora(config, raw) if config.reserving() else None


def _divided(config: Config, raw: RawBytes) -> float | None:
    return sum(_corpus(config, raw, name) for name, of in config.corpus.items() if of.deduplication.jobs > 1) or None


def _scored(config: Config, raw: RawBytes) -> float | None:
    return sum(_corpus(config, raw, name) for name in config.scored("quality")) or None


def _read_by_model(config: Config, raw: RawBytes) -> float | None:
    return sum(_corpus(config, raw, name) for name in config.scored("perplexity")) or None


def _later_suites(config: Config, raw: RawBytes) -> float | None:
    return sum(_corpus(config, raw, name) for name in config.corpus if counted(config, name)) or None


def _tokenizers(config: Config, raw: RawBytes) -> float:
    return sum(min(_corpus(config, raw, section.corpus), section.sample_bytes) for section in config.tokenizer.values())


def _tokens(config: Config, raw: RawBytes) -> float:
    return sum(_corpus(config, raw, section.corpus) for section in config.tokens.values())


def _sorted(config: Config, raw: RawBytes) -> float | None:
    return sum(_corpus(config, raw, section.corpus) for section in config.tokens.values() if section.suffixes) or None


def _parameters(config: Config, model: str) -> float:
    return parameter_count(config.models[model].architecture, config.vocabulary_size(config.models[model].tokens))


def _training(config: Config, raw: RawBytes) -> float | None:
    total = 0.0
    for model in config.models.values():
        size, t = (model.architecture, config.vocabulary_size(model.tokens)), model.training
        total += training_flops(*size, t.batches, t.first_step, t.steps)
    return total or None


def segment_flops(config: Config, model: str, step: str) -> float:
    """Return the floating-point operations of the segment of a training that ends with a step."""
    section, last = config.models[model], int(step)
    training = section.training
    size = section.architecture, config.vocabulary_size(section.tokens)
    return training_flops(*size, training.batches, training.segment_start(last), last)


def _exported(config: Config, raw: RawBytes) -> float | None:
    return sum(_parameters(config, name) for name in config.models) or None


def _adopted(config: Config, raw: RawBytes) -> float | None:
    return sum(_parameters(config, name) for name, model in config.models.items() if model.pretrained) or None


def _searched(config: Config, raw: RawBytes) -> float | None:
    return sum(_parameters(config, name) for name in config.searched_models()) or None


def _evaluated(config: Config, raw: RawBytes) -> float | None:
    return sum(_parameters(config, name) for name, _ in config.evaluated()) or None


def _baselines(config: Config, raw: RawBytes) -> float | None:
    """A baseline in a folder counts by its bytes, two of them for a parameter."""
    sizes = [
        config.baseline_bytes(name) / 2 if model is None else _parameters(config, model)
        for name, model in config.baselines().items()
    ]
    return sum(sizes) or None


# In the order of the steps. Of cut files and of data sets the planned run has jobs only where it has such sources.
WORKLOADS: dict[str, StepWorkload] = {
    "sources.split": StepWorkload(BYTES, _sources),
    "sources.dataset": StepWorkload(BYTES, _sources),
    "sources.listing": StepWorkload(BYTES, _sources),
    "sources.fingerprint": StepWorkload(BYTES, _sources),
    "opt_out.entries": StepWorkload(BYTES, _reserving),
    "sources.manifest": StepWorkload(BYTES, _sources),
    "corpus.filter": StepWorkload(BYTES, _corpora),
    # The seeds of the classifiers are taken to be those of the calibration runs, and so is the model that reads.
    "corpus.quality": StepWorkload(BYTES, _scored),
    "corpus.scores": StepWorkload(BYTES, _scored),
    "corpus.perplexity": StepWorkload(BYTES, _read_by_model),
    "corpus.signatures": StepWorkload(BYTES, _corpora),
    "opt_out.reserved": StepWorkload(BYTES, _reserved),
    "corpus.equal_keys": StepWorkload(BYTES, _divided),
    "corpus.find_duplicates": StepWorkload(BYTES, _corpora),
    "corpus.deduplicate": StepWorkload(BYTES, _corpora),
    "corpus.ngrams": StepWorkload(BYTES, _corpora),
    "corpus.matches": StepWorkload(BYTES, _corpora),
    "corpus.find_items": StepWorkload(BYTES, _corpora),
    "corpus.decontaminate": StepWorkload(BYTES, _corpora),
    "corpus.count_items": StepWorkload(BYTES, _later_suites),
    "corpus.statistics": StepWorkload(BYTES, _corpora),
    "corpus.publish": StepWorkload(BYTES, _corpora),
    "opt_out.forgotten": StepWorkload(BYTES, _forgotten),
    "tokenizer.train": StepWorkload(BYTES, _tokenizers),
    "tokenizer.fertility": StepWorkload(BYTES, _tokenizers),
    "tokens.shard": StepWorkload(BYTES, _tokens),
    "tokens.suffixes": StepWorkload(BYTES, _sorted),
    "tokens.index": StepWorkload(BYTES, _tokens),
    "pretrain.adopt": StepWorkload(PARAMETERS, _adopted),
    "pretrain.segment": StepWorkload(FLOP, _training, segment_flops),
    "pretrain.export": StepWorkload(PARAMETERS, _exported),
    "evaluate.suites": StepWorkload(PARAMETERS, _evaluated),
    "evaluate.baselines": StepWorkload(PARAMETERS, _baselines),
    "evaluate.samples": StepWorkload(PARAMETERS, _searched),
    "evaluate.differences": StepWorkload(PARAMETERS, _evaluated),
}
