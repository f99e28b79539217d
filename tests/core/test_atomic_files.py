"""A file is there whole or not at all, and what was there stays until then."""

import errno
import os
from pathlib import Path

import pytest

from pipeline.core import atomic_files
from pipeline.core.errors import DiskFull


def test_a_file_is_written_with_its_folder_and_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "new/folder/told.json"
    atomic_files.write_json(file, {"b": "é", "a": [1]})
    assert file.read_bytes() == '{"a":[1],"b":"é"}\n'.encode()
    atomic_files.write_atomically(file, b"other")
    assert file.read_bytes() == b"other" and [*file.parent.iterdir()] == [file]


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, OSError)])
def test_what_cannot_be_written_leaves_what_was_there(
    number: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "told"
    file.write_bytes(b"before")

    def fail(beside: Path, content: bytes) -> int:
        beside.write_text("half")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(kind):
        atomic_files.write_atomically(file, b"after")
    assert file.read_text() == "before" and [*tmp_path.iterdir()] == [file]
