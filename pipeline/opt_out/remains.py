"""The step `report remains`: that the tokens hold nothing of the opt-out lists, and where else on disk it still is.

Searched are this run's token shards, and below the results folder the corpora, tokens, checkpoints, models and archives
of every run, this one's leftovers among them, and their private texts. What archives hold of documents is searched, the
rest can only be suspected. Weights are followed by sha256 through the records of all runs: into models that continue
them, and to folders outside of the runs that a job imported them from.
"""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.corpus.duplicates.signature_files import Keys
from pipeline.opt_out.document_matching import (
    OptedOutSignatures,
    hash_ids,
    opt_out_list_from_manifest,
    read_copies_of_reserved_documents,
    union_hashes,
)
from pipeline.opt_out.entries import hash_membership_mask
from pipeline.opt_out.other_runs_fingerprint import find_archives, list_runs
from pipeline.opt_out.run_folder_search import (
    ForgottenDocuments,
    KnownWeights,
    RemainingCopy,
    RunSearch,
    judge_weights,
    read_shard_ids,
)
from pipeline.opt_out.settings import RemainsSettings


def _files_of_corpus(corpus: str, paths: list[Path]) -> list[Path]:
    """Return those of the files corpus/NAME/FOLDER/FILE that are of one corpus."""
    return [path for path in paths if path.parts[-3] == corpus]


def _search_shards(shards: list[Path], ids: Keys) -> int:
    """Return how many documents the shards hold.

    Raises:
        InputError: one of the ids is among them.
    """
    documents = 0
    for path in shards:
        for batch_ids in read_shard_ids(path):
            documents += len(batch_ids)
            if hash_membership_mask(ids, batch_ids).any():
                raise InputError(f"{path} holds a document that is to be forgotten: delete it and start again")
    return documents


def run(
    settings: RemainsSettings,
    *,
    manifests: list[Path],
    reserved: list[Path],
    removed: list[Path],
    shards: list[Path],
    remains: Path,
) -> dict[str, Any]:
    """Write how many documents of each token set were searched, and every place that still holds what is forgotten.

    What cannot be searched is a suspicion: tokens that are gone, files that are damaged, models in archives.

    Args:
        manifests: of the sources that have an opt-out list.
        reserved: the signatures of what is reserved, of each corpus.
        removed: what the deduplication removed, of each corpus.
        shards: of this run's token sets.

    Raises:
        InputError: a shard of this run holds what is to be forgotten.
    """
    signed = {
        name: OptedOutSignatures(_files_of_corpus(name, reserved), section)
        for name, section in settings.corpora.items()
    }
    ids = {
        name: union_hashes(
            [signed[name].ids, hash_ids(read_copies_of_reserved_documents(_files_of_corpus(name, removed))["id"])]
        )
        for name in settings.corpora
    }
    tokens = {}
    for name, corpus in settings.tokens.items():
        documents = _search_shards([path for path in shards if path.parts[-3] == name], ids[corpus])
        tokens[name] = {"documents": documents, "found": 0}
    described = [json.loads(path.read_text(encoding="utf-8")) for path in manifests]
    wanted = ForgottenDocuments(
        ids=union_hashes(list(ids.values())),
        domains={
            manifest["source"]["name"]: set(opt_out_list_from_manifest(manifest)["domains"]) for manifest in described
        },
        reserved=[(section, signed[name]) for name, section in settings.corpora.items()],
    )
    results = remains.absolute().parents[2]
    names = [folder.name for folder in list_runs(results)]
    weights: dict[str, KnownWeights] = {}
    searches = []
    for name in names:
        own = name == settings.run
        proven, corpora = (settings.tokens, settings.corpora) if own else ((), ())
        searches.append(
            RunSearch(results, name, wanted, own=own, proven=proven, proven_corpora=corpora, weights=weights)
        )
    in_documents = [search.search_documents() for search in searches]
    judge_weights(searches, weights)
    places = [
        place
        for search, copies in zip(searches, in_documents, strict=True)
        for place in copies + search.search_models()
    ]
    named = {place.path: place for search in searches for place in search.find_imported_model_copies()}
    places += [named[path] for path in sorted(named.keys() - {place.path for place in places})]
    everything = union_hashes([wanted.ids, *(search.ids for search in searches)])
    for path in find_archives(results):
        place = search_archive(path, path.relative_to(results).as_posix(), wanted, everything)
        places += [place] if place else []
    content = {
        "tokens": tokens,
        "runs": names,
        "archives": sum(1 for _ in find_archives(results)),
        "places": [asdict(place) for place in places],
    }
    remains.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    certain = sum(place.certain for place in places)
    print(f"{certain} places still hold what is forgotten, {len(places) - certain} may", flush=True)
    return {"places": certain, "suspected": len(places) - certain, "runs": len(names)}


