"""Match reserved documents by id, domain and text signature."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipeline.core.url_hosts import domain_suffixes, extract_host
from pipeline.corpus.documents import OPT_OUT, REMOVED_SCHEMA, read_file_metadata
from pipeline.corpus.duplicates.signature_files import CONTENT, Keys, band_columns
from pipeline.corpus.settings import SignatureSettings
from pipeline.opt_out.entries import hash_membership_mask

BooleanArray = npt.NDArray[np.bool_]


class OptedOutSignatures:
    """The documents that opt-out lists name, from the files of their signatures.

    `documents` and `bytes` are per source, `entries` counts per source the documents that each entry names. Sorted are
    `ids`, the hashes of their ids, and, by column, `hashes`: those of the texts and the keys of the MinHash bands.
    """

    def __init__(self, paths: Iterable[Path], settings: SignatureSettings) -> None:
        self.documents: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.entries: dict[str, Counter[str]] = {}
        ids: list[Keys] = []
        keys: dict[str, list[Keys]] = {name: [] for name in [CONTENT[0], *band_columns(settings)]}
        for path in paths:
            known = read_file_metadata(path)
            self.documents[known["source"]] += known["documents"]
            self.bytes[known["source"]] += known["bytes"]
            self.entries.setdefault(known["source"], Counter()).update(known["entries"])
            if known["rows"]:
                table = pq.read_table(path, columns=["id", *keys])
                ids.append(hash_ids(table["id"]))
                for name, columns in keys.items():
                    columns.append(table[name].to_numpy())
        self.ids = union_hashes(ids)
        self.hashes = {name: union_hashes(columns) for name, columns in keys.items()}

    def match_signatures(self, table: pa.Table, columns: Iterable[str]) -> BooleanArray:
        """Return for each row of signatures whether a column matches a reserved document.

        Args:
            columns: those that were computed as here; a band's key of 0 stands for none.
        """
        matches = np.zeros(len(table), dtype=bool)
        for name in columns:
            keys = table[name].to_numpy()
            matches |= (keys != 0) & hash_membership_mask(self.hashes[name], keys)
        return matches


def read_copies_of_reserved_documents(paths: Iterable[Path]) -> pa.Table:
    """Return `id`, `source` and `value`, the id of the reserved document, of what the deduplication removed as such."""
    columns = ["id", "source", "value"]
    nothing = pa.schema([REMOVED_SCHEMA.field(name) for name in columns]).empty_table()
    return pa.concat_tables(
        [nothing, *(pq.read_table(path, columns=columns, filters=[("reason", "==", OPT_OUT)]) for path in paths)]
    )


def match_domains(urls: pa.ChunkedArray, domains: set[str]) -> BooleanArray:
    """Return for each address whether it is of one of the domains, or of a subdomain."""
    if not domains:
        return np.zeros(len(urls), dtype=bool)
    return np.array(
        [url is not None and any(s in domains for s in domain_suffixes(extract_host(url))) for url in urls.to_pylist()],
        dtype=bool,  # also of none
    )


def hash_ids(ids: pa.ChunkedArray) -> Keys:
    return np.array([xxhash.xxh3_64_intdigest(name) for name in ids.to_pylist()], dtype=np.uint64)


def union_hashes(parts: list[Keys]) -> Keys:
    """Return all hashes of the parts, sorted, each once."""
    return np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *parts]))


def opt_out_list_from_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the opt-out list in the manifest of a source; without entries where it has none."""
    nothing: dict[str, Any] = {"date": None, "sha256": None, "domains": [], "ids": [], "holders": []}
    return nothing | (manifest.get("opt_out") or {})
