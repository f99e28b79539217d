"""DeepSpeed's initial state, sums and recomputation: the numbers equal those of the native backend."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import parameter_count
from pipeline.plan.sharding_strategy_definitions import STRATEGIES
from pipeline.pretrain.processes.launch_command import build_command
from pipeline.pretrain.settings import SegmentSettings
from tests.pretrain.parallel.deepspeed_worker import MEGABYTE, VOCABULARY
from tests.pretrain.parallel.test_parity import SHAPE, check_equal, outcome_of_backend

pytestmark = pytest.mark.usefixtures("warm_processes")
Make = Callable[..., SegmentSettings]
ROUNDED = 1e-6
"""Gradient tolerance: above float32 summation errors, and a thousandth of bf16 ones."""


def looked_at(kind: str, cases: dict[str, SegmentSettings], folder: Path) -> dict[str, Any]:
    """Return the results of two processes for cases of one backend."""
    arguments = {
        "kind": kind,
        "outcome": str(folder / "outcome.json"),
        "cases": {name: settings.model_dump(mode="json") for name, settings in cases.items()},
    }
    file = folder / "cases.json"
    file.write_text(json.dumps(arguments))
    launch = "torchrun --standalone --nproc-per-node=2"
    subprocess.run(
        build_command(launch, "tests.pretrain.parallel.deepspeed_worker", [str(file)]), check=True, timeout=600
    )
    result: dict[str, Any] = json.loads(Path(arguments["outcome"]).read_text())
    return result


def of(settings: Make, strategy: str, **changes: Any) -> SegmentSettings:
    usual = {"sequence_length": 16, "batch_size": 16, "gradient_clip": 0.0, "precision": "bf16"}
    return settings(strategy=strategy, backend=STRATEGIES[strategy].backend, **{**usual, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fsdp", "deepspeed"])
def test_weights_gradients_and_norms_are_exact_to_float32(backend: str, settings: Make, tmp_path: Path) -> None:
    tied = {"precision": "fp32", "architecture": {"tie_embeddings": True}}
    bf16 = {"gradient_reduction": "bf16", "fused_optimizer": False}
    cases = {
        f"{name} {how}": of(settings, name, **changes)
        for name, strategy in STRATEGIES.items()
        for how, changes in {"tied": tied, "float32": {}, "bf16": bf16}.items()
        if strategy.backend == backend
        and not strategy.is_hybrid
        and (how == "tied" or name != "zero0")
        and (how != "bf16" or name != "shard_optimizer")  # which is refused
    }
    for name, result in looked_at("gradients", cases, tmp_path).items():
        assert result["same_weights"], name
        assert result["fused"] != name.endswith("bf16"), name
        if backend == "deepspeed":
            strategy = STRATEGIES[name.split()[0]]
            assert result["offloads"] == [strategy.offloads_optimizer, strategy.offloads_parameters], name
            assert result["on_disk"] == [strategy.optimizer_on_disk], name
        if name.endswith("bf16"):  # the requested change is visible, so the limit is not too wide
            assert result["gradient"] > 1000 * ROUNDED, name
        else:
            assert result["gradient"] < ROUNDED, name
            assert result["layer_norms"] < 2 * ROUNDED and abs(result["norm"]) < 2 * ROUNDED, name


@pytest.mark.thorough
def test_no_process_holds_the_model_before_the_engine(
    settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")  # freed memory is returned
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))  # no process is a fork, which shares memory
    large = {"layers": 8, "width": 512, "heads": 8, "key_value_heads": 4}
    cases = {"imports": of(settings, "zero3", precision="fp32")}
    cases |= {
        f"{strategy} {precision}": of(settings, strategy, precision=precision, architecture=large)
        for strategy, precision in (("zero3", "fp32"), ("zero2", "bf16"))
    }
    result = looked_at("memory", cases, tmp_path)
    number = parameter_count(Architecture.model_validate(large), VOCABULARY)
    for case, bytes_of_one in {"zero3 fp32": 4 / 2, "zero2 bf16": 2}.items():
        rise = result[case]["rise"]
        assert rise == pytest.approx(bytes_of_one * number / MEGABYTE, abs=15), (case, rise)


RECOMPUTED = [
    ("zero1", "bf16"),
    ("zero2", "bf16"),
    ("zero3", "fp32"),
    ("zero3", "bf16"),
    ("zero3_offload_all", "bf16"),
]
SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "selective": {"recomputation": "selective"},
    "full": {"recomputation": "full"},
}


@pytest.mark.slow
def test_recomputation_is_bitwise_equal(settings: Make, tokens: dict[str, Path], tmp_path: Path) -> None:
    cases = {
        f"{strategy} {precision} {name}": settings(
            strategy=strategy,
            backend="deepspeed",
            precision=precision,
            last_step=2,
            architecture=SHAPE,
            batch_size=8,
            micro_batch_size=2,
            **switch,
        )
        for strategy, precision in RECOMPUTED
        for name, switch in {**SWITCHES, "in tiles": {"recomputation": "full", "tiled_feed_forward": 4}}.items()
        if name in SWITCHES or (strategy, precision) == ("zero3", "fp32")
    }
    result = outcome_of_backend(2, cases, tokens, tmp_path)
    for strategy, precision in RECOMPUTED:
        plain = result[f"{strategy} {precision} plain"]
        assert plain["forward_passes"] == 2 * 2  # two micro-batches in each of two steps
        for name in SWITCHES.keys() - {"plain"}:
            other = result[f"{strategy} {precision} {name}"]
            assert other["forward_passes"] == 2 * plain["forward_passes"], (strategy, precision, name)
            # Recomputation gathers weights again.
            apart = dict.fromkeys(("cpu_seconds", "forward_passes", "step_collectives"), 0)
            comparable = [{**one, **apart} for one in (other, plain)]
            assert comparable[0] == comparable[1], (strategy, precision, name)
    check_equal(result["zero3 fp32 in tiles"], result["zero3 fp32 plain"], "zero3, in tiles")
