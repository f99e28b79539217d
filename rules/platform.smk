"""The platform's modules or image, and what is refused before anything is submitted. Included after all rules."""

import atexit

from snakemake_interface_executor_plugins.settings import DeploymentMethod

from pipeline import foreseen
from pipeline.slurm import before, image
from pipeline.slurm.modules import Modules

# What the directive envmodules would say, once for all; loaded with --sdm env-modules alone.
if run.platform.modules:
    for known in workflow.rules:
        known.env_modules = Modules(*run.platform.modules)

# What starts a training's processes: in an image there is no srun, so it stays outside, and they go in.
supervisor = "python"
if run.platform.container:
    # `python` is then that of the image in all jobs; Snakemake itself stays outside, where Slurm's commands are.
    supervisor = shlex.quote(sys.executable)
    folders = shlex.quote(f"{image.PYTHON.parent}:{sys.prefix}/bin")
    variables = " ".join(
        f"{name}={shlex.quote(value)}"
        for name, value in image.environment(run.platform).items()
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
        before.refuse(
            run,
            slurm=workflow.executor_plugin.name == "slurm",
            modules=DeploymentMethod.ENV_MODULES in deployment,
            launched=launched,
        )
    except InputError as error:
        raise WorkflowError(str(error)) from None
    for hint in foreseen.hints(run, launched):
        logger.warning(hint)


# A dry run does not come so far, and says what costs nothing: by the configuration and the platform's file alone.
if workflow.is_main_process and workflow.output_settings.dryrun:
    would_be = foreseen.launches(run)
    on_a_cluster = bool(run.platform.partitions) or run.slurm.nodes > 1
    for problem in foreseen.problems(run, would_be, slurm=on_a_cluster):
        # Behind Snakemake's table, where it is seen.
        atexit.register(print, f"This would be refused: {problem}", file=sys.stderr)
    for hint in foreseen.hints(run, would_be):
        logger.warning(hint)
