"""The commands that measure a GPU run on a CPU, where MFU and power are unknown."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALL = ["--preset", "demo", "--layers", "1", "--sequence", "16", "--batch", "2", "--steps", "2", "--warm-up", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["mfu", pytest.param("determinism", marks=pytest.mark.thorough), "longest"])
def test_a_measurement_is_appended(command: str, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    words = [sys.executable, "benchmarks/gpu.py", command, *SMALL, "--largest", "16", "--results", str(results)]
    (tmp_path / "sitecustomize.py").write_text('import atexit\natexit.register(print, "what a library prints last")\n')
    environment = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    # No folder of programs: git is missing, as in an image.
    environment |= {"HOME": str(tmp_path), "PATH": str(tmp_path)}
    subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True)
    *trainings, line = map(json.loads, results.read_text().splitlines())
    assert line["device"] == "CPU" and line["commit"] and line["torch"]
    outcome = line["outcome"]
    if command == "longest":
        assert outcome["longest"] == 16
        (outcome,) = outcome["tried"].values()
    if command == "determinism":
        assert outcome["ratio"] > 0 and [len(outcome[name]) for name in ("deterministic", "any")] == [2, 2]
        assert [one["training"]["deterministic"] for one in trainings] == [True, False, True, False]
        outcome = outcome["any"][0]
    assert outcome in [one["outcome"] for one in trainings], "what a stopped command had measured would be lost"
    assert outcome["tokens_per_second"] > 0 and outcome["peak_memory_bytes"] > 0
    assert outcome["model_flops_utilization"] is None and outcome["watts"] is None


def test_settings_that_contradict_each_other_are_one_sentence() -> None:
    words = [sys.executable, "benchmarks/gpu.py", "mfu", *SMALL, "--cuda-graphs"]
    done = subprocess.run(words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 2 and "cuda_graphs needs compiled blocks" in done.stderr
