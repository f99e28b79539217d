"""The steps of the stages plan, report and provenance, which describe a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.config.evaluation_item_paths import list_count_only_item_files
from pipeline.core.settings import Pretrained, Settings
from pipeline.forecast.forecast_inputs import collect_forecast_inputs
from pipeline.plan.settings import EstimateSettings
from pipeline.pretrain.processes.launch_command import launcher_name
from pipeline.provenance.settings import CrateSettings
from pipeline.report.settings import PageSettings
from pipeline.workflow.expected_run_files import RunFiles, Wildcards
from pipeline.workflow.shared_step_settings import pretrained_models, select_matching_fields
from pipeline.workflow.steps.declaration import (
    RUN,
    Input,
    Output,
    ReportEntry,
    ResourceNeeds,
    Step,
    make_files_per_value_function,
    untracked_input,
    wait_for_input,
)
from pipeline.workflow.steps.opt_out import MANIFESTS_READ


def plan_estimate_settings(config: Config, i: Wildcards) -> Settings:
    models = {
        name: {
            "architecture": model.architecture,
            "training": model.training,
            "vocabulary_size": config.vocabulary_size(model.tokens),
            "pretrained": config.models[config.root_model(name)].pretrained is not None,
        }
        for name, model in config.models.items()
    }
    # Without srun a training has the devices of one node, however many are asked for.
    nodes = config.slurm.nodes if launcher_name(config.platform.launch) == "srun" else 1
    return EstimateSettings.model_validate(
        {
            "models": models,
            "platform": config.platform.model_dump() | {"nodes": nodes},
            "energy": config.emission_settings.model_dump(),
            "forecast": collect_forecast_inputs(config),
            "not_run": config.infeasible_cells(),
        }
    )


def page_settings(config: Config, i: Wildcards) -> Settings:
    return PageSettings(
        run=config.run.name,
        seed=config.run.seed,
        configuration=json.dumps(config.dump_explicit_settings(), sort_keys=True, indent=1),
        platform=config.platform.name,
        language=config.report.language,
        provider=config.run.provider,
        provider_url=config.run.provider_url,
        contact=config.run.contact,
        disclosure=config.disclosure,
        corpora={name: config.tokens[model.tokens].corpus for name, model in config.models.items()},
        pretrained=pretrained_models(config),
        experiments=config.experiment_page_settings(),
        license_evidence_sha256=config.license_evidence_hashes(),
        power={part.name: part.power for part in config.platform.partitions.values() if part.power},
        **{
            **select_matching_fields(PageSettings, config.emission_settings, config.platform),
            **config.emission_settings.yearly_intensity,
        },
    )


def _later_suite_files(run: RunFiles, w: Wildcards) -> list[str]:
    return [
        run.file(layout.LATER_SUITES, corpus=corpus)
        for corpus in run.config.corpus
        if list_count_only_item_files(run.config, corpus)
    ]


def _exclusion_proof_files(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the proofs that what is on opt-out lists is in no corpus; none where no source has a list."""
    return [
        run.file(layout.FORGOTTEN, corpus=corpus)
        for corpus in run.config.corpus
        if run.config.sources_with_opt_out_list()
    ]


