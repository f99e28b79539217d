"""Compiled code is cached for the next process; a damaged cache file is ignored."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from numba.core.caching import FunctionCache

from pipeline.corpus.text.cached_numba_compilation import cached_njit

MODULE = """
from pipeline.corpus.text.cached_numba_compilation import cached_njit

@cached_njit
def twice(number):
    return 2 * number

if __name__ == "__main__":
    print(twice(21), sum(twice.stats.cache_hits.values()))
"""


def answer(folder: Path) -> list[str]:
    (folder / "twice.py").write_text(MODULE)
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "NUMBA_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(folder / "twice.py")]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()


def test_damaged_cache_is_rebuilt(tmp_path: Path) -> None:
    assert answer(tmp_path) == ["42", "0"]
    os.utime(tmp_path / "twice.py")
    kept = sorted((tmp_path / "cache").rglob("*.nb?"))
    assert {path.suffix for path in kept} == {".nbc", ".nbi"}
    for path in kept:
        path.write_bytes(b"")
    assert answer(tmp_path) == ["42", "0"]
    assert answer(tmp_path) == ["42", "1"]


def test_function_runs_if_its_cache_cannot_be_saved() -> None:
    @cached_njit
    def thrice(number: int) -> int:
        return 3 * number

    with mock.patch.object(FunctionCache, "save_overload", side_effect=RuntimeError("no compiled object yet")) as save:
        assert thrice(14) == 42
    assert save.called


def test_cache_that_refers_to_a_removed_class_is_rebuilt() -> None:
    @cached_njit
    def fourfold(number: int) -> int:
        return 4 * number

    gone = AttributeError("Can't get attribute 'Vocabulary'")
    with mock.patch.object(FunctionCache, "load_overload", side_effect=gone) as load:
        assert fourfold(3) == 12
    assert load.called
