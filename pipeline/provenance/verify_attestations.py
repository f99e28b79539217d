"""Checks the attestations of a run with Python's standard library alone: no Polder, no other package, no network.

    python3 verify_attestations.py RUN_FOLDER OWNER.pub

Checks that each line of `provenance/attestations.intoto.jsonl` names the hash of the line before it, that each is
signed with the owner's key (P-256 or Ed25519), and that each file which was attested last with a hash, and is there,
has that hash. What is not there is counted and not judged. Exit code 0: all of it holds; 1: it does not; 2: it could
not be looked at. This file may be copied and read: the arithmetic is that of FIPS 186-5 and RFC 8032.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

Verifies = Callable[[bytes, bytes], bool]
Files = dict[str, tuple[str, "int | None", int]]

LOG = "provenance/attestations.intoto.jsonl"
SLSA = "https://slsa.dev/provenance/v1"
BEFORE = "attestation before"

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


def weierstrass_sum(a: Any, b: Any) -> Any:
    """Return the sum of two points of P-256; None is the point at infinity."""
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % P == 0:
        return None
    above, below = (3 * a[0] * a[0] - 3, 2 * a[1]) if a == b else (b[1] - a[1], b[0] - a[0])
    slope = above * pow(below, -1, P) % P
    x = (slope * slope - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def multiple(point: Any, number: int, add: Callable[[Any, Any], Any], nothing: Any) -> Any:
    """Return a point added to itself so many times."""
    result = nothing
    while number:
        if number & 1:
            result = add(result, point)
        point = add(point, point)
        number >>= 1
    return result


def der_integers(signature: bytes) -> tuple[int, int]:
    """Return the two integers of an ECDSA signature in DER."""
    if signature[0] != 0x30 or signature[1] != len(signature) - 2 or signature[2] != 2:
        raise ValueError("no ECDSA signature")
    size = signature[3]
    first, rest = signature[4 : 4 + size], signature[4 + size :]
    if rest[0] != 2 or rest[1] != len(rest) - 2:
        raise ValueError("no ECDSA signature")
    return int.from_bytes(first, "big"), int.from_bytes(rest[2:], "big")


def p256_verifies(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether an ECDSA signature with SHA-256 is of a message."""
    point = int.from_bytes(public[1:33], "big"), int.from_bytes(public[33:], "big")
    if public[0] != 4 or (point[1] ** 2 - point[0] ** 3 + 3 * point[0] - B) % P:
        raise ValueError("the key is no point of P-256")
    r, s = der_integers(signature)
    if not (0 < r < N and 0 < s < N):
        return False
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    inverse = pow(s, -1, N)
    one = multiple(GENERATOR, digest * inverse % N, weierstrass_sum, None)
    found = weierstrass_sum(one, multiple(point, r * inverse % N, weierstrass_sum, None))
    return found is not None and found[0] % N == r


def edwards_sum(a: Any, b: Any) -> Any:
    """Return the sum of two points of Ed25519 in extended coordinates (X, Y, Z, T)."""
    e, f = (a[1] - a[0]) * (b[1] - b[0]) % Q, (a[1] + a[0]) * (b[1] + b[0]) % Q
    g, h = 2 * a[3] * b[3] * D % Q, 2 * a[2] * b[2] % Q
    i, j, k, m = f - e, h - g, h + g, f + e
    return i * j % Q, k * m % Q, j * k % Q, i * m % Q


def edwards_point(encoded: bytes) -> tuple[int, int, int, int]:
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


