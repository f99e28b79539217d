"""A small finished run: two sources, filtered, counted, sharded, trained on, evaluated, reported, and its crate."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pipeline import layout
from pipeline.core import attestation_log, output_archives, signing_keys
from pipeline.core.archived_run_files import FileStore
from pipeline.core.hashing import hash_file
from pipeline.core.job_command_lines import replace_settings_by_digest
from pipeline.core.job_records import Attempt, FileReference, Record, UnitRecords
from pipeline.core.output_archives import ARCHIVES, OutputArchives
from pipeline.core.shared_environment_files import write_environment
from pipeline.provenance import run_signing_and_log_checkpoint
from pipeline.provenance.crate import run as write_crate
from pipeline.provenance.evidence_attestation import attest_evidence
from pipeline.provenance.settings import CrateSettings, Provenance
from pipeline.provenance.verify_run import TrustAnchors, verify_run
from tests.provenance.authority import Authority
from tests.stored import read_records

SOURCES = {
    "laws": ("CC0-1.0", "public-domain", "De Grondwet garandeert de grondrechten van iedere ingezetene.\n"),
    "wiki": ("CC-BY-SA-4.0", "license", "De polder is een stuk land dat door dijken wordt omringd.\n"),
}

FROZEN = "provenance/frozen/1.json"

ENVIRONMENT = "cpu-0123456789abcdef"
PYTHON = {"python": "3.11.7", "lock": "cpu", "packages": {"pyarrow": "26.0.1"}}


def command_of(stage: str, code: str, environment: str) -> list[str]:
    words = ["python", "-m", "pipeline", *stage.split("."), "--settings", '{"seed": 42}']
    return [*words, "--code", code, "--environment", environment]


def entry(name: str, path: str, content: bytes) -> dict[str, Any]:
    return {"name": name, "path": path, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


ROOT = Path(__file__).parents[2]


def describe(folder: Path, files: list[Path], crate: Path | None = None, **settings: Any) -> dict[str, Any]:
    """Write the crate of a run with its companion files, from this project's own workflow."""
    crate = crate or folder / layout.CRATE
    workflow = [ROOT / "Snakefile", *sorted((ROOT / "rules").glob("*.smk"))]
    workflow += sorted((ROOT / "pipeline/workflow/steps").glob("*.py"))
    written = {"readme": folder / layout.RUN_README, "kept": folder / layout.WORKFLOW_FILES}
    return write_crate(CrateSettings(run="test", **settings), files=files, workflow=workflow, crate=crate, **written)


