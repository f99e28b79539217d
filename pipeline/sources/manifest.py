"""Joins the fingerprints of a source into its manifest, on which all later steps depend."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.opt_out.entries import ListedEntries, read_identity_hashes
from pipeline.opt_out.lists import mask_personal_data, publishable_list, read_opt_out_list
from pipeline.sources.settings import OPT_OUT_KINDS, ManifestSettings
from pipeline.sources.web_reservation_rules import HostRules

SHOWN_IDS = 5
NO_FILES: list[Path] = []


def _find_unit_opt_outs(listed: ListedEntries | None, entries: Path | None) -> dict[str, Any] | None:
    """Return the opt-outs that concern a unit, with the holder of its source if it is on the list; None if none do.

    Raises:
        InputError: the entries of the unit are missing.
    """
    if listed is None:
        return None
    if entries is None:
        raise InputError("a source with an opt-out list needs --input entries with the file of each unit")
    opt_out = listed.entries_in_unit(read_identity_hashes(entries))
    reservations = [one.model_dump(include={*HostRules.model_fields}) for one in opt_out.reservations]
    if not reservations and not any(getattr(opt_out, kind) for kind in OPT_OUT_KINDS):
        return None
    holder = listed.holder if normalize_nfc(listed.holder) in opt_out.holders else None
    listed_here = {kind: getattr(opt_out, kind) for kind in OPT_OUT_KINDS} | {"holder": holder}
    return listed_here | ({"reservations": reservations} if reservations else {})


def _check_unmatched_ids(settings: ManifestSettings, listed: ListedEntries, path: Path, entries: list[Path]) -> None:
    """Check that the ids of an opt-out list match documents, because a misspelled id removes nothing.

    Raises:
        InputError: more ids match no document than the source allows.
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
    """Write the manifest of the source, and a file UNIT.json with the inputs of each unit.

    The filter of a unit reads UNIT.json; if its bytes stay the same, the unit is not filtered again. It has the names
    and hashes of the unit's files, its opt-outs without the evidence for them, and the license of the source if rows
    state licenses to compare with. Other labels of the source are only in the manifest.

    Args:
        entries: the entries of each unit, UNIT.npy, if the source has an opt-out list.
        shared: the entries of other sources with the same list, because its ids may match their documents.
        opt_out: the opt-out list; empty if the source has none.

    Raises:
        InputError: the files of the source are empty, the list cannot be read, or ids of it match no document.
    """
    unset = {"license_key", "license_names"} if settings.license_key is None else set()
    described = settings.model_dump(mode="json", exclude={*unset, "allowed_unmatched_ids"})
    described["name"] = described.pop("source")
    content: dict[str, Any] = {"source": described}
    listed = None
    for path in opt_out:
        opt_out_list = read_opt_out_list(path)
        content["opt_out"] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), **publishable_list(opt_out_list)}
        listed = ListedEntries(opt_out_list, settings.rights.holder)
        _check_unmatched_ids(settings, listed, path, entries + shared)
    entries_by_unit = {path.stem: path for path in entries}
    units.mkdir(mode=0o770)  # contains opt-out entries as written
    described_units: dict[str, dict[str, Any]] = {}
    for fingerprint in (json.loads(path.read_text(encoding="utf-8")) for path in fingerprints):
        is_compared = fingerprint.pop("states_license") and settings.license_key is None
        decided_by = {
            "license": settings.license if is_compared else None,
            "opt_out": _find_unit_opt_outs(listed, entries_by_unit.get(str(fingerprint["unit"]))),
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
