"""Verify that documents on opt-out lists, and their copies, are not in the corpus."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.corpus.documents import OPT_OUT, read_file_metadata
from pipeline.corpus.duplicates.signature_files import Keys
from pipeline.opt_out.document_matching import (
    OptedOutSignatures,
    hash_ids,
    match_domains,
    opt_out_list_from_manifest,
    read_copies_of_reserved_documents,
    union_hashes,
)
from pipeline.opt_out.entries import hash_membership_mask
from pipeline.opt_out.lists import mask_personal_data
from pipeline.opt_out.settings import ForgottenSettings
from pipeline.sources.settings import OPT_OUT_KINDS


def _count_by_file(reservations: list[dict[str, Any]], hits: Counter[str]) -> dict[str, dict[str, int]]:
    """Return hosts by the file in which they reserve rights, and the documents that it covers, of several in each."""
    hosts = Counter(file for _, file in {(reservation["host"], reservation["file"]) for reservation in reservations})
    documents: Counter[str] = Counter()
    for entry, number in hits.items():
        documents[entry.partition(" ")[0]] += number
    return {file: {"hosts": number, "documents": documents[file]} for file, number in sorted(hosts.items())}


def _summarize_list(opt_out: dict[str, Any], hits: Counter[str]) -> dict[str, Any]:
    """Return date, hash and entry counts of a list, and the entries without documents."""
    reservations = opt_out.get("reservations")
    return {
        **({"reservations": _count_by_file(reservations, hits)} if reservations else {}),
        "date": opt_out["date"],
        "sha256": opt_out["sha256"],
        "entries": {kind: len(opt_out[kind]) for kind in OPT_OUT_KINDS},
        "entries_without_documents": {
            kind: [value for value in opt_out[kind] if not hits[f"{kind[:-1]} {value}"]] for kind in OPT_OUT_KINDS
        },
    }


def _count_removed(removed: list[Path]) -> Counter[str]:
    """Return by source how many documents the filter removed for the lists."""
    counts: Counter[str] = Counter()
    for path in removed:
        known = read_file_metadata(path)
        if known["stage"] == "filter":
            rows = pq.read_table(path, columns=["reason"], filters=[("reason", "==", OPT_OUT)])
            counts[known["source"]] += len(rows)
    return counts


def _search_unit(
    final: Path, signatures: Path, reserved: OptedOutSignatures, ids: Keys, lists: dict[str, Any]
) -> Counter[str]:
    """Search the final file of a unit and its signatures; return the counts of what was searched.

    Args:
        ids: hashed, of what is reserved and of its copies.
        lists: the opt-out lists by source.

    Raises:
        InputError: a document that is to be forgotten is there.
    """
    known = read_file_metadata(final)
    table = pq.read_table(final, columns=["id", "url"])
    signed = pq.read_table(signatures, columns=["id", *reserved.hashes])
    own = hash_ids(table["id"])
    signed = signed.filter(pa.array(hash_membership_mask(np.sort(own), hash_ids(signed["id"]))))
    if len(signed) != len(table):
        raise InputError(f"{signatures} does not sign all documents of {final}: delete it and run corpus.signatures")
    opt_out = lists.get(known["source"], opt_out_list_from_manifest({}))
    by_holder = opt_out.get("holder") in opt_out["holders"]
    for how, names, mask in (
        ("is on the list, or was removed as a copy", table["id"], hash_membership_mask(ids, own)),
        ("is of a domain on the list", table["id"], match_domains(table["url"], set(opt_out["domains"]))),
        ("is of a holder on the list", table["id"], [by_holder] * len(table)),
        ("is a copy of a reserved document", signed["id"], reserved.match_signatures(signed, reserved.hashes)),
    ):
        if any(mask):
            first = min(names.filter(pa.array(mask, pa.bool_())).to_pylist())
            raise InputError(f"{first} {how} and is in {final}: delete that unit's records and start again")
    return Counter(documents=len(table), bytes=known["bytes"], units=1)


def run(
    settings: ForgottenSettings,
    *,
    manifests: list[Path],
    reserved: list[Path],
    removed: list[Path],
    signatures: list[Path],
    final: list[Path],
    forgotten: Path,
) -> dict[str, Any]:
    """Write the entries of each list, document counts before, and that nothing was found after.

    Documents are looked for by their id, by the domain of their address, by the holder of their source, and by their
    signatures: a text with the hash, or a band's key, of a reserved one.

    Args:
        manifests: of the sources that have a list.
        removed: of the filter and of the deduplication.

    Raises:
        InputError: something that is to be forgotten is in the corpus, or the counts do not fit.
    """
    known = OptedOutSignatures(reserved, settings.signatures)
    copies = read_copies_of_reserved_documents(
        path for path in removed if read_file_metadata(path)["stage"] == "deduplicate"
    )
    left_out, lists, sources = _count_removed(removed), {}, {}
    copied = Counter(
        (value.partition("/")[0], source)
        for value, source in zip(copies["value"].to_pylist(), copies["source"].to_pylist(), strict=True)
    )
    for path in manifests:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        name, opt_out = manifest["source"]["name"], opt_out_list_from_manifest(manifest)
        lists[name] = {**opt_out, "holder": mask_personal_data(manifest["source"]["rights"]["holder"])}
        if name in left_out and left_out[name] != known.documents[name]:
            raise InputError(
                f"source {name}: {known.documents[name]} documents are reserved, the filter removed {left_out[name]}: "
                "delete its records of opt_out.reserved and start again"
            )
        sources[name] = {
            **_summarize_list(opt_out, known.entries.get(name, Counter())),
            "documents": known.documents[name],
            "bytes": known.bytes[name],
            "copies": {source: number for (owner, source), number in sorted(copied.items()) if owner == name},
        }
    ids, searched = union_hashes([known.ids, hash_ids(copies["id"])]), Counter(documents=0, bytes=0, units=0)
    signed = {(unit["source"], unit["unit"]): path for path in signatures for unit in [read_file_metadata(path)]}
    for path in sorted(final):
        unit = read_file_metadata(path)
        searched.update(_search_unit(path, signed[unit["source"], unit["unit"]], known, ids, lists))
    before = {"documents": known.documents.total(), "copies": len(copies)}
    content = {
        "corpus": settings.corpus,
        "sources": dict(sorted(sources.items())),
        "before": before,
        "after": {"documents": 0, "copies": 0},
        "searched": dict(searched),
    }
    forgotten.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{settings.corpus}: {before}, none in {searched['documents']} documents", flush=True)
    return {**before, "searched_documents": searched["documents"], "found": 0}
