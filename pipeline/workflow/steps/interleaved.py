"""The steps of interleaved documents, which belong to the stage corpus."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.settings import Settings
from pipeline.interleaved.settings import (
    OPT_OUT_LIST,
    AssembleSettings,
    ExtractSettings,
    InterleavedRules,
    InterleavedSource,
    ListedFile,
)
from pipeline.workflow.expected_run_files import RunFiles, Wildcards
from pipeline.workflow.shared_step_settings import add_names_model_hash, file_sha256, select_matching_fields
from pipeline.workflow.steps.declaration import (
    SOURCES_READ,
    UNIT_NEEDS,
    Input,
    JobInstances,
    Output,
    ResourceNeeds,
    Step,
    batch_instances,
    untracked_input,
    wait_for_input,
)
from pipeline.workflow.steps.opt_out import READS_UNITS

INTERLEAVED = JobInstances(("interleaved",), lambda c: [(name,) for name in c.interleaved])
INTERLEAVED_BATCH = batch_instances(
    ("interleaved", "source"),
    lambda c: [(name, source) for name in c.interleaved for source in c.interleaved_sources(name)],
)


def _listed_files(config: Config, name: str) -> list[ListedFile]:
    return [
        ListedFile(kind=kind, language=language, sha256=file_sha256(path))
        for kind, language, path in config.interleaved_lists(name)
    ]


def _opt_out_lists(config: Config, source: str) -> list[Path]:
    """Return the opt-out list of a source, if it has one: its units lack the hosts of images that no record names."""
    units = config.source_units(source)
    return [Path(units.resolve_path(units.source.opt_out))] if units.source.opt_out else []


def extract_settings(config: Config, i: Wildcards) -> Settings:
    source, section = config.source(i["source"]), config.interleaved[i["interleaved"]]
    unused = InterleavedRules()  # in place of rules that interleaved.assemble applies
    images = section.rules.images.model_copy(update={"maximum_occurrences": unused.images.maximum_occurrences})
    return ExtractSettings(
        source=source.name,
        quarantine=source.damaged_share > 0,
        lists=[
            *_listed_files(config, i["interleaved"]),
            *(ListedFile(kind=OPT_OUT_LIST, sha256=file_sha256(path)) for path in _opt_out_lists(config, source.name)),
        ],
        pillow=version("pillow"),  # the version of a step's environment knows no library that is imported as PIL
        allowed_licenses=config.allowed_licenses or [],
        **select_matching_fields(ExtractSettings, source, section)
        | {
            "personal_data": add_names_model_hash(section.personal_data),
            "rules": section.rules.model_copy(update={"images": images, "spam_words": unused.spam_words}),
        },
    )


def assemble_settings(config: Config, i: Wildcards) -> Settings:
    name = i["interleaved"]
    section = config.interleaved[name]
    sources = [config.source(source) for source in config.interleaved_sources(name)]
    return AssembleSettings(
        run=config.run.name,
        name=name,
        rules=section.rules,
        languages=section.languages,
        lists=_listed_files(config, name),
        sources=[InterleavedSource(**select_matching_fields(InterleavedSource, one)) for one in sources],
        provider=config.run.provider,
        contact=config.run.contact,
    )


def _list_paths(run: RunFiles, w: Wildcards) -> list[str]:
    named = [path for _, _, path in run.config.interleaved_lists(w["interleaved"])]
    return [str(path) for path in named + _opt_out_lists(run.config, w["source"])]


def _batches(run: RunFiles, w: Wildcards) -> list[str]:
    name = w["interleaved"]
    return run.batch_record_paths("interleaved.extract", run.config.interleaved_sources(name), name)


def _extracted_files(run: RunFiles, w: Wildcards) -> list[str]:
    place = layout.INTERLEAVED_EXTRACTED.fill(interleaved=w["interleaved"])
    return run.unit_files(place, run.config.interleaved_sources(w["interleaved"]))


STEPS = (
    Step(
        "interleaved.extract",
        INTERLEAVED_BATCH,
        "Read texts and images of {wildcards.source}, batch {wildcards.batch}, for {wildcards.interleaved}",
        extract_settings,
        inputs=(*READS_UNITS, Input("lists", _list_paths, is_ancient=True)),
        outputs=(Output("documents", layout.INTERLEAVED_EXTRACTED), Output("removed", layout.INTERLEAVED_REMOVED)),
        need=UNIT_NEEDS,
        content_hash=RunFiles.batch_hash,
        reads_raw=True,
        stage="corpus",
    ),
    Step(
        "interleaved.assemble",
        INTERLEAVED,
        "Assemble the interleaved documents {wildcards.interleaved} without duplicates",
        assemble_settings,
        inputs=(SOURCES_READ, wait_for_input("batches", _batches), untracked_input("extracted", _extracted_files)),
        outputs=(
            Output("documents", layout.INTERLEAVED_DOCUMENTS, is_folder=True),
            Output("removed", layout.INTERLEAVED.child("removed/assemble.parquet")),
            Output("statistics", layout.INTERLEAVED.child("statistics.json")),
            Output("card", layout.INTERLEAVED.child("README.md"), is_target=True),
        ),
        need=ResourceNeeds("everything", 60, memory_megabytes=2000, memory_bytes_per_byte=0.05),
        stage="corpus",
    ),
)
