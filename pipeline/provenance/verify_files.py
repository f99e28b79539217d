"""Standalone verifier of a bag: its files against manifests, crate and attestation log; needs only Python 3.9.

    python verify_files.py [FOLDER] [--log-checkpoint SHA256] [--crate-sha256 SHA256]

FOLDER is the bag; without it, the folder of this file. Whoever packed a bag wrote its manifests, and perhaps
this file: to know that it is the bag of the run that was published, take this file from a release of Polder and both
hashes from the owner of the run. Exit code 0: all that is here is as it was packed, and what was left out is named. 1:
something was changed, is missing or was added. 2: this is no bag.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import lzma
import os
import re
import sys
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

METADATA = "ro-crate-metadata.json"
MEMBER = "#file/"  # how the crate begins the name of a member of an archive
LARGE_FILES = "large-files.tsv"
LOG = "provenance/attestations.intoto.jsonl"
SLSA = "https://slsa.dev/provenance/v1"
PREVIOUS_LINE = "attestation before"
KINDS_WITHOUT_CONTENT = (
    "urn:polder:attempt-began:",
    "urn:polder:evidence-changed:",
)  # no line that vouches for a content
REMOVED = "urn:polder:evidence-removed:"
BATCHES = "data/provenance/batches/"  # which alone are deleted, by a line that says so
# No file of these is ever deleted, and the log alone has them; results may give way to newer ones.
EVIDENCE = (
    *("data/logs/", "data/provenance/accounting/", "data/provenance/attempts/", BATCHES),
    *("data/provenance/environments/", "data/provenance/frozen/", "data/provenance/readings/"),
    *("data/provenance/signatures/", "data/provenance/signer."),
)
# Their members are files of the run by their names.
ARCHIVES = re.compile(r"data/(provenance|(corpus|sources)/[^/]+)/archives/[^/]+\.zip")
TIMESTAMPS = "data/provenance/timestamps/"  # the newest one comes after the last line of the log
TAGS = {"bagit.txt", "bag-info.txt", "manifest-sha256.txt", "fetch.txt", LARGE_FILES, "verify_files.py"}


def escape_to_one_line(text: str) -> str:
    """Return a text on one line, with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def hash_stream(stream: IO[bytes]) -> str:
    """Return the SHA-256 of a stream, piece by piece: a member of an archive may expand to more than the memory."""
    digest = hashlib.sha256()
    for piece in iter(lambda: stream.read(1 << 20), b""):
        digest.update(piece)
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hash_stream(file)


def read_text(file: Path) -> str:
    """Return the text of a file that is one: nobody writes into a pipe, and a device has no end."""
    if not file.is_file():
        raise ValueError(f"{file} is missing or no file")
    return file.read_text(encoding="utf-8")


def unescape_path(path: str) -> str:
    """Return the path of an escaped path in a manifest."""
    return path.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def hash_members(bag: Path, archives: list[str], problems: list[str]) -> dict[str, str]:
    """Return the hashes of the members of archives by path in the bag; of two of one name the later archive's."""
    hashes = {}
    for path in sorted(archives):  # their names begin with the time
        try:
            with zipfile.ZipFile(bag / path) as archive:
                for name in archive.namelist():
                    with archive.open(name) as member:
                        hashes[f"data/{name}"] = hash_stream(member)
        except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError):
            problems.append(f"{path} cannot be read as a ZIP file.")
    return hashes


def read_manifest(manifest: Path) -> dict[str, str]:
    """Return the hashes of a manifest by path."""
    hashes = {}
    for line in read_text(manifest).splitlines():
        if line.strip():
            hash_, path = line.split(None, 1)
            hashes[unescape_path(path)] = hash_.lower()
    return hashes


def read_fetch_list(bag: Path) -> dict[str, str]:
    """Return the URLs of fetch.txt by path."""
    if not (bag / "fetch.txt").is_file():
        return {}
    lines = read_text(bag / "fetch.txt").splitlines()
    return {unescape_path(path): url for url, _, path in (line.split(None, 2) for line in lines if line.strip())}


