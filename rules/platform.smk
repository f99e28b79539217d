"""The platform's modules or image, and what is refused before anything is submitted. Included after all rules."""

import atexit

from snakemake_interface_executor_plugins.settings import DeploymentMethod

from pipeline.workflow import preflight, deferred_jobs, label_edits
from pipeline.slurm import platform_check, job_environment
from pipeline.slurm.job_environment import JobModules

# What the directive envmodules would say, once for all; loaded with --sdm env-modules alone.
if run.platform.modules:
    for known in workflow.rules:
        known.env_modules = JobModules(*run.platform.modules)

# What starts a training's processes: in an image there is no srun, so it stays outside, and they go in.
supervisor = "python"
if run.platform.container:
    # `python` is then that of the image in all jobs; Snakemake itself stays outside, where Slurm's commands are.
    supervisor = shlex.quote(sys.executable)
    folders = shlex.quote(f"{job_environment.IMAGE_PYTHON.parent}:{sys.prefix}/bin")
    variables = " ".join(
        f"{name}={shlex.quote(value)}"
        for name, value in job_environment.image_variables(run.platform).items()
    )
    PREFIX = f"trap : TERM; export {variables} PATH={folders}:$PATH; "
    shell.prefix(PREFIX)


def to_be_trained():
    """Return the models that this start trains, with the launch command of their jobs."""
    jobs = [
        job
        for job in workflow.dag.needrun_jobs()
        if job.rule.name == "pretrain_segment"
    ]
    return {job.wildcards.model: job.resources.get("launch") for job in jobs}


def refuse_what_is_missing():
    """Stop the run where jobs would lack what the configuration and the platform name; no job is asked."""
    deployment = workflow.deployment_settings.deployment_method
    launched = to_be_trained()
    try:
        platform_check.refuse_run(
            run,
            slurm=workflow.executor_plugin.name == "slurm",
            modules=DeploymentMethod.ENV_MODULES in deployment,
            launched=launched,
        )
    except InputError as error:
        raise WorkflowError(str(error)) from None
    for hint in preflight.hints(run, launched):
        logger.warning(hint)


def say_of_the_plan():
    """Print, behind Snakemake's table, what a dry run leaves out: what may follow, and what a start would refuse.

    That is what costs nothing to know: by the configuration and the platform's file alone.
    """
    dag_of_jobs = workflow.dag
    if dag_of_jobs is None:  # it ended before, with a sentence of its own
        return
    jobs = {job: dag_of_jobs.needrun(job) for job in dag_of_jobs.jobs}
    planned = [job.rule.name for job, runs in jobs.items() if runs]
    would_be = preflight.launches(run)
    on_a_cluster = bool(run.platform.partitions) or run.slurm.nodes > 1
    problems = preflight.problems(run, would_be, slurm=on_a_cluster)
    said = [
        label_edits.sentence(dag, planned)
        or deferred_jobs.sentence(
            planned, (job.rule.name for job, runs in jobs.items() if not runs)
        ),
        *preflight.hints(run, would_be),
        *(f"This would be refused: {problem}" for problem in problems),
    ]
    for sentence in filter(None, said):
        print(sentence, file=sys.stderr)


# Snakemake has no hook for the end of a dry run.
if workflow.is_main_process and workflow.output_settings.dryrun:
    atexit.register(say_of_the_plan)
