"""`polder platform measure` prints operations and bytes per second as part of a platform file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from pipeline.cli.entry_point import main
from pipeline.core.errors import InputError
from pipeline.plan.settings import PlatformPlan
from pipeline.slurm import platform_measurement
from pipeline.slurm.platform_measurement import measure_copy_rate, measure_matrix_rate, measure_storage_rate

CPU = torch.device("cpu")


@pytest.fixture
def quarter_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance the clock by a quarter of a second at each reading."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(platform_measurement.time, "perf_counter", lambda: next(ticks) / 4)


@pytest.mark.usefixtures("quarter_seconds")
def test_rate_is_work_per_second(tmp_path: Path) -> None:
    # Of one second four looks at the clock are left after the first, and each but the last follows a call.
    assert measure_matrix_rate(CPU, 64, 1) == 2 * 64**3 * 3 / 1
    assert measure_copy_rate(CPU, CPU, 1000, 1) == 2 * 1000 * 3 / 1
    assert measure_copy_rate(CPU, torch.device("meta"), 1000, 1) == 1000 * 3 / 1, "between two devices it is sent once"
    assert measure_storage_rate(tmp_path, 1 << 20) == (1 << 20) * 4
    assert [*tmp_path.iterdir()] == []


def test_unmeasurable_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory: name a folder"):
        measure_storage_rate(tmp_path / "none", 1 << 20)
    with pytest.raises(InputError, match="GiB free: name another --folder"):
        measure_storage_rate(tmp_path, 1 << 60)


def test_measurement_output_is_valid_platform_yaml(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform_measurement, "MATRIX_SIZES", {"cpu": 64})
    monkeypatch.setattr(platform_measurement, "COPIED_BYTES", {"cpu": 1000})
    monkeypatch.setattr(platform_measurement, "measure_storage_rate", lambda folder, size: float(size))
    assert main(["platform", "measure", "--seconds", "0.01", "--folder", str(tmp_path)]) == 0
    head, warning, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("# CPU, by polder platform measure, 20") and torch.__version__ in head
    assert warning.startswith("# Single matrix products: a training reaches less")
    measured = yaml.safe_load("\n".join(lines))
    assert [*measured] == ["matrix_flops_per_second", "memory_bytes_per_second", "storage_bytes_per_second"]
    assert PlatformPlan.model_validate(measured).storage_bytes_per_second == pytest.approx(4 * 2**30, rel=0.01)
