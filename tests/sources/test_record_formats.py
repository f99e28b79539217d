"""A key names a column of a file, or a field of a column that has fields."""

from __future__ import annotations

import pyarrow as pa

from pipeline.sources.record_formats import get_column, present_keys


def test_a_key_with_dots_names_a_field_of_a_column_or_a_column_of_that_name() -> None:
    rows = [{"meta": {"license": "CC0-1.0", "at": {"url": "u"}}, "date": "2024", "a.b": 1}]
    batch = pa.RecordBatch.from_pylist(rows)
    wanted = ["meta.license", "meta.at.url", "meta.absent", "meta.at.absent", "date.year", "date", "absent.url", "a.b"]
    found = present_keys(batch.schema, wanted)
    assert found == ["meta.license", "meta.at.url", "date", "a.b"]
    assert [get_column(batch, key).to_pylist() for key in found] == [["CC0-1.0"], ["u"], ["2024"], [1]]
