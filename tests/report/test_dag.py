"""The drawing of the DAG: steps with counts, and a minimal set of edges by inputs."""

from __future__ import annotations

import json
from itertools import pairwise

from pipeline.core.job_records import Record
from pipeline.report.charts import arrange_steps_in_rows, draw_step_graph, find_step_dependencies
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


def test_transitive_edges_are_omitted() -> None:
    assert find_step_dependencies(CHAIN) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set(), "alone": set()}


def test_step_is_below_all_its_inputs_and_long_arrows_pass_no_box() -> None:
    graph = {"a": {"b", "x"}, "b": {"c"}, "c": {"d"}, "x": {"d"}, "d": set()}
    result = arrange_steps_in_rows(graph)
    depth = {step: index for index, row in enumerate(result) for step in row}
    assert all(depth[writer] < depth[reader] for writer, readers in graph.items() for reader in readers)
    assert "x>d" in result[2] and [len(row) for row in result] == [1, 2, 2, 1]


def test_cyclic_steps_do_not_hang() -> None:
    step_edges = find_step_dependencies([record("a", ["2"], ["1"]), record("b", ["1"], ["2"])])
    assert sorted(len(readers) for readers in step_edges.values()) == [0, 1]


def test_ten_thousand_jobs_are_grouped_into_few_boxes() -> None:
    many = [record("a", ["raw"], [str(n)]) for n in range(5000)] + [record("b", [str(n)], []) for n in range(5000)]
    drawn = str(draw_step_graph(many, lambda jobs: f"{jobs:,} jobs", "The DAG", "caption"))
    assert drawn.count("<rect") == 2 and drawn.count("5,000 jobs") == 2 and drawn.count('class="head"') == 1


def test_hostile_step_names_are_escaped() -> None:
    drawn = str(draw_step_graph([record(HOSTILE, [], [])], str, "The DAG", "caption"))
    assert "<script" not in drawn and "&lt;script&gt;" in drawn


def test_boxes_of_a_row_do_not_overlap() -> None:
    result = arrange_steps_in_rows({"a": {"b", "c", "d"}, "b": set(), "c": set(), "d": set()})
    assert all(first != second for first, second in pairwise(result[1])) and len(result[1]) == 3


def test_run_without_records_has_no_drawing() -> None:
    assert draw_step_graph([], str, "The DAG", "caption") == ""
