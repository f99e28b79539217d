"""Current power of a training: each node once, by its meter's last line, and no finished intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.energy.readings import UNCHANGED_FIELDS, MeterInterval, Reading, format_current_power, read_intervals

NOW = 1_000_000.0


def read(component: Any, joules: float | None, part: str = "", label: Any = "measured") -> Reading:
    return Reading(component=component, part=part, joules=joules, label=label, method="counter", meter="m")


def written(folder: Path, node: str, *intervals: tuple[float, list[Reading]]) -> Path:
    """Write the meter readings of a node: ten seconds that ended the given seconds ago."""
    used = {"job_cpu_seconds": 1.0, "node_cpu_seconds": 1.0, "processors": 2, "job_processors": 2}
    lines = [
        MeterInterval(
            node=node, started=NOW - ago - 10, ended=NOW - ago, job_memory_bytes=1, readings=tuple(of), **used
        )
        for ago, of in intervals
    ]
    file = folder / f"{node}.{len([*folder.iterdir()])}.jsonl"
    file.write_text("".join(f"{line.model_dump_json()}\n" for line in lines))
    return file


def test_line_without_a_node_inherits_the_constant_fields(tmp_path: Path) -> None:
    file = written(tmp_path, "gcn1", (20, [read("node", 1.0)]), (10, []))
    complete = [*read_intervals(file)]
    first, second = file.read_text().splitlines()
    short = json.dumps({key: value for key, value in json.loads(second).items() if key not in UNCHANGED_FIELDS})
    file.write_text("\n".join([first, short, second, short, ""]))
    assert [*read_intervals(file)] == [complete[0], *[complete[1]] * 3]
    file.write_text(f"{short}\n{first}\n")
    with pytest.raises(ValueError, match="line 1: node: Field required"):
        [*read_intervals(file)]


def test_parts_are_summed_over_the_last_interval(tmp_path: Path) -> None:
    parts = [read("board", 3000.0, "GPU-1"), read("board", 4000.0, "GPU-2"), read("package", 1000.0, "package-0")]
    one = written(tmp_path, "gcn1", (60, [read("board", 9e9, "GPU-1")]), (5, parts))
    two = written(tmp_path, "gcn2", (20, [read("board", 2000.0, "GPU-1")]))
    assert format_current_power([one, two], NOW) == "1.00 kW (processors, devices; 2 nodes)"  # 300 + 400 + 100 + 200 W


def test_node_reading_includes_parts_and_duplicate_meters_count_once(tmp_path: Path) -> None:
    whole = written(tmp_path, "nid1", (5, [read("board", 3000.0, "0"), read("node", 8000.0), read("package", 500.0)]))
    assert format_current_power([whole], NOW) == "0.80 kW (whole; 1 node)"
    twice = written(tmp_path, "nid2", (5, [read("package", 500.0), read("package", 700.0)]))
    assert format_current_power([twice], NOW) == "0.05 kW (processors; 1 node)"


def test_node_metered_by_two_attempts_counts_once(tmp_path: Path) -> None:
    old = written(tmp_path, "gcn1", (40, [read("board", 3000.0, "GPU-1")]))
    new = written(tmp_path, "gcn1", (5, [read("board", 1000.0, "GPU-1")]))
    assert format_current_power([new, old], NOW) == format_current_power([old, new], NOW) == "0.10 kW (devices; 1 node)"


def test_finished_estimated_or_unread_power_is_not_shown(tmp_path: Path) -> None:
    over = written(tmp_path, "gcn1", (200, [read("board", 3000.0)]))
    guessed = written(tmp_path, "gcn2", (5, [read("node", 3000.0, label="estimated")]))
    unread = written(tmp_path, "gcn3", (5, [read("board", None)]))
    torn = tmp_path / "torn.jsonl"
    torn.write_text('{"node": "gcn4", "sta')
    assert format_current_power([over, guessed, unread, torn, tmp_path / "gone.jsonl"], NOW) == ""
