"""The steps of the stage evaluate."""

from __future__ import annotations

import json
from typing import Any

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.settings import Settings
from pipeline.evaluate.settings import (
    ADOPTED,
    BaselineSettings,
    DifferencesSettings,
    MemorizationSettings,
    SamplesSettings,
    SuiteSettings,
    SuitesSettings,
)
from pipeline.workflow.expected_run_files import RunFiles, Wildcards
from pipeline.workflow.shared_step_settings import hash_harmful_files
from pipeline.workflow.steps.declaration import SOURCES_READ, Input, JobInstances, Output, ResourceNeeds, Step
from pipeline.workflow.steps.pretrain import TOKENIZER_OF_MODEL

EVALUATION = JobInstances(("model", "step"), lambda c: [(name, str(step)) for name, step in c.evaluated_milestones()])
BASELINE = JobInstances(("baseline",), lambda c: [(name,) for name in c.baselines()])
SEARCHED_MODEL = JobInstances(("model",), lambda c: [(name,) for name in c.sampled_models()])
EVALUATED_RUN = JobInstances((), lambda c: [()] if c.evaluated_milestones() else [])


def _common_settings(config: Config) -> dict[str, Any]:
    """Return what every model is asked: the same, whatever it is."""
    return {
        "suites": [SuiteSettings.model_validate(suite.model_dump()) for suite in config.suites()],
        "seed": config.evaluation.seed,
        "batch_size": config.evaluation.batch_size,
        "deterministic": config.evaluation.deterministic,
        "execute_code": config.evaluation.execute_code,
    }


def baseline_settings(config: Config, i: Wildcards) -> Settings:
    model = config.baselines()[i["baseline"]]
    seed = None if model is None or config.models[config.root_model(model)].pretrained else config.model_seed(model)
    return BaselineSettings(name=i["baseline"], untrained_seed=seed, **_common_settings(config))


def samples_settings(config: Config, i: Wildcards) -> Settings:
    return SamplesSettings(
        model=i["model"],
        memorization=_memorization_settings(config, i["model"]),
        **config.evaluation.samples.model_dump(),
    )


def _memorization_settings(config: Config, model: str) -> MemorizationSettings | None:
    """Return what is counted of a model's text, by the searches of its corpus but for the model of names."""
    section, name = config.evaluation.memorization, config.tokens[config.models[model].tokens].corpus
    if section is None:
        return None
    corpus = config.corpus[name]
    return MemorizationSettings(
        seed=config.evaluation.seed,
        batch_size=config.evaluation.batch_size,
        harmful=corpus.harmful.without_folders(),
        harmful_sha256=hash_harmful_files(config, name),
        personal_data=corpus.personal_data.model_copy(update={"names": None, "names_sha256": None}),
        **section.model_dump(),
    )


def differences_settings(config: Config, i: Wildcards) -> Settings:
    """Group the models that differ in their seed alone, and pass their seeds to the step."""
    groups: dict[str, dict[int, str]] = {}
    for name, model in sorted(config.compared_models().items()):
        trained = config.segment_settings(name, model.training.steps).result_settings()
        seed = trained.pop("seed")
        start, taken = model.training.start, config.models[config.root_model(name)].pretrained
        began = [start.step if start else None, taken.folder if taken else None]
        groups.setdefault(json.dumps([model.tokens, trained, began]), {}).setdefault(seed, name)
    return DifferencesSettings(seeds=[[*of_seed.values()] for of_seed in groups.values() if len(of_seed) > 1])


def baseline_model_files(run: RunFiles, w: Wildcards) -> list[str]:
    """Return the files of a baseline or of an imported model, or the first milestone, which has the shape."""
    model = run.config.baselines()[w["baseline"]]
    if model is None:
        return run.config.baseline_model_files(w["baseline"])
    if run.config.models[root := run.config.root_model(model)].pretrained:
        return run.config.pretrained_files(root)
    return run.milestones(model)[:1]


def baseline_answer_files(run: RunFiles, w: Wildcards) -> list[str]:
    names = [name for name, of in run.config.baselines().items() if of in (None, w["model"])]
    return [
        run.file(place, baseline=name) for name in names for place in (layout.BASELINE_ANSWERS, layout.BASELINE_RESULTS)
    ]


def _imported_answer_files(run: RunFiles, w: Wildcards) -> list[str]:
    compared, adopted = run.config.compared_models(), f"{ADOPTED}-"
    return [
        run.file(layout.BASELINE_ANSWERS, baseline=name)
        for name, model in run.config.baselines().items()
        if name.startswith(adopted) and model in compared
    ]


def _suffix_array_files(run: RunFiles, w: Wildcards) -> list[str]:
    return run.shard_files(layout.SUFFIXES, run.config.models[w["model"]].tokens)


def _compared_answer_files(run: RunFiles, w: Wildcards) -> list[str]:
    compared = run.config.compared_models()
    evaluated = [(model, step) for model, step in run.config.evaluated_milestones() if model in compared]
    return [run.file(layout.ANSWERS, model=model, step=step) for model, step in evaluated]


# Behind a training everything waits for the tokens, as the training itself does.
INDEX = Input("index", lambda run, w: run.token_index(w["model"]), is_ancient=True)
TASKS = Input("tasks", lambda run, w: run.task_definition_files)

STEPS = (
    Step(
        "evaluate.suites",
        EVALUATION,
        "Evaluate the model {wildcards.model} at step {wildcards.step}",
        lambda config, i: SuitesSettings(model=i["model"], step=int(i["step"]), **_common_settings(config)),
        inputs=(
            SOURCES_READ,
            Input("milestone", layout.MILESTONE),
            TASKS,
            INDEX,
            Input("baselines", baseline_answer_files),
        ),
        outputs=(Output("results", layout.RESULTS, is_target=True), Output("answers", layout.ANSWERS)),
        need=None,
        threads=8,
        scratch=layout.JOB_SCRATCH,
        options=("launch", "platform"),
    ),
    Step(
        "evaluate.baselines",
        BASELINE,
        "Ask the baseline {wildcards.baseline} what the models are asked",
        baseline_settings,
        inputs=(SOURCES_READ, Input("model", baseline_model_files), TASKS),
        outputs=(Output("results", layout.BASELINE_RESULTS), Output("answers", layout.BASELINE_ANSWERS)),
        need=None,
        threads=8,
        scratch=layout.JOB_SCRATCH,
        options=("platform",),
    ),
    Step(
        "evaluate.samples",
        SEARCHED_MODEL,
        "Let the model {wildcards.model} write, and look for it in the training documents",
        samples_settings,
        inputs=(
            SOURCES_READ,
            INDEX,
            TOKENIZER_OF_MODEL,
            Input(
                "suffixes",
                lambda run, w: run.shard_files(layout.SUFFIXES, run.config.models[w["model"]].tokens),
                is_short=True,
                is_ancient=True,
            ),
            Input("final", layout.FINAL_MODEL),
            Input(
                "harmful",
                lambda run, w: [*map(str, run.config.harmful_content_files_for_model(w["model"]))],
                is_ancient=True,
            ),
        ),
        outputs=(Output("samples", layout.SAMPLES, is_target=True),),
        need=ResourceNeeds(minutes=60),
        threads=2,
    ),
    Step(
        "evaluate.differences",
        EVALUATED_RUN,
        "Compare the checkpoints on the items that they answered",
        differences_settings,
        inputs=(SOURCES_READ, Input("answers", _compared_answer_files), Input("imported", _imported_answer_files)),
        outputs=(Output("differences", layout.DIFFERENCES),),
    ),
)
