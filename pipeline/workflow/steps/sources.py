"""The steps of the stage sources: from raw files to a manifest."""

from __future__ import annotations

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.settings import Settings
from pipeline.sources.settings import (
    DatasetSettings,
    FingerprintSettings,
    ListingSettings,
    ManifestSettings,
    Source,
    SplitSettings,
)
from pipeline.sources.source_units import listing_sha256
from pipeline.workflow.expected_run_files import RunFiles, Wildcards
from pipeline.workflow.shared_step_settings import select_matching_fields
from pipeline.workflow.steps.declaration import (
    QUICK_BYTES_PER_MINUTE,
    Input,
    JobInstances,
    Output,
    ResourceNeeds,
    Step,
    batch_instances,
    untracked_input,
    wait_for_input,
)


def _source_instances(config: Config) -> list[tuple[str, ...]]:
    return sorted((source.name,) for source in config.sources)


SOURCE = JobInstances(("source",), _source_instances)
DATASET = JobInstances(
    ("source",), lambda c: [name for name in _source_instances(c) if c.source(*name).dataset is not None]
)
LARGE_FILE = JobInstances(
    ("source", "file"),
    lambda c: [(*name, file) for name in _source_instances(c) for file in c.source_units(*name).large_files],
)
SOURCE_BATCH = batch_instances(("source",), _source_instances)


def split_settings(config: Config, i: Wildcards) -> Settings:
    name, parts = config.source_units(i["source"]).large_files[i["file"]]
    source = config.source(i["source"])
    return SplitSettings(
        source=source.name,
        file_name=name,
        parts=parts,
        quarantine=source.damaged_share > 0,
        **select_matching_fields(SplitSettings, source),
    )


def dataset_settings(config: Config, i: Wildcards) -> Settings:
    source = config.source(i["source"])
    return DatasetSettings(source=source.name, **select_matching_fields(DatasetSettings, source))


def listing_settings(config: Config, i: Wildcards) -> Settings:
    source = config.source(i["source"])
    return ListingSettings(
        source=source.name,
        pattern=config.source_units(source.name).folder_and_pattern()[1],
        split=source.dataset and source.dataset.split,
        units=source.units,
        unit_bytes=source.unit_bytes,
        listing_sha256=listing_sha256(config.unit_files(source.name)),
    )


def fingerprint_settings(config: Config, i: Wildcards) -> Settings:
    return FingerprintSettings(source=i["source"], document_bytes=config.source(i["source"]).document_bytes)


def manifest_settings(config: Config, i: Wildcards) -> Settings:
    source = config.source(i["source"])
    keys = ManifestSettings.model_fields.keys() & Source.model_fields.keys()
    return ManifestSettings(source=source.name, **{key: getattr(source, key) for key in sorted(keys)})


def batch_input_files(run: RunFiles, w: Wildcards) -> list[str]:
    """Return what has to exist before a batch is read: its raw files, and the folders of its parts."""
    listed = run.config.source_units(w["source"])
    files: dict[str, None] = {}
    for unit in run.config.job_batches(w["source"])[w["batch"]]:
        parts = listed.part_folders[unit]
        paths = listed.units[unit].values() if parts is None else [parts]
        files |= dict.fromkeys(map(str, paths))
    return [*files]


# Not ancient: Snakemake gives no other reason a thought where a job before this one runs again.
RAW_UNITS = (
    Input("listing", layout.LISTING, words="{input.listing}/%unit.json"),
    Input("files", batch_input_files, words="@{input.listing}/%unit.json"),
)


def opt_out_list_files(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the opt-out list of a source, if it has one."""
    listed = run.config.source_units(w["source"])
    return [listed.resolve_path(listed.source.opt_out)] if listed.source.opt_out else []


def _sources_with_same_list(run: RunFiles, w: Wildcards) -> list[str]:
    lists = {name: run.config.source_units(name) for name in run.config.sources_with_opt_out_list()}
    places = {name: listed.resolve_path(str(listed.source.opt_out)) for name, listed in lists.items()}
    own = places.pop(w["source"], None)
    return [name for name, place in places.items() if place == own]


def _entry_batches(run: RunFiles, w: Wildcards) -> list[str]:
    reserves = bool(opt_out_list_files(run, w))
    return (
        run.batch_record_paths("opt_out.entries", [w["source"], *_sources_with_same_list(run, w)]) if reserves else []
    )


def _own_entry_files(run: RunFiles, w: Wildcards) -> list[str]:
    return run.unit_files(layout.OPT_OUT_ENTRIES, [w["source"]] if opt_out_list_files(run, w) else [])


STEPS = (
    Step(
        "sources.split",
        LARGE_FILE,
        "Cut a large file of {wildcards.source} into parts",
        split_settings,
        inputs=(Input("file", RunFiles.find_file_to_split),),
        outputs=(Output("parts", layout.FILE_PARTS, is_folder=True),),
        need=ResourceNeeds("file"),
        parameters={"bytes": RunFiles.split_raw_file_bytes},
    ),
    Step(
        "sources.dataset",
        DATASET,
        "Read the data set {wildcards.source}",
        dataset_settings,
        inputs=(Input("files", lambda run, w: [str(path) for path in run.config.raw_files(w["source"]).values()]),),
        outputs=(Output("parts", layout.FILE_PARTS.fill(file="dataset"), is_folder=True),),
        need=ResourceNeeds("source"),
    ),
    Step(
        "sources.listing",
        SOURCE,
        "List the files of {wildcards.source}",
        listing_settings,
        outputs=(Output("listing", layout.LISTING, is_folder=True),),
        reads_raw=True,
        is_local=True,
    ),
    Step(
        "sources.fingerprint",
        SOURCE_BATCH,
        "Hash the raw files of {wildcards.source}, batch {wildcards.batch}",
        fingerprint_settings,
        inputs=RAW_UNITS,
        outputs=(Output("fingerprint", layout.FINGERPRINT),),
        need=ResourceNeeds("batch", bytes_per_minute=QUICK_BYTES_PER_MINUTE, memory_megabytes=500),
        content_hash=RunFiles.hash_raw_names_and_sizes,
        reads_raw=True,
    ),
    Step(
        "sources.manifest",
        SOURCE,
        "Write the manifest of {wildcards.source}",
        manifest_settings,
        inputs=(
            wait_for_input("batches", lambda run, w: run.batch_record_paths("sources.fingerprint", [w["source"]])),
            wait_for_input("entries_batches", _entry_batches),
            untracked_input("fingerprints", lambda run, w: run.unit_files(layout.FINGERPRINT, [w["source"]])),
            untracked_input("entries", _own_entry_files),
            untracked_input(
                "shared", lambda run, w: run.unit_files(layout.OPT_OUT_ENTRIES, _sources_with_same_list(run, w))
            ),
            Input("opt_out", opt_out_list_files),
        ),
        outputs=(
            Output("manifest", layout.MANIFEST, is_target=True),
            Output("units", layout.SOURCE_UNITS, is_folder=True),
        ),
        need=ResourceNeeds("source", bytes_per_minute=QUICK_BYTES_PER_MINUTE),
    ),
)
