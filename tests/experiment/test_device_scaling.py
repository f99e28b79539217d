"""Strong and weak scaling of the runs below a folder, with known speeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.application import main
from pipeline.core.errors import InputError
from pipeline.experiment.device_scaling import format_scaling, read_measurements
from tests.conftest import Project
from tests.experiment.test_ladder_scaling_law import figure

LENGTH = 100


def write(
    results: Path, run: str, devices: int, batch: int, seconds: float, joules: float | None, **changes: Any
) -> None:
    """Write a run of one model with the given step times, except the first step, which took a minute."""
    folder, nodes = results / run, [f"node{number}" for number in range(-(-devices // 4))]
    (folder / "provenance/records").mkdir(parents=True)
    (folder / "models/base").mkdir(parents=True)
    (folder / "report").mkdir()
    training = {"strategy": "full_shard", "sequence_length": LENGTH, "batch_size": batch, "steps": 4, **changes}
    for step in (2, 4):
        content = {
            "step": "pretrain.segment",
            "instance": {"model": "base", "step": str(step)},
            "settings": {"architecture": {"width": 32}, "training": training},
            "inputs": [],
            "outputs": [],
            "counts": {"world_size": devices, "nodes": {node: {} for node in nodes}, "device": "H100", "parameters": 1},
            **dict.fromkeys(("code_version", "environment_version", "started", "ended"), ""),
            **dict.fromkeys(("wall_seconds", "cpu_seconds", "peak_memory_bytes"), 1),
            "command": [],
        }
        (folder / f"provenance/records/pretrain.segment.base.{step}.json").write_text(json.dumps(content))
    ends = [60 + step * seconds for step in range(4)]
    # A branch from step 2: joules and tokens cover its own four steps.
    lines = [{"step": step, "loss": 2.0, "ended_unix_seconds": end} for step, end in enumerate(ends, start=3)]
    (folder / "models/base/metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    figures = [figure("model.base.tokens_seen", 6 * batch * LENGTH, "tokens", "counted")]
    figures += [] if joules is None else [figure("energy.model.base", joules, "J", "estimated")]
    (folder / "report/figures.json").write_text(json.dumps(figures))


def rows(lines: list[str], way: str) -> dict[str, list[str]]:
    """Return the cells of a table by run, from its header to an empty line."""
    start = next(number for number, line in enumerate(lines) if line.startswith(f"{way} scaling"))
    table = [line for line in lines[start + 1 : [*lines, ""].index("", start)] if line]
    return {line.split()[0]: line.split()[1:] for line in table}


def test_fixed_batch_is_strong_scaling_and_growing_batch_is_weak_scaling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "one", 4, 80, 8.0, 64_000.0)
    write(tmp_path, "two", 8, 80, 5.0, 80_000.0)  # 1.6 times as fast on twice as many
    write(tmp_path, "wide", 8, 160, 8.0, None)  # the same work per device in equal time
    assert main(["scaling", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert rows(lines, "strong") == {
        "one/base": ["4", "1", "1,000", "250", "100.0", "%", "1.00", "1", "2", "J", "estimated"],
        "two/base": ["8", "2", "1,600", "200", "80.0", "%", "1.60", "2", "2.5", "J", "estimated"],
    }
    assert rows(lines, "weak") == {
        "one/base": ["4", "1", "1,000", "250", "100.0", "%", "1.00", "1", "2", "J", "estimated"],
        "wide/base": ["8", "2", "2,000", "250", "100.0", "%", "2.00", "2", "not", "known"],
    }
    assert main(["scaling", str(tmp_path), "--json"]) == 0
    measured = {one["model"]: one for one in json.loads(capsys.readouterr().out)}
    assert measured["two/base"]["devices"] == 8 and measured["two/base"]["tokens_per_second"] == pytest.approx(1600)
    assert (
        measured["two/base"]["kind"] == measured["one/base"]["kind"] and measured["wide/base"]["token_joules"] is None
    )
    assert "80 sequences of all devices" in lines[0] and any("20 sequences of a device" in line for line in lines)


def test_repeated_runs_on_the_fewest_devices_are_averaged(tmp_path: Path) -> None:
    for name, seconds in (("a", 8.0), ("b", 4.0)):
        write(tmp_path, name, 1, 8, seconds, None)
    write(tmp_path, "c", 2, 8, 4.0, None)  # 200 tokens a second, where one device has 150
    result = rows(format_scaling(list(read_measurements(tmp_path))), "strong")
    assert result["c/base"][3:5] == ["100", "66.7"] and result["a/base"][4] == "66.7" and result["b/base"][4] == "133.3"


@pytest.mark.parametrize(
    "changes", [{"strategy": "no_shard"}, {"micro_batch_size": 3}, {"sampling": {"mask_documents": True}}]
)
def test_different_trainings_are_not_compared(tmp_path: Path, changes: dict[str, Any]) -> None:
    write(tmp_path, "one", 4, 80, 8.0, None)
    write(tmp_path, "two", 8, 80, 5.0, None, **changes)
    with pytest.raises(InputError, match="no two models of the 2 that were timed are the same training"):
        format_scaling(list(read_measurements(tmp_path)))


def test_settings_that_do_not_change_step_work_may_differ(tmp_path: Path) -> None:
    write(tmp_path, "one", 4, 80, 8.0, None)
    write(tmp_path, "two", 8, 80, 5.0, None, learning_rate=0.1, warmup_steps=3, steps=400)
    write(tmp_path, "three", 16, 80, 5.0, None)
    (tmp_path / "three/models/base/metrics.jsonl").write_text('{"step": 1, "ended_unix_seconds": 3.0}\n')
    assert rows(format_scaling(list(read_measurements(tmp_path))), "strong").keys() == {"one/base", "two/base"}


def test_different_platforms_are_not_compared(tmp_path: Path) -> None:
    for name, devices, platform in (("one", 4, "snellius"), ("two", 8, "lumi")):
        write(tmp_path, name, devices, 80, 8.0, None)
        started = tmp_path / name / "provenance/frozen/1.json"
        started.parent.mkdir()
        started.write_text(json.dumps({"configuration": {"platform": platform}}))
    with pytest.raises(InputError, match="no two models of the 2"):
        format_scaling(list(read_measurements(tmp_path)))


@pytest.mark.slow
def test_scaling_of_a_real_run_is_read(finished: Project) -> None:
    (result,) = read_measurements(finished.results)
    assert (result.model, result.devices, result.nodes, result.batch_size) == ("micro/base", 2, 1, 4)
    assert 10 < result.tokens_per_second < 1e6 and result.token_joules
