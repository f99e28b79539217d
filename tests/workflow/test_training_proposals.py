"""The plan's proposals: configuration lines that, planned again, give exactly the promised figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.configuration import Config, parse_configuration
from pipeline.plan.estimate import estimate
from pipeline.plan.plan_tables import format_proposals
from pipeline.plan.settings import EstimateSettings
from pipeline.pretrain.monitors.memory_estimate import USABLE_SHARE, PeakMemory
from pipeline.pretrain.settings import EXECUTION_KEYS, Mesh, Training
from pipeline.workflow.preflight import PlannedTraining, build_planned_training, find_training_problems
from pipeline.workflow.steps import step_settings
from pipeline.workflow.training_memory import MemoryPlan, _make_asked, estimate_training_memory
from pipeline.workflow.training_proposals import list_candidates, list_changes, propose_settings

pytestmark = pytest.mark.usefixtures("warm_commands")
MICRO = yaml.safe_load((Path(__file__).parents[2] / "config/micro.yaml").read_text(encoding="utf-8"))
TRAINING = {"sequence_length": 1024, "batch_size": 96, "micro_batch_size": 1, "steps": 1000, "precision": "bf16"}


def configuration(shape: dict[str, Any], nodes: int = 2, **training: Any) -> dict[str, Any]:
    model = {"architecture": shape, "training": {"learning_rate": 0.001, **TRAINING, **training}}
    run = {**MICRO["run"], "environment": "cuda"}
    return {**MICRO, "run": run, "models": {"base": model}, "platform": "snellius", "slurm": {"nodes": nodes}}


def settings_of(config: Config) -> EstimateSettings:
    return EstimateSettings.model_validate(step_settings(config, "plan.estimate", {}).model_dump())


def planned(raw: dict[str, Any]) -> tuple[dict[str, Any], MemoryPlan]:
    config = parse_configuration(raw)
    assert not [*find_training_problems(config, {"base": config.launch}, slurm=True)]
    settings = settings_of(config)
    return estimate(settings), estimate_training_memory(config, settings)


def merged(raw: dict[str, Any], lines: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with lines written into it; a mesh replaces the previous one."""
    training = {**raw["models"]["base"]["training"], **lines["models"]["base"]["training"]}
    model = {**raw["models"]["base"], "training": training}
    return {**raw, "models": {"base": model}, "slurm": {**raw["slurm"], **lines.get("slurm", {})}}


def proposals(raw: dict[str, Any], peak_bytes: Any) -> list[dict[str, Any]]:
    """Return the proposals with a function of the training as its trace."""
    config = parse_configuration(raw)

    def trace(trainings: list[PlannedTraining], limit_bytes: float) -> list[PeakMemory]:
        parts = {key: 0 for key in PeakMemory.model_fields if key.endswith("_bytes")}
        peaks = list[PeakMemory]()
        for number, one in enumerate(trainings):
            peaks.append(PeakMemory(**{**parts, "peak_bytes": round(peak_bytes(one))}, peak_in="output", stage=0))
            if number and peaks[-1].peak_bytes <= limit_bytes:
                break
        return peaks

    asked = _make_asked(config, settings_of(config), build_planned_training(config, "base", config.launch))
    assert asked.can_propose_settings()
    return propose_settings(asked, trace)[1]


