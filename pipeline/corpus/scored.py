"""The scores of documents as columns of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.corpus.documents import FINAL_SCHEMA
from pipeline.ground.errors import InputError

SCORES = ("quality", "perplexity")
SCORE_SCHEMA = pa.schema([FINAL_SCHEMA.field(name) for name in ("id", *SCORES)])


def read_scores(paths: Sequence[Path]) -> pa.Table:
    """Return the scores of the documents of a unit, in their order; no rows where the corpus asks for none."""
    return pa.concat_tables([SCORE_SCHEMA.empty_table(), *map(pq.read_table, paths)]).replace_schema_metadata(None)


def with_scores(documents: pa.Table, scores: pa.Table) -> pa.Table:
    """Return documents in the columns of FINAL_SCHEMA, each with its scores; null where the corpus asks for none.

    Raises:
        InputError: the scores are of other documents.
    """
    places = pc.index_in(documents["id"], value_set=scores["id"])
    if scores.num_rows and places.null_count:
        raise InputError("the scores are of other documents: delete them and run corpus.scores again")
    for name in SCORES:
        documents = documents.append_column(FINAL_SCHEMA.field(name), scores[name].take(places))
    return documents.select(FINAL_SCHEMA.names).cast(FINAL_SCHEMA)
