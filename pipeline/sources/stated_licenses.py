"""Whether the rows of a raw file state licences, which the filter then compares with that of the source."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.sources.byte_streams import Pieces, lines
from pipeline.sources.raw_documents import COMMON_LICENSE_KEYS, value_at
from pipeline.sources.record_formats import column_at, python_value, split_name, stored_keys
from pipeline.sources.spdx_licenses import as_written

# A line without any of these has no such field: \u may spell a letter of its name.
POSSIBLE_FIELD = re.compile(rb"licen[cs]e|\\u")


def _json_values(path: Path, compression: str, limit: int) -> Iterator[Any]:
    for _, line, _, _ in lines(iter(Pieces(path, compression)), limit):
        if line is None or not POSSIBLE_FIELD.search(line):
            continue
        with suppress(ValueError, RecursionError):  # the filter counts a broken line
            fields = json.loads(line.decode("utf-8-sig"))
            if isinstance(fields, dict):
                yield from (value_at(fields, key) for key in COMMON_LICENSE_KEYS)


def _parquet_values(path: Path) -> Iterator[Any]:
    with pq.ParquetFile(path) as file:
        present = stored_keys(file.schema_arrow, [*COMMON_LICENSE_KEYS])
        for batch in file.iter_batches(columns=present) if present else ():
            for key in present:
                for cell in column_at(batch, key):
                    with suppress(UnicodeDecodeError):
                        yield python_value(cell)


def states_license(path: Path, name: str, limit: int) -> bool:
    """Return whether a row of a raw file says which licence it has; reading stops at the first one that does.

    A file that cannot be read states none: the filter leaves it out, or stops.

    Args:
        name: tells the format; a part of a file is Parquet.
        limit: the largest row, in bytes, that the filter reads.
    """
    stem, compression = split_name(name)
    if stem.endswith((".jsonl", ".ndjson")):
        values = _json_values(path, compression, limit)
    elif stem.endswith(".parquet") and not compression:
        values = _parquet_values(path)
    else:  # a text or a page has no fields
        return False
    with suppress(InputError, pa.ArrowException, OSError, KeyError):  # KeyError: two columns of one name
        return any(as_written(value) for value in values)
    return False
