"""The configuration, validated before anything starts, and the names that all rules share."""

from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from pipeline.job import frozen
from pipeline.run import invocation, lock
from pipeline.run.config import load
from pipeline.run.dag import Dag
from pipeline.evaluate.suite_files import suite_files
from pipeline.ground.errors import InputError
from pipeline.ground.ranges import shorten
from pipeline.slurm import accounting, live, registration
from pipeline.slurm.resources import Requests
from pipeline.run.stale import Stale, is_locked
from pipeline.run.steps import CHAPTERS

try:
    run = load(config)
    dag = Dag(run)
    all_records = dag.records()
    task_files = [str(file) for suite in run.suites() for file in suite_files(suite)]
except InputError as error:
    raise WorkflowError(str(error)) from None

RUN, PRIVATE = dag.run, dag.private
contract, record, batch, log_file = dag.contract, dag.record, dag.batch, dag.log
resources_of = Requests(run, dag)
units_of_batch = resources_of.units  # threads, on one machine as many as it has

# One start works on a run. What a snakemake that was killed left behind are its lock, and jobs that are not to be
# submitted twice.
action = invocation.action(sys.argv[1:]) if workflow.is_main_process else "other"
try:
    if action == "execution":
        held = lock.take(Path(RUN), logger.warning)
        live.take_over(Path(RUN), logger.warning)
        if any(not holder.is_mine for holder in held.dead):
            live.wait_for_steps_elsewhere(Path(RUN), logger.warning)
        held.dead.clear()
    elif action == "unlock":
        lock.unlock(Path(RUN), logger.warning)
except InputError as error:
    raise WorkflowError(str(error)) from None

# Jobs are those of the configuration and the code of this moment, however much is edited until they run.
frozen_now = dag.frozen() if workflow.is_main_process else {}
for difference in frozen.differences(
    frozen.newest(Path(RUN)) or frozen_now, frozen_now
):
    logger.warning(f"since the last start: {difference}")

# The truth lies in the records, not in .snakemake: a stage whose record no longer says it runs again. A dry run says so
# and deletes nothing.
stale = Stale(dag, Path(".snakemake/metadata"))
# Neither does a start that Snakemake is about to refuse, because its own lock lies there.
keeps = action != "execution" or is_locked(RUN, Path(lock.SNAKEMAKE_LOCKS))


def make_again(records, because):
    if workflow.is_main_process:
        for path in records:
            logger.warning(f"{path} {because}: its stage runs again")
            if not keeps:
                path.unlink()


no_more = stale.of_units_no_more() if workflow.is_main_process else []
if no_more:
    logger.warning(
        f"{len(no_more)} files are of units that the sources no longer have, such as {no_more[0]}: they are deleted"
    )
    for path in no_more if not keeps else []:
        path.unlink()

make_again(
    stale.unfit(), "was made with other settings, code or environment, or is no record"
)
make_again(stale.incomplete(), "names files that are not there as it says")
make_again(stale.of_other_raw_files(), "read other raw files")


# A chapter's target asks for the records up to it, so that a stage whose record is gone runs again, whatever the target.
# No target and no report asks for batches, which are many: each is read by a stage with a record of its own.
def records_until(chapter):
    return dag.records(CHAPTERS[: CHAPTERS.index(chapter) + 1])


def run_records(wildcards):
    """Return all records before the report, of units too, in few words."""
    return shorten([*dag.unit_records(), *all_records])


# A batch gives each of its units these files; %unit stands for its number.
def unit_file(kind, folder=RUN):
    return f"{folder}/corpus/{{corpus}}/{kind}{{source}}.%unit.parquet"


# What stands before a checkpoint decides by its content, not by its time, whether the stages after it run again. These are
# functions of the wildcards alone: Snakemake does not compare parameters that are derived from the input.
def sources_complete(step):
    """Return the function that gives a batch of a step the file that says that all sources are read."""

    def complete(wildcards):
        found = checkpoints.sources_complete.get().output
        path = batch(step).format(**wildcards)
        make_again(
            stale.of_other_files(path, batch_hash(wildcards)), "read other raw files"
        )
        return found

    return complete


# Of every other step behind the sources: what was left to do before a source changed does not run beside that change.
SOURCES_READ = ancient(f"{RUN}/provenance/batches/sources")


def batch_hash(wildcards):
    return dag.batch_hash(wildcards.source, wildcards.batch)


def tokens_index(wildcards):
    index = checkpoints.tokens_index.get(
        tokens=run.models[wildcards.model].tokens
    ).output.index
    make_again(stale.of_other_tokens(**dict(wildcards.items())), "read other tokens")
    return index


def tokens_read(wildcards):
    """Return what a step behind a training waits for, as the training itself does."""
    return f"{RUN}/tokens/{run.models[wildcards.model].tokens}/index.json"


def tokens_hash(wildcards):
    return dag.tokens_hash(wildcards.model)


def tokenizer_batches(wildcards):
    corpus = run.tokenizer[wildcards.tokenizer].corpus
    return dag.corpus_batches("corpus.decontaminate", corpus)


def tokens_batches(wildcards):
    """Return what stands for the documents of a token set: the record of the tokenizer that was trained on them."""
    section = run.tokens[wildcards.tokens]
    if section.corpus == run.tokenizer[section.tokenizer].corpus:
        return record("tokenizer.train").format(tokenizer=section.tokenizer)
    return dag.corpus_batches("corpus.decontaminate", section.corpus)


def tokenizer_documents(wildcards):
    return shorten(
        dag.corpus_files("final/", run.tokenizer[wildcards.tokenizer].corpus)
    )


def short(name):
    """Return the function that names a job's many inputs in few words."""
    return lambda wildcards, input: shorten(input.get(name))


def units_of(*kinds):
    """Return the function that names the files of all units of a corpus, of some kinds, in few words."""
    return lambda w: shorten(
        name for kind in kinds for name in dag.corpus_files(kind, w.corpus)
    )


reserving_manifests = [
    f"{RUN}/sources/{source}/manifest.json" for source in run.reserving()
]


def reserved_batches(wildcards):
    return dag.batches("opt_out.reserved", run.reserving(), wildcards.corpus)


def reserved_units(wildcards):
    return shorten(dag.reserved_files("reserved/", wildcards.corpus))


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
    batch="[0-9]+",
    file="[0-9]+",
    shard="[0-9]+",
    step="[0-9]+",
