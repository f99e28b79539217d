"""Standalone verifier of a run's attestation log and files: Python's standard library alone, no Polder, no network.

    python3 verify_attestations.py RUN_FOLDER [OWNER.pub] [--log-checkpoint SHA256] [--crate-sha256 SHA256]

Take this file from a release of Polder, and the key and both hashes from the owner of the run: what is in the folder
was written by whoever wrote the rest of it. The log checkpoint is the sha256 of the last line of
`provenance/attestations.intoto.jsonl`: each line names the hash of the line before it, so it covers the log, and shows
that nobody cut off its end. An unsigned run is checked by it alone.

Checks that chain, the signature of the log's last line (P-256 or Ed25519), and that each file which the log has
attested or the crate lists has that hash, where it is here. What is not here is counted and not judged, and files that
were added are not looked for: `polder verify` and a bag's `verify_files.py` do.

Exit code 0: all of it holds; 1: it does not; 2: it could not be looked at. This file may be copied and read: the
arithmetic is that of FIPS 186-5 and RFC 8032.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

Verifier = Callable[[bytes, bytes], bool]
NamedKey = tuple[str, Verifier]

CRATE = "ro-crate-metadata.json"
LOG = "provenance/attestations.intoto.jsonl"
SLSA = "https://slsa.dev/provenance/v1"
PREVIOUS_LINE = "attestation before"
# What began was attested before it was written to its end, and what somebody changed is attested as no start vouches.
KINDS_WITHOUT_CONTENT = ("urn:polder:attempt-began:", "urn:polder:evidence-changed:")

# P-256 (FIPS 186-5, SP 800-186): y² = x³ − 3x + b over the integers modulo P, of prime order N.
P = 2**256 - 2**224 + 2**192 + 2**96 - 1
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
GENERATOR = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
# Ed25519 (RFC 8032): −x² + y² = 1 + D·x²y² over the integers modulo Q, base point of order L.
Q = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, Q) % Q
ROOT = pow(2, (Q - 1) // 4, Q)


def add_p256_points(a: Any, b: Any) -> Any:
    """Return the sum of two points of P-256; None is the point at infinity."""
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % P == 0:
        return None
    above, below = (3 * a[0] * a[0] - 3, 2 * a[1]) if a == b else (b[1] - a[1], b[0] - a[0])
    slope = above * pow(below, -1, P) % P
    x = (slope * slope - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def multiply_point(point: Any, number: int, add: Callable[[Any, Any], Any], nothing: Any) -> Any:
    """Return the multiple of a point."""
    result = nothing
    while number:
        if number & 1:
            result = add(result, point)
        point = add(point, point)
        number >>= 1
    return result


def parse_der_signature(signature: bytes) -> tuple[int, int]:
    """Return the two integers of an ECDSA signature in DER."""
    if signature[0] != 0x30 or signature[1] != len(signature) - 2 or signature[2] != 2:
        raise ValueError("no ECDSA signature")
    size = signature[3]
    first, rest = signature[4 : 4 + size], signature[4 + size :]
    if rest[0] != 2 or rest[1] != len(rest) - 2:
        raise ValueError("no ECDSA signature")
    return int.from_bytes(first, "big"), int.from_bytes(rest[2:], "big")


def verify_p256(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether an ECDSA signature with SHA-256 is of a message."""
    point = int.from_bytes(public[1:33], "big"), int.from_bytes(public[33:], "big")
    if public[0] != 4 or (point[1] ** 2 - point[0] ** 3 + 3 * point[0] - B) % P:
        raise ValueError("the key is no point of P-256")
    r, s = parse_der_signature(signature)
    if not (0 < r < N and 0 < s < N):
        return False
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    inverse = pow(s, -1, N)
    one = multiply_point(GENERATOR, digest * inverse % N, add_p256_points, None)
    verification_point = add_p256_points(one, multiply_point(point, r * inverse % N, add_p256_points, None))
    return verification_point is not None and verification_point[0] % N == r


def add_ed25519_points(a: Any, b: Any) -> Any:
    """Return the sum of two points of Ed25519 in extended coordinates (X, Y, Z, T)."""
    e, f = (a[1] - a[0]) * (b[1] - b[0]) % Q, (a[1] + a[0]) * (b[1] + b[0]) % Q
    g, h = 2 * a[3] * b[3] * D % Q, 2 * a[2] * b[2] % Q
    i, j, k, m = f - e, h - g, h + g, f + e
    return i * j % Q, k * m % Q, j * k % Q, i * m % Q


