"""The drawing of the DAG: steps with counts, arrows by what was read, and as few as tell it."""

from __future__ import annotations

import json
from itertools import pairwise

from pipeline.core.job_records import Record
from pipeline.report.charts import arrange_rows, draw_step_graph, find_step_edges
from tests.record_content import record_content
from tests.report.example import HOSTILE


def record(step: str, reads: list[str], writes: list[str]) -> Record:
    inputs, outputs = ([{"path": path} for path in paths] for paths in (reads, writes))
    return Record.parse(json.dumps(record_content(step, inputs=inputs, outputs=outputs)))


CHAIN = [
    record("a", ["raw"], ["1"]),
    record("a", ["raw"], ["2"]),
    record("b", ["1", "2"], ["3"]),
    record("c", ["1", "3"], ["4"]),
    record("d", ["4", "2"], ["5"]),
    record("alone", [], ["6"]),
]


def test_an_arrow_that_others_imply_is_left_out() -> None:
    assert find_step_edges(CHAIN) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set(), "alone": set()}


def test_a_step_stands_below_all_that_it_reads_from_and_near_it() -> None:
    graph = {"a": {"b", "x"}, "b": {"c"}, "c": {"d"}, "x": {"d"}, "d": set()}
    found = arrange_rows(graph)
    depth = {step: index for index, row in enumerate(found) for step in row}
    assert all(depth[writer] < depth[reader] for writer, readers in graph.items() for reader in readers)
    assert found == [["a"], ["b", "x"], ["c"], ["d"]]
    crossed = {"a": {"d"}, "b": {"c"}, "c": set(), "d": set()}
    assert arrange_rows(crossed) == [["a", "b"], ["d", "c"]]


def test_two_steps_that_read_from_each_other_do_not_hang() -> None:
    found = find_step_edges([record("a", ["2"], ["1"]), record("b", ["1"], ["2"])])
    assert sorted(len(readers) for readers in found.values()) == [0, 1]


def test_ten_thousand_jobs_are_as_few_boxes() -> None:
    many = [record("a", ["raw"], [str(n)]) for n in range(5000)] + [record("b", [str(n)], []) for n in range(5000)]
    drawn = str(draw_step_graph(many, lambda jobs: f"{jobs:,} jobs", "The DAG", "caption"))
    assert drawn.count("<rect") == 2 and drawn.count("5,000 jobs") == 2 and drawn.count('class="head"') == 1


def test_hostile_steps_are_text() -> None:
    drawn = str(draw_step_graph([record(HOSTILE, [], [])], str, "The DAG", "caption"))
    assert "<script" not in drawn and "&lt;script&gt;" in drawn


def test_boxes_of_a_row_do_not_overlap() -> None:
    found = arrange_rows({"a": {"b", "c", "d"}, "b": set(), "c": set(), "d": set()})
    assert all(first != second for first, second in pairwise(found[1])) and len(found[1]) == 3


def test_no_record_no_drawing() -> None:
    assert draw_step_graph([], str, "The DAG", "caption") == ""
