"""The counts in the description of a data set."""

from __future__ import annotations

import pyarrow as pa

from pipeline.corpus.data_set.document_counts import GROUPS, DocumentCounts


def test_years_are_the_first_four_digits_of_dates() -> None:
    dates = ["2019", "2019-05-01", "20190501", "1885 of later", "19", "mei 2019", "", None]
    rows = len(dates)
    batch = pa.RecordBatch.from_pydict(
        {
            "text": ["é"] * rows,
            "date": pa.array(dates, pa.string()),
            "language": ["nl"] * rows,
            "license": ["CC0-1.0"] * rows,
            "source": ["s"] * rows,
            "language_score": [0.5] * rows,
        }
    )
    counts = DocumentCounts({})
    counts.count_batch(batch)
    place = list(GROUPS).index("years")
    assert {group[place]: dict(part) for group, part in counts.groups.items()} == {
        "2019": {"documents": 3, "bytes": 6},
        "1885": {"documents": 1, "bytes": 2},
        "not stated": {"documents": 4, "bytes": 8},
    }
