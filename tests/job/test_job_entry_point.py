"""A batch does for each unit what one job would, and skips units with valid records."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pipeline import layout
from pipeline.core import output_archives
from pipeline.core.archived_run_files import FileStore, StoredFile
from pipeline.core.attestation_log import SLSA_PROVENANCE, read_log
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import Attempt
from pipeline.core.output_archives import OutputArchives, output_sizes
from pipeline.energy.attribution.job_usage_intervals import MeteredJob, read_job_intervals
from pipeline.energy.power_model import GENERIC
from pipeline.energy.readings import read_intervals
from pipeline.job import job_entry_point as job
from pipeline.job import versions
from pipeline.job.attempt import RunningAttempt
from pipeline.job.job_execution import Job
from tests.energy.accounts import attribute

MODULE = "pipeline.sources.fingerprint"
UNITS = ("0", "1", "2")


class Batch:
    """Three units of one raw file each, hashed by one job."""

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
        """Run the batch; return the executed units."""
        before = self.attempts().keys()
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
            for name, file in self.attempts().items()
            if name not in before and (content := json.loads(file.read_bytes()))["status"] == "finished"
        )

    def attempts(self) -> dict[str, StoredFile]:
        return {file.name: file for file in FileStore(self.run).find_all(layout.ATTEMPT)}

    def read_record(self, unit: str) -> dict[str, Any]:
        """Return the record of a unit, unarchived or in an archive."""
        path = self.record(unit).relative_to(self.run).as_posix()
        return dict(json.loads(FileStore(self.run).find(path).read_bytes()))

    def forget_record(self, unit: str) -> None:
        """Remove the record of a unit from its archive."""
        FileStore(self.run).remove_from_archives([self.record(unit).relative_to(self.run).as_posix()])

    def unarchived_outputs(self) -> list[Path]:
        return [*(self.source / "fingerprints").iterdir()]

    def remove_output(self, unit: str) -> None:
        """Remove the output of a unit, also from its archive."""
        path = self.source / f"fingerprints/{unit}.json"
        path.unlink(missing_ok=True)
        OutputArchives(self.run).remove([path.relative_to(self.run).as_posix()])


@pytest.fixture(params=[(1, 20), (3, 20), (3, 3)], ids=["alone", "side-by-side", "outputs-in-an-archive"])
def batch(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """Return a batch in a job of one core, of three, and one of so many units that their outputs are archived."""
    cores, fewest = request.param
    monkeypatch.setattr(output_archives, "FEWEST_FILES", fewest)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", str(cores))
    for name in job.SINGLE_THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(RunningAttempt, "counted_cpu_seconds", RunningAttempt.counted_cpu_seconds)
    return Batch(tmp_path)


def test_each_unit_has_its_own_record_and_the_batch_lists_all(batch: Batch) -> None:
    assert batch.start() == [*UNITS]
    record = batch.read_record("1")
    assert record["instance"] == {"source": "laws", "unit": "1"}
    assert [entry["name"] for entry in record["inputs"]] == ["listing", "files"]
    assert record["outputs"][0]["path"] == "sources/laws/fingerprints/1.json"
    content = json.loads((batch.run / "provenance/batches/b.json").read_text())
    assert content["of"] == "planned" and content["instance"] == {"source": "laws", "batch": "0"}
    sizes = {entry["path"]: entry["bytes"] for entry in content["outputs"]}
    assert [*output_sizes(batch.run, sizes)] == [*sizes.values()]
    are_archived = len(batch.unarchived_outputs()) == 0
    assert are_archived == (len(UNITS) == output_archives.FEWEST_FILES) == bool([*batch.source.glob("archives/*.zip")])
    assert len(content["outputs"]) == len(UNITS)
    listed = json.loads((batch.run / "provenance/archives/b.json").read_text())["records"]
    paths = [f"provenance/records/sources.fingerprint.laws.{unit}.json" for unit in UNITS]
    store = FileStore(batch.run)
    assert listed == [{"path": path, "sha256": hash_file(store.find(path))} for path in paths]


def test_batch_archive_contains_records_attempts_and_readings_unchanged(batch: Batch, monkeypatch) -> None:
    seen: dict[str, bytes] = {}
    archive = FileStore.archive

    def watched(self: FileStore, name: str, paths: Iterable[Path]) -> Path | None:
        files = [*paths]
        seen.update((path.relative_to(batch.run).as_posix(), path.read_bytes()) for path in files)
        return archive(self, name, files)

    monkeypatch.setattr(FileStore, "archive", watched)
    batch.start()
    kinds = ("records", "attempts", "readings")
    assert [path for kind in kinds for path in (batch.run / "provenance" / kind).glob("*")] == []
    assert sorted(path.split("/")[1] for path in seen) == sorted([*kinds] * len(UNITS))
    (made,) = layout.BATCH_ARCHIVE.glob(batch.run)
    assert re.fullmatch(r"\d{8}T\d{12}\.\d+\.sources\.fingerprint\.laws\.0\.zip", made.name)
    with zipfile.ZipFile(made) as content:
        assert {name: content.read(name) for name in content.namelist()} == seen
    lines = [line.statement.subject[0] for line in read_log(batch.run) if line.statement.kind == SLSA_PROVENANCE]
    assert {line.name: line.sha256 for line in lines} == {
        name: hashlib.sha256(content).hexdigest() for name, content in seen.items() if "/records/" in name
    }


def test_attempts_of_a_failed_batch_are_archived_unless_still_running(batch: Batch) -> None:
    (batch.raw / "1.txt").rename(batch.raw / "away")
    with pytest.raises(InputError):
        batch.start()
    failed = {name for name, file in batch.attempts().items() if Attempt.load(file).status == "refused"}
    (one,) = failed
    running = batch.run / "provenance/attempts" / "sources.fingerprint.laws.1.20260101T000000000.1.json"
    running.write_text(json.dumps({**Attempt.load(batch.attempts()[one]).to_dict(), "status": "running"}))
    other = running.with_name("sources.fingerprint.laws.10.20260101T000000000.1.json")  # a unit of another batch
    other.write_bytes((batch.run / "provenance/attempts" / one).read_bytes())
    (batch.raw / "away").rename(batch.raw / "1.txt")
    batch.start()
    assert {path.name for path in (batch.run / "provenance/attempts").iterdir()} == {running.name, other.name}
    assert failed < batch.attempts().keys()
    assert len(batch.attempts()) == len(UNITS) + 3


def test_batch_killed_while_archiving_is_resumed(batch: Batch, monkeypatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            batch.start()
    assert not (batch.run / "provenance/batches/b.json").exists()
    before = {unit: batch.read_record(unit) for unit in UNITS}
    assert batch.start() == []
    assert {unit: batch.read_record(unit) for unit in UNITS} == before
    assert [*(batch.run / "provenance/records").iterdir()] == []
    assert len(batch.attempts()) == len(UNITS)


def test_damaged_archive_reruns_only_its_own_units(batch: Batch) -> None:
    batch.start()
    (batch.raw / "1.txt").write_text("Artikel X")
    assert batch.start() == ["1"]
    _, second = layout.BATCH_ARCHIVE.glob(batch.run)
    second.write_bytes(second.read_bytes()[:-30])
    assert batch.start() == ["1"]
    assert sorted(batch.read_record(unit)["instance"]["unit"] for unit in UNITS) == [*UNITS]


COUNTED = """
import os, sys
from pathlib import Path
from tests.job.test_job_entry_point import Batch
batch = Batch(Path(sys.argv[1]))
before = sum(os.times()[:4])
batch.start()
print(before, sum(os.times()[:4]))
"""


@pytest.mark.parametrize("cores", ["1", "3"])
def test_every_second_of_the_job_is_counted_once(cores: str, tmp_path: Path) -> None:
    started, store = in_a_process(COUNTED, cores, tmp_path), FileStore(tmp_path / "results/test")
    before, after = map(float, started.split()[-2:])
    records = [json.loads(file.read_bytes()) for file in store.find_all(layout.RECORD)]
    seconds = [record["cpu_seconds"] for record in records]
    assert all(value > 0 for value in seconds) and 0.9 * before - 0.1 <= sum(seconds) <= 1.1 * after + 0.1
    assert len({record["attempt"] for record in records}) == len(UNITS)


def in_a_process(program: str, cores: str, folder: Path) -> str:
    """Run a batch of a folder in a new process that meters nothing else; return its output."""
    environment = {**os.environ, **dict.fromkeys(job.SINGLE_THREAD_VARIABLES, "1"), "SLURM_CPUS_PER_TASK": cores}
    words = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_outputs_do_not_depend_on_the_number_of_parallel_units(tmp_path: Path, monkeypatch) -> None:
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
        records = {unit: made.read_record(unit) for unit in UNITS}
        kept = ("step", "instance", "settings", "inputs", "outputs", "command", "counts", "launch", "code_version")
        facts = {unit: {key: record[key] for key in kept} for unit, record in records.items()}
        batch = json.loads((made.run / "provenance/batches/b.json").read_text())
        written.append(json.dumps([files, facts, batch]).replace(f"{tmp_path}/{cores}", ""))
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
    "an output gone": (lambda b: b.remove_output("0"), ["0"]),
    "an output cut": (lambda b: (b.remove_output("0"), (b.source / "fingerprints/0.json").write_text("{")), ["0"]),
    "a record gone": (lambda b: b.forget_record("2"), ["2"]),
    "a record that is none": (lambda b: b.record("2").write_text("[]"), ["2"]),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda name: name.replace(" ", "-"))
def test_only_changed_units_are_rerun(batch: Batch, change: str) -> None:
    batch.start()
    edit, expected = CHANGES[change]
    edit(batch)
    assert batch.start() == expected
    assert batch.start() == []


def test_unit_of_changed_code_is_rerun(batch: Batch) -> None:
    batch.start()
    batch.record("1").write_text(json.dumps({**batch.read_record("1"), "code_version": "0" * 16}))
    assert batch.start() == ["1"]
    assert batch.start('{"source": "wetten"}') == [*UNITS]


def test_files_with_equal_names_in_two_folders_are_two_inputs(batch: Batch) -> None:
    for folder in ("x", "y"):
        (batch.raw / folder).mkdir()
        (batch.raw / folder / "f.txt").write_text(folder)
    entries = [{"name": f"{folder}/f.txt", "part": None} for folder in ("x", "y")]
    batch.listing("1").write_text(json.dumps({"unit": 1, "files": entries}))
    assert batch.start() == [*UNITS]
    assert batch.start() == []


def test_finished_units_are_kept_after_a_failing_unit(batch: Batch) -> None:
    (batch.raw / "1.txt").rename(batch.raw / "away")
    with pytest.raises(InputError, match=r"1\.txt does not exist"):
        batch.start()
    assert not (batch.run / "provenance/batches/b.json").exists()
    done = [unit for unit in UNITS if batch.record(unit).exists()]
    (batch.raw / "away").rename(batch.raw / "1.txt")
    assert "0" in done and batch.start() == [unit for unit in UNITS if unit not in done]


PROGRAM = """
import hashlib, os, resource, sys, time
from multiprocessing.process import BaseProcess
from pathlib import Path
from pipeline.energy.meter_recorder import NodeMeter
from tests.job.test_job_entry_point import UNITS, Batch
digest = hashlib.file_digest
def slowly(stream, name):
    if "/raw/" in str(getattr(stream, "name", "")):
        time.sleep(1.2)  # so that a unit that waits for another one is missed
        began = time.process_time()
        while time.process_time() - began < 0.5:
            pass
    return digest(stream, name)
