"""Why rights remove documents, and which licences documents have: their own, or that of their source."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.corpus import removal

OF_LICENSE = (
    removal.LICENSE_NOT_STATED,
    removal.LICENSE_NOT_UNDERSTOOD,
    removal.LICENSE_NOT_ALLOWED,
    removal.LICENSE_DIFFERS,
)
OF_RIGHTS = (removal.OPT_OUT, *OF_LICENSE)


def told_licenses(declared: str, documents: Mapping[str, int], own: object) -> str:
    """Return the licence that a source declares, or the licences of its documents, the most frequent first.

    Args:
        documents: how many are used, by licence.
        own: whether documents of the source have their own licence: the field that it stands in.
    """
    ranked = sorted(documents.items(), key=lambda item: (-item[1], item[0])) if own else []
    return "; ".join(f"{license} × {number:,}" for license, number in ranked) or declared


def with_licenses(batch: pa.RecordBatch, licenses: Mapping[str, str]) -> pa.Array:
    """Return the licence of each document, shape (rows,): its own, or that of its source where it states none.

    Args:
        batch: documents with their `source` and their own `license`, null where they state none.
        licenses: of the sources.
    """
    of_source = [licenses.get(source) for source in batch.column("source").to_pylist()]
    return pc.coalesce(batch.column("license"), pa.array(of_source, pa.string()))
