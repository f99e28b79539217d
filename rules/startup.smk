"""What this invocation works on: the configuration, the jobs, and what is known of those that are done."""

from pathlib import Path

from snakemake.logging import logger

from pipeline.slurm import job_software, waiting_for_leftover_jobs
from pipeline.workflow import snakemake_output
from pipeline.workflow.snakemake_internals import METADATA_FOLDER, SnakemakeWorkflow
from pipeline.workflow.stale_records import StaleRecords
from pipeline.workflow.startup import (
    Startup,
    load_run_configuration,
    report_input_errors,
)


def settle(dead):
    """Wait for jobs of killed invocations, and for those of other hosts."""
    waiting_for_leftover_jobs.wait_for_killed_invocations(
        run.run_directory, logger.warning
    )
    if any(not holder.is_of_this_user_and_host for holder in dead):
        waiting_for_leftover_jobs.wait_for_orphaned_steps(
            run.run_directory, logger.warning
        )


snakemake_workflow = SnakemakeWorkflow(workflow)
startup = Startup(
    sys.argv[1:], is_main_process=workflow.is_main_process, warn=logger.warning
)
profiles = Path(workflow.basedir).glob("workflow/profiles/*/*.yaml")
run_output = snakemake_output.replace_snakemake_output(
    snakemake_workflow, executes=startup.executes
)
with report_input_errors():
    run = load_run_configuration(config, [*map(Path, workflow.configfiles)], profiles)
    startup.refuse_problems(run)
    if run_output and startup.executes:
        run_output.start_progress_display(run, snakemake_workflow)
    dag = startup.build_dag(
        run,
        lambda run: job_software.image_environments(run.platform, run.run.environment),
    )
    startup.lock_run(run, settle)
    stale = StaleRecords(dag, METADATA_FOLDER)
    frozen_now = startup.take_snapshot(
        dag,
        lambda last: job_software.describe_image(
            run.platform, last, hashed=startup.executes
        ),
    )
    startup.delete_stale_records(dag, stale)
