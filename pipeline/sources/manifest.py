"""Joins the fingerprints of a source into the manifest that everything after it depends on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.opt_out.entries import ListedEntries, read_entries
from pipeline.opt_out.lists import mask_personal_data, publishable_list, read_opt_out_list
from pipeline.sources.settings import OPT_OUT_KINDS, ManifestSettings

SHOWN_IDS = 5
NO_FILES: list[Path] = []


def _reserved_entries(listed: ListedEntries | None, entries: Path | None) -> dict[str, Any] | None:
    """Return what a unit has to leave out, with the holder of its source where the list names it; None if nothing.

    Raises:
        InputError: what stands in the unit is not known.
    """
    if listed is None:
        return None
    if entries is None:
        raise InputError("a source with an opt-out list needs --input entries with the file of each unit")
    opt_out = listed.relevant(read_entries(entries))
    if not any(getattr(opt_out, kind) for kind in OPT_OUT_KINDS):
        return None
    holder = listed.holder if normalize_nfc(listed.holder) in opt_out.holders else None
    return {kind: getattr(opt_out, kind) for kind in OPT_OUT_KINDS} | {"holder": holder}


def _check_unmatched_ids(settings: ManifestSettings, listed: ListedEntries, path: Path, entries: list[Path]) -> None:
    """Check that the ids of an opt-out list name documents: that of a misspelt one would stay in the corpus.

    Raises:
        InputError: more of them name none than the source allows.
    """
    unmatched = listed.unmatched_ids(entries)
    if len(unmatched) > settings.allowed_unmatched_ids:
        first = ", ".join(map(mask_personal_data, unmatched[:SHOWN_IDS])) + ", …" * (len(unmatched) > SHOWN_IDS)
        raise InputError(
            f"source {settings.source}: {len(unmatched)} of the {len(listed.opt_out.ids)} ids in {path} name no "
            f"document: {first}. Correct them, or write `allowed_unmatched_ids: {len(unmatched)}` at the source"
        )


def run(
    settings: ManifestSettings,
    *,
    fingerprints: list[Path],
    entries: list[Path],
    shared: list[Path] = NO_FILES,
    opt_out: list[Path],
    manifest: Path,
    units: Path,
) -> dict[str, Any]:
    """Write what the source is with the files of its units, and for each unit a file UNIT.json: all that it depends on.

    The filter of a unit reads that file: when its bytes stay the same, the unit is not read again. It holds the names
    and hashes of the unit's files, what of the opt-out list concerns it, and the licence of the source where its rows
    state licences to compare with. Other labels of the source stand in the manifest alone.

    Args:
        entries: what stands in each unit, UNIT.npy, where the source has a list.
        shared: the same of the other sources that have this list: an id of it may name a document of theirs.
        opt_out: the list of those who reserved their rights; none where the source has no list.

    Raises:
        InputError: the files of the source hold no byte, the list cannot be read, or ids of it name no document.
    """
    unset = {"license_key", "license_names"} if settings.license_key is None else set()
    described = settings.model_dump(mode="json", exclude={*unset, "allowed_unmatched_ids"})
    described["name"] = described.pop("source")
    content: dict[str, Any] = {"source": described}
    listed = None
    for path in opt_out:
        read = read_opt_out_list(path)
        content["opt_out"] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), **publishable_list(read)}
        listed = ListedEntries(read, settings.rights.holder)
        _check_unmatched_ids(settings, listed, path, entries + shared)
    known = {path.stem: path for path in entries}
    units.mkdir(mode=0o770)  # the entries stand there as they were written
    described_units: dict[str, dict[str, Any]] = {}
    for fingerprint in (json.loads(path.read_text(encoding="utf-8")) for path in fingerprints):
        is_compared = fingerprint.pop("states_license") and settings.license_key is None
        decided_by = {
            "license": settings.license if is_compared else None,
            "opt_out": _reserved_entries(listed, known.get(str(fingerprint["unit"]))),
        }
        text = json.dumps(fingerprint | decided_by, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        (units / f"{fingerprint['unit']}.json").write_text(text, encoding="utf-8")
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        described_units[str(fingerprint["unit"])] = {"sha256": sha256, "files": fingerprint["files"]}
    files = [entry for unit in described_units.values() for entry in unit["files"]]
    size = sum(entry["bytes"] for entry in files)
    if size == 0:
        raise InputError(f"source {settings.source} is empty: give it files with text, or remove it from the sources")
    count = len({entry["name"] for entry in files})
    content |= {"units": described_units, "bytes": size, "files": count}
    manifest.write_text(json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    return {"files": count, "bytes": size, "units": len(described_units)}
