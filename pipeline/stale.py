"""Which records no longer say the truth about a run: what Snakemake cannot know, because it forgot or does not look.

Snakemake compares a job's parameters with those in its memory (.snakemake/metadata). Where that is lost it believes
every file that exists; the truth then lies in the records. A stale record is deleted, so that its stage runs again.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

from pipeline.dag import Dag
from pipeline.stage import sha256_of

NAME_BYTES = 254  # Snakemake cuts a longer name into folders of this length that begin with @
WITH_FOLDERS = ("sources.split", "sources.dataset", "corpus.deduplicate", "pretrain.segment", "pretrain.export")


def remembered(memory: Path, name: str) -> bool:
    """Return whether Snakemake's memory holds the output of that name."""
    encoded = urlsafe_b64encode(name.encode()).decode()
    *folders, last = (encoded[start : start + NAME_BYTES] for start in range(0, len(encoded), NAME_BYTES))
    return memory.joinpath(*(f"@{folder}" for folder in folders), last).exists()


def _read(path: Path) -> dict[str, Any] | None:
    """Return a record; None where the file is none, or not there."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return record if isinstance(record, dict) else None
    except (OSError, ValueError):
        return None


class Stale:
    """The stale records of a run, whose paths are below the working directory."""

    def __init__(self, dag: Dag, memory: Path) -> None:
        self.dag = dag
        self.memory = memory

    def unfit(self) -> list[Path]:
        """Return the forgotten records that do not fit the configuration, code and environment."""
        stale = []
        for name in [*self.dag.records(), self.dag.record("report.page"), self.dag.record("provenance.crate")]:
            path = Path(name)
            if path.is_file() and not remembered(self.memory, name):
                try:
                    record = _read(path) or {}
                    planned = self.dag.versions(record["stage"], record["instance"])
                    written = json.dumps(record["settings"], sort_keys=True, ensure_ascii=False)
                    fits = planned == (written, record["code_version"], record["environment_version"])
                except (KeyError, TypeError, AttributeError):  # not a record of a job of this run
                    fits = False
                if not fits:
                    stale.append(path)
        return stale

    def incomplete(self) -> list[Path]:
        """Return the records of stages that write folders of which a file is missing or has another size.

        Snakemake looks no further than whether a folder exists.
        """
        stale = []
        for path in map(Path, self.dag.records()):
            if path.name.startswith(WITH_FOLDERS) and path.is_file():
                outputs = (_read(path) or {}).get("outputs", [])
                sizes = {Path(self.dag.run, entry["path"]): entry["bytes"] for entry in outputs}
                if not all(file.is_file() and file.stat().st_size == size for file, size in sizes.items()):
                    stale.append(path)
        return stale

    def of_other_files(self, corpus: str, source: str, unit: str) -> list[Path]:
        """Return the forgotten record of a filter job that read other raw files than those of the manifest."""
        name = f"{self.dag.run}/provenance/records/corpus.filter.{corpus}.{source}.{unit}.json"
        record, manifest = _read(Path(name)), _read(Path(self.dag.run, "sources", source, "manifest.json"))
        if record is None or manifest is None or remembered(self.memory, name):
            return []
        read = sorted(entry["sha256"] for entry in record["inputs"] if entry["name"] == "files")
        files = manifest["units"].get(unit, {"files": []})["files"]
        return [] if read == sorted(entry["sha256"] for entry in files) else [Path(name)]

    def of_other_tokens(self, model: str, step: str) -> list[Path]:
        """Return the forgotten record of a segment that was trained on other tokens or with another tokenizer."""
        name = f"{self.dag.run}/provenance/records/pretrain.segment.{model}.{step}.json"
        record = _read(Path(name))
        if record is None or remembered(self.memory, name):
            return []
        given = [entry for entry in record["inputs"] if entry["name"] in ("index", "tokenizer", "configuration")]
        files = [Path(self.dag.run, entry["path"]) for entry in given]
        same = all(
            file.is_file() and sha256_of(file) == entry["sha256"] for file, entry in zip(files, given, strict=True)
        )
        return [] if same else [Path(name)]
