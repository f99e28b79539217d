"""What archives below the results folder hold of runs: their documents are searched, the rest can only be suspected."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.corpus.copies.signed import Keys
from pipeline.opt_out.places import Place, Wanted

MEMBER_BYTES = 1 << 28  # the largest member that is read
_OF_A_RUN = re.compile(
    r"(^|/)(corpus|tokens|models|sources|scratch|private)/.*\.(parquet|arrow|safetensors|jsonl|bin|pt)$"
)
_DOCUMENTS = re.compile(r"(^|/)(filtered|deduplicated|final|removed|parts/[^/]+)/([^/]+)\.parquet$")

Members = Iterator[tuple[str, int, IO[bytes] | None]]


def _tar(archive: tarfile.TarFile) -> Members:
    for member in archive:
        if member.isfile():
            yield member.name, member.size, archive.extractfile(member)


@contextmanager
def _members(path: Path) -> Iterator[Members]:
    """Give name, size and content of the members of an archive, in their order."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            listed = [entry for entry in archive.infolist() if not entry.is_dir()]
            yield ((entry.filename, entry.file_size, archive.open(entry)) for entry in listed)
    elif path.suffix == ".zst":
        with pa.input_stream(str(path), compression="zstd") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            yield _tar(tar)
    else:
        with tarfile.open(path, "r|*") as tar:
            yield _tar(tar)


def search_archive(path: Path, shown: str, wanted: Wanted, ids: Keys) -> Place | None:
    """Return what an archive holds of what is looked for; None where it holds nothing of any run, or is free of it.

    Files of documents are searched by id and domain; tokens, models and files that are too large are not.

    Args:
        shown: the path of the archive below the results folder.
        ids: the hashed ids that were found in any run.
    """
    found = searched = others = 0
    run = shown.split("/")[0] if "/" in shown else ""
    try:
        with _members(path) as members:
            for name, size, content in members:
                if not _OF_A_RUN.search(name):
                    continue
                documents = _DOCUMENTS.search(name)
                if documents is None or size > MEMBER_BYTES or content is None:
                    others += 1
                    continue
                searched += 1
                found += _found(content.read(), documents[3].split(".")[-2:][0], wanted, ids)
    except (tarfile.TarError, zipfile.BadZipFile, pa.ArrowException, OSError, EOFError, ValueError) as error:
        why = f"it cannot be read as an archive ({' '.join(str(error).split())[:80]})"
        return Place(run, "archive", shown, False, None, why)
    if found:
        return Place(run, "archive", shown, True, found, f"{searched} files of documents in it were searched")
    if others:
        why = f"it holds {others} files of runs, such as tokens and models, that were not searched"
        return Place(run, "archive", shown, False, None, why)
    return None


def _found(content: bytes, source: str, wanted: Wanted, ids: Keys) -> int:
    file = pa.BufferReader(content)
    present = pq.read_schema(file).names
    columns = [name for name in ("id", "url", "text") if name in present]
    if "id" not in columns or "text" not in columns:
        return 0
    table = pq.read_table(pa.BufferReader(content), columns=columns)
    return len(wanted.rows(table.filter(table["text"].is_valid()), source, ids))
