"""A small finished run: two sources, filtered, counted, sharded, trained on, evaluated, reported, and its crate."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.provenance.crate import run as write_crate
from pipeline.provenance.files import CRATE_RECORD, METADATA, RECORDS
from pipeline.provenance.settings import CrateSettings

SOURCES = {
    "laws": ("CC0-1.0", "public-domain", "De Grondwet garandeert de grondrechten van iedere ingezetene.\n"),
    "wiki": ("CC-BY-SA-4.0", "licence", "De polder is een stuk land dat door dijken wordt omringd.\n"),
}


def entry(name: str, path: str, content: bytes) -> dict[str, Any]:
    return {"name": name, "path": path, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


class RunBuilder:
    """Writes jobs of a run as the stages leave them: outputs and a record that names them."""

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
        record = {
            "step": stage,
            "instance": instance,
            "settings": {"seed": 42},
            "command": ["python", "-m", "pipeline", *stage.split("."), "--settings", '{"seed": 42}'],
            "inputs": [
                *(entry("files", f"data:{path}", content) for path, content in (raw or {}).items()),
                *(self.described(path) for path in inputs),
            ],
            "outputs": [self.written[path] for path in outputs],
            "code_version": hashlib.sha256(stage.encode()).hexdigest()[:16],
            "environment_version": "cpu-0123456789abcdef",
            "environment": {"python": "3.11.7", "lock": "cpu", "packages": {"pyarrow": "26.0.1"}},
            "git": {"commit": "0" * 40, "dirty": False},
            "host": "node1",
            "slurm": None,
            "started": f"2026-01-05T10:{self.minute:02}:00.000+00:00",
            "ended": f"2026-01-05T10:{self.minute:02}:30.000+00:00",
            "wall_seconds": 30.0,
            "cpu_seconds": 25.0,
            "peak_memory_bytes": 200_000_000,
            "energy": {
                "joules": 100.5,
                "measured": False,
                "meters": [{"meter": "cpu_time_model", "joules": 100.5, "measured": False, "model": "estimate"}],
            },
            "launch": None,
            "counts": {},
            "attempt": f"{name}.20260105T1000.1.json",
            **changes,
        }
        self.minute += 1
        path = self.folder / RECORDS / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1, sort_keys=True))
        return f"{RECORDS}/{name}.json"

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

    def crate(self) -> str:
        """Make the crate and its record and return the crate's sha256."""
        crate = self.folder / METADATA
        inputs = sorted(path.relative_to(self.folder).as_posix() for path in (self.folder / RECORDS).glob("*.json"))
        inputs = [path for path in inputs if path != CRATE_RECORD]
        write_crate(CrateSettings(run="test"), files=[self.folder / path for path in inputs], crate=crate)
        content = crate.read_bytes()
        self.job("provenance.crate", {}, inputs, {METADATA: content})
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
    records = sorted(path.relative_to(folder).as_posix() for path in (folder / RECORDS).glob("*.json"))
    run.job("report.page", {}, [*records, statistics], {"report/index.html": b"<p>een verslag</p>"})
    for outside in ("provenance/attempts/corpus.filter.1.json", "logs/corpus.filter.log", "scratch/base/10/state"):
        (folder / outside).parent.mkdir(parents=True, exist_ok=True)
        (folder / outside).write_text("{}")
    return run


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
    """Builds a run of its own: `build_run(name, …)`, without crate."""
    return lambda name, **changes: build(tmp_path / name, **changes)