hashlib.file_digest = slowly
def used(*whose):
    return sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, whose))
end, run, metered_until = NodeMeter.end, BaseProcess.run, []
def ended(meter):
    end(meter)
    metered_until.append(used(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
def ran(process):
    run(process)
    print(-metered_until[-1])
NodeMeter.end, BaseProcess.run = ended, ran
batch = Batch(Path(sys.argv[1]))
for unit in UNITS:
    (batch.raw / f"{unit}.txt").write_text(f"Artikel {unit} " * 10_000_000)
batch.start()
print(used(resource.RUSAGE_CHILDREN))  # of all at once: the start of a process also reaps one that has ended
print(used(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
"""


@pytest.mark.parametrize("cores", ["2", *(pytest.param(few, marks=pytest.mark.thorough) for few in ("1", "3"))])
def test_every_second_of_the_job_is_in_the_intervals_of_one_unit(cores: str, tmp_path: Path) -> None:
    printed = in_a_process(PROGRAM, cores, tmp_path)
    store = FileStore(tmp_path / "results/test")
    files = store.find_all(layout.READINGS.child("*.jsonl"))
    assert {file.name.split("@")[0] for file in files} == {file.stem for file in store.find_all(layout.ATTEMPT)}
    used_by_unit = [sum(interval.job_cpu_seconds for interval in read_intervals(path)) for path in files]
    assert len(used_by_unit) == len(UNITS) and min(used_by_unit) > 0
    lines = read_job_intervals(files, [])
    attributed = attribute(
        [MeteredJob(name, "", {}, "finished", None, some) for name, some in lines.items()], [], GENERIC
    )
    wrong = [sentence for sentence in attributed.problems if "silent" in sentence or "left out" in sentence]
    assert wrong == [], "waiting units are no meter fault"
    # After its meter a process still writes its record, attests it and exits: all that it used, less until its meter.
    *after_meters, in_all = map(float, printed.split())
    assert sum(used_by_unit) + sum(after_meters) == pytest.approx(in_all, abs=0.06 * (len(UNITS) + 1))


def test_reader_waits_for_the_records_listed_by_the_batch(batch: Batch) -> None:
    batch.start()
    reader = object.__new__(Job)
    reader.run_directory = batch.run
    listed = [batch.run / "provenance/archives/b.json"]
    reader.wait_for_unit_records(listed)
    batch.record("1").write_text("{}")
    with pytest.raises(InputError, match=r"laws\.1\.json is not the record that its batch has listed"):
        reader.wait_for_unit_records(listed)
    batch.record("1").unlink()
    reader.wait_for_unit_records(listed)
    batch.forget_record("2")
    with pytest.raises(InputError, match=r"laws\.2\.json is not the record"):
        reader.wait_for_unit_records(listed)