class RunBuilder:
    """Write jobs of a run in the layout of the stages: outputs and a record that lists them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.minute = 0
        self.written: dict[str, dict[str, Any]] = {}

    def job(
        self,
        stage: str,
        instance: dict[str, str],
        inputs: list[str],
        outputs: dict[str, bytes],
        raw: dict[str, bytes] | None = None,
        **changes: Any,
    ) -> str:
        """Write the outputs and the record, and return the record's path; `raw` are inputs from outside the run."""
        for path, content in outputs.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_bytes(content)
            self.written[path] = entry("output", path, content)
        name = ".".join([stage, *instance.values()])
        code = hashlib.sha256(stage.encode()).hexdigest()[:16]
        attempt = f"{name}.20260105T1000.1"
        record = {
            "step": stage,
            "instance": instance,
            "settings": {"seed": 42},
            "command": command_of(stage, code, ENVIRONMENT),
            "inputs": [
                *(entry("files", f"data:{path}", content) for path, content in (raw or {}).items()),
                *(self.described(path) for path in inputs),
            ],
            "outputs": [self.written[path] for path in outputs],
            "code_version": code,
            "environment_version": ENVIRONMENT,
            "environment_file": write_environment(self.folder, PYTHON)._asdict(),
            "git": {"commit": "0" * 40, "dirty": False},
            "host": "node1",
            "slurm": None,
            "started": f"2026-01-05T10:{self.minute:02}:00.000+00:00",
            "ended": f"2026-01-05T10:{self.minute:02}:30.000+00:00",
            "wall_seconds": 30.0,
            "cpu_seconds": 25.0,
            "peak_memory_bytes": 200_000_000,
            "launch": None,
            "counts": {},
            "operation": {},
            "frozen": None,
            "attempt": f"{attempt}.json",
            **changes,
        }
        self.minute += 1
        path = self.folder / layout.RECORDS / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        Record.parse(json.dumps(record)).with_short_command().write(path)
        readings = self.write(f"provenance/readings/{attempt}@node1.jsonl", '{"joules": 100.5}\n')
        began = self.attempted(record)
        attestation_log.attest_finished_job(self.folder, began, [readings], path, Record.load(path))
        return f"{layout.RECORDS}/{name}.json"

    def write(self, path: str, text: str) -> Path:
        """Write a file of the run."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def attempted(self, record: dict[str, Any], status: str = "finished") -> Path:
        """Write the attempt of a record, from its beginning to its end."""
        facts = {key: record[key] for key in ("step", "instance", "command", "host", "slurm", "started")}
        start = f"snakemake.20260105T0859.1..{self.folder.name}"
        content = {**facts, "snakemake": start, "last_seen": record["ended"], "ended": None, "status": "running"}
        content |= {"error": None, "wall_seconds": 0.0, "cpu_seconds": 0.0}
        file = self.write(f"provenance/attempts/{record['attempt']}", json.dumps(content))
        attestation_log.attest_attempt_begin(self.folder, file, Attempt.load(file))
        if status != "running":
            sums = {key: record[key] for key in ("ended", "wall_seconds", "cpu_seconds")}
            command = replace_settings_by_digest(record["command"]) if status == "finished" else record["command"]
            file.write_text(json.dumps({**content, **sums, "command": command, "status": status}))
        return file

    def archive(self, name: str) -> Path:
        """Move the record, attempt and readings of a unit into an archive, as its batch does."""
        folder = self.folder / layout.PROVENANCE
        archive = FileStore(self.folder).archive(name, folder.glob(f"*/{name}.*"))
        assert archive is not None
        fixed = {"stamp": "20260105T105900000000", "process": 1}  # the same for each run
        archive = archive.rename(layout.BATCH_ARCHIVE.path(self.folder, **fixed, job=name))
        path = layout.RECORD.relative_path(job=name)
        listed = FileReference(path, hash_file(FileStore(self.folder).find(path)))
        made = UnitRecords(step="", instance={}, records=(listed,))
        made.write(layout.UNIT_RECORDS.path(self.folder, job=name))
        return archive

    def archive_outputs(self, name: str, *paths: str) -> Path:
        """Move outputs into an archive, as a job of many units does."""
        folder = "/".join(paths[0].split("/")[:2])
        with mock.patch.object(output_archives, "FEWEST_FILES", 1):
            OutputArchives(self.folder, folder).add(name, [self.folder / path for path in paths])
        (archive,) = (self.folder / folder / ARCHIVES).iterdir()
        return archive.rename(archive.with_name(f"20260105T105900000000.1.{name}.zip"))  # the same for each run

    def fail(self, name: str, status: str) -> Path:
        """Write an attempt without a record: failed, or killed and `running` forever."""
        times = {"started": "2026-01-05T09:00:00.000+00:00", "ended": "2026-01-05T09:01:00.000+00:00"}
        command = command_of("corpus.filter", hashlib.sha256(b"corpus.filter").hexdigest()[:16], ENVIRONMENT)
        facts = {"step": "corpus.filter", "instance": {}, "command": command, "host": "node1", "slurm": None}
        sums = {"wall_seconds": 60.0, "cpu_seconds": 50.0, "attempt": f"{name}.json"}
        file = self.attempted({**facts, **times, **sums}, status)
        if status != "running":
            attestation_log.attest_attempt_end(self.folder, file, status, [])
        return file

    def described(self, path: str) -> dict[str, Any]:
        return self.written[path] if path in self.written else entry("record", path, (self.folder / path).read_bytes())

    def manifest(self, source: str, units: dict[str, bytes]) -> None:
        """Write the manifest of a source whose units have one raw file each."""
        license, basis, _ = SOURCES[source]
        described = {
            "name": source,
            "language": "nl",
            "license": license,
            "rights": {"basis": basis, "holder": "Staat"},
        }
        files = {unit: {"files": [{"name": f"{unit}.jsonl", **_size(raw)}]} for unit, raw in units.items()}
        content = json.dumps({"source": described, "units": files}).encode()
        self.job("sources.manifest", {"source": source}, [], {f"sources/{source}/manifest.json": content})

    def attempt(self, stage: str, instance: dict[str, str], status: str, **changes: Any) -> str:
        """Write an attempt without a record, and return its name."""
        name = ".".join([stage, *instance.values(), f"20260105T09{self.minute:02}", "7"])
        command = ["python", "-m", "pipeline", *stage.split("."), "--code", "c0de", "--environment", "cpu-1"]
        content = {
            "step": stage,
            "instance": instance,
            "command": command,
            "started": f"2026-01-05T09:{self.minute:02}:00.000+00:00",
            "last_seen": f"2026-01-05T09:{self.minute:02}:20.000+00:00",
            "status": status,
            "wall_seconds": 20.0,
            "cpu_seconds": 10.0,
            **changes,
        }
        self.minute += 1
        file = self.folder / layout.ATTEMPTS / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
        return name

    def crate(self, **settings: Any) -> str:
        """Make the crate and its record and return the crate's sha256."""
        crate = self.folder / layout.CRATE
        files = (*layout.RECORD.glob(self.folder), *layout.UNIT_RECORDS.glob(self.folder))
        inputs = sorted(path.relative_to(self.folder).as_posix() for path in files)
        inputs = [path for path in inputs if path != layout.CRATE_RECORD]
        attest_evidence(self.folder)
        describe(self.folder, [self.folder / path for path in inputs], **settings)
        content = crate.read_bytes()
        self.job("provenance.crate", {}, inputs, {layout.CRATE: content})
        attest_evidence(self.folder)
        return hashlib.sha256(content).hexdigest()


