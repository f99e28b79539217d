"""`polder doctor` fits one screen, and gives advice for each problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.cli import doctor
from pipeline.cli.doctor import check_machine
from pipeline.cli.entry_point import main


def program(folder: Path, name: str, answer: str, code: int = 0) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{answer}'\nexit {code}\n")
    path.chmod(0o755)


def test_report_for_a_machine_without_gpus_and_slurm_fits_one_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("g++", "stat"):
        program(tmp_path, name, "xfs")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor, "find_environment_problems", lambda *_, **__: [])
    monkeypatch.setattr(doctor, "NEEDED_BYTES", 1)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 120
    assert not [line for line in lines if line.startswith("PROBLEM")]
    assert any("packages" in line and "as envs/cpu.lock says" in line for line in lines)


def test_each_problem_has_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "NVIDIA H100, 81559 MiB, 550.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    sentence = "the run needs numpy 2 by envs/cpu.lock, but 1 is installed: run `sh x`, or, where the machine brings"
    monkeypatch.setattr(doctor, "find_environment_problems", lambda *_, **__: [sentence] * 5)
    monkeypatch.setattr(doctor, "NEEDED_BYTES", 10**18)
    results = [*check_machine("cpu", tmp_path)]
    problems = [one for one in results if one.ok is False]
    assert {one.subject for one in problems} >= {"packages", "GPU", "disk", "results", "home"}
    assert all(one.advice for one in problems)
    assert next(one.advice for one in problems if one.subject == "packages") == "run `sh x`"
    assert "LOCK=cuda" in next(one.advice for one in problems if one.subject == "GPU")
    assert next(one.found for one in problems if one.subject == "GPU") == "1 x NVIDIA H100, 81559 MiB, 550.1"


def test_unresponsive_slurm_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path, "sinfo", "Unable to contact slurm controller", code=1)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    message = [one for one in check_machine("cpu", tmp_path) if one.subject == "Slurm"]
    assert all(one.ok is False and one.advice for one in message)
    assert message[-1].found == "Unable to contact slurm controller"


def test_json_output_is_machine_readable(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--json"])
    assert {"Python", "packages", "GPU", "Slurm", "disk"} <= {
        one["subject"] for one in json.loads(capsys.readouterr().out)
    }
