"""One process of an evaluation, started by pipeline.evaluate.suites as `python -m MODULE ARGUMENTS.json`.

The node's meter starts before all that takes long to import.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pipeline.energy.startup_counters import keep_startup_sample, meters_additional_node


def main() -> int:
    """Run one process and return its exit code."""
    if meters_additional_node():
        keep_startup_sample()
    from pipeline.core.lock_owner import die_with_parent
    from pipeline.energy.meter_recorder import meter_additional_node

    die_with_parent()
    arguments = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with meter_additional_node():
        return _run_process(arguments["given"], arguments["launcher"], Path(arguments["outcome"]))


def _run_process(given: dict[str, Any], launcher: str, outcome: Path) -> int:
    from pipeline.core.errors import InputError
    from pipeline.evaluate.settings import SuitesSettings
    from pipeline.evaluate.suites import evaluate_checkpoint, prepare_process

    settings = SuitesSettings.model_validate(given.pop("settings"))
    platform, versions = given.pop("platform"), given.pop("versions")
    prepare_process(platform, settings.seed, deterministic=settings.deterministic)
    import torch.distributed as dist

    from pipeline.pretrain.processes import device_and_process_group

    try:
        device = device_and_process_group.join_process_group(launcher, platform)
        counts = evaluate_checkpoint(settings, device=device, versions=versions, **_parse_paths(given))
    except InputError as error:  # in this process or in all; the launcher ends the others
        _write_outcome(outcome, {"refused": str(error)})
        return 2
    if dist.get_rank() == 0:
        _write_outcome(outcome, counts)
    dist.barrier()  # torchrun and srun end the other processes when the first one exits
    dist.destroy_process_group()
    return 0


def _parse_paths(given: dict[str, Any]) -> dict[str, Any]:
    return {name: [*map(Path, value)] if isinstance(value, list) else Path(value) for name, value in given.items()}


def _write_outcome(path: Path, outcome: dict[str, Any]) -> None:
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(outcome), encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
