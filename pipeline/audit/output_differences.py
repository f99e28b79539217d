"""What a step that was done again has written otherwise: its record, and its files by bytes and then by content."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.core.hashing import sha256_of
from pipeline.core.records import FileEntry, Record
from pipeline.provenance.contents import changed, content_differences, few, flat, is_timed, is_timed_key


def compared(run_directory: Path, record: Record, again: Path, told: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What a step that was done again has written otherwise, and what is said without being a difference, as lines.

    Args:
        again: the folder of the run in which it was done again.
        told: the settings in the command of the record.
    """
    new = Record.load(again / record.file, strict=True)
    lines = [f"record, settings of its command → settings {line}" for line in _changed(told, record.settings)]
    lines += [f"settings {line}" for line in _changed(record.settings, new.settings)]
    lines += [f"counts {line}" for line in _changed(record.counts, new.counts) if not is_timed_key(line.split(":")[0])]
    lines += changed(_hashes(record.inputs, "read "), _hashes(new.inputs, "read "))
    notes: list[str] = []
    tells_times = any(entry.path.startswith(f"{layout.RECORDS}/") for entry in record.inputs)
    before, now = ({entry.path: entry for entry in one.outputs} for one in (record, new))
    for path in sorted(before.keys() | now.keys()):
        if path not in before or path not in now:
            if not is_timed(path):
                lines.append(f"{path}: {'not written now' if path in before else 'not in the record'}")
            continue
        file, recorded, found = run_directory / path, before[path].sha256, now[path].sha256
        is_there = file.is_file()
        on_disk = sha256_of(file) if is_there else None
        if is_there and on_disk != recorded:
            state = "which the step writes again" if found == recorded else "and the step writes neither"
            lines.append(f"{path}: the file in the run is not what the record says ({recorded[:16]}), {state}")
        if not is_there:
            notes.append(f"{path} is no longer in the run: compared with its record alone")
        if found == recorded and on_disk in (None, recorded):
            continue
        inside = content_differences(file, again / path) if is_there else []
        if is_timed(path):
            if inside and path.endswith(layout.METRICS_FILE):
                lines += [f"{path}:", *(f"  {line}" for line in inside)]
            else:
                what = (
                    "the same but for clock times and speeds" if path.endswith(layout.METRICS_FILE) else "not compared"
                )
                notes.append(f"{path}: {what}")
        else:
            if found != recorded:
                lines.append(f"{path}: other bytes, sha256 {recorded[:16]} → {found[:16]}")
            content = inside or (["the same content in other bytes"] if is_there else [])
            lines += [f"  {line}" for line in content]
    if lines and tells_times:
        notes.append("it shows joules and times: what books of the machine told after it would be among them now")
    return lines, few(notes)


def _changed(before: object, now: object) -> list[str]:
    return changed(dict(flat(before)), dict(flat(now)))


def _hashes(entries: Iterable[FileEntry], what: str) -> dict[str, str]:
    return {f"{what}{entry.path}": entry.sha256[:16] for entry in entries}
