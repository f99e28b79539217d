"""The same numbers everywhere: every strategy and mesh that runs on a CPU, in 1, 2 and 4 processes, against one.

`PARITY_STEPS=50 pytest tests/pretrain/parallel/test_parity.py -s` prints the table of docs/results/training.md.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.plan.sharding_strategy_definitions import STRATEGIES
from pipeline.pretrain.processes.launch_command import build_command
from pipeline.pretrain.settings import SegmentSettings

pytestmark = pytest.mark.usefixtures("warm_processes")
Make = Callable[..., SegmentSettings]
Cases = dict[str, SegmentSettings]
STEPS, BATCH = int(os.environ.get("PARITY_STEPS", "6")), 8
SHAPE = {"heads": 8, "key_value_heads": 4, "base_width": 24}  # so that parameters learn at several rates
MESHES: dict[int, list[tuple[str, dict[str, int]]]] = {
    1: [],
    2: [
        ("hybrid_shard", {"shard": 1}),
        ("full_shard", {"tensor": 2}),
        ("full_shard", {"pipeline": 2}),
        ("full_shard", {"context": 2}),
    ],
    4: [
        ("hybrid_shard", {"shard": 2}),
        ("hybrid_shard_zero2", {"shard": 2}),
        ("no_shard", {"pipeline": 2}),
        ("shard_optimizer", {"pipeline": 2}),
        ("shard_optimizer", {"tensor": 2}),
        ("full_shard", {"tensor": 2}),
        ("full_shard", {"pipeline": 2}),
        ("full_shard", {"context": 2}),
        ("full_shard", {"tensor": 2, "pipeline": 2}),
        ("full_shard", {"tensor": 2, "context": 2}),
        ("full_shard", {"pipeline": 2, "context": 2}),
    ],
}

# Three key-value heads, each normalized, for four queries each: no mesh here divides them.
SHARED = {"preset": "qwen3", "width": 48, "heads": 12, "key_value_heads": 3}
SHARED_MESHES: dict[int, list[dict[str, int]]] = {
    2: [{"tensor": 2}, {"context": 2}],
    4: [{"tensor": 4}, {"context": 4}, {"tensor": 2, "context": 2}],
}

# Five layers, so that stages are unequal.
DEEP = {"layers": 5}
DEEP_MESHES: dict[int, list[tuple[str, dict[str, int]]]] = {
    2: [("full_shard", {"pipeline": 2}), ("full_shard", {"pipeline": 2, "interleaving": 2})],
    4: [
        ("full_shard", {"pipeline": 4}),
        ("full_shard", {"pipeline": 2, "interleaving": 2, "context": 2}),
        ("hybrid_shard", {"pipeline": 2, "interleaving": 2, "shard": 1}),
        ("shard_optimizer", {"pipeline": 2, "interleaving": 2}),
    ],
}


def case(make: Make, micro_batch_size: int, architecture: dict[str, Any] | None = None, **training: Any) -> Any:
    usual = {"steps": STEPS, "batch_size": BATCH, "learning_rate": 0.003, "micro_batch_size": micro_batch_size}
    return make(last_step=STEPS, architecture={**SHAPE, **(architecture or {})}, **usual, **training)


def equal_cases(processes: int, make: Make) -> Cases:
    """Return the settings, by name, that must give the same numbers with that number of processes."""
    shared = BATCH // processes
    cases: Cases = {
        name: case(make, max(shared // 2, 1), backend=strategy.backend, strategy=name)
        for name, strategy in STRATEGIES.items()
        if processes < 4 or not strategy.is_hybrid  # if one node holds all, they shard like the others
    }
    for strategy, mesh in MESHES[processes]:
        name = " ".join([strategy, *(f"{key} {value}" for key, value in mesh.items())])
        size = shared * mesh.get("tensor", 1) * mesh.get("context", 1)  # with pipeline 2, half a process's share
        cases[name] = case(make, size, strategy=strategy, mesh=mesh)
    if processes == 2:
        switches = {"recomputation": "full", "tiled_feed_forward": 4}
        cases["full_shard tensor 2, in tiles"] = case(make, BATCH, mesh={"tensor": 2}, **switches)
    if processes == 1:
        cases["no_shard, optimizer not fused"] = case(make, BATCH, strategy="no_shard", fused_optimizer=False)
    return cases


def outcome(processes: int, cases: Cases, tokens: dict[str, Path], folder: Path) -> dict[str, Any]:
    """Run all cases of a backend in processes started once: a process never has two, as in a run."""
    results: dict[str, Any] = {}
    for backend in ("fsdp", "deepspeed"):
        its = {name: settings for name, settings in cases.items() if settings.training.backend == backend}
        if its:
            results |= outcome_of_backend(processes, its, tokens, folder)
    return results


def summarize_process_ends(log: str) -> str:
    """Return the exit of each process: the first failure is hidden in the output of many processes."""
    last_lines = {line[:8]: line for line in log.splitlines() if re.match(r"\[rank\d\]: \S", line)}
    ends = re.compile(r"Fatal Python error|Signal \d|exitcode *:|malloc|free\(")
    return "\n".join([*last_lines.values(), *(line for line in log.splitlines() if ends.search(line))])


def outcome_of_backend(processes: int, cases: Cases, tokens: dict[str, Path], folder: Path) -> dict[str, Any]:
    arguments = {
        "index": str(tokens["index"]),
        "outcome": str(folder / f"outcome-{processes}.json"),
        "cases": {name: settings.model_dump(mode="json") for name, settings in cases.items()},
    }
    file = folder / f"cases-{processes}.json"
    file.write_text(json.dumps(arguments))
    launch = f"torchrun --standalone --nproc-per-node={processes}"
    command = build_command(launch, "tests.pretrain.parallel.parity_worker", [str(file)])
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=900)
    sys.stderr.write(done.stderr)
    assert done.returncode == 0, summarize_process_ends(done.stderr)
    result: dict[str, Any] = json.loads(Path(arguments["outcome"]).read_text())
    return result


@pytest.fixture(scope="module")
def alone(settings: Make, tokens: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of all cases in one process."""
    return outcome(1, equal_cases(1, settings), tokens, tmp_path_factory.mktemp("alone"))


