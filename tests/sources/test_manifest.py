"""Fingerprints and manifests depend only on the names and bytes of the files."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.sources import manifest
from pipeline.sources.settings import ManifestSettings, Rights
from pipeline.sources.source_units import assign_unit
from tests.conftest import fingerprinted


def hashed(folder: Path, files: dict[str, bytes], unit: int = 0) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return fingerprinted(folder / "hashed", "s", {name: folder / name for name in files}, unit)


def joined(folder: Path, fingerprints: list[Path], units: int = 1, **changed: Any) -> dict[str, Any]:
    described = {"license": "CC0-1.0", "rights": Rights(basis="license", holder="someone")} | changed
    settings = ManifestSettings(source="s", language="nl", units=units, **described)
    paths = {"manifest": folder / "manifest.json", "units": folder / "units"}
    shutil.rmtree(paths["units"], ignore_errors=True)
    manifest.run(settings, fingerprints=fingerprints, entries=[], opt_out=[], **paths)
    content: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return content


def test_fingerprint_has_the_hash_of_each_file_sorted_by_name(tmp_path: Path) -> None:
    files = json.loads(hashed(tmp_path, {"b": b"tweede", "a": b""}).read_text())["files"]
    assert files == [
        {"name": "a", "bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()},
        {"name": "b", "bytes": 6, "sha256": hashlib.sha256(b"tweede").hexdigest()},
    ]


def test_changed_file_changes_only_its_unit(tmp_path: Path) -> None:
    names = ["0", "1", "2", "3", "4", "5"]
    by_unit: dict[int, dict[str, bytes]] = {}
    for name in names:
        by_unit.setdefault(assign_unit(name, 2), {})[name] = name.encode()
    assert len(by_unit) == 2
    before = joined(tmp_path, [hashed(tmp_path, files, unit) for unit, files in by_unit.items()], units=2)
    assert before["files"] == 6 and before["bytes"] == 6 and before["source"]["name"] == "s"
    by_unit[assign_unit("3", 2)]["3"] = b"other"
    after = joined(tmp_path, [hashed(tmp_path, files, unit) for unit, files in by_unit.items()], units=2)
    changed = {unit for unit in before["units"] if before["units"][unit]["sha256"] != after["units"][unit]["sha256"]}
    assert changed == {str(assign_unit("3", 2))}


def test_each_unit_has_a_file_with_its_dependencies(tmp_path: Path) -> None:
    content = joined(tmp_path, [hashed(tmp_path, {name: b"x"}, unit) for unit, name in enumerate("ab")], units=2)
    written = (tmp_path / "units/1.json").read_bytes()
    assert hashlib.sha256(written).hexdigest() == content["units"]["1"]["sha256"]
    described = json.loads(written)
    assert (described["source"], described["unit"], described["opt_out"]) == ("s", 1, None)
    assert [file["name"] for file in described["files"]] == ["b"]


def test_fingerprint_order_does_not_matter(tmp_path: Path) -> None:
    parts = [hashed(tmp_path, {name: b"x"}, unit) for unit, name in enumerate("abc")]
    assert joined(tmp_path, parts) == joined(tmp_path, parts[::-1])


def test_empty_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="source s is empty"):
        joined(tmp_path, [hashed(tmp_path, {"a": b""})])


LABELS: dict[str, dict[str, Any]] = {
    "license": {"license": "MIT"},
    "basis": {"rights": Rights(basis="statute", holder="someone")},
    "holder": {"rights": Rights(basis="license", holder="another")},
    "address": {"rights": Rights(basis="license", holder="someone", url="https://voorbeeld.nl")},
}


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("row", [b'{"text": "t"}', b'{"text": "t", "license": null}'])
def test_source_label_is_in_the_manifest_and_not_in_the_units(tmp_path: Path, label: str, row: bytes) -> None:
    parts = [hashed(tmp_path, {"a.jsonl": row})]
    before, after = joined(tmp_path, parts), joined(tmp_path, parts, **LABELS[label])
    assert before["units"] == after["units"] and before["source"] != after["source"]
    assert json.loads((tmp_path / "units/0.json").read_text())["license"] is None


def test_source_license_changes_only_units_whose_rows_state_licenses(tmp_path: Path) -> None:
    stated = b'{"text": "t", "license": "CC0-1.0"}'
    parts = [hashed(tmp_path, {"a.jsonl": b"{}"}, 0), hashed(tmp_path, {"b.jsonl": stated}, 1)]
    before, after = joined(tmp_path, parts, units=2), joined(tmp_path, parts, units=2, license="MIT")
    assert before["units"]["0"] == after["units"]["0"] and before["units"]["1"] != after["units"]["1"]
    assert json.loads((tmp_path / "units/1.json").read_text())["license"] == "MIT"
    one, other = (joined(tmp_path, parts, units=2, license=name, license_key="license") for name in ("MIT", "CC0-1.0"))
    assert one["units"] == other["units"], "the source license does not apply to documents with their own license"
