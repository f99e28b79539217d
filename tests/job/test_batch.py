"""A batch does for each unit what one job would, and leaves alone what its record still says truly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.energy.attribution.job_usage_intervals import MeteredJob, read_job_intervals
from pipeline.energy.power_model import GENERIC
from pipeline.energy.readings import read_intervals
from pipeline.job import batch as job
from pipeline.job import versions
from pipeline.job.attempt import RunningAttempt
from tests.energy.accounts import attribute

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

    def start(self, settings: str = '{"source": "laws", "document_bytes": 20000000}') -> list[str]:
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
        return [*(self.run / "provenance/attempts").glob("[!.]*.json")]


@pytest.fixture(params=[1, 3], ids=["alone", "side-by-side"])
def batch(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """Return a batch in a job of one core, and of three."""
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", str(request.param))
    for name in job.SINGLE_THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(RunningAttempt, "counted_cpu_seconds", RunningAttempt.counted_cpu_seconds)
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


COUNTED = """
import os, sys
from pathlib import Path
from tests.job.test_batch import Batch
batch = Batch(Path(sys.argv[1]))
before = sum(os.times()[:4])
batch.start()
print(before, sum(os.times()[:4]))
"""


@pytest.mark.parametrize("cores", ["1", "3"])
def test_every_second_of_the_job_is_counted_once(cores: str, tmp_path: Path) -> None:
    folder, started = tmp_path / "results/test/provenance/records", in_a_process(COUNTED, cores, tmp_path)
    before, after = map(float, started.split()[-2:])
    records = [json.loads(path.read_text()) for path in folder.iterdir()]
    seconds = [record["cpu_seconds"] for record in records]
    assert all(value > 0 for value in seconds) and 0.9 * before - 0.1 <= sum(seconds) <= 1.1 * after + 0.1
    assert len({record["attempt"] for record in records}) == len(UNITS)


def in_a_process(program: str, cores: str, folder: Path) -> str:
    """Run a batch of a folder in a process of its own, of which nothing else is metered; return what it printed."""
    environment = {**os.environ, **dict.fromkeys(job.SINGLE_THREAD_VARIABLES, "1"), "SLURM_CPUS_PER_TASK": cores}
    words = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_what_is_written_does_not_depend_on_how_many_run_side_by_side(tmp_path: Path, monkeypatch) -> None:
    written = []
    for cores in ("1", "2"):
        (tmp_path / cores).mkdir()
        made = Batch(tmp_path / cores)
        for unit, size in zip(UNITS, (1, 300, 20), strict=True):
            (made.raw / f"{unit}.txt").write_text(f"Artikel {unit} " * size)
        for name in (*job.SINGLE_THREAD_VARIABLES, "SLURM_CPUS_PER_TASK"):
            monkeypatch.setenv(name, cores)
        made.start()
        files = {path.name: path.read_text() for path in (made.source / "fingerprints").iterdir()}
        records = {unit: json.loads(made.record(unit).read_text()) for unit in UNITS}
        kept = ("step", "instance", "settings", "inputs", "outputs", "command", "counts", "launch", "code_version")
        facts = {unit: {key: record[key] for key in kept} for unit, record in records.items()}
        batch = json.loads((made.run / "provenance/batches/b.json").read_text())
        sizes = [entry.pop("bytes") for entry in batch["outputs"] if "/records/" in entry["path"]]
        written.append(json.dumps([files, facts, batch, len(sizes)]).replace(f"{tmp_path}/{cores}", ""))
    assert written[0] == written[1]


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


def test_after_a_failing_unit_those_that_were_done_are_kept(batch: Batch) -> None:
    (batch.raw / "1.txt").rename(batch.raw / "away")
    with pytest.raises(InputError, match=r"1\.txt does not exist"):
        batch.start()
    assert not (batch.run / "provenance/batches/b.json").exists()
    done = [unit for unit in UNITS if batch.record(unit).exists()]
    (batch.raw / "away").rename(batch.raw / "1.txt")
    assert "0" in done and batch.start() == [unit for unit in UNITS if unit not in done]


PROGRAM = """
import os, sys, time
from pathlib import Path
import hashlib
from tests.job.test_batch import UNITS, Batch
digest = hashlib.file_digest
def slowly(stream, name):
    time.sleep(1.2 * ("/raw/" in str(stream.name)))  # so that a unit that waits for another one is missed
    return digest(stream, name)
hashlib.file_digest = slowly
batch = Batch(Path(sys.argv[1]))
for unit in UNITS:
    (batch.raw / f"{unit}.txt").write_text(f"Artikel {unit} " * 10_000_000)
batch.start()
print(sum(os.times()[:4]))
"""


@pytest.mark.parametrize("cores", ["2", *(pytest.param(few, marks=pytest.mark.thorough) for few in ("1", "3"))])
def test_every_second_of_the_job_is_in_the_intervals_of_one_unit(cores: str, tmp_path: Path) -> None:
    printed = in_a_process(PROGRAM, cores, tmp_path)
    folder = tmp_path / "results/test/provenance"
    files = [*(folder / "readings").iterdir()]
    assert {path.name.split("@")[0] for path in files} == {path.stem for path in (folder / "attempts").iterdir()}
    used_by_unit = [sum(interval.job_cpu_seconds for interval in read_intervals(path)) for path in files]
    assert len(used_by_unit) == len(UNITS) and min(used_by_unit) > 0
    lines = read_job_intervals(files, [])
    told = attribute([MeteredJob(name, "", {}, "finished", None, some) for name, some in lines.items()], [], GENERIC)
    wrong = [sentence for sentence in told.problems if "silent" in sentence or "left out" in sentence]
    assert wrong == [], "units that wait for one another are no fault of a meter"
    ends = 0.09 * (len(UNITS) + 1)  # after its meter a process still writes its record, attests it and ends
    assert sum(used_by_unit) == pytest.approx(float(printed.split()[-1]), rel=0.03, abs=ends)
