"""The configuration, validated before anything starts, and the names that all rules share."""

import os
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from pipeline.evaluate.task_files import suite_files
from pipeline.core.errors import InputError
from pipeline.core.yaml_files import load_yaml
from pipeline.forecast.calibration import forecast_plan
from pipeline.config.configuration import load
from pipeline.workflow import invocation, version_cache
from pipeline.workflow.dag import Dag
from pipeline.slurm import job_environment
from pipeline.slurm.resources import Requests

# A start is refused before it forgets any record: what is not the lock's computes with other versions. A dry run says it.
executes = workflow.is_main_process and invocation.action(sys.argv[1:]) == "execution"


def refuse(sentence):
    if executes:
        raise InputError(sentence)
    if workflow.is_main_process:
        logger.warning(f"This would be refused: {sentence}")


def in_image():
    """Return what is installed in the platform's image; of one that cannot be asked, nothing."""
    try:
        return job_environment.image_environments(run.platform, run.run.environment)
    except InputError as error:
        refuse(str(error))


try:
    # Snakemake reads these itself, and takes the last of two equal keys.
    for written in [
        *workflow.configfiles,
        *Path(workflow.basedir).glob("workflow/profiles/*/*.yaml"),
    ]:
        load_yaml(Path(written))
    run = load(config)
    version_cache.keep()
    dag = Dag(run, in_image())
    if other_than_lock := dag.other_than_lock():
        refuse(other_than_lock)
    all_records = dag.records()
    forecast_plan(run)  # a calibration run that is none is told now, in one sentence
    for scored in run.scored("quality"):
        run.seed_files(scored)  # so is a file of seeds that is missing
    # And a model that is missing, or of another shape.
    for trained in run.models if workflow.is_main_process else ():
        for turned in run.turned_positions(trained):
            logger.warning(
                f"models.{trained}: positions turn otherwise than in the model that it begins with: {turned}"
            )
    task_files = [str(file) for suite in run.suites() for file in suite_files(suite)]
except InputError as error:
    raise WorkflowError(str(error)) from None

# What the crate keeps of the workflow.
workflow_files = [
    os.path.relpath(file)
    for file in [
        workflow.main_snakefile,
        *sorted(Path(workflow.basedir, "rules").glob("*.smk")),
    ]
]

RUN, PRIVATE = dag.run, dag.private
contract, record, batch, log_file = dag.contract, dag.record, dag.batch, dag.log
resources_of = Requests(run, dag)
units_of_batch = resources_of.units  # threads, on one machine as many as it has


wildcard_constraints:
    source="[a-z0-9_-]+",
    corpus="[a-z0-9_-]+",
    tokenizer="[a-z0-9_-]+",
    tokens="[a-z0-9_-]+",
    model="[a-z0-9_-]+",
    baseline="[a-z0-9_-]+",
    batch="[0-9]+",
    share="[0-9]+",
    file="[0-9]+",
    shard="[0-9]+",
    step="[0-9]+",
