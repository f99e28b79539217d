"""Results under another name are reused if all their dependencies are equal, and recomputed otherwise."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.job_records import FileEntry
from pipeline.job import reuse_under_another_name
from tests.record_content import record_content

OWN = {"corpus": "b", "source": "s", "unit": "0"}
DESCRIBED: dict[str, Any] = {
    "settings": {"minimum": 1},
    "code_version": "1",
    "environment_version": "cpu-1",
    "inputs": [{"name": "documents", "path": "corpus/b/filtered/s.0.parquet", "sha256": "1", "bytes": 4}],
}


def find(path: Path, instance: dict[str, str], **changes: Any) -> reuse_under_another_name.ReusableResult | None:
    described = {**DESCRIBED, **changes}
    versions = described["code_version"], described["environment_version"]
    inputs = [FileEntry(**entry) for entry in described["inputs"]]
    return reuse_under_another_name.find_reusable_result(path, instance, described["settings"], versions, inputs)


class Done:
    """A run with a finished unit of the corpus `a`, and the job of the same unit of `b`."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        reuse_under_another_name.index_records.cache_clear()
        self.run = folder
        self.records = folder / "provenance/records"
        self.records.mkdir(parents=True)
        content = b"what the step wrote"
        outputs = []
        for name, path in (("file", "corpus/a/final/s.0.parquet"), ("folder", "corpus/a/found/s.0/x.json")):
            (folder / path).parent.mkdir(parents=True)
            (folder / path).write_bytes(content)
            outputs.append({"name": name, "path": path, "sha256": hashlib.sha256(content).hexdigest(), "bytes": 19})
        inputs = [{**DESCRIBED["inputs"][0], "path": "corpus/a/filtered/s.0.parquet"}]
        described = {**DESCRIBED, "instance": {**OWN, "corpus": "a"}, "inputs": inputs, "outputs": outputs}
        described |= {"counts": {"documents": 3}, "attempt": "computed.json", **changes}
        record = record_content("corpus.decontaminate", **described)
        (self.records / "corpus.decontaminate.a.s.0.json").write_text(json.dumps(record))
        self.outputs = {"file": folder / "corpus/b/final/s.0.parquet", "folder": folder / "corpus/b/found/s.0"}
        self.partial = {name: path.with_name(f".partial-{path.name}") for name, path in self.outputs.items()}

    def find(
        self, name: str = "corpus.decontaminate.b.s.0.json", **changes: Any
    ) -> reuse_under_another_name.ReusableResult | None:
        return find(self.records / name, OWN, **changes)


@pytest.mark.parametrize("linked", [True, False])
def test_reused_outputs_get_their_own_names(tmp_path: Path, linked: bool) -> None:
    done = Done(tmp_path)
    result = done.find()
    assert result is not None and result.record.counts == {"documents": 3}
    assert result.result == ("corpus.decontaminate.a.s.0.json", "computed.json")
    assert result.copy_outputs(tmp_path, done.outputs, done.partial, linked=linked)
    assert done.partial["file"].read_bytes() == b"what the step wrote"
    assert done.partial["file"].samefile(tmp_path / "corpus/a/final/s.0.parquet") == linked
    assert (done.partial["folder"] / "x.json").samefile(tmp_path / "corpus/a/found/s.0/x.json")


def test_unfinished_training_is_not_reused(tmp_path: Path) -> None:
    assert Done(tmp_path / "a").find() is not None
    assert Done(tmp_path / "b", counts={"outcome": {"status": "diverged"}}).find() is None


@pytest.mark.parametrize(
    "other",
    [
        {"settings": {"minimum": 2}},
        {"code_version": "2"},
        {"environment_version": "cpu-2"},
        {"inputs": [{**DESCRIBED["inputs"][0], "sha256": "2"}]},
        {"inputs": []},
        {"inputs": [{**DESCRIBED["inputs"][0], "path": "corpus/b/elsewhere/s.0.parquet"}]},
    ],
    ids=["settings", "code", "environment", "bytes", "no-input", "another-file"],
)
def test_job_with_any_difference_is_not_reused(tmp_path: Path, other: dict[str, Any]) -> None:
    done = Done(tmp_path)
    assert done.find() is not None
    assert done.find(**other) is None


@pytest.mark.parametrize("name", ["corpus.decontaminate.b.s.1.json", "corpus.filter.b.s.0.json"])
def test_job_of_another_unit_or_step_is_not_reused(tmp_path: Path, name: str) -> None:
    assert Done(tmp_path).find(name) is None


def test_source_step_is_not_reused(tmp_path: Path) -> None:
    done = Done(tmp_path)
    assert find(done.records / "corpus.decontaminate.b.s.0.json", {"source": "s", "unit": "0"}) is None


def test_missing_output_file_prevents_reuse(tmp_path: Path) -> None:
    done = Done(tmp_path)
    (tmp_path / "corpus/a/found/s.0/x.json").unlink()
    result = done.find()
    assert result is not None and not result.copy_outputs(tmp_path, done.outputs, done.partial, linked=True)


def test_truncated_record_is_not_reused(tmp_path: Path) -> None:
    done = Done(tmp_path)
    (done.records / "corpus.decontaminate.a.s.0.json").write_text('{"settings": ')
    assert done.find() is None


def test_reused_result_names_the_attempt_that_computed_it(tmp_path: Path) -> None:
    first = {"record": "corpus.decontaminate.c.s.0.json", "attempt": "first.json"}
    result = Done(tmp_path, taken_over_from=first).find()
    assert result is not None and result.result.attempt == "first.json"