def decode_ed25519_point(encoded: bytes) -> tuple[int, int, int, int]:
    """Return the point of 32 bytes; ValueError where there is none."""
    y = int.from_bytes(encoded, "little")
    sign, y = y >> 255, y & ((1 << 255) - 1)
    if y >= Q:
        raise ValueError("no point of Ed25519")
    square = (y * y - 1) * pow(D * y * y + 1, -1, Q) % Q
    x = pow(square, (Q + 3) // 8, Q)
    if (x * x - square) % Q:
        x = x * ROOT % Q
    if (x * x - square) % Q or (x == 0 and sign):
        raise ValueError("no point of Ed25519")
    x = Q - x if x & 1 != sign else x
    return x, y, 1, x * y % Q


def verify_ed25519(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether an Ed25519 signature is of a message."""
    if len(signature) != 64:
        return False
    point, r = decode_ed25519_point(public), decode_ed25519_point(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if s >= L:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % L
    y = 4 * pow(5, -1, Q) % Q
    base = decode_ed25519_point(y.to_bytes(32, "little"))
    left = multiply_point(base, s, add_ed25519_points, (0, 1, 1, 0))
    right = add_ed25519_points(r, multiply_point(point, k, add_ed25519_points, (0, 1, 1, 0)))
    return not (left[0] * right[2] - right[0] * left[2]) % Q and not (left[1] * right[2] - right[1] * left[2]) % Q


def read_public_key(path: str) -> NamedKey:
    """Return the name of a public key in PEM (the SHA-256 of its DER) and what verifies with it."""
    with open(path, encoding="ascii") as text:
        der = base64.b64decode("".join(line for line in text.read().splitlines() if not line.startswith("-----")))
    name = hashlib.sha256(der).hexdigest()
    if len(der) == 44 and der[4:9] == bytes.fromhex("06032b6570"):
        return name, lambda signature, message: verify_ed25519(der[12:], signature, message)
    if len(der) == 91 and bytes.fromhex("06082a8648ce3d030107") in der:
        return name, lambda signature, message: verify_p256(der[26:], signature, message)
    raise ValueError(f"{path} is neither a P-256 nor an Ed25519 public key")


def previous_line_sha256(statement: Any) -> str:
    """Return the SHA-256 of the previous line that a statement names."""
    if statement["predicateType"] != SLSA:
        return str(statement["predicate"]["before"])
    made = statement["predicate"]["runDetails"]["byproducts"]
    return str(next(entry["digest"]["sha256"] for entry in made if entry["name"] == PREVIOUS_LINE))


def attested_files(statement: Any) -> list[tuple[str, str]]:
    """Return name and SHA-256 of the files that a statement attests."""
    made = statement["predicate"]["runDetails"]["byproducts"] if statement["predicateType"] == SLSA else []
    named = [(entry["name"], entry["digest"]["sha256"]) for entry in [*statement["subject"], *made]]
    if not all(isinstance(word, str) for words in named for word in words):
        raise TypeError("a name or a hash is no text")
    return [(name, sha256) for name, sha256 in named if name != PREVIOUS_LINE]


def hash_file(path: str) -> str:
    """Return the hash of a file."""
    hasher = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            hasher.update(block)
    return hasher.hexdigest()


def escape_to_one_line(text: str) -> str:
    """Return a text on one line, with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def find_signature_problem(envelope: Any, payload: bytes, key: NamedKey) -> str | None:
    """Return why an envelope has no valid signature by a key; None if it has one."""
    key_name, verifies = key
    kind = envelope["payloadType"].encode()
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    signatures = {one["keyid"]: base64.b64decode(one["sig"]) for one in envelope["signatures"]}
    if not signatures:
        return "is not signed"
    if key_name not in signatures:
        return f"is signed with another key than the one given (sha256 {key_name})"
    return None if verifies(signatures[key_name], message) else "has a signature that does not match its content"


def check_log(
    run: str, key: NamedKey | None, checkpoint: str | None, every: bool = False
) -> tuple[list[str], int, dict[str, tuple[str, int]]]:
    """Return the problems of the log, how many lines it has, and the newest hash of each file with the line's number.

    The signature of the last line covers all lines before it, as each names the hash of the one before. So only that
    one is computed, which takes Python 15 ms, unless `every` asks for all, to name the line that is wrong.
    """
    problems: list[str] = []
    files: dict[str, tuple[str, int]] = {}
    hashes = ["0" * 64]
    path = os.path.join(run, LOG)
    if not os.path.isfile(path):  # nobody writes into a pipe, and a device has no end
        raise OSError(f"{path} is missing or no file")
    with open(path, "rb") as log:
        lines = log.readlines()
    for number, line in enumerate(lines, start=1):
        try:
            envelope = json.loads(line)
            payload = base64.b64decode(envelope["payload"])
            statement = json.loads(payload)
            if previous_line_sha256(statement) != hashes[-1]:
                problems.append(f"line {number} does not follow the line before it")
            is_checked = every or number == len(lines)
            if key and is_checked and (signature_problem := find_signature_problem(envelope, payload, key)):
                problems.append(f"line {number} {signature_problem}")
            for name, sha256 in attested_files(statement):
                if not statement["predicateType"].startswith(KINDS_WITHOUT_CONTENT):
                    files[name] = (sha256, number)
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration, IndexError, RecursionError):
            problems.append(f"line {number} is no attestation")
        hashes.append(hashlib.sha256(line.rstrip(b"\n")).hexdigest())
    if problems and not every:
        return check_log(run, key, checkpoint, every=True)
    if not lines:
        problems.append(f"{LOG} is empty")
    elif checkpoint is not None and hashes[-1] != checkpoint:
        after = len(lines) - hashes.index(checkpoint) if checkpoint in hashes else None
        problems.append(
            f"{LOG} was cut or changed: no line has the checkpoint given"
            if after is None
            else f"{LOG} has {after} lines after the checkpoint given: ask the owner for the newest one"
        )
    return problems, len(lines), files


def check_crate(run: str, given: str | None) -> tuple[list[str], dict[str, str]]:
    """Return the problems of the crate, and the hash of each file that it lists."""
    path = os.path.join(run, CRATE)
    if not os.path.isfile(path):
        return ([f"{CRATE} is missing"] if given is not None else []), {}
    if given is not None and hash_file(path) != given:
        return [f"{CRATE} was changed: its sha256 is {hash_file(path)}, the sha256 given is {given}"], {}
    try:
        with open(path, encoding="utf-8") as text:
            listed = [entity for entity in json.load(text)["@graph"] if "File" in entity["@type"]]
        return [], {unquote(entity["@id"]): str(entity["sha256"]) for entity in listed if "sha256" in entity}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [f"{CRATE} is not a crate that can be read"], {}


def check_files(run: str, expected: list[tuple[str, str, str]]) -> tuple[list[str], int, int]:
    """Return problems of files with other hashes, and the numbers of checked and of absent files."""
    problems: dict[str, str] = {}
    hashes: dict[str, str] = {}
    absent: set[str] = set()
    for name, sha256, source in sorted(expected):
        path = os.path.join(run, *name.split("/"))
        if os.path.isabs(name) or ".." in name.split("/"):
            problems.setdefault(name, f"{name} is no path in the run, though {source} names it")
            continue
        if not os.path.isfile(path):
            absent.add(name)
            continue
        if name not in hashes:
            hashes[name] = hash_file(path)
        if hashes[name] != sha256:
            problems.setdefault(name, f"{name} was changed: it is not what {source} says")
    return [*problems.values()], len(hashes), len(absent)


def main(arguments: list[str]) -> int:
    """Check a run and return the exit code."""
    parser = argparse.ArgumentParser(usage=(__doc__ or "").split("\n\n")[1].strip())
    parser.add_argument("run")
    parser.add_argument("key", nargs="?")
    parser.add_argument("--log-checkpoint", type=str.lower)
    parser.add_argument("--crate-sha256", type=str.lower)
    given = parser.parse_args(arguments)
    if not given.key and given.log_checkpoint is None:
        parser.error("give the owner's public key, or the log checkpoint of an unsigned run")
    try:
        key = read_public_key(given.key) if given.key else None
        problems, lines, attested_files = check_log(given.run, key, given.log_checkpoint)
        of_crate, crate_files = check_crate(given.run, given.crate_sha256)
        expected = [(name, sha256, f"line {number} of the log") for name, (sha256, number) in attested_files.items()]
        expected += [(name, sha256, "the crate") for name, sha256 in crate_files.items()]
        of_files, here, absent = check_files(given.run, expected)
    except (OSError, ValueError) as error:
        print(f"error: {escape_to_one_line(str(error))}")
        return 2
    for problem in (problems := [*problems, *of_crate, *of_files]):
        print(f"{escape_to_one_line(problem)}.")
    counts = f"{lines} attestations, {here} files looked at, {absent} attested or listed files are not here"
    verdict = f"problems: {len(problems)}" if problems else "signed and unchanged" if key else "unchanged"
    print(f"{escape_to_one_line(given.run)}: {verdict}: {counts}.")
    missing = [name for name in ("log_checkpoint", "crate_sha256") if getattr(given, name) is None]
    for name in missing if not problems else ():
        what = "the end of the log was cut off" if name == "log_checkpoint" else "this is the crate that was published"
        print(f"{escape_to_one_line(given.run)}: nothing says whether {what}: give --{name.replace('_', '-')}.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
