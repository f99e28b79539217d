"""What differs between two runs, step by step: settings, code, environment, data, results; never times or hosts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.ground.errors import InputError
from pipeline.provenance.files import RECORDS
from pipeline.provenance.records import FileEntry, Record, load_records

NOTHING = "nothing"
# Files that hold speeds and clock times beside their results: they differ in bytes when nothing else does.
TIMED_FILES = ("metrics.jsonl",)
TIMED_FOLDERS = ("tensorboard",)


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and the JSON of their values."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _flat(item, f"{key}.{name}" if key else str(name))
    else:
        yield key, json.dumps(value, sort_keys=True, ensure_ascii=False)


def _differences(kind: str, a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """One line for each key whose values differ; a key that one side lacks has the value `nothing`."""
    return [
        f"{kind} {key}: {a.get(key, NOTHING)} → {b.get(key, NOTHING)}".replace(" :", ":")
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key)
    ]


def _hashes(entries: list[FileEntry]) -> dict[str, str]:
    """The hashes of those files whose bytes depend on nothing but what the job was given."""
    hashes = {}
    for entry in entries:
        *folders, name = entry.path.split("/")
        if name not in TIMED_FILES and not set(folders) & set(TIMED_FOLDERS) and not _is_record(entry):
            hashes[entry.path] = entry.sha256[:16]
    return hashes


def _is_record(entry: FileEntry) -> bool:
    return entry.path.startswith(f"{RECORDS}/")


def _of_job(a: Record, b: Record) -> list[str]:
    """The differences of a job that both runs have."""
    packages_a, packages_b = (dict(_flat(record.environment)) for record in (a, b))
    # What is computed from records, such as the report, holds their times and joules.
    outputs_a, outputs_b = ([] if any(map(_is_record, record.inputs)) else record.outputs for record in (a, b))
    return [
        *_differences("settings", dict(_flat(a.settings)), dict(_flat(b.settings))),
        *_differences("code", {"": a.code_version}, {"": b.code_version}),
        *_differences("environment", {"": a.environment_version}, {"": b.environment_version}),
        *_differences("environment", packages_a, packages_b),
        *_differences("input", _hashes(a.inputs), _hashes(b.inputs)),
        *_differences("output", _hashes(outputs_a), _hashes(outputs_b)),
    ]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(f"{path} is not valid JSON: run `python -m pipeline verify` on its run") from None


def _results(run_directory: Path) -> dict[str, str]:
    """The figures that a run ends in: evaluation values and the last losses of each model."""
    found: dict[str, str] = {}
    for path in sorted(run_directory.glob("evaluation/*/*/results.json")):
        for task in _json(path).get("tasks", []):
            key = "/".join([*path.parts[-3:-1], str(task.get("task")), str(task.get("language")), str(task["metric"])])
            found[key] = json.dumps(task["value"])
    for path in sorted(run_directory.glob("models/*/metrics.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                step = json.loads(line)
            except ValueError:
                raise InputError(f"{path} is cut off or broken: make it again") from None
            for key in ("loss", "validation_loss", "validation_bits_per_byte"):
                if key in step:
                    found[f"{path.parts[-2]}/last {key}"] = json.dumps(step[key])
    return found


def compare(a: Path, b: Path) -> list[str]:
    """The differences of run `b` from run `a` as lines, grouped by step; an empty list if there is none.

    Times, hosts, attempts, energy and the number of devices are left out. A difference that several jobs of a step
    share is told once.

    Raises:
        InputError: one of the folders holds no records, or broken ones.
    """
    jobs_a, jobs_b = ({record.title: record for record in load_records(run)} for run in (a, b))
    steps: dict[str, dict[str, list[str]]] = {}
    for title in sorted(jobs_a.keys() | jobs_b.keys()):
        if title in jobs_a and title in jobs_b:
            differences = _of_job(jobs_a[title], jobs_b[title])
        else:
            differences = [f"only in {a if title in jobs_a else b}"]
        step = (jobs_a.get(title) or jobs_b[title]).step
        for difference in differences:
            steps.setdefault(step, {}).setdefault(difference, []).append(title.removeprefix(step).strip(" ()"))
    lines = []
    for step, found in sorted(steps.items()):
        lines.append(step)
        for difference, instances in found.items():
            where = "; ".join(instance for instance in instances[:3] if instance)
            more = f" and {len(instances) - 3} more" if len(instances) > 3 else ""
            lines.append(f"  {difference}" + (f"  [{where}{more}]" if where else ""))
    results = _differences("", _results(a), _results(b))
    return [*lines, *(["results", *(f"  {line.strip()}" for line in results)] if results else [])]


def main(arguments: list[str]) -> int:
    """`python -m pipeline compare RESULTS_A RESULTS_B`: 0 if nothing differs, 1 and the list if something does."""
    parser = argparse.ArgumentParser(prog="python -m pipeline compare", description=__doc__)
    parser.add_argument("a", type=Path)
    parser.add_argument("b", type=Path)
    options = parser.parse_args(arguments)
    lines = compare(options.a, options.b)
    print("\n".join(lines) if lines else "Settings, code, environment, data and results are the same.")
    return 1 if lines else 0