def test_replanned_proposal_gives_its_figures() -> None:
    raw = configuration({"layers": 2, "width": 512, "heads": 8, "key_value_heads": 4}, compile=False)
    plan, memory = planned(raw)
    ways = memory.proposals["base"]
    assert ways[0]["aim"].startswith("fastest") and ways[0]["saved_seconds"] > 0.01 * plan["models"]["base"]["seconds"]
    assert ways[0]["write"]["models"]["base"]["training"]["compile"] is True
    texts = format_proposals({**plan, "proposals": memory.proposals})
    for way in ways:
        label = f"{way['aim'].partition(',')[0]}: "
        written = next(line for line in texts if line.startswith(label)).removeprefix(label)
        expected = {"training": way["write"]["models"]["base"]["training"], **way["write"]}
        assert yaml.safe_load(f"{{training: {written}}}") == {key: expected[key] for key in expected if key != "models"}
        again, held = planned(merged(raw, yaml.safe_load("\n".join(way["lines"]))))
        model = again["models"]["base"]
        for key in ("seconds", "device_hours", "billed_gpu_hours", "facility_energy_joules"):
            assert way[key] == model[key]
            assert way[f"saved_{key}"] == pytest.approx(plan["models"]["base"][key] - model[key])
        if way["memory_by"] == "trace":
            assert held.traced["base"].peak_bytes == way["memory_bytes"] <= USABLE_SHARE * 94e9


LARGE = {"preset": "gptnl-30b"}
BATCH = {"sequence_length": 4096, "batch_size": 1056, "steps": 104_000, "compile": True}


def test_proposal_changes_only_how_a_training_is_computed() -> None:
    raw = configuration(LARGE, 22, **BATCH)
    ways = proposals(raw, lambda one: 74e9)
    assert ways
    for way in ways:
        changed = {*way["write"]["models"]["base"]["training"]}
        assert changed <= EXECUTION_KEYS | {"float8"} and ("float8" in changed) == ("float8" in way["aim"])
        config = parse_configuration(merged(raw, way["write"]))
        assert config.models["base"].training.batch_size == 1056
        assert not [*find_training_problems(config, {"base": config.launch}, slurm=True)]


def test_settings_that_exceed_traced_memory_are_not_proposed() -> None:
    raw = configuration(LARGE, 22, **BATCH)

    def peak(one: PlannedTraining) -> float:
        return 90e9 if one.training.recomputation == "selective" else 74e9

    traced = [way for way in proposals(raw, peak) if way["memory_by"] == "trace"]
    assert all(way["write"]["models"]["base"]["training"].get("recomputation") != "selective" for way in traced)
    assert all(way["memory_bytes"] <= USABLE_SHARE * 94e9 for way in proposals(raw, peak))


def test_no_fitting_setting_of_the_grid_is_faster_than_the_proposal() -> None:
    raw = configuration({"preset": "llama3-8b"}, 2, **BATCH)
    fastest = proposals(raw, lambda one: 40e9)[0]
    for size in (1, 2, 4):
        for strategy in ("shard_grad_op", "hybrid_shard", "full_shard"):
            other = merged(raw, {"models": {"base": {"training": {"micro_batch_size": size, "strategy": strategy}}}})
            model = estimate(settings_of(parse_configuration(other)))["models"]["base"]
            assert not model["memory_fits"] or model["seconds"] > 0.98 * fastest["seconds"]


def test_fastest_settings_have_no_proposal_and_an_unfitting_training_has_one() -> None:
    raw = configuration({"preset": "llama3-8b"}, 2, **BATCH)
    ways = proposals(raw, lambda one: 40e9)
    again = merged(raw, ways[0]["write"])
    assert not [way for way in proposals(again, lambda one: 40e9) if way["aim"].startswith("fastest")]
    slow = merged(raw, {"models": {"base": {"training": {"strategy": "no_shard", "micro_batch_size": 4}}}})
    way = proposals(slow, lambda one: 170e9 if one.training.strategy == "no_shard" else 60e9)[0]
    assert way["write"]["models"]["base"]["training"]["strategy"] != "no_shard"


def test_float8_is_a_separate_proposal_only_on_supported_platforms() -> None:
    shape = {"preset": "llama3-8b"}
    hopper = configuration(shape, 2, **BATCH)
    assert [way["aim"] for way in proposals(hopper, lambda one: 40e9)].count("float8, rounds otherwise") == 1
    ampere = {**hopper, "platform": "leonardo"}
    assert not [way for way in proposals(ampere, lambda one: 40e9) if "float8" in way["aim"]]


