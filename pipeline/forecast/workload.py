"""Compute the work of each step of a run, which its time grows with, from the configuration and the source sizes.

Work is known before the run: bytes of raw files on disk for the steps up to the tokens, floating-point operations of
training, parameters of exported models, and parameters of evaluated models for each milestone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pipeline.config.configuration import Config
from pipeline.config.evaluation_item_paths import list_count_only_item_files
from pipeline.model.size_and_cost import parameter_count, training_flops

RawBytes = Mapping[str, float]
"""Bytes on disk by source."""
Amount = Callable[[Config, RawBytes], float | None]
BYTES, FLOP, PARAMETERS = "bytes of raw text", "FLOP", "parameters"


class StepWorkload(NamedTuple):
    """The unit of a step's work and its amount in a run, None where the run has no such jobs.

    `of_job` is the amount of one job, where that follows from its wildcards alone.
    """

    unit: str
    amount: Amount
    of_job: Callable[..., float] | None = None


def _total_source_bytes(config: Config, raw: RawBytes) -> float:
    return sum(raw[source.name] for source in config.sources)


def _opt_out_source_bytes(config: Config, raw: RawBytes) -> float | None:
    return sum(raw[name] for name in config.sources_with_opt_out_list()) if config.sources_with_opt_out_list() else None


def _opt_out_signature_bytes(config: Config, raw: RawBytes) -> float | None:
    amount = _opt_out_source_bytes(config, raw)
    return None if amount is None else len(config.corpus) * amount


def _interleaved_bytes(config: Config, raw: RawBytes) -> float | None:
    return sum(raw[source] for name in config.interleaved for source in config.interleaved_sources(name)) or None


def _tokenizer_bytes(config: Config, raw: RawBytes) -> float:
    return sum(
        min(_corpus_bytes(config, raw, section.corpus), section.sample_bytes) for section in config.tokenizer.values()
    )


def _corpus_bytes(config: Config, raw: RawBytes, name: str) -> float:
    return sum(raw[source] for source in config.corpus_sources(name))


def _sum_bytes_of_corpora(select: Callable[[Config], Iterable[str]]) -> Amount:
    """Return a function that sums the raw bytes of the selected corpora."""

    def amount(config: Config, raw: RawBytes) -> float | None:
        names = [*select(config)]
        return sum(_corpus_bytes(config, raw, name) for name in names) if names else None

    return amount


def _count_parameters(config: Config, model: str) -> float:
    return parameter_count(config.models[model].architecture, config.vocabulary_size(config.models[model].tokens))


def _make_parameter_amount(select: Callable[[Config], Iterable[str]]) -> Amount:
    """Return a function that sums the parameters of the selected models."""
    return lambda config, _: sum(_count_parameters(config, model) for model in select(config)) or None


def segment_flops(config: Config, model: str, step: str) -> float:
    """Return the floating-point operations of the segment of a training that ends with a step."""
    training, last = config.models[model].training, int(step)
    return _training_flops(config, model, training.segment_start(last), last)


def _training_flops(config: Config, model: str, first: int, last: int) -> float:
    section = config.models[model]
    size = section.architecture, config.vocabulary_size(section.tokens)
    return training_flops(*size, section.training.batch_schedule, first, last)


def _all_training_flops(config: Config, raw: RawBytes) -> float | None:
    steps = ((name, model.training.first_step, model.training.steps) for name, model in config.models.items())
    return sum(_training_flops(config, *one) for one in steps) or None


def _baseline_parameters(config: Config, raw: RawBytes) -> float | None:
    """Count a baseline in a folder as a parameter for two of its bytes."""
    sizes = [
        config.baseline_file_sizes(name) / 2 if model is None else _count_parameters(config, model)
        for name, model in config.baselines().items()
    ]
    return sum(sizes) or None


_CORPORA = _sum_bytes_of_corpora(lambda config: config.corpus)
_SCORED = _sum_bytes_of_corpora(lambda config: config.corpora_with_score("quality"))
_TOKEN_SETS = _sum_bytes_of_corpora(lambda config: [section.corpus for section in config.tokens.values()])
_EVALUATED = _make_parameter_amount(lambda config: [name for name, _ in config.evaluated_milestones()])

# In the order of the steps. A run has jobs of sources.split and sources.dataset only where it has such sources.
WORKLOADS: dict[str, StepWorkload] = {
    "sources.split": StepWorkload(BYTES, _total_source_bytes),
    "sources.dataset": StepWorkload(BYTES, _total_source_bytes),
    "sources.listing": StepWorkload(BYTES, _total_source_bytes),
    "sources.fingerprint": StepWorkload(BYTES, _total_source_bytes),
    "opt_out.entries": StepWorkload(BYTES, _opt_out_source_bytes),
    "sources.manifest": StepWorkload(BYTES, _total_source_bytes),
    "corpus.filter": StepWorkload(BYTES, _CORPORA),
    # Assume the classifiers and the perplexity model of the calibration runs.
    "corpus.quality": StepWorkload(BYTES, _SCORED),
    "corpus.scores": StepWorkload(BYTES, _SCORED),
    "corpus.classify": StepWorkload(
        BYTES, _sum_bytes_of_corpora(lambda config: config.corpora_with_score("classifiers"))
    ),
    "corpus.perplexity": StepWorkload(
        BYTES, _sum_bytes_of_corpora(lambda config: config.corpora_with_score("perplexity"))
    ),
    "corpus.signatures": StepWorkload(BYTES, _CORPORA),
    "opt_out.reserved": StepWorkload(BYTES, _opt_out_signature_bytes),
    "corpus.equal_keys": StepWorkload(
        BYTES,
        _sum_bytes_of_corpora(
            lambda config: [name for name, corpus in config.corpus.items() if corpus.deduplication.jobs > 1]
        ),
    ),
    "corpus.find_duplicates": StepWorkload(BYTES, _CORPORA),
    "corpus.deduplicate": StepWorkload(BYTES, _CORPORA),
    "corpus.ngrams": StepWorkload(BYTES, _CORPORA),
    "corpus.matches": StepWorkload(BYTES, _CORPORA),
    "corpus.find_items": StepWorkload(BYTES, _CORPORA),
    "corpus.decontaminate": StepWorkload(BYTES, _CORPORA),
    "corpus.count_items": StepWorkload(
        BYTES,
        _sum_bytes_of_corpora(
            lambda config: [name for name in config.corpus if list_count_only_item_files(config, name)]
        ),
    ),
    "corpus.statistics": StepWorkload(BYTES, _CORPORA),
    "corpus.publish": StepWorkload(BYTES, _CORPORA),
    "opt_out.forgotten": StepWorkload(
        BYTES, _sum_bytes_of_corpora(lambda config: config.corpus if config.sources_with_opt_out_list() else ())
    ),
    "interleaved.extract": StepWorkload(BYTES, _interleaved_bytes),
    "interleaved.assemble": StepWorkload(BYTES, _interleaved_bytes),
    "tokenizer.train": StepWorkload(BYTES, _tokenizer_bytes),
    "tokenizer.fertility": StepWorkload(BYTES, _tokenizer_bytes),
    "tokens.shard": StepWorkload(BYTES, _TOKEN_SETS),
    "tokens.suffixes": StepWorkload(
        BYTES,
        _sum_bytes_of_corpora(
            lambda config: [section.corpus for section in config.tokens.values() if section.suffixes]
        ),
    ),
    "tokens.index": StepWorkload(BYTES, _TOKEN_SETS),
    "pretrain.adopt": StepWorkload(
        PARAMETERS,
        _make_parameter_amount(lambda config: [name for name, model in config.models.items() if model.pretrained]),
    ),
    "pretrain.segment": StepWorkload(FLOP, _all_training_flops, segment_flops),
    "pretrain.export": StepWorkload(PARAMETERS, _make_parameter_amount(lambda config: config.models)),
    "evaluate.suites": StepWorkload(PARAMETERS, _EVALUATED),
    "evaluate.baselines": StepWorkload(PARAMETERS, _baseline_parameters),
    "evaluate.samples": StepWorkload(PARAMETERS, _make_parameter_amount(lambda config: config.sampled_models())),
    "evaluate.differences": StepWorkload(PARAMETERS, _EVALUATED),
}
