"""The table of steps says what their modules and rules are."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from pipeline.config.configuration import Config, load
from pipeline.forecast.work import WORK
from pipeline.workflow.dag import Dag
from pipeline.workflow.steps import STEPS, step_settings

TEXT = "\n\n\n".join(path.read_text() for path in sorted(Path("rules").glob("*.smk")))
BLOCKS = [block.split("\n\n\n")[0] for block in re.split(r"^(?:rule|checkpoint) ", TEXT, flags=re.MULTILINE)[1:]]
RULES = {block.split(":", 1)[0]: block for block in BLOCKS}


def rule_of(step: str) -> str:
    """Return the text of a step's rule."""
    return RULES[step.replace(".", "_")]


def test_a_rule_that_calls_a_step_is_the_rule_of_that_step() -> None:
    pattern = r"python -m pipeline (\w+) (\w+) \{params\.contract"
    called = {name: re.findall(pattern, block) for name, block in RULES.items()}
    called["pretrain_segment"] = [("pretrain", "segment")]  # by whatever the platform's image needs
    assert {name for name, found in called.items() if found} == {step.replace(".", "_") for step in STEPS}
    assert all(
        found in ([], [tuple(step.split(".")) for step in STEPS if step.replace(".", "_") == name])
        for name, found in called.items()
    )


@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_what_its_rule_says(step: str) -> None:
    rule, declared = rule_of(step), STEPS[step]
    named = set(re.findall(r'\b(?:batch|record|log_file|resources_of|contract)\("([a-z_.]+)"\)', rule))
    assert step in named and f'resources_of("{step}")' in rule and f'contract("{step}")' in rule
    assert declared.has_folders == ("directory(" in rule)
    assert (declared.private is not None) == ("--private=" in rule)
    assert (declared.per.units is not None) == ("--batch {output.batch}" in rule)
    used = set(re.findall(r"\bwildcards\.(\w+)", rule)) | set(re.findall(r"\bw\.(\w+)", rule))
    assert used <= {*declared.per.wildcards}


def test_a_branch_is_told_by_where_it_starts_and_not_by_a_name() -> None:
    content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
    base = content["models"]["base"]
    start = {"model": "base", "step": 4}
    content["models"]["branch"] = {**base, "training": {**base["training"], "milestone_every": 3, "start": start}}
    config = load(content)
    dag = Dag(config)
    assert dag.milestones("branch") == [f"results/micro/models/branch/milestones/{step}" for step in (6, 8)]
    first, second = (SimpleNamespace(model="branch", step=step) for step in ("6", "8"))
    assert dag.previous_milestone(first) == ["results/micro/models/base/milestones/4"]
    assert dag.previous_milestone(second) == ["results/micro/models/branch/milestones/6"]
    assert dag.previous_milestone(SimpleNamespace(model="base", step="4")) == []
    told = step_settings(config, "pretrain.segment", {"model": "branch", "step": "6"})
    assert (told.first_step, told.last_step, told.training.start) == (4, 6, None)  # type: ignore[attr-defined]
    assert step_settings(config, "pretrain.export", {"model": "branch"}).of_result()["first_step"] == 4
    assert "first_step" not in step_settings(config, "pretrain.export", {"model": "base"}).of_result()
    planned = step_settings(config, "plan.estimate", {})
    assert planned.models["branch"].training.own_steps == 4  # type: ignore[attr-defined]
    alone = load({**content, "models": {"base": base}})
    both, one = (WORK["pretrain.segment"].amount(each, {}) for each in (config, alone))
    assert both == pytest.approx(1.5 * one)


def test_jobs_that_share_the_keys_change_what_no_other_step_is_told() -> None:
    def of_a_corpus(deduplication: dict[str, object]) -> Config:
        content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
        content["corpus"]["main"]["deduplication"] = deduplication
        return load(content)

    one, three = of_a_corpus({"prefer": ["nl_gids"]}), of_a_corpus({"prefer": ["nl_gids"], "jobs": 3})
    assert [STEPS["corpus.equal_keys"].per.jobs(config) for config in (one, three)] == [
        [],
        [("main", "0"), ("main", "1"), ("main", "2")],
    ]
    files = [Dag(config).equal_keys(SimpleNamespace(corpus="main")) for config in (one, three)]
    assert files == [[], [f"results/micro/corpus/main/equal_keys/{share}.parquet" for share in range(3)]]
    for step in ("corpus.signatures", "corpus.find_duplicates", "corpus.publish"):
        told = [step_settings(config, step, {"corpus": "main"}).of_result() for config in (one, three)]
        assert told[0] == told[1] and "jobs" not in json.dumps(told[0])
    share = step_settings(three, "corpus.equal_keys", {"corpus": "main", "share": "2"}).of_result()
    assert (share["share"], share["shares"], share["exact"], share["bands"]) == (2, 3, True, 14)
    assert not {"prefer", "minimum_jaccard", "jobs"} & share.keys()


@pytest.mark.parametrize(("launch", "nodes"), [("srun --ntasks-per-node=4", 16), ("torchrun --nproc-per-node=4", 1)])
def test_a_plan_is_for_the_nodes_on_which_processes_are_started(launch: str, nodes: int) -> None:
    config = load(yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8")))
    platform = config.platform.model_copy(update={"devices": 4, "launch": launch})
    update = {"platform": platform, "slurm": config.slurm.model_copy(update={"nodes": 16})}
    planned = step_settings(config.model_copy(update=update), "plan.estimate", {}).model_dump()["platform"]
    assert (planned["devices"], planned["nodes"]) == (4, nodes)


def test_models_of_other_seeds_are_asked_the_same() -> None:
    found = []
    for run_seed, seed in ((1, {}), (2, {}), (2, {"seed": 7})):
        content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
        content["run"]["seed"], content["evaluation"] = run_seed, seed
        config = load(content)
        found.append(STEPS["evaluate.suites"].settings(config, {"model": "base", "step": "8"}).model_dump()["seed"])
    assert found == [42, 42, 7]


def test_hyperparameters_are_those_that_the_model_depends_on() -> None:
    def told(**training: object) -> dict[str, object]:
        content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
        content["models"]["base"]["training"] |= training
        settings = STEPS["pretrain.export"].settings(load(content), {"model": "base"})
        return dict(settings.model_dump()["hyperparameters"])

    found = told()
    names = {"seed", "parameters", "training.learning_rate", "training.batch_size", "architecture.layers"}
    assert names <= found.keys() and found["seed"] == 7 and isinstance(found["parameters"], int)
    assert told(keep_checkpoints=9, validation_every=1) == found, "what only watches a training is none of them"
    assert told(learning_rate=0.5) == {**found, "training.learning_rate": 0.5}


@pytest.mark.parametrize("step", STEPS)
def test_the_settings_of_a_step_are_those_that_its_function_takes(step: str) -> None:
    run = importlib.import_module(f"pipeline.{step}").run
    assert next(iter(inspect.signature(run).parameters)) == "settings"
    assert STEPS[step].settings.__name__ == step.replace(".", "_")
