"""The steps of the stage pretrain."""

from __future__ import annotations

from pathlib import Path

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.job_records import Versions
from pipeline.core.settings import Settings, flatten_settings
from pipeline.model.size_and_cost import parameter_count
from pipeline.pretrain.settings import AdoptSettings, ExportSettings
from pipeline.workflow.expected_run_files import RunFiles, Wildcards, hash_json_value
from pipeline.workflow.steps.declaration import (
    SOURCES_READ,
    Input,
    JobInstances,
    Output,
    ResourceNeeds,
    Step,
    wait_for_input,
)

MODEL = JobInstances(("model",), lambda c: [(name,) for name in c.models])
IMPORTED_MODEL = JobInstances(("model",), lambda c: [(name,) for name, model in c.models.items() if model.pretrained])
SEGMENT = JobInstances(
    ("model", "step"),
    lambda c: [(name, str(step)) for name, model in c.models.items() for step in model.training.milestone_steps()],
)


def import_settings(config: Config, i: Wildcards) -> Settings:
    model = config.models[i["model"]]
    assert model.pretrained, "only such models have the job"
    return AdoptSettings(architecture=model.architecture, folder=model.pretrained.folder)


def export_settings(config: Config, i: Wildcards) -> Settings:
    model = config.models[i["model"]]
    trained = config.segment_settings(i["model"], model.training.steps).result_settings()
    vocabulary_size = config.vocabulary_size(model.tokens)
    hyperparameters = {
        name: value
        for name, value in flatten_settings(trained)
        if isinstance(value, bool | int | float | str) and name not in ("first_step", "last_step")
    }
    return ExportSettings(
        hyperparameters={**hyperparameters, "parameters": parameter_count(model.architecture, vocabulary_size)},
        first_step=model.training.first_step,
    )


def segment_scratch_folder(run: RunFiles, w: Wildcards) -> str:
    """Return the folder of a segment's recovery checkpoints: training does not resume from those of other code."""
    code = run.job_settings_and_versions("pretrain.segment", {"model": w["model"], "step": w["step"]})[1]
    return run.file(layout.SEGMENT_SCRATCH, model=w["model"], step=w["step"], code_version=code)


def recovery_folder(run: RunFiles, w: Wildcards) -> str:
    """Return where recovery checkpoints go on a platform with a scratch; the job fills in its $VARIABLES.

    Runs of one name in other folders have other places there.
    """
    scratch = run.config.platform.scratch
    if scratch is None:
        return ""
    name = f"{run.config.run.name}-{hash_json_value(str(Path(run.run).resolve()))[:8]}"
    within = segment_scratch_folder(run, w).removeprefix(f"{run.file(layout.SCRATCH)}/")
    filled = scratch.replace("{account}", run.config.slurm.account or "{account}")
    return f"{filled}/polder/{name}/{within}"


def previous_milestone(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the milestone that a segment starts from; none where its weights are drawn."""
    section = run.config.models[w["model"]]
    training = section.training
    step = training.segment_start(int(w["step"]))
    model = training.start.model if training.start and step == training.first_step else w["model"]
    return [run.milestone(model, step)] if step or section.pretrained else []


def _first_segment_if_kept(run: RunFiles, w: Wildcards) -> int | None:
    """Return the first segment of a model if it stays: what the model begins with stays as long as that."""
    step = run.config.models[w["model"]].training.milestone_steps()[0]
    return step if run.finished.kept_versions(w["model"], step) else None


def _imported_tokens_hash(run: RunFiles, w: Wildcards) -> str | None:
    stays = _first_segment_if_kept(run, w)
    made = run.finished.kept_training_tokens_hash(w["model"], stays) if stays else None
    return made or run.hash_training_tokens(w["model"])


def _kept_segment_versions(run: RunFiles, w: Wildcards) -> Versions | None:
    return run.finished.kept_versions(w["model"], int(w["step"]))


def _segment_tokens_hash(run: RunFiles, w: Wildcards) -> str | None:
    return run.finished.kept_training_tokens_hash(w["model"], int(w["step"])) or run.hash_training_tokens(w["model"])


# Behind a training everything waits for the tokens, as the training itself does.
INDEX_READ = wait_for_input("index", lambda run, w: run.token_index(w["model"]), is_ancient=True)
TOKENIZER_OF_MODEL = Input(
    "tokenizer", lambda run, w: run.tokenizer_file(layout.TOKENIZER, w["model"]), is_ancient=True
)
CONFIGURATION_OF_MODEL = Input(
    "configuration", lambda run, w: run.tokenizer_file(layout.TOKENIZER_CONFIGURATION, w["model"]), is_ancient=True
)

STEPS = (
    Step(
        "pretrain.adopt",
        IMPORTED_MODEL,
        "Import the model with which the training of {wildcards.model} begins",
        import_settings,
        inputs=(
            SOURCES_READ,
            Input("index", "imported_model_token_index", is_ancient=True),
            TOKENIZER_OF_MODEL,
            CONFIGURATION_OF_MODEL,
            Input(
                "model",
                lambda run, w: [*map(str, run.config.pretrained_files(w["model"]))],
                is_ancient=lambda run, w: _first_segment_if_kept(run, w) is not None,
            ),
        ),
        outputs=(Output("milestone", layout.MILESTONE.fill(step=0), is_folder=True),),
        need=ResourceNeeds(minutes=60, memory_megabytes=8000),
        parameters={"tokens": _imported_tokens_hash},
        kept_versions=lambda run, w: run.finished.kept_import_settings_and_versions(w["model"]),
    ),
    Step(
        "pretrain.segment",
        SEGMENT,
        "Train the model {wildcards.model} up to step {wildcards.step}",
        lambda config, i: config.segment_settings(i["model"], int(i["step"])),
        inputs=(
            SOURCES_READ,
            Input("index", "tokens_index", is_ancient=True),
            TOKENIZER_OF_MODEL,
            CONFIGURATION_OF_MODEL,
            # Of a finished segment that stays, its time does not count.
            Input(
                "previous", "previous_milestone", is_ancient=lambda run, w: _kept_segment_versions(run, w) is not None
            ),
        ),
        outputs=(Output("milestone", layout.MILESTONE, is_folder=True, is_target=True),),
        need=None,
        threads=2,
        scratch=segment_scratch_folder,
        parameters={"tokens": _segment_tokens_hash},
        kept_versions=_kept_segment_versions,
        operation=lambda run, w: run.finished.previous_segment_tokens_hash(w["model"], int(w["step"])),
        options=("operation", "launch", "platform", "staging", "recovery"),
        resources={"recovery": recovery_folder},
        is_supervised=True,
        constraints={"step": "[1-9][0-9]*"},
    ),
    Step(
        "pretrain.export",
        MODEL,
        "Export the model {wildcards.model}",
        export_settings,
        inputs=(SOURCES_READ, INDEX_READ, Input("milestones", lambda run, w: run.milestones(w["model"]))),
        outputs=(
            Output("final", layout.FINAL_MODEL, is_folder=True, is_target=True),
            Output("metrics", layout.METRICS),
            Output("document_losses", layout.DOCUMENT_LOSSES),
            Output("tensorboard", layout.MODEL.child("tensorboard"), is_folder=True),
        ),
        need=ResourceNeeds(memory_megabytes=4000),
    ),
)
