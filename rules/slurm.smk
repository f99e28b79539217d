"""What a run through Slurm does besides its rules. Included last: it takes the prefix of all commands."""

import os

from pipeline.core.hashing import hash_file
from pipeline.job import invocation_snapshots
from pipeline.layout import CRATE, REPORT_PAGE
from pipeline.slurm import accounting, executor_registration

with report_input_errors():
    executor_registration.register_executor(
        run.slurm,
        run.run_directory,
        PREFIX,
        run_output.update_queue if run_output else lambda reasons: None,
    )


onstart:
    refuse_what_is_missing()
    os.environ[invocation_snapshots.SNAPSHOT_VARIABLE] = (
        invocation_snapshots.write_snapshot(run.run_directory, frozen_now)
    )
    executor_registration.record_slurm_invocation(workflow, run.run_directory)


onsuccess:
    accounting.finish_invocation_accounting(run.run_directory, logger.warning)
    if snakemake_workflow.has_job("provenance_crate"):
        print(f"report: {dag.file(REPORT_PAGE)}")
        print(f"crate sha256: {hash_file(Path(dag.file(CRATE)))}")


onerror:
    accounting.finish_invocation_accounting(run.run_directory, logger.warning)
    logger.warning(
        "Finished jobs stay: fix the cause, then run the same command again."
    )
