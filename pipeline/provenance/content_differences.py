"""Differences in the content of files, and between the record of a step and its rerun."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import FileEntry, Record
from pipeline.core.output_archives import ArchivedOutput, find_output

ABSENT = "nothing"
MAX_LINES = 8
MAX_CHARACTERS = 100
# Files with speeds and clock times, whose bytes differ between runs with equal results.
TIMED_FOLDERS = ("tensorboard",)
RECORD_FOLDERS = (f"{layout.RECORDS}/", f"{layout.BATCH_ARCHIVES}/")
"""The folders of records and of lists of records, which hold the times of jobs."""
BLOCK_BYTES = 1 << 20


def has_timings(path: str) -> bool:
    """Return whether a file, by its path, holds clock times or speeds, which differ between runs."""
    *folders, name = path.split("/")
    return name == layout.METRICS_FILE or bool(set(folders) & set(TIMED_FOLDERS))


def is_timing_key(key: str) -> bool:
    """Return whether a key of metrics or counts is a clock time, a speed or a utilization."""
    word = key.rpartition(".")[2]
    return word.endswith(("seconds", "per_second")) or "utilization" in word or word.startswith("memory_")


def flatten_json(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted keys and the JSON of their values; list items are keyed by index."""
    if isinstance(value, Mapping | list) and value:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, item in items:
            yield from flatten_json(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, json.dumps(value, sort_keys=True, ensure_ascii=False)


def _excerpt(text: str, other: str) -> str:
    """Return a value for a line; of a long one the part around the first difference."""
    if len(text) <= MAX_CHARACTERS:
        return text
    same = next((n for n, pair in enumerate(zip(text, other, strict=False)) if pair[0] != pair[1]), len(other))
    start = max(0, same - MAX_CHARACTERS // 4) if len(other) > MAX_CHARACTERS // 4 else 0
    return f"{'…' * (start > 0)}{text[start : start + MAX_CHARACTERS]}{'…' * (start + MAX_CHARACTERS < len(text))}"


def format_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a line for each key with different values; a missing key has the value `nothing`."""
    lines = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key, ABSENT), now.get(key, ABSENT)
        if (key in before) != (key in now) or old != new:
            lines.append(f"{key}: {_excerpt(old, new)} → {_excerpt(new, old)}")
    return lines


def limit_lines(lines: list[str]) -> list[str]:
    """Return the first lines and the number of further ones."""
    return lines if len(lines) <= MAX_LINES + 1 else [*lines[:MAX_LINES], f"and {len(lines) - MAX_LINES} more"]


def compare_file_contents(before: Path, now: Path) -> list[str]:
    """Return differences between two files of one format as lines; empty if their content is equal.

    Clock times and speeds of metrics are left out. A file that is not what its name says is compared byte by byte.
    """
    kinds = {
        ".parquet": _compare_tables,
        ".arrow": _compare_tables,
        ".json": _compare_json,
        ".jsonl": _compare_json_lines,
        ".safetensors": _compare_tensors,
    }
    kinds |= dict.fromkeys((".html", ".md", ".txt", ".yaml"), _compare_texts)
    differences = kinds.get(before.suffix, _compare_bytes)
    try:
        return limit_lines(differences(before, now))
    except (OSError, ValueError, InputError) as error:  # pyarrow's and safetensors' errors are of these
        return [f"{type(error).__name__}: not readable as {before.suffix[1:]}", *_compare_bytes(before, now)]


def _compare_json(before: Path, now: Path) -> list[str]:
    old, new = (dict(flatten_json(json.loads(path.read_text(encoding="utf-8")))) for path in (before, now))
    return [f"key {line}" for line in format_changes(old, new)]


def _compare_json_lines(before: Path, now: Path) -> list[str]:
    """Compare JSON Lines; metrics without clock times and speeds."""

    def flatten_json_lines(path: Path) -> dict[str, str]:
        values = {}
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            for key, value in flatten_json(json.loads(line)) if line else ():
                if path.name != layout.METRICS_FILE or not is_timing_key(key):
                    values[f"line {number}, {key}"] = value
        return values

    return format_changes(flatten_json_lines(before), flatten_json_lines(now))


def _compare_texts(before: Path, now: Path) -> list[str]:
    old, new = (
        {f"line {number}": line for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)}
        for path in (before, now)
    )
    return format_changes(old, new)


def _compare_bytes(before: Path, now: Path) -> list[str]:
    sizes = [path.stat().st_size for path in (before, now)]
    with before.open("rb") as one, now.open("rb") as other:
        place = 0
        while True:
            a, b = one.read(BLOCK_BYTES), other.read(BLOCK_BYTES)
            if a != b:
                at = next(
                    (n for n, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(map(len, (a, b)))
                )
                return [f"byte {place + at} is the first that differs, of {sizes[0]} and {sizes[1]} bytes"]
            if not a:
                return []
            place += len(a)


def _read_table(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.memory_map(str(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
        return stream.read_all()


def _compare_tables(before: Path, now: Path) -> list[str]:
    """Compare columns, types, metadata and rows of two tables."""
    old, new = _read_table(before), _read_table(now)
    types = [{name: str(table.schema.field(name).type) for name in table.column_names} for table in (old, new)]
    lines = [f"column {line}" for line in format_changes(*types)]
    metadata = [
        {key.decode(): value.decode(errors="replace") for key, value in (table.schema.metadata or {}).items()}
        for table in (old, new)
    ]
    lines += [f"metadata {line}" for line in format_changes(*metadata)]
    if len(old) != len(new):
        return [*lines, f"rows: {len(old)} → {len(new)}", *_compare_row_ids(old, new)]
    for name in types[0]:
        if types[0][name] == types[1].get(name) and not old[name].equals(new[name]):
            pairs = zip(old[name].to_pylist(), new[name].to_pylist(), strict=True)
            rows = [number for number, (a, b) in enumerate(pairs) if a != b and not (a != a and b != b)]
            row_numbers = ", ".join(map(str, rows[:MAX_LINES])) + (
                f" and {len(rows) - MAX_LINES} more" if len(rows) > MAX_LINES else ""
            )
            lines.append(f"column {name}: {len(rows)} of {len(old)} rows differ, from 0: {row_numbers}")
    return lines


def _compare_row_ids(old: Any, new: Any) -> list[str]:
    """Compare the ids of rows, if there are any."""
    if not all("id" in table.column_names for table in (old, new)):
        return []
    a, b = (set(map(str, table["id"].to_pylist())) for table in (old, new))
    return [*(f"row {name} is gone" for name in sorted(a - b)), *(f"row {name} is new" for name in sorted(b - a))]


def _compare_tensors(before: Path, now: Path) -> list[str]:
    """Compare names, shapes, types and values of tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(before, framework="pt") as one, safe_open(now, framework="pt") as other:
            names = [set(one.keys()), set(other.keys())]
            shapes = [
                {
                    name: f"{file.get_slice(name).get_dtype()} {file.get_slice(name).get_shape()}"
                    for name in tensor_names
                }
                for file, tensor_names in ((one, names[0]), (other, names[1]))
            ]
            lines = [f"tensor {line}" for line in format_changes(*shapes)]
            for name in sorted(names[0] & names[1]):
                if shapes[0][name] != shapes[1][name]:
                    continue
                apart = (one.get_tensor(name).double() - other.get_tensor(name).double()).abs()
                if differing := int((apart != 0).sum()):
                    most = f"{float(apart.max()):.3g}"
                    lines.append(f"tensor {name}: {differing} of {apart.numel()} values differ, by {most} at most")
            metadata = [{key: str(value) for key, value in (file.metadata() or {}).items()} for file in (one, other)]
            return [*lines, *(f"metadata {line}" for line in format_changes(*metadata))]
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def compare_rerun(
    run_directory: Path, record: Record, rerun: Path, command_settings: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """What a step wrote otherwise in the folder `again`, and what is said without being a difference, as lines.

    `command_settings` are the settings in the command of the record.
    """
    new = Record.load(rerun / record.file, strict=True)
    lines = [
        f"record, settings of its command → settings {line}"
        for line in _compare_values(command_settings, record.settings)
    ]
    lines += [f"settings {line}" for line in _compare_values(record.settings, new.settings)]
    lines += [
        f"counts {line}" for line in _compare_values(record.counts, new.counts) if not is_timing_key(line.split(":")[0])
    ]
    lines += format_changes(_map_hashes(record.inputs, "read "), _map_hashes(new.inputs, "read "))
    notes: list[str] = []
    tells_times = any(entry.path.startswith(RECORD_FOLDERS) for entry in record.inputs)
    before, now = ({entry.path: entry for entry in one.outputs} for one in (record, new))
    for path in sorted(before.keys() | now.keys()):
        if path not in before or path not in now:
            if not has_timings(path):
                lines.append(f"{path}: {'not written now' if path in before else 'not in the record'}")
            continue
        file, recorded, new_sha256 = find_output(run_directory / path), before[path].sha256, now[path].sha256
        is_there = file.is_file()
        on_disk = hash_file(file) if is_there else None
        if is_there and on_disk != recorded:
            state = "which the step writes again" if new_sha256 == recorded else "and the step writes neither"
            lines.append(f"{path}: the file in the run is not what the record says ({recorded[:16]}), {state}")
        if not is_there:
            notes.append(f"{path} is no longer in the run: compared with its record alone")
        if new_sha256 == recorded and on_disk in (None, recorded):
            continue
        inside = _compare_outputs(file, find_output(rerun / path)) if is_there else []
        if has_timings(path):
            if inside and path.endswith(layout.METRICS_FILE):
                lines += [f"{path}:", *(f"  {line}" for line in inside)]
            else:
                what = (
                    "the same but for clock times and speeds" if path.endswith(layout.METRICS_FILE) else "not compared"
                )
                notes.append(f"{path}: {what}")
        else:
            if new_sha256 != recorded:
                lines.append(f"{path}: other bytes, sha256 {recorded[:16]} → {new_sha256[:16]}")
            content = inside or (["the same content in other bytes"] if is_there else [])
            lines += [f"  {line}" for line in content]
    if lines and tells_times:
        notes.append("it shows joules and times: external meters may have added readings since")
    return lines, limit_lines(notes)


def _compare_outputs(*files: Path | ArchivedOutput) -> list[str]:
    with TemporaryDirectory(prefix="polder-") as folder:
        copies = [
            file if isinstance(file, Path) else file.copy_into_folder(Path(folder, str(number)))
            for number, file in enumerate(files)
        ]
        return compare_file_contents(*copies)


def _compare_values(before: object, now: object) -> list[str]:
    return format_changes(dict(flatten_json(before)), dict(flatten_json(now)))


def _map_hashes(entries: Iterable[FileEntry], what: str) -> dict[str, str]:
    return {f"{what}{entry.path}": entry.sha256[:16] for entry in entries}