def check_equal(result: dict[str, Any], expected: dict[str, Any], name: str) -> None:
    """Compare losses, gradient norms, validation loss and final weights, and print their differences."""
    pairs = list(zip(result["losses"], expected["losses"], strict=True))
    losses = [abs(ours - theirs) for ours, theirs in pairs]
    norms = [abs(a - b) / b for a, b in zip(result["norms"], expected["norms"], strict=True)]
    print(f"| {name} | {max(losses[:10]):.1e} | {max(losses):.1e} | {max(norms):.1e} | {result['cpu_seconds']:.1f}")
    assert max(losses[:10]) < 1e-5 and max(losses) < 1e-4, name
    assert max(norms[:10]) < 1e-5 and max(norms) < 1e-3, name
    assert result["validation"] == pytest.approx(expected["validation"], rel=1e-5), name
    assert result["weights"] == pytest.approx(expected["weights"], rel=1e-5), name
    assert result["moments"] == pytest.approx(expected["moments"], rel=1e-3), name


@pytest.mark.slow
def test_strategies_in_one_process_agree(alone: dict[str, Any]) -> None:
    expected = alone["no_shard"]
    assert expected["losses"][-1] < expected["losses"][0] - 0.25
    for name, result in alone.items():
        check_equal(result, expected, f"1 | {name}")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_parallel_processes_equal_one(
    processes: int, settings: Make, tokens: dict[str, Path], tmp_path: Path, alone: dict[str, Any]
) -> None:
    cases = equal_cases(processes, settings)
    others = {"shared heads": case(settings, BATCH // processes, SHARED)}
    for mesh in SHARED_MESHES[processes]:
        others[f"shared heads {mesh}"] = case(settings, BATCH, SHARED, mesh=mesh)
    others["deep"] = case(settings, BATCH // processes, DEEP)
    for strategy, mesh in DEEP_MESHES[processes]:
        others[f"deep {strategy} {mesh}"] = case(settings, 1, DEEP, strategy=strategy, mesh=mesh)
    if processes == 2:
        tied = {"tie_embeddings": True, "base_width": None}
        others |= {
            "tied": case(settings, 4, tied),
            "tied tensor 2": case(settings, 8, tied, mesh={"tensor": 2}),
            "bf16": case(settings, 2, precision="bf16"),
            "bf16 reduction": case(settings, 2, precision="bf16", gradient_reduction="bf16"),
        }
    result = outcome(processes, {**cases, **others}, tokens, tmp_path)
    for name in cases:
        check_equal(result[name], alone["no_shard"], f"{processes} | {name}")
    if processes == 2:  # two layers, embedding and output, each once for the four sequences of a process
        names = ("full_shard", "shard_grad_op", "full_shard context 2")
        assert {name: result[name]["validation_gathers"] for name in names} == dict.fromkeys(names, 4)
        # Gathers and reductions of a step of two micro-batches: of each part once, or in each micro-batch.
        assert result["shard_optimizer"]["step_collectives"][0] == [4, 4]
        assert result["shard_grad_op"]["step_collectives"][0] == [8, 8]
        # The validation before the last step leaves its weights as the strategy defines.
        assert result["shard_optimizer"]["step_collectives"][-1] == [0, 4]
        assert result["full_shard"]["step_collectives"] == [[12, 8]] * STEPS
        assert {name: result[name]["is_sharded_after_validation"] for name in names} == {
            "full_shard": True,
            "shard_grad_op": False,
            "full_shard context 2": True,
        }
    for name in others:
        for kind in ("shared heads", "deep"):
            if name.startswith(f"{kind} "):
                check_equal(result[name], result[kind], f"{processes} | {name}")
    if processes == 2:
        check_equal(result["tied tensor 2"], result["tied"], "2 | tied tensor 2")
        assert "output.weight" not in result["tied tensor 2"]["weights"]
        assert result["bf16"]["losses"] == pytest.approx(alone["no_shard"]["losses"], abs=0.03)
        assert result["bf16 reduction"]["losses"] == pytest.approx(result["bf16"]["losses"], abs=0.03)
        assert result["bf16 reduction"]["losses"] != result["bf16"]["losses"]
