"""A sharding strategy is its declaration: settings, plan, layout and backends query it, and never parse its name."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.plan.sharding_strategy_definitions import STRATEGIES, list_backend_strategies

ROOT = Path(__file__).parents[2]
FILES = [file for folder in ("pipeline", "benchmarks") for file in sorted((ROOT / folder).rglob("*.py"))]
PARSING = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "find"}


def named_strategy(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name == "strategy"


def parsed(tree: ast.AST) -> list[int]:
    """Return the lines that inspect the name of a strategy or compare it with a string."""
    results = []
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if (isinstance(node, ast.Attribute) and node.attr in PARSING) or isinstance(node, ast.Subscript):
            parts = [node.value]
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            texts = [s for side in sides for s in ast.walk(side) if isinstance(s, ast.Constant | ast.JoinedStr)]
            parts = list(sides) if texts else []
        results += [node.lineno for part in parts if named_strategy(part)]  # type: ignore[attr-defined]
    return results


def test_strategy_names_are_not_parsed() -> None:
    assert len(FILES) > 200
    assert {file: lines for file in FILES if (lines := parsed(ast.parse(file.read_text(encoding="utf-8"))))} == {}


@pytest.mark.parametrize(
    "line",
    [
        'training.strategy.startswith("hybrid")',
        'int(training.strategy[len("zero")])',
        'strategy in ("full_shard", "hybrid_shard")',
        '"offload" in self.training.strategy',
        'training.strategy == "no_shard"',
    ],
)
def test_parsing_a_strategy_name_is_detected(line: str) -> None:
    assert parsed(ast.parse(line)) == [1]


def test_backend_behavior_follows_from_the_state_placement() -> None:
    assert [STRATEGIES[name].zero_stage for name in list_backend_strategies("deepspeed")] == [0, 1, 2, 2, 3, 3, 3, 3]
    assert [name for name in STRATEGIES if STRATEGIES[name].reduces_gradients_once] == ["shard_optimizer"]
    assert [name for name, s in STRATEGIES.items() if s.is_hybrid] == ["hybrid_shard_zero2", "hybrid_shard"]
    assert [n for n in list_backend_strategies("fsdp") if STRATEGIES[n].reshards_after_forward] == [
        "hybrid_shard",
        "full_shard",
    ]
    assert [name for name, s in STRATEGIES.items() if s.is_replicated] == ["no_shard", "zero0"]
    offloading = ["zero2_offload_optimizer", "zero3_offload_optimizer", "zero3_offload_all", "zero3_optimizer_on_disk"]
    assert [name for name, s in STRATEGIES.items() if s.offloads_optimizer] == offloading
    assert [name for name, s in STRATEGIES.items() if s.offloads_parameters] == ["zero3_offload_all"]
    assert [name for name, s in STRATEGIES.items() if s.optimizer_on_disk] == ["zero3_optimizer_on_disk"]


DECLARED = """    "added": Strategy(
        "fsdp", "node", "all", "node", (ConflictingKey("float8", True, "set float8 to false"),)
    ),
"""
ASKED = """
import sys
from pipeline.plan import training_cost_formulas
from pipeline.plan.settings import TrainingPlan
from pipeline.pretrain.parallel.process_layout import make_layout
from pipeline.pretrain.settings import Training

numbers = {"sequence_length": 8, "batch_size": 8, "micro_batch_size": 1, "steps": 1, "learning_rate": 0.1}
chosen = {**numbers, "strategy": "added", "mesh": {"shard": 2}}
assert TrainingPlan.model_validate(chosen).strategy == "added"
sizes = make_layout(Training.model_validate(chosen), 8, 4)
assert (sizes.replicate, sizes.shard) == (4, 2)
state = training_cost_formulas.model_state_bytes(100, strategy="added", precision="bf16", devices=8, node=2)
assert state == (2 / 2 + 4 + 12 / 2) * 100
for change in ({"float8": True}, {"backend": "deepspeed"}, {"strategy": "other"}):
    try:
        Training.model_validate({**chosen, **change})
    except ValueError as error:
        print(error)
assert "torch" not in sys.modules
"""


def test_declared_strategy_is_in_settings_plan_and_layout(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "pipeline/plan/sharding_strategy_definitions.py"
    first = "STRATEGIES: dict[str, Strategy] = {\n"
    file.write_text(file.read_text(encoding="utf-8").replace(first, first + DECLARED), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", ASKED], cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "added is not available with float8 True: set float8 to false" in done.stdout
    assert "strategy added is not available with backend deepspeed" in done.stdout
    assert "Input should be 'added', 'no_shard'" in done.stdout
