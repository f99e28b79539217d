"""The configuration, validated before anything starts, and the names that all rules share."""

from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from pipeline.config import load
from pipeline.dag import Dag
from pipeline.errors import InputError
from pipeline.ranges import shorten

try:
    run = load(config)
    dag = Dag(run)
    all_records = dag.records()
    task_files = [str(file) for suite in run.suites() for file in suite.files()]
except InputError as error:
    raise WorkflowError(str(error)) from None

RUN, PRIVATE = dag.run, dag.private
CHAPTERS = ["sources", "corpus", "tokenizer", "tokens", "pretrain", "evaluate"]
contract, record, log_file = dag.contract, dag.record, dag.log

# The truth lies in the records, not in .snakemake: what Snakemake forgot and no longer fits is made again.
if workflow.is_main_process:
    for stale in dag.forgotten(Path(".snakemake/metadata")):
        logger.warning(
            f"{stale} was made with other settings, code or environment: its stage runs again"
        )
        if not workflow.dryrun:
            stale.unlink()


# A chapter's target asks for the records up to it, so that a stage whose record is gone runs again, whatever the target.
def records_until(chapter):
    chapters = CHAPTERS[: CHAPTERS.index(chapter) + 1]
    return [name for name in all_records if Path(name).name.split(".")[0] in chapters]


# What stands before a checkpoint decides by its content, not by its time, whether the stages after it run again. These are
# functions of the wildcards alone: Snakemake does not compare parameters that are derived from the input.
def source_manifest(wildcards):
    return checkpoints.sources_manifest.get(source=wildcards.source).output.manifest


def unit_hash(wildcards):
    return dag.unit_hash(wildcards.source, wildcards.unit)


def tokens_index(wildcards):
    return checkpoints.tokens_index.get(
        tokens=run.models[wildcards.model].tokens
    ).output.index


def tokens_hash(wildcards):
    return dag.tokens_hash(wildcards.model)


def tokenizer_documents(wildcards):
    return dag.corpus_files("final/", run.tokenizer[wildcards.tokenizer].corpus)


def short(name):
    """Return the function that names a job's many inputs in few words."""
    return lambda wildcards, input: shorten(input.get(name))


def model_tokenizer(name):
    return (
        lambda w: f"{RUN}/tokenizer/{run.tokens[run.models[w.model].tokens].tokenizer}/{name}"
    )


wildcard_constraints:
    source="[a-z0-9_-]+",
    corpus="[a-z0-9_-]+",
    tokenizer="[a-z0-9_-]+",
    tokens="[a-z0-9_-]+",
    model="[a-z0-9_-]+",
    unit="[0-9]+",
    file="[0-9]+",
    shard="[0-9]+",
    step="[0-9]+",
