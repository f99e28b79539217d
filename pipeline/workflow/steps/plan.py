"""The step of the stage plan."""

from __future__ import annotations

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.settings import Settings
from pipeline.forecast.calibration import forecast_plan
from pipeline.plan.settings import EstimateSettings
from pipeline.pretrain.processes.launch import launcher
from pipeline.workflow.run_files import Wildcards
from pipeline.workflow.steps.declaration import RUN, Output, Step


def plan_estimate(config: Config, i: Wildcards) -> Settings:
    models = {
        name: {
            "architecture": model.architecture,
            "training": model.training,
            "vocabulary_size": config.vocabulary_size(model.tokens),
            "pretrained": config.models[config.root(name)].pretrained is not None,
        }
        for name, model in config.models.items()
    }
    # Without srun a training has the devices of one node, however many are asked for.
    nodes = config.slurm.nodes if launcher(config.platform.launch) == "srun" else 1
    return EstimateSettings.model_validate(
        {
            "models": models,
            "platform": config.platform.model_dump() | {"nodes": nodes},
            "energy": config.emissions.model_dump(),
            "forecast": forecast_plan(config),
            "not_run": config.not_run(),
        }
    )


STEPS = (
    Step(
        "plan.estimate",
        RUN,
        "Estimate compute, memory, time, energy, carbon and cost",
        plan_estimate,
        outputs=(Output("plan", layout.PLAN, is_target=True),),
        is_local=True,
    ),
)