def opt_out_remains_files(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the file that says where else that still is; none where no source has a list."""
    return [run.file(layout.REMAINS)] if run.config.sources_with_opt_out_list() else []


def _carbon_intensity_files(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the table of the grid's intensity over time, where one is configured; it may come after the run."""
    series = run.config.emission_settings.carbon_intensity_series
    return [series.path] if series and Path(series.path).is_file() else []


def _evaluation_files(place: layout.PathTemplate) -> Callable[[RunFiles, Wildcards], list[str]]:
    return lambda run, w: [run.file(place, model=model, step=step) for model, step in run.config.evaluated_milestones()]


# What `RunReader` reads of a run besides its records.
ARTEFACTS = (
    make_files_per_value_function(layout.STATISTICS, "corpus", lambda c: c.corpus),
    make_files_per_value_function(layout.FERTILITY, "tokenizer", lambda c: c.tokenizer),
    make_files_per_value_function(layout.TOKEN_INDEX, "tokens", lambda c: c.tokens),
    make_files_per_value_function(layout.METRICS, "model", lambda c: c.models),
    make_files_per_value_function(layout.DOCUMENT_LOSSES, "model", lambda c: c.cell_model_names()),
    _evaluation_files(layout.RESULTS),
    _evaluation_files(layout.ANSWERS),
    make_files_per_value_function(layout.SAMPLES, "model", lambda c: c.sampled_models()),
    lambda run, w: [run.file(layout.DIFFERENCES)] * bool(run.config.evaluated_milestones()),
    lambda run, w: [run.file(layout.PLAN)],
    make_files_per_value_function(layout.MANIFEST, "source", lambda c: [source.name for source in c.sources]),
    make_files_per_value_function(layout.DATASET, "corpus", lambda c: c.corpus),
    _later_suite_files,
    _exclusion_proof_files,
    opt_out_remains_files,
)


def _report_document(label: str, *patterns: str) -> ReportEntry:
    return ReportEntry("Report", {"document": label}, patterns)


def all_records(run: RunFiles, w: Wildcards) -> list[str]:
    """Return all records before the report, and the lists of those of units."""
    return [*run.unit_record_list_paths(), *run.non_batch_record_paths()]


RECORDS_READ = wait_for_input("of_jobs", all_records)


ROOT = Path(__file__).parents[3]


def crate_settings(config: Config, i: Wildcards) -> Settings:
    return CrateSettings(
        run=config.run.name,
        provider=config.run.provider,
        provider_url=config.run.provider_url,
        contact=config.run.contact,
        classifiers={
            f"{corpus}/{name}": Pretrained(folder=one.path, name=Path(one.path).name, license=one.license, url=one.url)
            for corpus, section in config.corpus.items()
            for name, one in section.classifiers.items()
        },
        pretrained=pretrained_models(config),
    )


def _records_of_report(run: RunFiles, w: Wildcards) -> list[str]:
    steps = ["opt_out.remains"] * bool(opt_out_remains_files(run, w)) + ["report.page"]
    return [run.record_path(step) for step in steps]


def _workflow_files(run: RunFiles, w: Wildcards) -> list[str]:
    folders = (*sorted((ROOT / "rules").glob("*.smk")), *sorted((ROOT / "pipeline/workflow/steps").glob("*.py")))
    return [os.path.relpath(file) for file in (ROOT / "Snakefile", *folders)]


STEPS = (
    Step(
        "plan.estimate",
        RUN,
        "Estimate compute, memory, time, energy, carbon and cost",
        plan_estimate_settings,
        outputs=(Output("plan", layout.PLAN, is_target=True),),
        is_local=True,
    ),
    Step(
        "report.page",
        RUN,
        "Write the report",
        page_settings,
        inputs=(
            MANIFESTS_READ,
            RECORDS_READ,
            untracked_input("records", all_records),
            Input("files", lambda run, w: [path for files in ARTEFACTS for path in files(run, w)]),
            Input("carbon_intensity", _carbon_intensity_files),
        ),
        outputs=(
            Output(
                "experiments",
                layout.REPORT.child("experiments"),
                is_folder=True,
                report_entry=_report_document("experiment {experiment}", "{experiment}.html"),
                only_if=lambda config: bool(config.experiments),
            ),
            Output(
                "page",
                layout.REPORT_PAGE,
                is_target=True,
                report_entry=ReportEntry("Report", {"document": "the auditor's page"}),
            ),
            Output("jobs", layout.REPORT_JOBS, report_entry=ReportEntry("Report", {"document": "every job and check"})),
            Output("model_card", layout.MODEL_CARD, report_entry=ReportEntry("Report", {"document": "the model card"})),
            Output(
                "papers", layout.PAPERS, is_folder=True, report_entry=_report_document("{document}", "{document}.html")
            ),
            Output("energy", layout.ENERGY_ACCOUNT),
            Output("figures", layout.KEY_FIGURES),
        ),
        need=ResourceNeeds(minutes=60, memory_megabytes=4000),
        parameters={"run": lambda run, w: run.run},
        # What the cluster's meters know of the jobs so far. A meter that does not answer is named in the report and
        # stops nothing; a configuration of meters that has no sense does.
        first_command=lambda run: f"python -m pipeline accounting {run} > {{log}} 2>&1",
    ),
    Step(
        "provenance.crate",
        RUN,
        "Describe the run as an RO-Crate",
        crate_settings,
        inputs=(
            RECORDS_READ,
            wait_for_input("page_record", _records_of_report),
            wait_for_input("page", layout.REPORT_PAGE),
            wait_for_input("energy", layout.ENERGY_ACCOUNT),
            untracked_input(
                "files", all_records, words="{params.files:q} {input.page_record:q} {input.page:q} {input.energy:q}"
            ),
            Input("workflow", _workflow_files, is_ancient=True),  # a comment in a rule reruns nothing
        ),
        outputs=(
            Output("crate", layout.CRATE, is_target=True),
            Output("readme", layout.RUN_README),
            Output("kept", layout.WORKFLOW_FILES, is_folder=True),
        ),
        need=ResourceNeeds(minutes=60, memory_megabytes=4000),
        # The evidence is attested first, so that the crate names a line of the log that covers it.
        first_command=lambda run: f"python -m pipeline provenance attest {run} > {{log}} 2>&1",
    ),
)
