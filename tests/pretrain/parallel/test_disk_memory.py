"""State on a disk round-trips, uses no memory after release, and leaves no file behind."""

import errno
import os
from pathlib import Path

import pytest
import torch

from pipeline.core.errors import InputError
from pipeline.pretrain.parallel.deepspeed import DiskTensors


def resident() -> int:
    """Return the bytes of files in this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))


def test_released_memory_is_restored_from_disk(tmp_path: Path) -> None:
    disk = DiskTensors(tmp_path / "state")
    first, second = disk.zeros(10_000_000), disk.zeros(1000).copy_(torch.arange(1000.0))
    assert not first.any() and first.dtype == torch.float32
    first.fill_(3)
    held = resident()
    disk.release_pages()
    assert held - resident() > 0.9 * 4 * 10_000_000
    assert torch.equal(second, torch.arange(1000.0)) and (first == 3).all()


def test_backing_files_have_no_names(tmp_path: Path) -> None:
    tensor = DiskTensors(tmp_path / "state").zeros(1000)
    assert [*(tmp_path / "state").iterdir()] == []
    maps = Path("/proc/self/maps").read_text()
    assert f"{tmp_path}/state" in maps  # deleted, and on that disk
    assert not tensor.any()


def test_full_disk_is_reported_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskTensors(tmp_path)
    disk.zeros(1_000_000)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        InputError, match=r"state \(No space left on device, at 0\.024 GB of one process\): name a folder"
    ):
        disk.zeros(5_000_000)


def test_folder_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(InputError, match=r"state does not hold the optimizer's state \(File exists"):
        DiskTensors(tmp_path / "state").zeros(1)
