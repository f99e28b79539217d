"""The scores of documents as columns of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.corpus.documents import FINAL_SCHEMA

SCORES = ("quality", "perplexity")


def schema_of(score: str) -> pa.Schema:
    """Return the columns of a file of scores: the ids of a unit's documents, in their order, and the score."""
    return pa.schema([FINAL_SCHEMA.field("id"), FINAL_SCHEMA.field(score)])


def read_scores(paths: Sequence[Path]) -> list[pa.Table]:
    """Return the scores of the documents of a unit, a table for each file; none where the corpus asks for none."""
    return [pq.read_table(path).replace_schema_metadata(None) for path in paths]


def with_scores(documents: pa.Table, scores: Sequence[pa.Table]) -> pa.Table:
    """Return documents in the columns of FINAL_SCHEMA, each with its scores; null where the corpus asks for none.

    Args:
        documents: some of the unit, with the columns of FINAL_SCHEMA but the scores.
        scores: of all documents of the unit.

    Raises:
        InputError: the scores are of other documents.
    """
    columns = {name: pa.nulls(documents.num_rows, pa.float64()) for name in SCORES}
    for table in scores:
        places = pc.index_in(documents["id"], value_set=table["id"])
        if places.null_count:
            raise InputError("the scores are of other documents: delete them, so that they are computed again")
        columns |= {name: table[name].take(places) for name in table.column_names if name != "id"}
    for name, values in columns.items():
        documents = documents.append_column(FINAL_SCHEMA.field(name), values)
    return documents.select(FINAL_SCHEMA.names)
