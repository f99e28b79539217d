"""What the rules read: functions of a job's wildcards."""

from functools import cache

from pipeline.core.path_ranges import shorten
from pipeline.workflow.steps import CHAPTERS


# A chapter's target asks for the records up to it, so that a step whose record is gone runs again, whatever the target.
# No target and no report asks for batches, which are many: each is read by a step with a record of its own.
def records_until(chapter):
    return dag.records(CHAPTERS[: CHAPTERS.index(chapter) + 1])


def run_records(wildcards):
    """Return all records before the report, of units too, in few words."""
    return shorten([*dag.unit_records(), *all_records])


# A batch gives each of its units these files; %unit stands for its number.
def unit_file(kind, folder=RUN):
    return f"{folder}/corpus/{{corpus}}/{kind}{{source}}.%unit.parquet"


# What stands before a checkpoint decides by its content, not by its time, whether the steps after it run again. These are
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


@cache
def say_once(sentence):
    if workflow.is_main_process:
        logger.warning(sentence)


@cache
def refuse_once(sentence):
    refuse(sentence)


def tokens_index(wildcards):
    index = checkpoints.tokens_index.get(
        tokens=run.models[wildcards.model].tokens
    ).output.index
    if sentence := dag.finished.of_other_tokens(wildcards.model, int(wildcards.step)):
        say_once(sentence)
    make_again(stale.of_other_tokens(**dict(wildcards.items())), "read other tokens")
    return index


def previous_milestone(wildcards):
    """Return the milestone that a segment starts from; of a finished one that stays its time does not count."""
    if thrown_away := dag.finished.refusal(wildcards.model):
        try:
            refuse_once(thrown_away)
        except InputError as error:
            raise WorkflowError(str(error)) from None
    found = dag.previous_milestone(wildcards)
    stays = dag.finished.kept(wildcards.model, int(wildcards.step))
    return [ancient(path) for path in found] if stays else found


# What a model begins with stays as long as the segments behind it do.
def first_stays(wildcards):
    step = run.models[wildcards.model].training.milestones()[0]
    return step if dag.finished.kept(wildcards.model, step) else None


def adopted_model(wildcards):
    found = run.pretrained_files(wildcards.model)
    return ancient(found) if first_stays(wildcards) else found


def adopted_index(wildcards):
    tokens = run.models[wildcards.model].tokens
    return checkpoints.tokens_index.get(tokens=tokens).output.index


def adopted_tokens_hash(wildcards):
    stays = first_stays(wildcards)
    made = stays and dag.finished.tokens_hash(wildcards.model, stays)
    return made or tokens_hash(wildcards)


def tokens_read(wildcards):
    """Return what a step behind a training waits for, as the training itself does."""
    return f"{RUN}/tokens/{run.models[wildcards.model].tokens}/index.json"


def suffixes_of_model(wildcards):
    tokens = run.models[wildcards.model].tokens
    return [
        f"{RUN}/tokens/{tokens}/suffixes/{shard}.arrow"
        for shard in range(run.tokens[tokens].shards)
    ]


def tokens_hash(wildcards):
    return dag.tokens_hash(wildcards.model)


def segment_tokens_hash(wildcards):
    made = dag.finished.tokens_hash(wildcards.model, int(wildcards.step))
    return made or tokens_hash(wildcards)


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


def parallel_files(wildcards):
    return run.parallel_files(wildcards.tokenizer)


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
