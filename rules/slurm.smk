"""What a run through Slurm does besides its rules. Included last: it takes the prefix of all commands."""

import os

from pipeline.core.hashing import sha256_of
from pipeline.slurm import accounting, executor_host

try:
    executor_host.register(run.slurm, Path(RUN), PREFIX)
except InputError as error:
    raise WorkflowError(str(error)) from None


# On a login node these take less time than a job takes to start.
localrules:
    sources_listing,
    plan_estimate,


onstart:
    refuse_what_is_missing()
    os.environ[frozen.VARIABLE] = frozen.freeze(Path(RUN), frozen_now)
    executor_host.record_start(workflow, Path(RUN))


onsuccess:
    accounting.end(Path(RUN), logger.warning)
    if any(job.rule.name == "provenance_crate" for job in workflow.dag.jobs):
        print(f"report: {RUN}/report/index.html")
        print(f"crate sha256: {sha256_of(Path(RUN) / 'ro-crate-metadata.json')}")


onerror:
    accounting.end(Path(RUN), logger.warning)
    logger.warning(
        "what is done stays; the same command goes on from here, once what failed is mended"
    )