def test_hybrid_shard_group_is_kept_and_absent_in_other_strategies() -> None:
    raw = configuration({"preset": "llama3-1b"}, 2, **BATCH | {"strategy": "hybrid_shard", "mesh": {"shard": 8}})
    config = parse_configuration(raw)
    planned_training = build_planned_training(config, "base", config.launch)
    asked = _make_asked(config, settings_of(config), planned_training)
    results = [one.planned.training for one in list_candidates(asked, 8, [planned_training.training.mesh])]
    assert any(not list_changes(planned_training.training, one) for one in results), "the requested way is a candidate"
    assert {one.mesh.shard for one in results if one.strategy == "hybrid_shard"} == {8}
    assert {one.mesh.shard for one in results if one.strategy == "full_shard"} == {None}


def test_fewest_changes_come_first_among_equally_fast_settings() -> None:
    config = parse_configuration(configuration({"preset": "llama3-1b"}, 2, **BATCH | {"strategy": "hybrid_shard"}))
    planned_training = build_planned_training(config, "base", config.launch)
    asked = _make_asked(config, settings_of(config), planned_training)
    candidates = list_candidates(asked, 8, [planned_training.training.mesh])
    least = min(one.seconds for one in candidates)
    changes = {
        index: len(list_changes(planned_training.training, one.planned.training))
        for index, one in enumerate(candidates)
        if one.seconds <= 1.01 * least
    }
    assert len(changes) > 1 and changes[0] == min(changes.values()) < max(changes.values())


def test_fewer_nodes_are_proposed_if_they_use_less_energy_in_equal_time() -> None:
    raw = configuration({"preset": "llama3-1b"}, 66, **BATCH | {"recomputation": "full", "compile": False})
    asked = estimate(settings_of(parse_configuration(raw)))["models"]["base"]
    ways = {way["aim"]: way for way in proposals(raw, lambda one: 40e9)}
    least = ways["least energy"]
    assert least["nodes"] < 66 and least["write"]["slurm"] == {"nodes": least["nodes"]}
    assert ways["fastest"]["seconds"] < least["seconds"] <= asked["seconds"]
    assert least["facility_energy_joules"] < 0.99 * ways["fastest"]["facility_energy_joules"]
    for nodes in (11, 33):  # the batch can be divided on them too; neither takes less and is done in time
        other = configuration({"preset": "llama3-1b"}, nodes, **BATCH | least["write"]["models"]["base"]["training"])
        planned = estimate(settings_of(parse_configuration(other)))["models"]["base"]
        late = planned["seconds"] > asked["seconds"]
        assert late or planned["facility_energy_joules"] >= least["facility_energy_joules"]


def test_fastest_is_called_least_energy_where_fewer_nodes_save_none() -> None:
    raw = configuration({"preset": "llama3-8b"}, 11, **BATCH | {"recomputation": "full", "compile": False})
    aims = [way["aim"] for way in proposals(raw, lambda one: 40e9)]
    assert aims == ["fastest, least energy", "float8, rounds otherwise"]


def test_settings_without_a_step_time_are_not_candidates() -> None:
    """Snellius states a utilization, by which every strategy would take equal time."""
    raw = configuration({"layers": 2, "width": 512, "heads": 8}, backend="deepspeed", strategy="zero3")
    config = parse_configuration(raw)
    asked = _make_asked(config, settings_of(config), build_planned_training(config, "base", config.launch))
    results = {one.planned.training.strategy for one in list_candidates(asked, 8, [asked.planned.training.mesh])}
    assert results == {"zero0", "zero1", "zero2", "zero3"}, "zero0 is refused in bf16 before it is traced"


def test_proposed_mesh_states_differences_even_at_their_default() -> None:
    """Writing the lines into an existing mesh gives the same as replacing it."""
    base = Training.model_validate({"learning_rate": 0.001, **TRAINING, "mesh": {"tensor": 4}})
    other = base.model_copy(update={"mesh": Mesh(pipeline=2)})
    assert list_changes(base, other) == {"mesh": {"tensor": 1, "pipeline": 2}}
