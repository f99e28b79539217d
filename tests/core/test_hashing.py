"""Many files are hashed in parallel with the same results as sequentially."""

import hashlib
import threading
from pathlib import Path

import pytest

from pipeline.core import hashing


def test_hashes_are_in_the_order_of_the_files(tmp_path: Path) -> None:
    contents = [bytes([number]) * (number * 70_000 % 1_000_003) for number in range(9)]
    paths = [tmp_path / str(number) for number in range(9)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    for some in (paths, paths[::-1], paths[3:4], []):
        assert hashing.hash_each_file(some) == [hashlib.sha256(contents[int(path.name)]).hexdigest() for path in some]
    with pytest.raises(FileNotFoundError, match="missing"):
        hashing.hash_each_file([*paths, tmp_path / "missing"])


def test_files_are_hashed_in_parallel_on_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    met, before = threading.Barrier(3, timeout=20), threading.active_count()
    monkeypatch.setattr(hashing.os, "sched_getaffinity", lambda _: {0, 4, 9})
    monkeypatch.setattr(hashing, "hash_file", lambda path: f"{path} by {met.wait() < 3}")
    assert hashing.hash_each_file([Path(name) for name in "abcdef"]) == [f"{name} by True" for name in "abcdef"]
    assert threading.active_count() == before, "none remains"
