"""The platform's modules or image, and what is refused before anything is submitted. Included after all rules."""

import atexit

from pipeline.slurm import job_software, platform_check
from pipeline.slurm.job_software import JobModules
from pipeline.workflow import dry_run_summary, preflight
from pipeline.workflow.dry_run_summary import PlannedJob

# What the directive envmodules would say, once for all; loaded with --sdm env-modules alone.
if run.platform.modules:
    snakemake_workflow.set_modules(JobModules(*run.platform.modules))

# What starts a training's processes: in an image there is no srun, so it stays outside, and they go in.
supervisor = "python"
if run.platform.container:
    # `python` is then that of the image in all jobs; Snakemake itself stays outside, where Slurm's commands are.
    supervisor = shlex.quote(sys.executable)
    PREFIX = job_software.command_prefix(run.platform)
    shell.prefix(PREFIX)


def refuse_what_is_missing():
    """Stop the run where jobs would lack what the configuration and the platform name; no job is asked."""
    launched = {
        wildcards["model"]: resources.get("launch")
        for wildcards, resources in snakemake_workflow.jobs_to_run("pretrain_segment")
    }
    with report_input_errors():
        platform_check.check_run_requirements(
            run,
            slurm=snakemake_workflow.submits_to_slurm,
            modules=snakemake_workflow.loads_modules,
            launched=launched,
        )
    for hint in preflight.find_hints(run, launched):
        logger.warning(hint)


def print_summary():
    """Print the summary of a dry run."""
    if counts := snakemake_workflow.count_jobs_by_rule():
        jobs = [PlannedJob(*job) for job in snakemake_workflow.job_reasons()]
        for line in dry_run_summary.report_plan(dag, jobs, counts[1]):
            print(line)


# Snakemake has no hook for the end of a dry run.
if snakemake_workflow.is_dry_run:
    atexit.register(print_summary)
