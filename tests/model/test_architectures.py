"""An architecture is two modules and a line in two lists: nothing else of the package knows its name."""

import ast
import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from pipeline.core.errors import InputError
from pipeline.job.reach import reach
from pipeline.model import huggingface
from pipeline.model.architectures import ARCHITECTURES, get_architecture_formulas, list_presets
from pipeline.model.networks import NETWORKS, get_network, initial_state, parameter_shapes
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import parameter_count
from pipeline.plan.estimate import estimate
from pipeline.plan.settings import EstimateSettings

ROOT = Path(__file__).parents[2]
VOCABULARY = 96


def reached(file: Path) -> set[str]:
    """Return the modules that a file imports or names in a string."""
    result: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            result |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            result.add(node.value)
    return result


def test_only_registries_and_other_architectures_import_an_architecture() -> None:
    assert set(ARCHITECTURES) == set(NETWORKS)
    modules = {*ARCHITECTURES.values(), *NETWORKS.values()}
    files = {*(ROOT / "pipeline").rglob("*.py")} - {ROOT / f"{module.replace('.', '/')}.py" for module in modules}
    for registry, module in [
        *product(["architectures"], ARCHITECTURES.values()),
        *product(["networks"], NETWORKS.values()),
    ]:
        inside = {file for file in files if any(f"{name}.".startswith(f"{module}.") for name in reached(file))}
        assert inside == {ROOT / f"pipeline/model/{registry}.py"}, module


def test_architecture_declares_what_the_registries_require() -> None:
    assert len(list_presets()) == sum(
        len(get_architecture_formulas(name).presets) for name in ARCHITECTURES
    )  # no two have the same
    for name in ARCHITECTURES:
        small = Architecture(
            preset=next(iter(get_architecture_formulas(name).presets)), layers=2, width=32, heads=4, key_value_heads=2
        )
        assert small.name == name
        sizes = parameter_shapes(small, VOCABULARY)
        assert parameter_count(small, VOCABULARY) == sum(size.numel() for size in sizes.values())
        parts = {key.split(".", 2)[2].removesuffix(".weight") for key in sizes if key.startswith("blocks.")}
        assert parts == set(get_network(name).splits)


def test_training_depends_on_the_network_and_a_plan_only_on_the_shape() -> None:
    steps = ("plan.estimate", "pretrain.segment")
    planned, trained = ({file for file, _ in reach(f"pipeline.{step}").statements()} for step in steps)
    shape_file, network_file = (ROOT / f"pipeline/model/{name}.py" for name in ("llama_shape", "llama_network"))
    assert shape_file in planned and network_file not in planned
    assert {shape_file, network_file} <= trained


def test_planning_imports_no_torch() -> None:
    code = "import sys, pipeline.plan.estimate; from pipeline.model.settings import Architecture as A;"
    code += "from pipeline.model.size_and_cost import parameter_count; parameter_count(A(preset='demo'), 9);"
    done = subprocess.run([sys.executable, "-c", f"{code} sys.exit('torch' in sys.modules)"], cwd=ROOT)
    assert done.returncode == 0


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> Architecture:
    """Return a shape of the second architecture, registered during the test."""
    with pytest.raises(ValidationError, match="there is no preset 'second-tiny': choose one of "):
        Architecture(preset="second-tiny")
    monkeypatch.setitem(ARCHITECTURES, "second", "tests.model.second")
    monkeypatch.setitem(NETWORKS, "second", "tests.model.second_network")
    return Architecture(preset="second-tiny")


def test_second_architecture_is_planned(second: Architecture) -> None:
    training = {"sequence_length": 64, "batch_size": 8, "micro_batch_size": 1, "steps": 10}
    models = {
        preset: {"architecture": {**second.model_dump(), "preset": preset}, "training": training, "vocabulary_size": 96}
        for preset in ("second-tiny", "llama3")
    }
    settings = {"models": models, "platform": {"devices": 2}, "energy": {}}
    plan = estimate(EstimateSettings.model_validate(settings))["models"]
    assert plan["llama3"]["parameters"] - plan["second-tiny"]["parameters"] == 2 * 32  # a norm in each block
    assert plan["second-tiny"]["parameters"] == sum(size.numel() for size in parameter_shapes(second, 96).values())


def test_second_architecture_round_trips_through_transformers(
    second: Architecture, tmp_path: Path, tokenizer: Path
) -> None:
    state = initial_state(second, VOCABULARY, 3)
    places = {"tokenizer": tokenizer, "tokenizer_configuration": tokenizer.with_name("tokenizer_config.json")}
    huggingface.save_pretrained(state, second, VOCABULARY, 64, **places, folder=tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["n_embd"] == 32
    assert "transformer.blocks.1.norm.weight" in load_file(tmp_path / "out/model.safetensors")
    result, size, weights = huggingface.load_pretrained(tmp_path / "out")
    assert (result.name, result.layers, size) == ("second", 2, VOCABULARY)
    assert all(torch.equal(weights[name], tensor) for name, tensor in state.items())
    config = {**json.loads((tmp_path / "out/config.json").read_text()), "model_type": "third"}
    (tmp_path / "out/config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"describes a third: only a .* or a side_by_side can be read"):
        huggingface.load_pretrained(tmp_path / "out")
