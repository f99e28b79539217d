"""The platform's modules or image, and what is refused before anything is submitted. Included after all rules."""

from snakemake_interface_executor_plugins.settings import DeploymentMethod

from pipeline.slurm import before
from pipeline.slurm.modules import Modules

# What the directive envmodules would say, once for all; loaded with --sdm env-modules alone.
if run.platform.modules:
    for known in workflow.rules:
        known.env_modules = Modules(*run.platform.modules)

if run.platform.container:
    # `python` is then that of the image in all jobs; Snakemake itself stays outside, where Slurm's commands are.
    image = shlex.quote(run.platform.container)
    gpus = "--nv" if run.platform.device == "cuda" else ""
    folders = shlex.quote(f"{workflow.basedir}/envs/container:{sys.prefix}/bin")
    PREFIX = f"trap : TERM; export PIPELINE_IMAGE={image} PIPELINE_GPUS={gpus} PATH={folders}:$PATH; "
    shell.prefix(PREFIX)


def refuse_what_is_missing():
    """Stop the run where jobs would lack what the configuration and the platform name; no job is asked."""
    deployment = workflow.deployment_settings.deployment_method
    try:
        before.refuse(
            run,
            slurm=workflow.executor_plugin.name == "slurm",
            modules=DeploymentMethod.ENV_MODULES in deployment,
        )
    except InputError as error:
        raise WorkflowError(str(error)) from None
