"""The same numbers everywhere: every strategy and mesh that runs on a CPU against one process."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.pretrain.launch import command
from pipeline.pretrain.settings import STRATEGIES, SegmentSettings

STEPS = 50
MESHES: dict[int, list[dict[str, int]]] = {
    1: [],
    2: [{"tensor": 2}, {"pipeline": 2}, {"context": 2}],
    4: [
        {"tensor": 2},
        {"pipeline": 2},
        {"context": 2},
        {"tensor": 2, "pipeline": 2},
        {"tensor": 2, "context": 2},
        {"pipeline": 2, "context": 2},
    ],
}


def named_cases(processes: int, make: Callable[..., SegmentSettings]) -> dict[str, SegmentSettings]:
    """Return the settings of all cases for that many processes, by name."""
    usual: dict[str, Any] = {
        "steps": STEPS,
        "learning_rate": 0.003,
        "batch_size": 8,
        "micro_batch_size": 4 if processes == 1 else 2,
    }
    cases = {
        strategy: make(last_step=STEPS, backend=backend, strategy=strategy, **usual)
        for backend, strategies in STRATEGIES.items()
        for strategy in strategies
    }
    for strategy in ("hybrid_shard", "hybrid_shard_zero2"):
        if processes == 4:
            cases[strategy] = make(last_step=STEPS, strategy=strategy, **usual, mesh={"shard": 2})
    for mesh in MESHES[processes]:
        for strategy in ("full_shard",) if processes == 2 else ("full_shard", "no_shard")[: 1 + (len(mesh) == 1)]:
            name = " ".join([strategy, *(f"{key} {value}" for key, value in mesh.items())])
            cases[name] = make(last_step=STEPS, strategy=strategy, **usual, mesh=mesh)
    return cases


def outcome(processes: int, cases: dict[str, SegmentSettings], tokens: dict[str, Path], folder: Path) -> dict[str, Any]:
    """Run all cases in processes that are started once."""
    launch = f"torchrun --standalone --nproc-per-node={processes}"
    arguments = {
        "launcher": "torchrun",
        "index": str(tokens["index"]),
        "outcome": str(folder / f"outcome-{processes}.json"),
        "cases": {name: settings.model_dump(mode="json") for name, settings in cases.items()},
    }
    file = folder / f"cases-{processes}.json"
    file.write_text(json.dumps(arguments))
    subprocess.run(command(launch, "tests.pretrain.parity_worker", [str(file)]), check=True, timeout=600)
    found: dict[str, Any] = json.loads(Path(arguments["outcome"]).read_text())
    return found
