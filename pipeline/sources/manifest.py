"""Joins the fingerprints of a source into the manifest that everything after it depends on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.sources.listing import assign_unit
from pipeline.sources.settings import ManifestSettings


def run(settings: ManifestSettings, *, fingerprints: list[Path], manifest: Path) -> dict[str, Any]:
    """Write what the source is, and the files of each unit with one sha256 over their names and hashes.

    Raises:
        InputError: the files of the source hold no byte.
    """
    files = sorted(
        (entry for path in fingerprints for entry in json.loads(path.read_text(encoding="utf-8"))["files"]),
        key=lambda entry: str(entry["name"]),
    )
    size = sum(entry["bytes"] for entry in files)
    if size == 0:
        raise InputError(f"source {settings.source} is empty: give it files with text, or remove it from the sources")
    units: dict[str, dict[str, Any]] = {}
    for number in range(settings.units):
        members = [entry for entry in files if assign_unit(entry["name"], settings.units) == number]
        if members:
            named = json.dumps([[entry["name"], entry["sha256"]] for entry in members])
            units[str(number)] = {"sha256": hashlib.sha256(named.encode()).hexdigest(), "files": members}
    described = settings.model_dump(mode="json")
    described["name"] = described.pop("source")
    content = {"source": described, "units": units, "bytes": size, "files": len(files)}
    manifest.write_text(
        json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n",
        encoding="utf-8",
    )
    return {"files": len(files), "bytes": size, "units": len(units)}
