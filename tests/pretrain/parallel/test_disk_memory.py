"""State on a disk is what was written, takes no memory when it is let go, and leaves no file behind."""

import errno
import os
from pathlib import Path

import pytest
import torch

from pipeline.core.errors import InputError
from pipeline.pretrain.parallel.deepspeed import DiskTensors


def resident() -> int:
    """Return the bytes of files that this process has in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))


def test_what_was_written_is_there_after_it_was_let_go(tmp_path: Path) -> None:
    disk = DiskTensors(tmp_path / "state")
    first, second = disk.zeros(10_000_000), disk.zeros(1000).copy_(torch.arange(1000.0))
    assert not first.any() and first.dtype == torch.float32
    first.fill_(3)
    held = resident()
    disk.release_pages()
    assert held - resident() > 0.9 * 4 * 10_000_000
    assert torch.equal(second, torch.arange(1000.0)) and (first == 3).all()


def test_the_files_have_no_names(tmp_path: Path) -> None:
    tensor = DiskTensors(tmp_path / "state").zeros(1000)
    assert [*(tmp_path / "state").iterdir()] == []
    maps = Path("/proc/self/maps").read_text()
    assert f"{tmp_path}/state" in maps  # deleted, and on that disk
    assert not tensor.any()


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskTensors(tmp_path)
    disk.zeros(1_000_000)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        InputError, match=r"state \(No space left on device, at 0\.024 GB of one process\): name a folder"
    ):
        disk.zeros(5_000_000)


def test_a_folder_that_is_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(InputError, match=r"state does not hold the optimizer's state \(File exists"):
        DiskTensors(tmp_path / "state").zeros(1)
