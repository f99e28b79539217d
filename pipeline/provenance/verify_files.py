"""Checks the files of a bag of a run against the bag's manifests and the run's crate; needs Python 3.9 alone.

    python verify_files.py [FOLDER]

FOLDER is the bag; without it, the folder that this file lies in. Exit code 0: all that is here is as it was packed, and
what was left out is named. 1: something was changed, is missing or was added. 2: this is no bag.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from urllib.parse import unquote

METADATA = "ro-crate-metadata.json"
LARGE = "large-files.tsv"


def hash_of(path: Path) -> str:
    """The sha256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def plain(path: str) -> str:
    """A path as a manifest writes it: line ends and % are escaped."""
    return path.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def listed(manifest: Path) -> dict[str, str]:
    """The hashes in a manifest, by path."""
    found = {}
    for line in manifest.read_text(encoding="utf-8").splitlines():
        if line.strip():
            hash_, path = line.split(None, 1)
            found[plain(path)] = hash_.lower()
    return found


def fetched(bag: Path) -> dict[str, str]:
    """The addresses in fetch.txt, by path."""
    if not (bag / "fetch.txt").is_file():
        return {}
    lines = (bag / "fetch.txt").read_text(encoding="utf-8").splitlines()
    return {plain(path): url for url, _, path in (line.split(None, 2) for line in lines if line.strip())}


def crate_files(bag: Path) -> dict[str, str]:
    """The hashes that the crate says, by path in the bag."""
    graph = json.loads((bag / "data" / METADATA).read_text(encoding="utf-8"))["@graph"]
    is_file = [entity for entity in graph if "File" in entity["@type"] and "sha256" in entity]
    return {"data/" + unquote(entity["@id"]): entity["sha256"] for entity in is_file}


def left_out(bag: Path) -> dict[str, str]:
    """The hashes of the files that were too large to pack and have no address, by path in the bag."""
    if not (bag / LARGE).is_file():
        return {}
    lines = (bag / LARGE).read_text(encoding="utf-8").splitlines()[1:]
    return {"data/" + plain(path): hash_ for path, _, hash_ in (line.split("\t") for line in lines)}


def problems_of(bag: Path) -> tuple[list[str], dict[str, str], int]:
    """All problems, a sentence each; what is elsewhere, path to where it is; and how many files were read."""
    tags, payload = listed(bag / "tagmanifest-sha256.txt"), listed(bag / "manifest-sha256.txt")
    addresses, crate, large = fetched(bag), crate_files(bag), left_out(bag)
    problems: list[str] = []
    elsewhere: dict[str, str] = {}
    found: dict[str, str] = {}
    for path, expected in sorted({**tags, **payload}.items()):
        file = bag / path
        if bag.resolve() not in file.resolve().parents:
            problems.append(f"{path} is outside of the bag.")
        elif file.is_file():
            found[path] = hash_of(file)
            if found[path] != expected:
                problems.append(f"{path} was changed: its sha256 is {found[path]}, the manifest says {expected}.")
        elif path in addresses:
            elsewhere[path] = addresses[path]
        else:
            problems.append(f"{path} is missing, the manifest lists it.")
    for path, expected in sorted(crate.items()):
        known = found.get(path) or payload.get(path) or large.get(path)
        if known is None and (bag / path).is_file():
            known = found[path] = hash_of(bag / path)
        if known is None:
            problems.append(f"{path} is missing, the crate lists it.")
        elif known != expected and not any(problem.startswith(f"{path} ") for problem in problems):
            problems.append(f"{path} is another file: its sha256 is {known}, the crate says {expected}.")
    for path, expected in sorted(large.items()):
        if not (bag / path).is_file():
            elsewhere[path] = "no address is known"
        elif found.setdefault(path, hash_of(bag / path)) != expected and path not in crate:
            problems.append(f"{path} was changed: its sha256 is {found[path]}, {LARGE} says {expected}.")
    here = {path.relative_to(bag).as_posix() for path in bag.rglob("*") if path.is_symlink() or not path.is_dir()}
    for path in sorted(here - set(tags) - set(payload) - set(large) - {"tagmanifest-sha256.txt"}):
        problems.append(f"{path} is unknown: the bag does not list it.")
    return problems, elsewhere, len(found)


def main(arguments: list[str]) -> int:
    """Print what was found and return the exit code."""
    bag = Path(arguments[0]) if arguments else Path(__file__).resolve().parent
    try:
        problems, elsewhere, count = problems_of(bag)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{bag} is no bag of a run that can be read: {error}", file=sys.stderr)
        return 2
    for path, address in sorted(elsewhere.items()):
        print(f"{path} is not here: {address}")
    for problem in problems:
        print(problem)
    verdict = f"problems: {len(problems)}" if problems else "all that is here is as it was packed"
    print(f"{count} files checked, {len(elsewhere)} elsewhere: {verdict}.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
