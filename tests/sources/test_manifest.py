"""Fingerprints and manifests depend on the names and bytes of the files, and on nothing else."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import InputError
from pipeline.sources import fingerprint, manifest
from pipeline.sources.listing import assign_unit
from pipeline.sources.settings import FingerprintSettings, ManifestSettings, Rights


def fingerprinted(folder: Path, files: dict[str, bytes], unit: int = 0) -> Path:
    paths = []
    for name, content in files.items():
        (folder / name).write_bytes(content)
        paths.append(folder / name)
    out = folder / f"fingerprint-{unit}.json"
    fingerprint.run(FingerprintSettings(source="s", unit=unit, names=list(files)), files=paths, fingerprint=out)
    return out


def joined(folder: Path, fingerprints: list[Path], units: int = 1) -> dict[str, Any]:
    rights = Rights(basis="licence", holder="someone")
    settings = ManifestSettings(source="s", language="nl", license="CC0-1.0", rights=rights, units=units)
    manifest.run(settings, fingerprints=fingerprints, opt_out=[], manifest=folder / "manifest.json")
    content: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return content


def test_a_fingerprint_holds_the_hash_of_each_file_in_the_order_of_names(tmp_path: Path) -> None:
    files = json.loads(fingerprinted(tmp_path, {"b": b"tweede", "a": b""}).read_text())["files"]
    assert files == [
        {"name": "a", "bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()},
        {"name": "b", "bytes": 6, "sha256": hashlib.sha256(b"tweede").hexdigest()},
    ]


def test_a_changed_file_changes_its_unit_alone(tmp_path: Path) -> None:
    names = ["0", "1", "2", "3", "4", "5"]
    by_unit: dict[int, dict[str, bytes]] = {}
    for name in names:
        by_unit.setdefault(assign_unit(name, 2), {})[name] = name.encode()
    assert len(by_unit) == 2
    before = joined(tmp_path, [fingerprinted(tmp_path, files, unit) for unit, files in by_unit.items()], units=2)
    assert before["files"] == 6 and before["bytes"] == 6 and before["source"]["name"] == "s"
    by_unit[assign_unit("3", 2)]["3"] = b"other"
    after = joined(tmp_path, [fingerprinted(tmp_path, files, unit) for unit, files in by_unit.items()], units=2)
    changed = {unit for unit in before["units"] if before["units"][unit]["sha256"] != after["units"][unit]["sha256"]}
    assert changed == {str(assign_unit("3", 2))}


def test_the_order_of_fingerprints_makes_no_difference(tmp_path: Path) -> None:
    parts = [fingerprinted(tmp_path, {name: b"x"}, unit) for unit, name in enumerate("abc")]
    assert joined(tmp_path, parts) == joined(tmp_path, parts[::-1])


def test_a_source_without_a_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="source s is empty"):
        joined(tmp_path, [fingerprinted(tmp_path, {"a": b""})])


def test_files_that_do_not_match_the_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    settings = FingerprintSettings(source="s", unit=0, names=["a", "b"])
    with pytest.raises(InputError, match="1 files are given for 2 names"):
        fingerprint.run(settings, files=[tmp_path / "a"], fingerprint=tmp_path / "out")
