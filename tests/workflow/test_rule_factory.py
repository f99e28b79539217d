"""The rule of a step follows its declaration."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from snakemake.io import is_flagged

from pipeline.config.configuration import Config
from pipeline.layout import TOKEN_INDEX
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.rule_factory import CheckpointInputs, RuleFactory
from pipeline.workflow.stale_records import StaleRecords
from pipeline.workflow.startup import Startup
from pipeline.workflow.steps import STAGES, STEPS
from pipeline.workflow.steps.declaration import Input, Step, untracked_input

JOB = {"corpus": "main", "source": "nl_gids", "batch": "0"}


def factory_of(config: Config) -> RuleFactory:
    dag = Dag(config)
    startup = Startup(["-n"], is_main_process=True, warn=print)
    index = SimpleNamespace(output=SimpleNamespace(index="the index"))
    checkpoints = SimpleNamespace(tokens_index=SimpleNamespace(get=lambda tokens: index))
    behind = CheckpointInputs(dag, StaleRecords(dag, Path("nothing")), checkpoints, startup)
    return RuleFactory(dag, lambda step: {"runtime": 30}, len, behind, lambda: "python")


@pytest.fixture
def factory(everything: Config) -> RuleFactory:
    return factory_of(everything)


@pytest.mark.parametrize("step", STEPS.values(), ids=lambda step: step.name)
def test_rule_calls_its_own_step_with_its_parameters(step: Step, factory: RuleFactory) -> None:
    rule = factory.make_rule(step)
    assert f"-m pipeline {step.name.replace('.', ' ')} {{params.contract:q}} " in rule.shell
    parts = {"input": {*rule.inputs}, "output": {*rule.outputs}, "params": {*rule.params}}
    for part, name in [word.split(".", 1) for word in _fields(rule.shell) if "." in word]:
        assert name in parts.get(part, {name}), f"{part}.{name}"
    assert {*rule.params} - {"units", "record"} <= {name.partition(".")[2] for name in _fields(rule.shell)} | {
        *step.parameters
    }, "only parameters of the command line and declared ones"
    assert all(
        f"--{name}=" in rule.shell and name in {*rule.resources, "launch", "platform", "staging"}
        for name in step.options
    )
    assert ("record" in rule.outputs) != (step.instances.units is not None) == ("batch" in rule.outputs)


def _fields(shell: str) -> set[str]:
    return {word.split("}")[0].split(":")[0] for word in shell.split("{")[1:]}


@pytest.mark.parametrize("step", STEPS.values(), ids=lambda step: step.name)
def test_snakemake_compares_all_parameters_except_those_of_inputs(step: Step, factory: RuleFactory) -> None:
    of_input = {
        name
        for name, value in factory.make_rule(step).params.items()
        if callable(value) and [*inspect.signature(value).parameters] != ["wildcards"]
    }
    assert of_input == {one.name for one in step.inputs if one.is_short}


def test_batch_and_corpus_commands(factory: RuleFactory) -> None:
    assert factory.make_rule(STEPS["corpus.deduplicate"]).shell == (
        "python -m pipeline corpus deduplicate {params.contract:q} --units {params.units:q} --batch {output.batch:q} "
        "--input documents {params.documents:q} --input duplicates {params.duplicates:q} "
        "--output deduplicated {params.deduplicated:q} --output removed {params.removed:q} "
        "--private={params.private:q} --record {params.record:q} > {log:q} 2>&1"
    )
    assert factory.make_rule(STEPS["report.page"]).shell.startswith(
        f"python -m pipeline accounting {factory.dag.run} > {{log}} 2>&1 && python -m pipeline report page "
    )
    assert factory.make_rule(STEPS["report.page"]).shell.endswith(" >> {log:q} 2>&1")
    assert factory.make_rule(STEPS["pretrain.segment"]).shell.startswith("{resources.supervisor} -m pipeline pretrain ")


def test_unit_files_are_compressed_or_given_as_a_placeholder(factory: RuleFactory) -> None:
    dag = factory.dag
    batch, whole = factory.make_rule(STEPS["corpus.filter"]), factory.make_rule(STEPS["corpus.find_items"])
    assert batch.params["documents"] == f"{dag.run}/corpus/{{corpus}}/filtered/{{source}}.%unit.parquet"
    assert batch.params["private"] == f"{dag.private}/corpus/{{corpus}}/removed/filter.{{source}}.%unit.parquet"
    assert batch.params["record"] == f"{dag.run}/provenance/records/corpus.filter.{{corpus}}.{{source}}.%unit.json"
    assert batch.outputs == {
        "batch": f"{dag.run}/provenance/batches/corpus.filter.{{corpus}}.{{source}}.{{batch}}.json",
        "unit_records": f"{dag.run}/provenance/archives/corpus.filter.{{corpus}}.{{source}}.{{batch}}.json",
    }
    assert batch.log == f"{dag.run}/logs/corpus.filter.{{corpus}}.{{source}}.{{batch}}.log"
    names = whole.params["matches"]({"corpus": "main"})
    assert f"{dag.run}/corpus/main/matches/nl_brieven.{{0..1}}.parquet" in names
    assert batch.inputs["reused"].callable({**JOB, "corpus": "alike"}) == [
        f"{dag.run}/provenance/batches/corpus.filter.main.nl_gids.0.json"
    ]


def test_flags_equal_their_declaration(factory: RuleFactory) -> None:
    export, samples = factory.make_rule(STEPS["pretrain.export"]), factory.make_rule(STEPS["evaluate.samples"])
    assert is_flagged(export.inputs["index"], "ancient") and not callable(export.inputs["sources"])
    assert is_flagged(export.outputs["final"], "directory") and not is_flagged(export.outputs["metrics"], "directory")
    assert not is_flagged(samples.inputs["final"], "ancient")
    page = factory.make_rule(STEPS["report.page"]).outputs
    assert is_flagged(page["experiments"], "report") and is_flagged(page["experiments"], "directory")


def test_optional_outputs_are_omitted(everything: Config) -> None:
    without = everything.model_copy(update={"experiments": {}})
    rule = factory_of(without).make_rule(STEPS["report.page"])
    assert "experiments" not in rule.outputs and "experiments" not in rule.shell


def test_milestone_before_a_kept_segment_is_ancient(factory: RuleFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    previous = factory.make_rule(STEPS["pretrain.segment"]).inputs["previous"]
    monkeypatch.setattr(factory.dag.finished, "kept_versions", lambda model, step: ("", "", "") if step == 8 else None)
    last, other = ({"model": "base", "step": "8"}, {"model": "branch", "step": "6"})
    assert [is_flagged(path, "ancient") for path in previous(last)] == [True]
    assert [is_flagged(path, "ancient") for path in previous(other)] == [False]
    assert factory.make_rule(STEPS["pretrain.adopt"]).inputs["index"].callable({"model": "longer"}) == "the index"


def test_colliding_names_and_inputs_without_files_are_reported(factory: RuleFactory) -> None:
    step = STEPS["tokens.suffixes"]
    twice = dataclasses.replace(step, inputs=(untracked_input("a", TOKEN_INDEX), untracked_input("a", TOKEN_INDEX)))
    with pytest.raises(AssertionError, match=r"tokens\.suffixes has two parameters a"):
        factory.make_rule(twice)
    with pytest.raises(AssertionError, match="input a, which names no files"):
        factory.make_rule(dataclasses.replace(step, inputs=(Input("a"),)))


def test_target_input_files(everything: Config) -> None:
    dag = Dag(everything)
    targets = {
        stage: [cast(Any, name).removeprefix(f"{dag.run}/") for name in dag.target_files(stage)] for stage in STAGES
    }
    assert targets["plan"] == ["plan/plan.json", "provenance/records/plan.estimate.json"]
    assert "corpus/main/dataset.html" in targets["corpus"] and "sources/hub/manifest.json" not in targets["corpus"]
    assert "provenance/records/sources.manifest.hub.json" in targets["corpus"]
    assert not [name for name in targets["corpus"] if "tokenizer" in name]
    assert (
        "models/longer/milestones/8" in targets["pretrain"] and "models/longer/milestones/0" not in targets["pretrain"]
    )
    assert targets["report"][:2] == ["report/index.html", "provenance/records/report.page.json"]
    assert targets["provenance"] == ["ro-crate-metadata.json", *targets["report"]]
