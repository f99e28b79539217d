"""Shards on a disk of the node: copied once, completely, by one process while the others wait."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.core.errors import InputError
from pipeline.tokens import memory_mapped_shards
from pipeline.tokens.memory_mapped_shards import copy_to_node
from pipeline.tokens.token_reader import TokenReader


def test_staged_copy_equals_the_original_and_is_reused(built: Path, tmp_path: Path) -> None:
    staged = copy_to_node(built, tmp_path / "disk")
    assert staged.is_relative_to(tmp_path / "disk")
    for split in ("train", "validation"):
        ours, theirs = TokenReader(staged, split), TokenReader(built, split)
        assert np.array_equal(ours.read(0, ours.tokens), theirs.read(0, theirs.tokens))
    times = {path: path.stat().st_mtime_ns for path in staged.parent.rglob("*.arrow")}
    assert len(times) == 6
    torn = staged.parent / "train/1.arrow"
    torn.write_bytes(b"torn")
    assert copy_to_node(built, tmp_path / "disk") == staged
    assert [path for path, time in times.items() if path.stat().st_mtime_ns != time] == [torn]
    assert torn.read_bytes() == (built.parent / "train/1.arrow").read_bytes()


def test_concurrent_staging_copies_each_shard_once(built: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom pipeline.tokens import memory_mapped_shards as shards\n"
        "copy = shards._copy_shard\n"
        "def print_and_copy(source, path, sha256):\n    print(path.name)\n    copy(source, path, sha256)\n"
        "shards._copy_shard = print_and_copy\nshards.copy_to_node(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    words = [sys.executable, "-c", code, str(built), str(tmp_path / "disk")]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    copied = [line for process in processes for line in process.communicate()[0].split()]
    assert all(process.returncode == 0 for process in processes)
    assert len(copied) == 6


def test_full_disk_prevents_staging(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_mapped_shards, "SPARE_BYTES", 2**62)
    with pytest.raises(InputError, match=r"staging: .* has \d+ bytes free, the shards to copy take \d+: name a"):
        copy_to_node(built, tmp_path / "disk")
    assert not list((tmp_path / "disk").rglob("*.arrow"))


def test_altered_or_missing_shard_is_not_staged(built: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(built.parent, tmp_path / "copied"))
    path = folder / "train" / "2.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"train/2\.arrow has other bytes than the index says"):
        copy_to_node(folder / "index.json", tmp_path / "disk")
    assert not list((tmp_path / "disk").rglob("*2.arrow*"))
    path.unlink()
    with pytest.raises(InputError, match=r"train/2\.arrow is missing, which the index names"):
        copy_to_node(folder / "index.json", tmp_path / "disk")


def test_unwritable_folder_and_broken_index_are_refused(built: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"staging: .* name a folder on a disk of the node that can be written"):
        copy_to_node(built, tmp_path / "file" / "disk")
    (tmp_path / "index.json").write_text(json.dumps({"train": 1}))
    with pytest.raises(InputError, match=r"index\.json is no index of tokens"):
        copy_to_node(tmp_path / "index.json", tmp_path / "disk")
