"""The step of the stage provenance."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.settings import Settings
from pipeline.provenance.settings import CrateSettings
from pipeline.workflow.common_settings import pretrained_models
from pipeline.workflow.run_files import RunFiles, Wildcards
from pipeline.workflow.steps.declaration import RUN, Input, Need, Output, Step, unseen, waits_for
from pipeline.workflow.steps.report import RECORDS_READ, all_records, remains

ROOT = Path(__file__).parents[3]


def provenance_crate(config: Config, i: Wildcards) -> Settings:
    return CrateSettings(
        run=config.run.name,
        provider=config.run.provider,
        provider_url=config.run.provider_url,
        contact=config.run.contact,
        pretrained=pretrained_models(config),
    )


def _records_of_report(run: RunFiles, w: Wildcards) -> list[str]:
    steps = ["opt_out.remains"] * bool(remains(run, w)) + ["report.page"]
    return [run.record_of(step) for step in steps]


def _workflow_files(run: RunFiles, w: Wildcards) -> list[str]:
    folders = (*sorted((ROOT / "rules").glob("*.smk")), *sorted((ROOT / "pipeline/workflow/steps").glob("*.py")))
    return [os.path.relpath(file) for file in (ROOT / "Snakefile", *folders)]


STEPS = (
    Step(
        "provenance.crate",
        RUN,
        "Describe the run as an RO-Crate",
        provenance_crate,
        inputs=(
            RECORDS_READ,
            waits_for("page_record", _records_of_report),
            waits_for("page", layout.REPORT_PAGE),
            waits_for("energy", layout.ENERGY_ACCOUNT),
            unseen(
                "files", all_records, words="{params.files:q} {input.page_record:q} {input.page:q} {input.energy:q}"
            ),
            Input("workflow", _workflow_files, is_ancient=True),  # a comment in a rule reruns nothing
        ),
        outputs=(
            Output("crate", layout.CRATE, is_target=True),
            Output("readme", layout.RUN_README),
            Output("prov", layout.PROV),
            Output("kept", layout.WORKFLOW_FILES, is_folder=True),
        ),
        need=Need(minutes=60, memory_megabytes=4000),
        # The evidence is attested first, so that the crate names a line of the log that covers it.
        before=lambda run: f"python -m pipeline provenance attest {run} 2> {{log}}",
    ),
)
