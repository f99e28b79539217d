"""A table with the loss of each held-out document: by it two models are compared on the same documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.tokens.validation_reader import ValidationSet

Columns = dict[str, list[Any]]
DOCUMENTS = "document_losses"
"""The key of the columns in a line of metrics."""
MAX_DOCUMENTS = 2000
"""A table of more than these holds a sample of them: about 50 kB, compared with another one in 2 seconds."""
SCHEMA = pa.schema(
    [
        ("id_hash", pa.uint64()),
        ("source", pa.dictionary(pa.int32(), pa.string())),
        ("bytes", pa.int64()),
        ("tokens", pa.int64()),
        ("nats", pa.float64()),
    ]
)
"""`nats` is the summed loss of the predicted `tokens`; `bytes` is the size of the text in UTF-8."""


def sample_documents(held_out: ValidationSet, most: int = MAX_DOCUMENTS) -> npt.NDArray[np.int64]:
    """Return the numbers of at most about `most` documents: the same share of each source and language, at least one.

    Of each they are those with the smallest id_hash, so that two models with the same held-out documents share them.
    """
    group_D = held_out.group_D
    sizes = np.bincount(group_D, minlength=len(held_out.groups))
    wanted = np.minimum(sizes, -(-sizes * most // max(len(group_D), 1)))
    place_D = np.arange(len(group_D)) - (np.cumsum(sizes) - sizes)[group_D]  # within a group, by id_hash
    return np.flatnonzero(place_D < wanted[group_D])


def tabulate_document_losses(held_out: ValidationSet, loss_D: npt.NDArray[np.float64]) -> Columns:
    """Return the columns of the table of a validation, for a line of metrics.

    Args:
        held_out: the documents of the validation.
        loss_D: the summed loss of each in nats.
    """
    number_D = sample_documents(held_out)
    sources = [source for source, *_ in held_out.groups]  # strata may follow the language
    values = (
        held_out.id_hash_D[number_D].tolist(),
        [sources[group] for group in held_out.group_D[number_D]],
        *(each_D[number_D].tolist() for each_D in (held_out.bytes_D, held_out.tokens_D, loss_D)),
    )
    return dict(zip(SCHEMA.names, values, strict=True))


def write_document_losses(path: Path, columns: Columns | None) -> None:
    """Write the table of a validation; without rows where there was none."""
    arrays = [pa.array(columns[field.name] if columns else [], field.type) for field in SCHEMA]
    pq.write_table(pa.table(arrays, schema=SCHEMA), path, compression="zstd")


def read_document_losses(path: Path) -> pa.Table:
    """Read the table of a validation.

    Raises:
        InputError: the file is no such table.
    """
    try:
        return pq.read_table(path, columns=SCHEMA.names).cast(SCHEMA)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} is no table of losses by document ({error}): rerun pretrain.export") from None
