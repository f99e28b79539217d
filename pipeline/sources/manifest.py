"""Joins the fingerprints of a source into the manifest that everything after it depends on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.sources.opt_out import KINDS, read_opt_out
from pipeline.sources.settings import ManifestSettings


def run(settings: ManifestSettings, *, fingerprints: list[Path], opt_out: list[Path], manifest: Path) -> dict[str, Any]:
    """Write what the source is, the files of each unit with one sha256 over their names and hashes, and the opt-outs.

    The opt-out list is part of each unit's sha256: when its entries change, the units of this source are read again.

    Args:
        opt_out: the list of those who reserved their rights; none where the source has no list.

    Raises:
        InputError: the files of the source hold no byte, or the list cannot be read.
    """
    described = settings.model_dump(mode="json")
    described["name"] = described.pop("source")
    content: dict[str, Any] = {"source": described}
    entries = None
    for path in opt_out:
        listed = read_opt_out(path).model_dump()
        content["opt_out"] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), **listed}
        entries = [listed[kind] for kind in KINDS] + [settings.rights.holder if listed["holders"] else None]
    units: dict[str, dict[str, Any]] = {}
    for fingerprint in (json.loads(path.read_text(encoding="utf-8")) for path in fingerprints):
        members = sorted(fingerprint["files"], key=lambda entry: str(entry["name"]))
        named = json.dumps([*([entry["name"], entry["sha256"]] for entry in members), *([entries] if entries else [])])
        units[str(fingerprint["unit"])] = {"sha256": hashlib.sha256(named.encode()).hexdigest(), "files": members}
    files = [entry for unit in units.values() for entry in unit["files"]]
    size = sum(entry["bytes"] for entry in files)
    if size == 0:
        raise InputError(f"source {settings.source} is empty: give it files with text, or remove it from the sources")
    count = len({entry["name"] for entry in files})
    manifest.write_text(
        json.dumps(
            {**content, "units": units, "bytes": size, "files": count}, indent=1, ensure_ascii=False, sort_keys=True
        )
        + "\n",
        encoding="utf-8",
    )
    return {"files": count, "bytes": size, "units": len(units)}
