"""Copies a token set to a disk of the node, where every process of the node then reads it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError

SPARE_BYTES = 2**24
BLOCK_BYTES = 2**24


def stage(index: Path, folder: Path) -> Path:
    """The path of a copied index, in a part of `folder` that is named by the index's hash.

    One process of a node copies and the others wait for it; what lies there whole is used again. A shard is hashed as
    it is copied and gets its name at the end, the index last, so that a name stands for whole bytes.
    Raises InputError when there is no room, which is found before anything is copied, or when a shard is missing or
    has other bytes than the index says.
    """
    try:
        content = index.read_bytes()
        described: dict[str, Any] = json.loads(content)
        entries = [(split, n, e) for split in ("train", "validation") for n, e in enumerate(described[split]["shards"])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{index} is no index of tokens ({error!r}): build it with tokens.index") from error
    target = folder / hashlib.sha256(content).hexdigest()[:16]
    try:
        target.mkdir(parents=True, exist_ok=True)
        with (target / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go of it when the process ends, however it ends
            missing = []
            for split, number, entry in entries:
                path = target / split / f"{number}.arrow"
                if not path.is_file() or path.stat().st_size != entry["bytes_on_disk"]:
                    missing.append((index.parent / entry["path"], path, entry))
                entry["path"] = f"{split}/{number}.arrow"
            _check_room(target, sum(entry["bytes_on_disk"] for _, _, entry in missing))
            for source, path, entry in missing:
                _copy(source, path, entry["sha256"])
            staged = target / "index.json"
            partial = target / ".partial-index.json"
            partial.write_text(json.dumps(described), encoding="utf-8")
            partial.replace(staged)
    except OSError as error:
        raise InputError(f"staging: {error}: name a folder on a disk of the node that can be written") from error
    return staged


def _check_room(target: Path, needed: int) -> None:
    for left in target.glob("*/.partial-*"):
        left.unlink()
    free = shutil.disk_usage(target).free
    if needed and free < needed + SPARE_BYTES:
        raise InputError(
            f"staging: {target} has room for {free} bytes, the shards to copy take {needed}: name a folder on a larger "
            "disk or leave staging out"
        )


def _copy(source: Path, path: Path, sha256: str) -> None:
    """Copies a shard aside and renames it; raises InputError when it is missing or its bytes are not those indexed."""
    if not source.is_file():
        raise InputError(f"{source} is missing, which the index names: build it again with tokens.shard")
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".partial-{path.name}")
    digest = hashlib.sha256()
    with source.open("rb") as reading, partial.open("wb") as writing:
        while block := reading.read(BLOCK_BYTES):
            digest.update(block)
            writing.write(block)
        writing.flush()
        os.fsync(writing.fileno())
    if digest.hexdigest() != sha256:
        partial.unlink()
        raise InputError(f"{source} has other bytes than the index says: it was altered, build it with tokens.shard")
    partial.replace(path)
