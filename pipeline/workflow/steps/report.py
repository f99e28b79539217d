"""The step of the stage report that writes the pages and the papers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pipeline import layout
from pipeline.config.configuration import Config, counted
from pipeline.core.settings import Settings
from pipeline.report.settings import PageSettings
from pipeline.workflow.common_settings import pretrained_models, shared
from pipeline.workflow.run_files import RunFiles, Wildcards
from pipeline.workflow.steps.declaration import RUN, Input, Need, Output, Shown, Step, each, unseen, waits_for
from pipeline.workflow.steps.opt_out import MANIFESTS_READ


def report_page(config: Config, i: Wildcards) -> Settings:
    return PageSettings(
        run=config.run.name,
        seed=config.run.seed,
        configuration=json.dumps(config.written(), sort_keys=True, indent=1),
        platform=config.platform.name,
        language=config.report.language,
        provider=config.run.provider,
        contact=config.run.contact,
        disclosure=config.disclosure,
        corpora={name: config.tokens[model.tokens].corpus for name, model in config.models.items()},
        pretrained=pretrained_models(config),
        experiments=config.experiment_pages(),
        license_evidence_sha256=config.license_evidence(),
        power={part.name: part.power for part in config.platform.partitions.values() if part.power},
        **{**shared(PageSettings, config.emissions, config.platform), **config.emissions.yearly},
    )


def _later_suites(run: RunFiles, w: Wildcards) -> list[str]:
    return [run.file(layout.LATER_SUITES, corpus=corpus) for corpus in run.config.corpus if counted(run.config, corpus)]


def _forgotten(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the proofs that what is on opt-out lists is in no corpus; none where no source has a list."""
    return [run.file(layout.FORGOTTEN, corpus=corpus) for corpus in run.config.corpus if run.config.reserving()]


def remains(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the file that says where else that still is; none where no source has a list."""
    return [run.file(layout.REMAINS)] if run.config.reserving() else []


def _carbon_intensity(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the table of the grid's intensity over time, where one is configured; it may come after the run."""
    series = run.config.emissions.carbon_intensity_series
    return [series.path] if series and Path(series.path).is_file() else []


def _of_evaluations(place: layout.Place) -> Callable[[RunFiles, Wildcards], list[str]]:
    return lambda run, w: [run.file(place, model=model, step=step) for model, step in run.config.evaluated()]


# What `RunReader` reads of a run besides its records.
ARTEFACTS = (
    each(layout.STATISTICS, "corpus", lambda c: c.corpus),
    each(layout.FERTILITY, "tokenizer", lambda c: c.tokenizer),
    each(layout.TOKEN_INDEX, "tokens", lambda c: c.tokens),
    each(layout.METRICS, "model", lambda c: c.models),
    _of_evaluations(layout.RESULTS),
    _of_evaluations(layout.ANSWERS),
    each(layout.SAMPLES, "model", lambda c: c.searched_models()),
    lambda run, w: [run.file(layout.DIFFERENCES)] * bool(run.config.evaluated()),
    lambda run, w: [run.file(layout.PLAN)],
    each(layout.MANIFEST, "source", lambda c: [source.name for source in c.sources]),
    each(layout.DATASET, "corpus", lambda c: c.corpus),
    _later_suites,
    _forgotten,
    remains,
)


def _artefacts(run: RunFiles, w: Wildcards) -> list[str]:
    return [path for files in ARTEFACTS for path in files(run, w)]


def _document(label: str, *patterns: str) -> Shown:
    return Shown("Report", {"document": label}, patterns)


def all_records(run: RunFiles, w: Wildcards) -> list[str]:
    """Return all records before the report, of units too."""
    return [*run.unit_records(), *run.records()]


RECORDS_READ = waits_for("of_jobs", lambda run, w: run.records())

STEPS = (
    Step(
        "report.page",
        RUN,
        "Write the report",
        report_page,
        inputs=(
            MANIFESTS_READ,
            RECORDS_READ,
            unseen("records", all_records),
            Input("files", _artefacts),
            Input("carbon_intensity", _carbon_intensity),
        ),
        outputs=(
            Output(
                "experiments",
                layout.REPORT.file("experiments"),
                is_folder=True,
                shown=_document("experiment {experiment}", "{experiment}.html"),
                only_if=lambda config: bool(config.experiments),
            ),
            Output(
                "page", layout.REPORT_PAGE, is_target=True, shown=Shown("Report", {"document": "the auditor's page"})
            ),
            Output("model_card", layout.MODEL_CARD, shown=Shown("Report", {"document": "the model card"})),
            Output("papers", layout.PAPERS, is_folder=True, shown=_document("{document}", "{document}.html")),
            Output("energy", layout.ENERGY_ACCOUNT),
            Output("figures", layout.KEY_FIGURES),
        ),
        need=Need(minutes=60, memory_megabytes=4000),
        parameters={"run": lambda run, w: run.run},
        # What the cluster's meters know of the jobs so far. A meter that does not answer is told in the report and
        # stops nothing; a configuration of meters that has no sense does.
        before=lambda run: f"python -m pipeline accounting {run} > {{log}} 2>&1",
    ),
)
