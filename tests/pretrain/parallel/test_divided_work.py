"""Processes of a training write a model together: the same bytes for any number of them."""

import json
import os
import subprocess
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from pipeline.model import huggingface
from pipeline.model.huggingface import load_pretrained, save_pretrained
from pipeline.model.networks import initial_state, parameter_shapes
from pipeline.model.settings import Architecture
from pipeline.pretrain.parallel.process_groups import distribute_tasks
from pipeline.pretrain.processes.launch_command import build_command

pytestmark = pytest.mark.usefixtures("warm_processes")
ROOT = Path(__file__).parents[3]
WORKER = "tests.pretrain.parallel.divided_work_worker"
ARCHITECTURE = Architecture(layers=3, width=32, heads=4)


def start(processes: int, tokens: dict[str, Path], out: Path) -> list[dict[str, Any]]:
    """Export a model by the given processes, then again with a full disk in the last; return their reports."""
    places = [str(path) for path in (tokens["tokenizer"], tokens["configuration"], out)]
    words = build_command(f"torchrun --standalone --nproc-per-node={processes}", WORKER, places)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    result: list[dict[str, Any]] = json.loads((out / "found.json").read_text())
    return result


@pytest.fixture(scope="module")
def alone(tokens: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files written by a single process."""
    folder = tmp_path_factory.mktemp("alone") / "model"
    places = {"tokenizer": tokens["tokenizer"], "tokenizer_configuration": tokens["configuration"]}
    state = initial_state(ARCHITECTURE, 304, 1)
    save_pretrained(state, ARCHITECTURE, 304, 64, **places, folder=folder, largest_file_bytes=9_000)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_model_bytes_do_not_depend_on_the_number_of_processes(
    processes: int, tokens: dict[str, Path], tmp_path: Path, alone: dict[str, bytes]
) -> None:
    result = start(processes, tokens, tmp_path)
    assert {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()} == alone
    files = sorted(file for file in alone if file.endswith(".safetensors"))
    assert len(files) > 2 * processes
    assert sorted(name for report in result for name, _ in report["wrote"]) == files  # each once
    assert not any(has_index for report in result for _, has_index in report["wrote"])  # it is last
    shares = [len(report["wrote"]) for report in result]
    assert max(shares) - min(shares) <= 1
    for report in result:  # the watchdog of each process sees every round: of the files, the index, the configuration
        assert len(report["beats"]) == -(-len(files) // processes) + 2
        assert all(b - a <= 1 for a, b in pairwise(report["beats"]))
    # If one disk is full, all get the error, and no index makes a model of the partial files.
    assert len({report["error"] for report in result}) == 1 and "free space there" in result[0]["error"]
    assert not {"model.safetensors.index.json", "config.json"} & {file.name for file in (tmp_path / "second").iterdir()}


@pytest.mark.parametrize(("works", "doing"), [(1, [0]), (3, [0, 2, 5]), (8, [*range(8)]), (10, [*range(8), 0, 4])])
def test_partial_round_is_spread_over_the_nodes(works: int, doing: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[int] = []
    rounds: list[int] = []
    monkeypatch.setattr(dist, "get_world_size", lambda: 8)
    monkeypatch.setattr(dist, "all_gather_object", lambda *_: rounds.append(len(did)))
    for rank in range(8):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        pieces = [partial(did.append, number * 8 + rank) for number in range(works)]
        distribute_tasks(pieces, places=[], beat=lambda: None)
    assert [code % 8 for code in sorted(did)] == doing and len(rounds) == 8 * -(-works // 8)


def test_error_other_than_a_full_disk_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("of its own")

    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    with pytest.raises(ValueError, match="of its own"):
        distribute_tasks([fail], places=[], beat=lambda: None)


def test_division_of_a_model_depends_only_on_the_model() -> None:
    shapes = parameter_shapes(ARCHITECTURE, 304)
    files = huggingface.assign_files(shapes, 9_000)
    assert [name for names in files.values() for name in names] == list(shapes)
    assert list(huggingface.assign_files(shapes, 10**9)) == ["model.safetensors"]
    large = parameter_shapes(Architecture(preset="llama3-1b"), 128_256)
    sizes = [
        sum(4 * large[name].numel() for name in names) for names in huggingface.assign_files(large, 10**9).values()
    ]
    assert all(size <= 10**9 for size in sizes[1:]) and sizes[0] == 4 * 128_256 * 2048  # the embedding is larger


def test_transformers_loads_the_divided_model(alone: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in alone.items():
        (tmp_path / name).write_bytes(content)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.num_hidden_layers == 3
    assert list(load_pretrained(tmp_path)[2]) == list(parameter_shapes(ARCHITECTURE, 304))
