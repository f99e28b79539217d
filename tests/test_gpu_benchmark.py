"""The GPU benchmark commands run on a CPU, with unknown MFU and power."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline.model.settings import Architecture

ROOT = Path(__file__).parents[1]
SMALL = ["--preset", "demo", "--layers", "1", "--sequence", "16", "--batch", "2", "--steps", "2", "--warm-up", "1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["mfu", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("determinism", "longest"))]
)
def test_measurement_is_appended(command: str, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    words = [sys.executable, "benchmarks/gpu.py", command, *SMALL, "--largest", "16", "--results", str(results)]
    (tmp_path / "sitecustomize.py").write_text('import atexit\natexit.register(print, "what a library prints last")\n')
    environment = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    # No program folder: git is missing, as in an image.
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
    assert outcome in [one["outcome"] for one in trainings], "measurements of a stopped command would be lost"
    assert outcome["tokens_per_second"] > 0 and outcome["peak_memory_bytes"] > 0
    assert outcome["model_flops_utilization"] is None and outcome["watts"] is None


def test_contradicting_settings_are_one_sentence() -> None:
    words = [sys.executable, "benchmarks/gpu.py", "mfu", *SMALL, "--float8"]
    done = subprocess.run(words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 2 and "float8 needs compile" in done.stderr


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    result = importlib.util.spec_from_file_location("gpu", ROOT / "benchmarks" / "gpu.py")
    assert result and result.loader
    module = importlib.util.module_from_spec(result)
    monkeypatch.setitem(sys.modules, "gpu", module)
    result.loader.exec_module(module)
    return module


SPEED = {"tokens_per_second": 9e3, "model_flops_utilization": 0.5, "peak_memory_bytes": 2**31, "joules_per_token": 0.07}


def test_table_continues_after_a_time_limit(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, measured, crashing = [0.0], list[str](), set[str]()

    def measure(session: Any) -> dict[str, Any]:
        measured.append(session.row)
        needed = next(row.seconds for row in gpu.TABLE if row.name == session.row)
        if needed > session.ends - now[0]:
            now[0] = session.ends
            return {"failed": gpu.TIME_OVER}
        now[0] += needed
        if session.row in crashing:
            return {"failed": f"{gpu.CRASHED} 1, see the messages above"}
        if session.options.command == "peer":
            return {"native": [SPEED, {"failed": "exit code 1"}], "huggingface": [SPEED], "ratio": 1.25}
        return dict(SPEED)

    monkeypatch.setattr(gpu.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(gpu, "COMMANDS", dict.fromkeys(gpu.COMMANDS, measure))
    results = tmp_path / "gpu.jsonl"

    def slice_of(commit: str, seconds: float = 460) -> str:
        words = ["table", "--commit", commit, "--results", str(results), "--budget-seconds", str(seconds)]
        parser = gpu.make_parser()
        gpu.measure_table(parser, parser.parse_args(words))
        return capsys.readouterr().out

    first = slice_of("a")
    assert measured == [gpu.TABLE[0].name, gpu.TABLE[1].name], "the most useful first, limited to the available time"
    assert "| 1B and a plain loop | 9,000 |  | 50.0% |  | 2.0 |  |  | 70.00 | ratio 1.25 |" in first
    assert f"{len(gpu.TABLE) - 2} left: run the same command again" in first
    for _ in range(6):
        slice_of("a")
    assert sorted(measured) == sorted(row.name for row in gpu.TABLE), "each once"
    assert "left" not in slice_of("a")
    slice_of("b", 100)
    assert measured[-1] == gpu.TABLE[0].name, "another commit, and a first row that exceeds its time"
    slice_of("b")
    assert measured[-2:] == [gpu.TABLE[0].name, gpu.TABLE[1].name], "a row ended by the time limit is measured again"
    slice_of("c", 300)
    slice_of("c", 300)
    assert measured[-1] != gpu.TABLE[0].name, "a row longer than a whole slice is not repeated forever"
    crashing |= {gpu.TABLE[0].name, gpu.TABLE[1].name}
    first = slice_of("d")
    assert "| 1B and a plain loop |" in first and "exit code 1" in first and gpu.TABLE[1].name in first.splitlines()[-1]
    crashing.clear()
    slice_of("d")
    assert measured[-1] not in [row.name for row in gpu.TABLE[:2]], "what crashed comes after what was never tried"
    for _ in range(6):
        slice_of("d")
    assert {gpu.TABLE[0].name, gpu.TABLE[1].name} < {*measured[-8:]} and "left" not in slice_of("d", 0)
    later = slice_of("e", 0)
    assert later.count(", at d |") + later.count("| at d |") == len(gpu.TABLE), "rows of an earlier commit are shown"
    assert f"{len(gpu.TABLE)} left" in later
    lines = [{**json.loads(line), "device": "H100"} for line in results.read_text().splitlines()]
    rehearsed = [{**line, "commit": "f", "options": {**line["options"], "rehearsal": True}} for line in lines]
    results.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *rehearsed]))
    shown = slice_of("f", 0)
    assert shown.count("H100, at d |") == len(gpu.TABLE), "a rehearsal is no measurement, and counts as none"
    assert f"{len(gpu.TABLE)} left" in shown


def test_every_table_row_has_valid_training_settings(gpu: ModuleType) -> None:
    parser = gpu.make_parser()
    for row in gpu.TABLE:
        session = gpu.Session(parser.parse_args(row.command.split()))
        settings = session.settings({})
        assert settings.architecture.layers and row.seconds < 460, row
        assert (settings.training.sampling.mask_documents is True) == ("--documents" in row.command)


def test_page_has_the_planned_share_of_each_aim(gpu: ModuleType) -> None:
    lines = (ROOT / "docs/howto/benchmark-a-gpu.md").read_text(encoding="utf-8").partition("## Aims")[2].splitlines()
    aims = {"1B and a plain loop": "llama3-1b", "3B": "llama3-3b"}
    aims |= {"8B layers": "8B layers", "8B layers, float8": "8B layers, float8, H200"}
    for row in gpu.TABLE:
        if row.name in aims:
            session = gpu.Session(gpu.make_parser().parse_args(row.command.split()))
            share = gpu.plan_utilization(session)
            whole = gpu.flops_per_token(Architecture(preset=session.options.preset), 128_256, session.options.sequence)
            planned = f"{100 * share:.1f} %"
            if "layers" in row.name:  # 989.4 Tflop/s, an H100's peak
                planned += f" MFU, {round(share * 989.4e12 / whole, -1):,.0f} tokens/s"
            (cells,) = (line.split(" | ") for line in lines if line.startswith(f"| {aims[row.name]} |"))
            assert cells[2].removesuffix(", on H100") == planned


@pytest.mark.thorough
def test_wheels_for_a_machine_without_a_registry_are_complete_and_small(tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    subprocess.run(["sh", "benchmarks/gpu_wheels.sh", folder], cwd=ROOT, check=True, capture_output=True)
    packed = {file.name.split("-")[0] for file in folder.glob("*.whl")}
    assert packed >= {"pydantic", "pydantic_core", "typing_extensions", "torchao", "deepspeed", "hjson", "einops"}
    assert sum(file.stat().st_size for file in folder.iterdir()) < 60 * 2**20
    (tmp_path / "benchmarks").mkdir()
    script = (ROOT / "benchmarks/gpu_wheels.sh").read_text()
    (tmp_path / "benchmarks/gpu_wheels.sh").write_text(script)
    (tmp_path / "envs").mkdir()
    lock = (ROOT / "envs/cuda.lock").read_text()
    (tmp_path / "envs/cuda.lock").write_text(lock.replace("einops==", "other=="))
    done = subprocess.run(["sh", "benchmarks/gpu_wheels.sh", "w"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.endswith("cuda.lock has no einops\n") and not (tmp_path / "w").exists()


@pytest.mark.thorough  # trains each row in a process of its own, most of them compiled: some 200 CPU s
def test_table_is_rehearsed_on_a_cpu(tmp_path: Path) -> None:
    words = [sys.executable, "benchmarks/gpu.py", "table", "--rehearsal", "--budget-seconds", "1700"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    words += ["--results", str(tmp_path / "gpu.jsonl"), "--commit", "a"]
    done = subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    *_, left = done.stdout.splitlines()
    assert left == "1 left: run the same command again for 8B layers, float8" and "needs an NVIDIA GPU" in done.stderr
    assert done.stdout.count("exit code") == 1 and "not measured" not in done.stdout
