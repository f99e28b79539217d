"""Trace a run from its final models to raw data by signed SLSA provenance; shares no code with Polder.

Usage: follow_chain.py LOG PUBLIC_KEY RUN. Prints how many jobs and raw files the final models come from.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
)
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

log, key_file, run = map(Path, sys.argv[1:])
public = load_pem_public_key(key_file.read_bytes())
der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
key = SSlibKey.from_crypto(load_der_public_key(der), keyid=hashlib.sha256(der).hexdigest())

makers: dict[tuple[str, str], list[tuple[str, str]]] = {}
finals: dict[str, str] = {}
for line in log.read_text(encoding="utf-8").splitlines():
    envelope = Envelope.from_dict(json.loads(line))
    envelope.verify([key], 1)
    statement = json.loads(envelope.payload)
    if statement["predicateType"] != "https://slsa.dev/provenance/v1":
        continue
    read = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    dependencies = [(one["name"], one["digest"]["sha256"]) for one in read if "sha256" in one["digest"]]
    for one in statement["subject"]:
        makers[one["name"], one["digest"]["sha256"]] = dependencies
        if one["name"].startswith("models/") and "/final/" in one["name"]:
            finals[one["name"]] = one["digest"]["sha256"]
if not finals:
    sys.exit("no job has written a final model")
names = {name for name, _ in makers}
jobs, raw, seen, left = set(), set(), set(), [*finals.items()]
for name, sha256 in left:
    if hashlib.sha256((run / name).read_bytes()).hexdigest() != sha256:
        sys.exit(f"{name} is not what a job wrote")
while left:
    artifact = left.pop()
    if artifact in seen:
        continue
    seen.add(artifact)
    if artifact in makers:
        jobs.add(id(makers[artifact]))
        left += makers[artifact]
    elif artifact[0] in names:
        sys.exit(f"{artifact[0]} was read with a hash that no job wrote")
    elif artifact[0].startswith("data:"):
        raw.add(artifact)
print(len(jobs), len(raw))
if not raw:
    sys.exit("the chain does not reach raw data")
