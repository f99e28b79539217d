"""The configuration, validated before anything starts, and the names that all rules share."""

from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from pipeline.config import load
from pipeline.dag import Dag
from pipeline.errors import InputError
from pipeline.ranges import shorten
from pipeline.stale import Stale

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

# The truth lies in the records, not in .snakemake: a stage whose record no longer says it runs again. A dry run says so
# and deletes nothing.
stale = Stale(dag, Path(".snakemake/metadata"))


def make_again(records, because):
    if workflow.is_main_process:
        for path in records:
            logger.warning(f"{path} {because}: its stage runs again")
            if not workflow.output_settings.dryrun:
                path.unlink()


make_again(
    stale.unfit(), "was made with other settings, code or environment, or is no record"
)
make_again(stale.incomplete(), "names files that are not there as it says")


# A chapter's target asks for the records up to it, so that a stage whose record is gone runs again, whatever the target.
def records_until(chapter):
    chapters = CHAPTERS[: CHAPTERS.index(chapter) + 1]
    return [name for name in all_records if Path(name).name.split(".")[0] in chapters]


# What stands before a checkpoint decides by its content, not by its time, whether the stages after it run again. These are
# functions of the wildcards alone: Snakemake does not compare parameters that are derived from the input.
def source_manifest(wildcards):
    manifest = checkpoints.sources_manifest.get(source=wildcards.source).output.manifest
    make_again(stale.of_other_files(**dict(wildcards.items())), "read other raw files")
    return manifest


def unit_hash(wildcards):
    return dag.unit_hash(wildcards.source, wildcards.unit)


def tokens_index(wildcards):
    index = checkpoints.tokens_index.get(
        tokens=run.models[wildcards.model].tokens
    ).output.index
    make_again(stale.of_other_tokens(**dict(wildcards.items())), "read other tokens")
    return index


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
