"""A batch does for each unit what one job would, and leaves alone what its record still says truly."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import job, versions
from pipeline.errors import InputError

MODULE = "pipeline.sources.fingerprint"
UNITS = ("0", "1", "2")


class Batch:
    """Three units of one raw file each, which are hashed by one job."""

    def __init__(self, folder: Path) -> None:
        self.raw, self.run = folder / "raw", folder / "results/test"
        self.source = self.run / "sources/laws"
        (self.source / "listing").mkdir(parents=True)
        self.raw.mkdir()
        for unit in UNITS:
            (self.raw / f"{unit}.txt").write_text(f"Artikel {unit}")
            entry = {"name": f"{unit}.txt", "part": None}
            self.listing(unit).write_text(json.dumps({"unit": int(unit), "files": [entry]}))

    def listing(self, unit: str) -> Path:
        return self.source / "listing" / f"{unit}.json"

    def record(self, unit: str) -> Path:
        return self.run / "provenance/records" / f"sources.fingerprint.laws.{unit}.json"

    def start(self, settings: str = '{"source": "laws"}') -> list[str]:
        """Run the batch; return the units that were done."""
        before = set(self.attempts())
        options = ["sources", "fingerprint", "--settings", settings]
        options += ["--code", versions.code_version(MODULE)]
        options += ["--environment", versions.environment_version(MODULE, "cpu")]
        options += ["--instance", "source=laws", "batch=0", "--batch", str(self.run / "provenance/batches/b.json")]
        options += ["--of", "planned", "--raw", str(self.raw), "--record", str(self.record("%unit"))]
        options += ["--units", f"{self.source}/listing/{{0..2}}.json"]
        options += ["--input", "listing", str(self.listing("%unit")), "--input", "files", f"@{self.listing('%unit')}"]
        options += ["--output", "fingerprint", str(self.source / "fingerprints/%unit.json")]
        assert job.main(options) == 0
        return sorted(
            content["instance"]["unit"]
            for path in set(self.attempts()) - before
            if (content := json.loads(path.read_text()))["status"] == "finished"
        )

    def attempts(self) -> list[Path]:
        return [*(self.run / "provenance/attempts").glob("*.json")]


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


def test_each_unit_has_its_own_record_and_the_batch_lists_all(batch: Batch) -> None:
    assert batch.start() == [*UNITS]
    record = json.loads(batch.record("1").read_text())
    assert record["instance"] == {"source": "laws", "unit": "1"}
    assert [entry["name"] for entry in record["inputs"]] == ["listing", "files"]
    assert record["outputs"][0]["path"] == "sources/laws/fingerprints/1.json"
    content = json.loads((batch.run / "provenance/batches/b.json").read_text())
    assert content["of"] == "planned" and content["instance"] == {"source": "laws", "batch": "0"}
    for entry in content["outputs"]:
        assert (batch.run / entry["path"]).stat().st_size == entry["bytes"]
    assert len(content["outputs"]) == 2 * len(UNITS)


def test_the_seconds_of_a_unit_are_its_own(batch: Batch) -> None:
    batch.start()
    seconds = [json.loads(batch.record(unit).read_text())["cpu_seconds"] for unit in UNITS]
    assert sum(seconds) <= sum(os.times()[:4]) + 0.1
    assert seconds[1] + seconds[2] < max(1.0, seconds[0])


CHANGES: dict[str, tuple[Callable[[Batch], object], list[str]]] = {
    "nothing": (lambda b: None, []),
    "a raw file touched": (lambda b: os.utime(b.raw / "1.txt"), []),
    "a raw file of the same size": (lambda b: (b.raw / "1.txt").write_text("Artikel X"), ["1"]),
    "a larger raw file with an old time": (
        lambda b: ((b.raw / "1.txt").write_text("Artikel 11"), os.utime(b.raw / "1.txt", (0, 0))),
        ["1"],
    ),
    "another listing": (lambda b: b.listing("2").write_text(b.listing("2").read_text() + " "), ["2"]),
    "an output gone": (lambda b: (b.source / "fingerprints/0.json").unlink(), ["0"]),
    "an output cut": (lambda b: (b.source / "fingerprints/0.json").write_text("{"), ["0"]),
    "a record gone": (lambda b: b.record("2").unlink(), ["2"]),
    "a record that is none": (lambda b: b.record("2").write_text("[]"), ["2"]),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda name: name.replace(" ", "-"))
def test_only_a_unit_of_which_something_changed_is_done_again(batch: Batch, change: str) -> None:
    batch.start()
    edit, expected = CHANGES[change]
    edit(batch)
    assert batch.start() == expected
    assert batch.start() == []


def test_a_unit_of_other_code_is_done_again(batch: Batch) -> None:
    batch.start()
    record = json.loads(batch.record("1").read_text())
    batch.record("1").write_text(json.dumps({**record, "code_version": "0" * 16}))
    assert batch.start() == ["1"]
    assert batch.start('{"source": "wetten"}') == [*UNITS]


def test_files_of_one_name_in_two_folders_are_two_inputs(batch: Batch) -> None:
    for folder in ("x", "y"):
        (batch.raw / folder).mkdir()
        (batch.raw / folder / "f.txt").write_text(folder)
    entries = [{"name": f"{folder}/f.txt", "part": None} for folder in ("x", "y")]
    batch.listing("1").write_text(json.dumps({"unit": 1, "files": entries}))
    assert batch.start() == [*UNITS]
    assert batch.start() == []


def test_after_a_failing_unit_those_before_it_are_kept(batch: Batch) -> None:
    (batch.raw / "1.txt").rename(batch.raw / "away")
    with pytest.raises(InputError, match=r"1\.txt does not exist"):
        batch.start()
    assert not (batch.run / "provenance/batches/b.json").exists()
    (batch.raw / "away").rename(batch.raw / "1.txt")
    assert batch.start() == ["1", "2"]
