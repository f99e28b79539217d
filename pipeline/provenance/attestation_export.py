"""Hand over a signed run's attestations in the files that others' verifiers read: Sigstore bundles, in-toto's layout.

A bundle holds a line of the log as it is, so making it needs no key. A layout and its links say the same in the older
format of in-toto, which `in-toto-verify` follows from job to job. They are signed anew, so they need the key.
What only the log adds: the order of all attempts, failed ones included, meter readings, and that no line was removed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from pipeline import layout
from pipeline.core.attestation_log import (
    PAYLOAD_TYPE,
    SLSA_PROVENANCE,
    InTotoStatement,
    pre_authentication_encoding,
    read_log,
)
from pipeline.core.errors import InputError
from pipeline.core.signing_keys import (
    PrivateKey,
    PublicKey,
    key_sha256,
    load_private_key,
    public_key_pem,
    sign_message,
)

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
BUNDLES, LAYOUT = "bundles", "root.layout"
FINAL_MODELS = "final-models"
VALID_DAYS = 3653  # of the layout; in-toto refuses one without an end


class ExportedAttestations(NamedTuple):
    """How many jobs were handed over, and whether there is a layout."""

    jobs: int
    has_layout: bool


class JobAttestation(NamedTuple):
    """The newest attestation of a job: its name, its statement and its envelope as the log has it."""

    name: str
    statement: InTotoStatement
    envelope: dict[str, Any]
    finished: str


def list_job_attestations(run_directory: Path) -> list[JobAttestation]:
    """Return the newest attestation of each finished job, by the name of its record.

    Raises:
        InputError: the log was changed, or a line is not signed.
    """
    newest: dict[str, JobAttestation] = {}
    lines = (run_directory / layout.ATTESTATION_LOG).read_bytes().split(b"\n")[:-1]
    for line, text in zip(read_log(run_directory, strict=True), lines, strict=True):
        if line.statement.kind != SLSA_PROVENANCE:
            continue
        if len(line.signatures) != 1:
            log = run_directory / layout.ATTESTATION_LOG
            raise InputError(
                f"line {line.number} of {log} has {len(line.signatures)} signatures, and a bundle has one: "
                "sign the run from its beginning (provenance.key)"
            )
        envelope = json.loads(text)
        name = Path(line.statement.subject[0].name).stem
        details = json.loads(base64.b64decode(envelope["payload"]))["predicate"]["runDetails"]
        newest[name] = JobAttestation(name, line.statement, envelope, details["metadata"]["finishedOn"])
    if not newest:
        raise InputError(f"{run_directory}: no job has been attested yet: finish the run first")
    return [newest[name] for name in sorted(newest)]


def build_bundle(envelope: dict[str, Any]) -> dict[str, Any]:
    """Return an envelope as a Sigstore bundle 0.3 whose key the reader gives."""
    return {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": envelope["signatures"][0]["keyid"]}, "tlogEntries": []},
        "dsseEnvelope": envelope,
    }


def _artifacts(entries: Any) -> dict[str, dict[str, str]]:
    return {entry.name: {"sha256": entry.sha256} for entry in entries if entry.sha256}


def build_link(job: JobAttestation) -> dict[str, Any]:
    """Return the link of a job: what it read as materials and what it wrote as products."""
    return {
        "_type": "link",
        "name": job.name,
        "command": [],
        "materials": _artifacts(job.statement.dependencies),
        "products": _artifacts(job.statement.subject),
        "byproducts": {},
        "environment": {},
    }


def _escape_pattern(path: str) -> str:
    """Return a path as a pattern of in-toto's rules that matches only it."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in path)


def _material_rules(job: JobAttestation, makers: dict[str, str]) -> Iterator[list[str]]:
    """Yield the rules of what a job may read: the product of a job with its hash, or raw data by name; nothing else."""
    for name in _artifacts(job.statement.dependencies):
        pattern = _escape_pattern(name)
        maker = makers.get(name)
        yield ["MATCH", pattern, "WITH", "PRODUCTS", "FROM", maker] if maker else ["ALLOW", pattern]
    yield ["DISALLOW", "*"]


