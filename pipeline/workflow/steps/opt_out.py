"""The steps of opting out, each in the stage after which it is done."""

from __future__ import annotations

from pathlib import Path

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.settings import Settings
from pipeline.opt_out.other_runs_fingerprint import hash_other_runs
from pipeline.opt_out.settings import ForgottenSettings, RemainsSettings, ReservedSettings, collect_line_rules
from pipeline.sources.settings import EntriesSettings
from pipeline.workflow.expected_run_files import RunFiles, Wildcards
from pipeline.workflow.shared_step_settings import (
    add_names_model_hash,
    minhash_signature_settings,
    select_matching_fields,
)
from pipeline.workflow.steps.declaration import (
    UNIT_NEEDS,
    Input,
    JobInstances,
    Output,
    ResourceNeeds,
    Step,
    batch_instances,
    make_files_per_value_function,
    untracked_corpus_input,
    untracked_input,
    wait_for_all_batches,
    wait_for_input,
)
from pipeline.workflow.steps.sources import RAW_UNITS

# Of sources with an opt-out list.
RESERVING_BATCH = batch_instances(("source",), lambda c: [(name,) for name in c.sources_with_opt_out_list()])
RESERVING_CORPUS_BATCH = batch_instances(
    ("corpus", "source"), lambda c: [(corpus, name) for corpus in c.corpus for name in c.sources_with_opt_out_list()]
)
# Where any source has one.
RESERVING_CORPUS = JobInstances(
    ("corpus",), lambda c: [(corpus,) for corpus in c.corpus if c.sources_with_opt_out_list()]
)
RESERVING_RUN = JobInstances((), lambda c: [()] if c.sources_with_opt_out_list() else [])


def reserved_signatures_settings(config: Config, i: Wildcards) -> Settings:
    source, section = config.source(i["source"]), config.corpus[i["corpus"]]
    keys = select_matching_fields(ReservedSettings, source, section) | {
        "personal_data": add_names_model_hash(section.personal_data)
    }
    return ReservedSettings(
        source=source.name,
        line_rules=collect_line_rules(
            config.rules_for(i["corpus"], name) for name in config.corpus_sources(i["corpus"])
        ),
        signatures=minhash_signature_settings(config, i["corpus"]),
        quarantine=source.damaged_share > 0,
        **keys,
    )


def remains_settings(config: Config, i: Wildcards) -> Settings:
    return RemainsSettings(
        run=config.run.name,
        corpora={name: minhash_signature_settings(config, name) for name in config.corpus},
        tokens={name: section.corpus for name, section in config.tokens.items()},
        others=hash_other_runs(Path(config.run.results), config.run.name),
    )


def _all_reserved_files(run: RunFiles, w: Wildcards) -> list[str]:
    return [name for corpus in run.config.corpus for name in run.opt_out_source_unit_files(layout.RESERVED, corpus)]


def _all_removed_files(run: RunFiles, w: Wildcards) -> list[str]:
    place = layout.REMOVED.fill(step="deduplicate")
    return [name for corpus in run.config.corpus for name in run.corpus_files(place, corpus)]


def _all_shards(run: RunFiles, w: Wildcards) -> list[str]:
    places = [layout.TOKEN_SHARD.fill(split=split) for split in ("train", "validation")]
    return [name for tokens in run.config.tokens for place in places for name in run.shard_files(place, tokens)]


RESERVED_BATCHES = wait_for_input(
    "reserved_batches",
    lambda run, w: run.batch_record_paths("opt_out.reserved", run.config.sources_with_opt_out_list(), w["corpus"]),
)
RESERVED_UNITS = untracked_input("reserved", lambda run, w: run.opt_out_source_unit_files(layout.RESERVED, w["corpus"]))
# What reads a manifest waits for the Snakemake checkpoint too: before it, nobody knows which units run again.
MANIFESTS_READ = wait_for_input("sources", layout.SOURCES_COMPLETE)
MANIFESTS = Input(
    "manifests", make_files_per_value_function(layout.MANIFEST, "source", lambda c: c.sources_with_opt_out_list())
)
# The units' own files are known to that checkpoint, and thousands of them slow Snakemake down.
READS_UNITS = (
    wait_for_input("sources", "sources_complete", is_ancient=True),
    untracked_input("unit", layout.SOURCE, words="{params.unit}/units/%unit.json"),
    Input("files", is_tracked=False, words="@{params.unit}/listing/%unit.json"),
)

STEPS = (
    Step(
        "opt_out.entries",
        RESERVING_BATCH,
        "Find what an opt-out list can name in {wildcards.source}, batch {wildcards.batch}",
        lambda config, i: EntriesSettings(
            source=i["source"], **select_matching_fields(EntriesSettings, config.source(i["source"]))
        ),
        inputs=RAW_UNITS,
        outputs=(Output("entries", layout.OPT_OUT_ENTRIES),),
        need=UNIT_NEEDS,
        content_hash=RunFiles.hash_raw_names_and_sizes,
        reads_raw=True,
        stage="sources",
        listed_after="sources.fingerprint",
    ),
    Step(
        "opt_out.reserved",
        RESERVING_CORPUS_BATCH,
        "Sign what is reserved in {wildcards.source}, batch {wildcards.batch}",
        reserved_signatures_settings,
        inputs=READS_UNITS,
        outputs=(Output("reserved", layout.RESERVED),),
        need=UNIT_NEEDS,
        content_hash=RunFiles.batch_hash,
        reads_raw=True,
        reuses=True,
        stage="corpus",
        listed_after="corpus.signatures",
    ),
    Step(
        "opt_out.forgotten",
        RESERVING_CORPUS,
        "Search the corpus {wildcards.corpus} for what is to be forgotten",
        lambda config, i: ForgottenSettings(
            corpus=i["corpus"], signatures=minhash_signature_settings(config, i["corpus"])
        ),
        inputs=(
            MANIFESTS_READ,
            MANIFESTS,
            RESERVED_BATCHES,
            wait_for_all_batches("deduplicated_batches", "corpus.deduplicate"),
            wait_for_all_batches("final_batches", "corpus.decontaminate"),
            RESERVED_UNITS,
            untracked_corpus_input(
                "removed", layout.REMOVED.fill(step="filter"), layout.REMOVED.fill(step="deduplicate")
            ),
            untracked_corpus_input("signatures", layout.SIGNATURES),
            untracked_corpus_input("final", layout.FINAL_DOCUMENTS),
        ),
        outputs=(Output("forgotten", layout.FORGOTTEN),),
        need=ResourceNeeds("corpus", 60, memory_megabytes=4000, memory_bytes_per_byte=0.2),
        stage="corpus",
        listed_after="corpus.publish",
    ),
    Step(
        "opt_out.remains",
        RESERVING_RUN,
        "Search the results folder for documents that must be forgotten",
        remains_settings,
        inputs=(
            MANIFESTS_READ,
            wait_for_input("records", lambda run, w: run.non_batch_record_paths()),
            MANIFESTS,
            untracked_input("reserved", _all_reserved_files),
            untracked_input("removed", _all_removed_files),
            untracked_input("shards", _all_shards),
        ),
        outputs=(Output("remains", layout.REMAINS),),
        need=ResourceNeeds("everything", memory_megabytes=4000),
        stage="report",
        listed_after="plan.estimate",
    ),
)
