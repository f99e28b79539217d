"""A hang is reported with the process that the others wait for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pipeline.pretrain.monitors.watchdog import find_process_behind_in_collectives, read_collective_counts
from pipeline.pretrain.processes.launch_command import build_command

pytestmark = pytest.mark.usefixtures("warm_processes")
ROOT = Path(__file__).parents[3]


def test_process_missing_from_a_collective_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "10")
    worker = "tests.pretrain.monitors.hanging_worker"
    words = build_command("torchrun --standalone --nproc-per-node=2", worker, [str(tmp_path)])
    done = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=300)
    assert done.returncode
    results = {rank: tmp_path / f"logs/collectives-token-{rank}.json" for rank in (0, 1)}
    assert results[0].exists() and results[1].exists(), done.stderr.decode()[-4000:]
    message = find_process_behind_in_collectives(results, 2)
    assert message == "process 1 has begun 3 collectives of default_pg, others 4, the last a all_reduce"
    assert read_collective_counts(results[0]) == {"default_pg": (4, "gloo:all_reduce")}


def written(folder: Path, **begun: int) -> dict[int, Path]:
    paths = {}
    for name, number in begun.items():
        entries = [
            {
                "process_group": ["0", "world"],
                "collective_seq_id": n,
                "profiling_name": "nccl:all_gather",
                "is_p2p": False,
            }
            for n in range(1, number + 1)
        ]
        sent = {**entries[0], "collective_seq_id": 99, "is_p2p": True}
        paths[int(name[1:])] = folder / f"{name}.json"
        paths[int(name[1:])].write_text(json.dumps({"entries": [*entries, sent]}))
    return paths


def test_process_with_the_fewest_collectives_is_late_unless_equal(tmp_path: Path) -> None:
    paths = written(tmp_path, _0=7, _1=6, _2=7, _3=6)
    paths[3].write_text(paths[3].read_text().replace("all_gather", "all_reduce"))  # regardless of their last one
    late = find_process_behind_in_collectives(paths, 4)
    assert late == "processes 1, 3 have begun 6 collectives of world, others 7, the last a all_gather"
    assert find_process_behind_in_collectives(written(tmp_path, _0=7, _1=7), 2) is None
    assert find_process_behind_in_collectives(written(tmp_path, _0=7, _2=7), 4) == "processes 1, 3 did not answer"


def test_group_with_a_missing_process_report_is_ignored(tmp_path: Path) -> None:
    paths = written(tmp_path, _0=7, _1=9, _2=6)
    paths[1].write_text(paths[1].read_text().replace("world", "some"))
    assert (
        find_process_behind_in_collectives(paths, 3)
        == "process 2 has begun 6 collectives of world, others 7, the last a all_gather"
    )