def ed25519_verifies(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether an Ed25519 signature is of a message."""
    if len(signature) != 64:
        return False
    point, r = edwards_point(public), edwards_point(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if s >= L:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % L
    y = 4 * pow(5, -1, Q) % Q
    base = edwards_point(y.to_bytes(32, "little"))
    left = multiple(base, s, edwards_sum, (0, 1, 1, 0))
    right = edwards_sum(r, multiple(point, k, edwards_sum, (0, 1, 1, 0)))
    return not (left[0] * right[2] - right[0] * left[2]) % Q and not (left[1] * right[2] - right[1] * left[2]) % Q


def read_key(path: str) -> tuple[str, Verifies]:
    """Return the name of a public key in PEM (the SHA-256 of its DER) and what verifies with it."""
    with open(path, encoding="ascii") as text:
        der = base64.b64decode("".join(line for line in text.read().splitlines() if not line.startswith("-----")))
    name = hashlib.sha256(der).hexdigest()
    if len(der) == 44 and der[4:9] == bytes.fromhex("06032b6570"):
        return name, lambda signature, message: ed25519_verifies(der[12:], signature, message)
    if len(der) == 91 and bytes.fromhex("06082a8648ce3d030107") in der:
        return name, lambda signature, message: p256_verifies(der[26:], signature, message)
    raise ValueError(f"{path} is neither a P-256 nor an Ed25519 public key")


def before(statement: Any) -> str:
    """Return the hash of the line before that a statement names."""
    if statement["predicateType"] != SLSA:
        return str(statement["predicate"]["before"])
    made = statement["predicate"]["runDetails"]["byproducts"]
    return str(next(entry["digest"]["sha256"] for entry in made if entry["name"] == BEFORE))


def attested(statement: Any) -> list[tuple[str, str, int | None]]:
    """Return the name, hash and number of bytes (None: all) of what a statement attests."""
    made = statement["predicate"]["runDetails"]["byproducts"] if statement["predicateType"] == SLSA else []
    return [
        (entry["name"], entry["digest"]["sha256"], entry.get("annotations", {}).get("bytes"))
        for entry in [*statement["subject"], *made]
        if entry["name"] != BEFORE
    ]


def digest(path: str, size_bytes: int | None) -> str:
    """Return the hash of the first bytes of a file."""
    found, left = hashlib.sha256(), size_bytes
    with open(path, "rb") as stream:
        while True:
            block = stream.read(1 << 20 if left is None else min(left, 1 << 20))
            if not block:
                return found.hexdigest()
            found.update(block)
            left = None if left is None else left - len(block)


def is_signed(envelope: Any, payload: bytes, key_name: str, verifies: Verifies) -> bool:
    """Return whether an envelope has a signature by that key of its payload."""
    kind = envelope["payloadType"].encode()
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    signatures = [base64.b64decode(one["sig"]) for one in envelope["signatures"] if one["keyid"] == key_name]
    return any(verifies(signature, message) for signature in signatures)


def check_log(run: str, key_name: str, verifies: Verifies, every: bool = False) -> tuple[list[str], int, Files]:
    """Return the problems of the log, how many lines it has, and what was attested of each file last.

    The signature of the last line covers all lines before it, as each names the hash of the one before. So only that
    one is computed, which takes Python 15 ms, unless `every` asks for all, to name the line that is wrong.
    """
    problems: list[str] = []
    files: Files = {}
    expected, number = "0" * 64, 0
    with open(os.path.join(run, LOG), "rb") as log:
        lines = log.readlines()
    for number, line in enumerate(lines, start=1):
        try:
            envelope = json.loads(line)
            payload = base64.b64decode(envelope["payload"])
            statement = json.loads(payload)
            if before(statement) != expected:
                problems.append(f"line {number} does not follow the line before it")
            if (every or number == len(lines)) and not is_signed(envelope, payload, key_name, verifies):
                problems.append(f"line {number} is not signed with the key given")
            for name, sha256, size_bytes in attested(statement):
                if not statement["predicateType"].startswith("urn:polder:attempt-began:"):
                    files[name] = (sha256, size_bytes, number)
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration, IndexError):
            problems.append(f"line {number} is no attestation")
        expected = hashlib.sha256(line.rstrip(b"\n")).hexdigest()
    if problems and not every:
        return check_log(run, key_name, verifies, every=True)
    return problems, number, files


def main(arguments: list[str]) -> int:
    """Check a run and return the exit code."""
    if len(arguments) != 2:
        print(__doc__)
        return 2
    run, key = arguments
    try:
        problems, lines, files = check_log(run, *read_key(key))
    except (OSError, ValueError) as error:
        print(f"error: {error}")
        return 2
    absent = 0
    for name, (sha256, size_bytes, number) in sorted(files.items()):
        path = os.path.join(run, *name.split("/"))
        if os.path.isabs(name) or ".." in name.split("/"):
            problems.append(f"line {number} attests {name}, which is no path in the run")
        elif not os.path.isfile(path):
            absent += 1
        elif digest(path, size_bytes) != sha256:
            problems.append(f"{name} was changed: it is not what line {number} attests")
    if not lines:
        problems.append(f"{LOG} is empty")
    for problem in problems:
        print(f"{problem}.")
    told = f"{lines} attestations, {len(files) - absent} files looked at, {absent} attested files are not here"
    print(f"{run}: problems: {len(problems)}; {told}." if problems else f"{run}: signed and unchanged: {told}.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
