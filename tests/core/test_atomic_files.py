"""A file is complete or absent, and the previous content is kept until then."""

import errno
import os
from pathlib import Path

import pytest

from pipeline.core import atomic_files
from pipeline.core.errors import DiskFull


def test_atomic_write_creates_the_folder_and_leaves_no_temporary_files(tmp_path: Path) -> None:
    file = tmp_path / "new/folder/record.json"
    atomic_files.write_json(file, {"b": "é", "a": [1]})
    assert file.read_bytes() == '{"a":[1],"b":"é"}\n'.encode()
    atomic_files.write_atomically(file, b"other")
    assert file.read_bytes() == b"other" and [*file.parent.iterdir()] == [file]


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, OSError)])
def test_failed_atomic_write_keeps_the_previous_content(
    number: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "record"
    file.write_bytes(b"before")

    def fail(path: Path, content: bytes) -> int:
        path.write_text("half")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(kind):
        atomic_files.write_atomically(file, b"after")
    assert file.read_text() == "before" and [*tmp_path.iterdir()] == [file]