MEMBER_BYTES = 1 << 28  # the largest member that is read
_RUN_FILE = re.compile(
    r"(^|/)(corpus|tokens|models|sources|scratch|private)/.*\.(parquet|arrow|safetensors|jsonl|bin|pt)$"
)
_DOCUMENT_FILE = re.compile(r"(^|/)(filtered|deduplicated|final|removed|parts/[^/]+)/([^/]+)\.parquet$")

Members = Iterator[tuple[str, int, IO[bytes] | None]]


def _tar_members(archive: tarfile.TarFile) -> Members:
    for member in archive:
        if member.isfile():
            yield member.name, member.size, archive.extractfile(member)


@contextmanager
def _open_members(path: Path) -> Iterator[Members]:
    """Give name, size and content of the members of an archive, in their order."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            listed = [entry for entry in archive.infolist() if not entry.is_dir()]
            yield ((entry.filename, entry.file_size, archive.open(entry)) for entry in listed)
    elif path.suffix == ".zst":
        with pa.input_stream(str(path), compression="zstd") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            yield _tar_members(tar)
    else:
        with tarfile.open(path, "r|*") as tar:
            yield _tar_members(tar)


def search_archive(path: Path, shown: str, wanted: ForgottenDocuments, ids: Keys) -> RemainingCopy | None:
    """Return what an archive holds of what is looked for; None where it holds nothing of any run, or is free of it.

    Files of documents are searched by id and domain; tokens, models and files that are too large are not.

    Args:
        shown: the path of the archive below the results folder.
        ids: the hashed ids that were found in any run.
    """
    matches = searched = others = 0
    run = shown.split("/")[0] if "/" in shown else ""
    try:
        with _open_members(path) as members:
            for name, size, content in members:
                if not _RUN_FILE.search(name):
                    continue
                documents = _DOCUMENT_FILE.search(name)
                if documents is None or size > MEMBER_BYTES or content is None:
                    others += 1
                    continue
                searched += 1
                matches += _count_matches(content.read(), documents[3].split(".")[-2:][0], wanted, ids)
    except (tarfile.TarError, zipfile.BadZipFile, pa.ArrowException, OSError, EOFError, ValueError) as error:
        why = f"it cannot be read as an archive ({' '.join(str(error).split())[:80]})"
        return RemainingCopy(run, "archive", shown, False, None, why)
    if matches:
        return RemainingCopy(run, "archive", shown, True, matches, f"{searched} files of documents in it were searched")
    if others:
        why = f"it holds {others} files of runs, such as tokens and models, that were not searched"
        return RemainingCopy(run, "archive", shown, False, None, why)
    return None


def _count_matches(content: bytes, source: str, wanted: ForgottenDocuments, ids: Keys) -> int:
    file = pa.BufferReader(content)
    present = pq.read_schema(file).names
    columns = [name for name in ("id", "url", "text") if name in present]
    if "id" not in columns or "text" not in columns:
        return 0
    table = pq.read_table(pa.BufferReader(content), columns=columns)
    return len(wanted.find_matching_ids(table.filter(table["text"].is_valid()), source, ids))