def read_crate_hashes(bag: Path) -> dict[str, str]:
    """Return the hashes of the crate by path in the bag, of files and of members of archives."""
    graph = json.loads(read_text(bag / "data" / METADATA))["@graph"]
    is_file = [entity for entity in graph if "File" in entity["@type"] or entity["@id"].startswith(MEMBER)]
    return {
        "data/" + unquote(entity["@id"].replace(MEMBER, "", 1)): entity["sha256"]
        for entity in is_file
        if "sha256" in entity
    }


def read_omitted_files(bag: Path) -> dict[str, str]:
    """Return the hashes of files that were too large to pack and have no URL, by path in the bag."""
    if not (bag / LARGE_FILES).is_file():
        return {}
    lines = read_text(bag / LARGE_FILES).splitlines()[1:]
    return {"data/" + unescape_path(path): hash_ for path, _, hash_ in (line.rsplit("\t", 2) for line in lines)}


def attested_files(statement: Any) -> list[tuple[str, str]]:
    """Return name and hash of everything that a line attests, the previous line included."""
    made = statement["predicate"]["runDetails"]["byproducts"] if statement["predicateType"] == SLSA else []
    return [(entry["name"], entry["digest"]["sha256"]) for entry in [*statement["subject"], *made]]


def check_log(bag: Path, checkpoint: str | None) -> tuple[list[str], dict[str, str], set[str]]:
    """Return problems of the log, the newest hash of each file, and all files that it names."""
    path = bag / "data" / LOG
    content = path.read_bytes() if path.is_file() else b""
    problems = [] if content[-1:] in (b"", b"\n") else [f"data/{LOG} was cut: its last line has no end."]
    files: dict[str, str] = {}
    names: set[str] = set()
    last = "0" * 64
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n") if content else [], start=1):
        try:
            statement = json.loads(base64.b64decode(json.loads(line)["payload"]))
            named = attested_files(statement)
            if (statement["predicate"].get("before") or dict(named)[PREVIOUS_LINE]) != last:
                problems.append(f"data/{LOG}, line {number}, does not follow the line before it.")
            attests = {f"data/{name}": hash_ for name, hash_ in named if name != PREVIOUS_LINE}
            names |= attests.keys()
            if statement["predicateType"].startswith(REMOVED):
                files = {name: files[name] for name in files if not (name in attests and name.startswith(BATCHES))}
            elif not statement["predicateType"].startswith(KINDS_WITHOUT_CONTENT):
                files.update(attests)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            problems.append(f"data/{LOG}, line {number}, is no attestation.")
        last = hashlib.sha256(line).hexdigest()
    if checkpoint is not None and last != checkpoint:
        problems.append(f"data/{LOG} was cut, changed or added to: its checkpoint is {last}, given is {checkpoint}.")
    return problems, files, names