def _size(raw: bytes) -> dict[str, Any]:
    return {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


def counts(documents: int, removed: int) -> dict[str, Any]:
    kept = documents - removed
    stages = [
        {"stage": "filter", "in": documents, "kept": kept, "removed": {"short": removed}},
        {"stage": "deduplicate", "in": kept, "kept": kept, "removed": {}},
    ]
    return {"documents_in": documents, "documents_out": kept, "stages": stages}


def make_energy_accounting(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the energy accounting of the report: 100.5 J for each job, 80 J of it measured."""

    def figure(jobs: int) -> dict[str, Any]:
        sums = {"joules": 100.5, "low_joules": 90.5, "high_joules": 110.5, "measured_joules": 80.0}
        sums = {key: value * jobs for key, value in {**sums, "estimated_joules": 20.5, "stated_joules": 0.0}.items()}
        return {**sums, "meters": ["model, estimated: a node", "rapl, measured: counter"] if jobs else []}

    jobs = {
        record["attempt"].removesuffix(".json"): {
            **figure(1),
            "step": record["step"],
            "instance": record["instance"],
            "fate": "finished",
        }
        for record in records
    }
    sums = {"total": figure(len(jobs)), "finished": figure(len(jobs)), "lost": figure(0), "idle": figure(0)}
    return {**sums, "snakemake": figure(0), "steps": {}, "jobs": jobs, "components": {}, "nodes": {}}


def build(folder: Path, loss: float = 3.5, **segment_changes: Any) -> RunBuilder:
    """Build a whole run in `folder`."""
    run = RunBuilder(folder)
    filtered = []
    for source, (_, _, text) in SOURCES.items():
        run.manifest(source, {"0": text.encode()})
        documents = f"corpus/main/filtered/{source}.0.parquet"
        run.job(
            "corpus.filter",
            {"corpus": "main", "source": source, "unit": "0"},
            [f"sources/{source}/manifest.json"],
            {documents: text.upper().encode(), f"corpus/main/removed/filter.{source}.0.parquet": b"removed"},
            raw={f"{source}/0.jsonl": text.encode()},
        )
        filtered.append(documents)
    content = {"corpus": "main", "sources": {"laws": counts(10, 3), "wiki": counts(5, 0)}, "totals": counts(15, 3)}
    statistics = "corpus/main/statistics.json"
    run.job("corpus.statistics", {"corpus": "main"}, filtered, {statistics: json.dumps(content).encode()})
    shards = {"tokens/main/train/0.arrow": bytes(range(64)), "tokens/main/validation/0.arrow": bytes(range(32))}
    run.job("tokens.shard", {"tokens": "main", "shard": "0"}, filtered, shards)
    metrics = json.dumps({"step": 10, "loss": loss, "seconds": 2.0}) + "\n"
    milestone = {
        "models/base/milestones/10/model.safetensors": f"weights {loss}".encode(),
        "models/base/milestones/10/huggingface/config.json": b"{}",
    }
    run.job("pretrain.segment", {"model": "base", "step": "10"}, list(shards), milestone, **segment_changes)
    run.job("pretrain.export", {"model": "base"}, list(milestone), {"models/base/metrics.jsonl": metrics.encode()})
    task = {"task": "blimp_nl", "language": "nl", "metric": "acc", "value": round(1 / loss, 3)}
    results = {"evaluation/base/10/results.json": json.dumps({"tasks": [task]}).encode()}
    tasks = {"config/tasks/blimp_nl.yaml": b"task: blimp_nl\n"}
    run.job("evaluate.suites", {"model": "base", "step": "10"}, list(milestone), results, raw=tasks)
    energy = json.dumps(make_energy_accounting(read_records(folder))).encode()
    run.archive("corpus.filter.main.wiki.0")
    run.archive_outputs("corpus.filter.main.wiki.0", "corpus/main/removed/filter.wiki.0.parquet")
    files = (*layout.RECORD.glob(folder), *layout.UNIT_RECORDS.glob(folder))
    records = sorted(path.relative_to(folder).as_posix() for path in files)
    written = {"report/index.html": b"<p>een verslag</p>", "report/energy.json": energy}
    run.job("report.page", {}, [*records, statistics], written)
    run.fail("corpus.filter.failed", "failed")
    run.fail("corpus.filter.killed", "running")
    run.write("logs/corpus.filter.log", "a line\n")
    run.write("provenance/accounting/1.json", '{"job": "1", "slurm_energy_joules": 41000}')
    run.write("provenance/batches/filter.0.json", "{}")
    run.write("provenance/readings/snakemake.1@node1.jsonl", '{"joules": 2.5}\n')
    run.write("scratch/base/10/state", "{}")
    return run


class Signed:
    """A signed run, the trust anchors of its readers, and the secrets of its owner."""

    def __init__(self, folder: Path, house: Path) -> None:
        self.folder, self.house = folder, house
        self.checkpoint = ""

    @property
    def key(self) -> Path:
        return self.house / "key.pem"

    @property
    def heads(self) -> Path:
        return self.house / "heads.jsonl"

    @property
    def trusted(self) -> TrustAnchors:
        return TrustAnchors(key=self.house / "key.pem.pub")

    def problems(self, **more: Any) -> list[str]:
        return verify_run(self.folder, self.trusted._replace(**more)).problems


def sign(house: Path, authority: Authority, change: Callable[[RunBuilder], object] = lambda run: None) -> Signed:
    """Build a run in `house` that is signed from its first attempt on, timestamped and published."""
    signing_keys.generate_key_pair(house / "key.pem", "p256")
    run = Signed(house / "run", house)
    stamps = {"url": authority.url, "certificates": str(authority.certificate)}
    settings = Provenance.model_validate(
        {"key": str(run.key), "owner": "Stichting Proef", "timestamps": stamps, "log": str(run.heads)}
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv(attestation_log.SIGNING_KEY_VARIABLE, raising=False)
        run_signing_and_log_checkpoint.begin_signing(run.folder, settings, print)
        made = build(run.folder)
        made.write(FROZEN, '{"configuration": {"run": {"seed": 42}}}')
        change(made)
        made.crate()
        messages: list[str] = []
        assert run_signing_and_log_checkpoint.finish_signing(run.folder, settings, messages.append)
        run.checkpoint = messages[0].split()[2]
        del os.environ[attestation_log.SIGNING_KEY_VARIABLE]
    return run


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    with Authority(tmp_path_factory.mktemp("authority")) as made:
        yield made


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Signed:
    """A signed, timestamped and published run that no test changes."""
    return sign(tmp_path_factory.mktemp("signed"), authority)


@pytest.fixture
def run(original: Signed, tmp_path: Path) -> Signed:
    copy = Signed(shutil.copytree(original.folder, tmp_path / "run", symlinks=True), original.house)
    copy.checkpoint = original.checkpoint
    return copy


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run that no test changes, and the sha256 of its crate."""
    folder = tmp_path_factory.mktemp("template") / "run"
    return folder, build(folder).crate()


@pytest.fixture
def finished(template: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the finished run for one test."""
    return shutil.copytree(template[0], tmp_path / "run")


@pytest.fixture
def build_run(tmp_path: Path) -> Callable[..., RunBuilder]:
    """Build a separate run: `build_run(name, …)`, without crate."""
    return lambda name, **changes: build(tmp_path / name, **changes)
