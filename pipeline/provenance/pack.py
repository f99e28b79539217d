"""A run as a bag (BagIt, RFC 8493) for an archive: small files inside, large ones by hash and place.

The bag checks itself with one file, which needs neither Polder nor a network: `python verify_files.py`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import bagit

from pipeline import layout
from pipeline.core.display_text import file_name_problem
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.output_archives import parse_archive_job_name
from pipeline.provenance.verify_files import LARGE_FILES

VERIFIER_SCRIPT = Path(__file__).with_name("verify_files.py")
LIMIT_BYTES = 100_000_000
EXCLUDED = (layout.SCRATCH, "private", layout.RUN_LOCK)


class PackedBag(NamedTuple):
    """Numbers of files inside a bag, fetched from an address and left out, and the bytes inside."""

    inside: int
    fetched: int
    left_out: int
    inside_bytes: int


class _HashedFile(NamedTuple):
    path: str
    bytes: int
    sha256: str

    @property
    def escaped(self) -> str:
        """The path as a manifest writes it."""
        return f"data/{self.path}".replace("%", "%25").replace("\n", "%0A").replace("\r", "%0D")


def _read_crate_entities(run_directory: Path) -> list[dict[str, Any]]:
    try:
        graph = json.loads((run_directory / layout.CRATE).read_bytes())["@graph"]
        return [dict(entity) for entity in graph]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{run_directory} has no {layout.CRATE} that can be read: finish the run first") from None


def _hash_run_files(run_directory: Path, entities: list[dict[str, Any]]) -> list[_HashedFile]:
    """Return all files of a run, evidence included, with hashes that agree with the crate."""
    expected = {unquote(e["@id"]): str(e["sha256"]) for e in entities if "File" in e["@type"] and "sha256" in e}
    hashed_files = []
    for folder, subfolders, names in os.walk(run_directory):
        below = Path(folder).relative_to(run_directory)
        kept = [name for name in subfolders if not name.startswith(".partial")]
        kept = [name for name in kept if (below / name).as_posix() not in EXCLUDED]
        subfolders[:] = kept
        paths = [(below / name).as_posix() for name in names if not name.startswith((".partial", ".snakemake"))]
        for path in (*(p for p in paths if p not in EXCLUDED), *((below / name).as_posix() for name in kept)):
            file = run_directory / path
            if file.is_symlink():
                raise InputError(f"{path} is a symbolic link: replace it by what it leads to, or delete it")
            if not file.is_dir():
                if problem := file_name_problem(path, one_line=True):
                    raise InputError(problem)
                hashed_files.append(_HashedFile(path, file.stat().st_size, hash_file(file)))
    there = {file.path: file.sha256 for file in hashed_files}
    for path, sha256 in sorted(expected.items()):
        if there.get(path) != sha256:
            state = "was changed since the crate was made" if path in there else "is missing, the crate lists it"
            raise InputError(f"{path} {state}: see `polder verify {run_directory}`")
    return sorted(hashed_files)


def _build_bag_info(entities: list[dict[str, Any]], files: list[_HashedFile]) -> dict[str, str]:
    """Return the entries of bag-info.txt from the crate, with its date."""
    by_id = {entity["@id"]: entity for entity in entities}
    root = by_id["./"]
    publisher = by_id[root["publisher"]["@id"]]
    contact = by_id.get((publisher.get("contactPoint") or {}).get("@id"), {}).get("name")
    bag_info = {
        "Source-Organization": publisher["name"],
        "Contact-Name": contact,
        "External-Description": " ".join(root["description"].split()),
        "External-Identifier": root["name"],
        "Bagging-Date": root["datePublished"],
        "Bag-Software-Agent": "Polder",
        "Payload-Oxum": f"{sum(file.bytes for file in files)}.{len(files)}",
    }
    return {key: value for key, value in bag_info.items() if value}


def pack(run_directory: Path, target: Path, limit_bytes: int = LIMIT_BYTES, url: str | None = None) -> PackedBag:
    """Write the bag of a finished run to the folder `target`.

    Files of more than `limit_bytes` stay out of it, but for the crate, the log of attestations and archives: where
    `url` is the address that the run's folder is deposited at, `fetch.txt` says where they are; else `large-files.tsv`
    lists them with bytes and sha256. Scratch and private folders are never in it. The same run gives the same bytes.

    Raises:
        InputError: there is no crate, a file is not as the crate says or has a name that no list of files can hold, the
            address is none, or the target exists.
    """
    if target.exists() or target.is_symlink():
        raise InputError(f"{target} exists: delete it, or name another folder with --to")
    if url is not None and not url.startswith(("https://", "http://")):
        raise InputError(f"--url {url} is no address: it begins with https://")
    if target.absolute().is_relative_to(run_directory.absolute()):
        raise InputError(f"{target} is in the run itself: name another folder with --to")
    entities = _read_crate_entities(run_directory)
    files = _hash_run_files(run_directory, entities)
    always = (layout.CRATE, layout.ATTESTATION_LOG, layout.BATCH_ARCHIVES)

    def is_always_in(path: str) -> bool:
        return path.startswith(always) or parse_archive_job_name(path) is not None

    small = [file for file in files if file.bytes <= limit_bytes or is_always_in(file.path)]
    large = [file for file in files if file not in set(small)]
    listed = files if url is not None else small
    partial = target.with_name(f".partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for file in small:
            (partial / file.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run_directory / file.path, partial / file.path)
        bag_info = _build_bag_info(entities, listed)
        bag = bagit.make_bag(str(partial), {**bag_info}, checksums=["sha256"])
        shutil.copyfile(VERIFIER_SCRIPT, partial / VERIFIER_SCRIPT.name)
        if large and url is not None:
            base = url.rstrip("/")
            lines = [f"{base}/{quote(file.path)} {file.bytes} {file.escaped}\n" for file in large]
            (partial / "fetch.txt").write_text("".join(lines), encoding="utf-8")
            with (partial / "manifest-sha256.txt").open("a", encoding="utf-8") as manifest:
                manifest.writelines(f"{file.sha256}  {file.escaped}\n" for file in large)
        elif large:
            lines = [f"{file.escaped.removeprefix('data/')}\t{file.bytes}\t{file.sha256}\n" for file in large]
            (partial / LARGE_FILES).write_text("".join(["path\tbytes\tsha256\n", *lines]), encoding="utf-8")
        bag.info["Payload-Oxum"] = bag_info["Payload-Oxum"]
        bag.save()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    fetched = len(large) if url is not None else 0
    return PackedBag(len(small), fetched, len(large) - fetched, sum(file.bytes for file in small))
