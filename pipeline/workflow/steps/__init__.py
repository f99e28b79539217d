"""The declarations of all steps, by stages, and the table that is collected from them."""

from __future__ import annotations

from pipeline.config.configuration import Config
from pipeline.core.settings import Settings
from pipeline.workflow.expected_run_files import Wildcards
from pipeline.workflow.steps import (
    corpus_decontamination_and_publication,
    corpus_preparation,
    evaluate,
    interleaved,
    opt_out,
    pretrain,
    report_and_provenance,
    sources,
    tokenizer_and_tokens,
)
from pipeline.workflow.steps.declaration import Step

ORDER = (
    sources,
    corpus_preparation,
    corpus_decontamination_and_publication,
    interleaved,
    tokenizer_and_tokens,
    pretrain,
    evaluate,
    report_and_provenance,
)


def _collect() -> dict[str, Step]:
    steps = [step for module in ORDER for step in module.STEPS]
    for step in opt_out.STEPS:
        names = [other.name for other in steps]
        steps.insert(names.index(str(step.listed_after)) + 1, step)
    return {step.name: step for step in steps}


STEPS = _collect()


STAGES = tuple(dict.fromkeys(step.stage for step in STEPS.values()))
# The stages that Snakemake plans again after a checkpoint, by its rule.
STAGES_BEHIND = {
    "sources_complete": ("corpus", "tokenizer", "tokens", "pretrain", "evaluate"),
    "tokens_index": ("pretrain", "evaluate"),
}
REPORTED = tuple(name for name in STAGES if name not in ("report", "provenance"))


STAGE_DONE = {
    "sources": "The sources are read",
    "corpus": "The corpora are made",
    "tokenizer": "The tokenizers are made",
    "tokens": "The token sets are made",
    "pretrain": "The models are trained",
    "evaluate": "The models are evaluated",
    "plan": "The plan is made",
    "report": "The report is written",
    "provenance": "The crate is written",
}
"""What Snakemake says when the target of a stage is there."""


def step_settings(config: Config, step: str, instance: Wildcards) -> Settings:
    """Return the settings of one job, of a step such as `corpus.filter` and its source, corpus, …."""
    return STEPS[step].settings(config, instance)
