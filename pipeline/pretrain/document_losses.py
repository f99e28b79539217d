"""A table with the loss of each held-out document: by it two models are compared on the same documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core.errors import InputError
from pipeline.tokens.validation_set import ValidationSet

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


def write_document_losses(path: Path, held_out: ValidationSet | None, loss_D: npt.NDArray[np.float64]) -> None:
    """Write the table of a validation; without rows where there was none.

    Args:
        held_out: the documents of the validation.
        loss_D: the summed loss of each in nats.
    """
    import pyarrow.parquet as pq  # here, for no process of a training reads any

    if held_out is None:
        table = SCHEMA.empty_table()
    else:
        number_D = sample_documents(held_out)
        sources = [source for source, _ in held_out.groups]
        columns = [
            pa.array(held_out.id_hash_D[number_D]),
            pa.array([sources[group] for group in held_out.group_D[number_D]]).dictionary_encode(),
            *(pa.array(each_D[number_D]) for each_D in (held_out.bytes_D, held_out.tokens_D, loss_D)),
        ]
        table = pa.table([column.cast(field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
    pq.write_table(table, path, compression="zstd")


def read_document_losses(path: Path) -> pa.Table:
    """Read the table of a validation.

    Raises:
        InputError: the file is no such table.
    """
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path, columns=SCHEMA.names).cast(SCHEMA)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} is no table of losses by document ({error}): rerun pretrain.export") from None
