"""The platform's modules, and what is refused before anything is submitted. Included after all rules: it concerns each of them."""

from snakemake_interface_executor_plugins.settings import DeploymentMethod

from pipeline.slurm import before
from pipeline.slurm.modules import Modules

# As if each rule had the directive envmodules: loaded with --sdm env-modules alone.
if run.platform.modules:
    for known_rule in workflow.rules:
        known_rule.env_modules = Modules(*run.platform.modules)


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
