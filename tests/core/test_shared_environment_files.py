"""The files of Python and packages shared by records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.job_records import Record
from pipeline.core.shared_environment_files import read_environment, write_environment
from tests.record_content import record_content


def test_records_of_one_environment_share_a_package_file(tmp_path: Path) -> None:
    python = {"python": "3.11.7", "packages": {"pyarrow": "26.0.1"}}
    first, second = (write_environment(tmp_path, {**python}) for _ in range(2))
    assert first == second and [path.name for path in layout.ENVIRONMENT.glob(tmp_path)] == [
        f"{first.sha256[:16]}.json"
    ]
    content = record_content("corpus.filter", environment_file=first._asdict())
    assert read_environment(tmp_path, Record.parse(json.dumps(content))) == python
    own = Record.parse(json.dumps(record_content("corpus.filter", environment=python)))
    assert read_environment(tmp_path, own) == python and own.environment_file is None
    copy = tmp_path / "copy"
    for text, problem in ((None, "is missing"), ("{}", "was changed")):
        if text:
            (copy / first.path).parent.mkdir(parents=True)
            (copy / first.path).write_text("{}")
        with pytest.raises(InputError, match=f"^{first.path} {problem}"):
            read_environment(copy, Record.parse(json.dumps(content)))
