"""The configuration, validated before anything starts, and the names that all rules share."""

from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from pipeline.evaluate.suite_files import suite_files
from pipeline.ground.errors import InputError
from pipeline.run.config import load
from pipeline.run.dag import Dag
from pipeline.slurm.resources import Requests

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