def check_bag(
    bag: Path, checkpoint: str | None = None, crate_sha256: str | None = None
) -> tuple[list[str], dict[str, str], int]:
    """Return all problems as sentences, where absent files are, and the number of checked files."""
    tags, payload = read_manifest(bag / "tagmanifest-sha256.txt"), read_manifest(bag / "manifest-sha256.txt")
    addresses, crate, large = read_fetch_list(bag), read_crate_hashes(bag), read_omitted_files(bag)
    problems: list[str] = []
    elsewhere: dict[str, str] = {}
    hashes: dict[str, str] = {}
    folder = Path(os.path.realpath(bag))
    for path, expected in sorted({**tags, **payload}.items()):
        file = bag / path
        if Path(os.path.realpath(file)) != folder / path:
            problems.append(f"{path} is a link, or outside of the bag.")
        elif file.is_file():
            hashes[path] = hash_file(file)
            if hashes[path] != expected:
                problems.append(f"{path} was changed: its sha256 is {hashes[path]}, the manifest says {expected}.")
        elif path in addresses:
            elsewhere[path] = addresses[path]
        else:
            problems.append(f"{path} is missing, the manifest lists it.")
    members = hash_members(bag, [path for path in hashes if ARCHIVES.fullmatch(path)], problems)
    hashes = {**members, **hashes}
    for path, expected in sorted(crate.items()):
        known = hashes.get(path) or payload.get(path) or large.get(path)
        if known is None and (bag / path).is_file():
            known = hashes[path] = hash_file(bag / path)
        if known is None:
            problems.append(f"{path} is missing, the crate lists it.")
        elif known != expected and not any(problem.startswith(f"{path} ") for problem in problems):
            problems.append(f"{path} is another file: its sha256 is {known}, the crate says {expected}.")
    actual = hashes.get(f"data/{METADATA}")
    if crate_sha256 is not None and actual != crate_sha256:
        problems.append(f"data/{METADATA} is another one: its sha256 is {actual}, the sha256 given is {crate_sha256}.")
    of_log, evidence, names = check_log(bag, checkpoint)
    problems += of_log
    for path, expected in sorted(evidence.items()):
        known = hashes.get(path) or payload.get(path) or large.get(path)
        if known is None and path.startswith(EVIDENCE):
            problems.append(f"{path} is missing, the log attests it.")
        elif known not in (None, expected) and not any(problem.startswith(f"{path} ") for problem in problems):
            problems.append(f"{path} is another file: its sha256 is {known}, the log says {expected}.")
    for path, expected in sorted(large.items()):
        if not (bag / path).is_file():
            elsewhere[path] = "no address is known"
        elif hashes.setdefault(path, hash_file(bag / path)) != expected and path not in crate:
            problems.append(f"{path} was changed: its sha256 is {hashes[path]}, {LARGE_FILES} says {expected}.")
    here = {path.relative_to(bag).as_posix() for path in bag.rglob("*") if path.is_symlink() or not path.is_dir()}
    for path in sorted(here - (set(tags) & TAGS) - set(payload) - set(large) - {"tagmanifest-sha256.txt"}):
        problems.append(
            f"{path} is unknown: {'no bag of a run has it' if path in tags else 'the bag does not list it'}."
        )
    known_payload = {*crate, *names, f"data/{METADATA}", f"data/{LOG}"}
    for path in sorted(
        ((here & set(payload)) | set(members)) - known_payload
    ):  # whoever wrote the manifests may have added it
        if not path.startswith(TIMESTAMPS):
            problems.append(f"{path} is unknown: neither the crate nor the log lists it.")
    return problems, elsewhere, len(hashes.keys() - members.keys())


def main(arguments: list[str]) -> int:
    """Print what was found and return the exit code."""
    parser = argparse.ArgumentParser(usage=(__doc__ or "").split("\n\n")[1].strip())
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).resolve().parent)
    parser.add_argument("--log-checkpoint", type=str.lower)
    parser.add_argument("--crate-sha256", type=str.lower)
    given = parser.parse_args(arguments)
    try:
        problems, elsewhere, count = check_bag(given.folder, given.log_checkpoint, given.crate_sha256)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        print(escape_to_one_line(f"{given.folder} is no bag of a run that can be read: {error}"), file=sys.stderr)
        return 2
    for path, address in sorted(elsewhere.items()):
        print(escape_to_one_line(f"{path} is not here: {address}"))
    for problem in problems:
        print(escape_to_one_line(problem))
    verdict = f"problems: {len(problems)}" if problems else "all that is here is as it was packed"
    print(f"{count} files checked, {len(elsewhere)} elsewhere: {verdict}.")
    if not problems and (given.log_checkpoint is None or given.crate_sha256 is None):
        print("Give --log-checkpoint and --crate-sha256 of the owner to check that this is the published run.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