def describe_key(key: PublicKey) -> dict[str, Any]:
    """Return a public key as in-toto has it; its identifier is the SHA-256 of the rest as canonical JSON."""
    if isinstance(key, Ed25519PublicKey):
        kind, scheme, public = "ed25519", "ed25519", key.public_bytes_raw().hex()
    else:
        kind, scheme, public = "ecdsa", "ecdsa-sha2-nistp256", public_key_pem(key).decode()
    canonical = f'{{"keytype":"{kind}","keyval":{{"public":"{public}"}},"scheme":"{scheme}"}}'
    identifier = hashlib.sha256(canonical.encode()).hexdigest()
    return {"keyid": identifier, "keytype": kind, "scheme": scheme, "keyval": {"public": public}}


def build_layout(jobs: list[JobAttestation], key: PublicKey) -> dict[str, Any]:
    """Return the layout of a run: each job a step by one key, from raw data to the files of the final models.

    Its one inspection compares the files of final models in the working directory with what jobs wrote.
    """
    described = describe_key(key)
    identifier = described["keyid"]
    makers = {name: job.name for job in jobs for name in _artifacts(job.statement.subject)}
    finals = sorted(name for name in makers if layout.FINAL_MODEL.parse(str(Path(name).parent)))
    ended = max(datetime.fromisoformat(job.finished) for job in jobs)
    return {
        "_type": "layout",
        "readme": "Each step is a finished job. Raw data and frozen configurations are allowed by name.",
        "expires": f"{ended + timedelta(days=VALID_DAYS):%Y-%m-%dT%H:%M:%SZ}",
        "keys": {identifier: described},
        "steps": [
            {
                "_type": "step",
                "name": job.name,
                "pubkeys": [identifier],
                "threshold": 1,
                "expected_command": [],
                "expected_materials": [*_material_rules(job, makers)],
                "expected_products": [
                    *(["CREATE", _escape_pattern(name)] for name in _artifacts(job.statement.subject)),
                    ["DISALLOW", "*"],
                ],
            }
            for job in jobs
        ],
        "inspect": [
            {
                "_type": "inspection",
                "name": FINAL_MODELS,
                "run": ["true"],
                "expected_materials": [
                    *(["REQUIRE", name] for name in finals),
                    *(["MATCH", _escape_pattern(name), "WITH", "PRODUCTS", "FROM", makers[name]] for name in finals),
                    ["ALLOW", "*/.snakemake_timestamp"],
                    ["DISALLOW", f"{layout.FINAL_MODEL.glob_pattern()}/*"],
                    ["ALLOW", "*"],
                ],
                "expected_products": [["ALLOW", "*"]],
            }
        ],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def write_signed(path: Path, content: dict[str, Any], key: PrivateKey) -> None:
    """Write a layout or a link in its DSSE envelope."""
    payload = json.dumps(content, sort_keys=True, ensure_ascii=False).encode()
    signature = base64.b64encode(sign_message(key, pre_authentication_encoding(payload))).decode()
    signatures = [{"keyid": describe_key(key.public_key())["keyid"], "sig": signature}]
    encoded = base64.b64encode(payload).decode()
    _write_json(path, {"payload": encoded, "payloadType": PAYLOAD_TYPE, "signatures": signatures})


def export_attestations(run_directory: Path, folder: Path, key: Path | None = None) -> ExportedAttestations:
    """Write a bundle for each job into a new folder; with the key of the run also its layout and links.

    Raises:
        InputError: the folder exists, the run is not signed, or the key is not the run's.
    """
    if folder.exists():
        raise InputError(f"{folder} exists: name a new folder")
    jobs = list_job_attestations(run_directory)
    private = load_private_key(key) if key else None
    signers = {job.envelope["signatures"][0]["keyid"] for job in jobs}
    if private and signers != {key_sha256(private.public_key())}:
        raise InputError(f"{key} is not the key that signed {run_directory}: give that one")
    (folder / BUNDLES).mkdir(parents=True)
    for job in jobs:
        _write_json(folder / BUNDLES / f"{job.name}.sigstore.json", build_bundle(job.envelope))
    if private is not None:
        public = private.public_key()
        write_signed(folder / LAYOUT, build_layout(jobs, public), private)
        identifier = describe_key(public)["keyid"]
        for job in jobs:
            write_signed(folder / f"{job.name}.{identifier[:8]}.link", build_link(job), private)
    return ExportedAttestations(len(jobs), private is not None)
