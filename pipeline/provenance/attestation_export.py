"""Hand over a signed run's attestations in the files that others' verifiers read: Sigstore bundles, in-toto's layout.

A bundle holds the statement and the signature of a line of the log, so making it needs no key. A layout and its links
say the same in the older format of in-toto, which `in-toto-verify` and in-toto-golang follow from job to job. They are
signed again, so they need the key.
What only the log adds: the order of all attempts, failed ones included, meter readings, and that no line was removed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Container, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from pipeline import layout
from pipeline.core.attestation_log import (
    PAYLOAD_TYPE,
    SLSA_PROVENANCE,
    InTotoStatement,
    Resource,
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
    """An attestation of a finished job: its name, its line in the log, its statement and its envelope.

    The newest one of a job has the name of its record, an older one also the number of its line.
    """

    name: str
    line: int
    statement: InTotoStatement
    envelope: dict[str, Any]
    finished: str

    @property
    def products(self) -> dict[str, str]:
        """The SHA-256 of what it wrote, by name."""
        return _hash_by_name(self.statement.subject)

    @property
    def materials(self) -> dict[str, str]:
        """The SHA-256 of what it read, by name."""
        return _hash_by_name(self.statement.dependencies)


def _hash_by_name(entries: Iterable[Resource]) -> dict[str, str]:
    return {entry.name: entry.sha256 for entry in entries if entry.sha256}


def _read_job_attestations(run_directory: Path) -> Iterator[JobAttestation]:
    log = run_directory / layout.ATTESTATION_LOG
    if not log.is_file():
        raise InputError(f"{log} is missing: name the folder of a finished run, results/NAME")
    lines = log.read_bytes().split(b"\n")[:-1]
    for line, text in zip(read_log(run_directory, strict=True), lines, strict=True):
        if line.statement.kind != SLSA_PROVENANCE:
            continue
        if len(line.signatures) != 1:
            raise InputError(
                f"line {line.number} of {log} has {len(line.signatures)} signatures, and a bundle has one: "
                "sign the run from its beginning (provenance.key)"
            )
        envelope = json.loads(text)
        name = Path(line.statement.subject[0].name).stem
        details = json.loads(base64.b64decode(envelope["payload"]))["predicate"]["runDetails"]
        yield JobAttestation(name, line.number, line.statement, envelope, details["metadata"]["finishedOn"])


def select_job_attestations(run_directory: Path) -> list[JobAttestation]:
    """Return the newest attestation of each finished job, and older ones whose products one of them has read.

    Raises:
        InputError: there is no log, it was changed, or a line is not signed.
    """
    attested = [*_read_job_attestations(run_directory)]
    if not attested:
        raise InputError(f"{run_directory}: no job has been attested yet: finish the run first")
    newest = {job.name: job for job in attested}
    makers = {item: job for job in attested for item in job.products.items()}
    chosen = {job.line: job for job in newest.values()}
    unread = [*chosen.values()]
    while unread:
        for item in unread.pop().materials.items():
            if (maker := makers.get(item)) and maker.line not in chosen:
                chosen[maker.line] = maker._replace(name=f"{maker.name}.{maker.line}")
                unread.append(maker)
    return sorted(chosen.values(), key=lambda job: job.name)


def build_bundle(envelope: dict[str, Any]) -> dict[str, Any]:
    """Return an envelope as a Sigstore bundle 0.3 whose key the reader gives."""
    (signature,) = envelope["signatures"]
    return {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": signature["keyid"]}, "tlogEntries": []},
        # cosign skips a signature whose key identifier is not the one that cosign itself computes.
        "dsseEnvelope": {**envelope, "signatures": [{"sig": signature["sig"]}]},
    }


def _artifacts(hashes: dict[str, str]) -> dict[str, dict[str, str]]:
    return {name: {"sha256": sha256} for name, sha256 in hashes.items()}


def build_link(job: JobAttestation) -> dict[str, Any]:
    """Return the link of a job: what it read as materials and what it wrote as products."""
    return {
        "_type": "link",
        "name": job.name,
        "command": [],
        "materials": _artifacts(job.materials),
        "products": _artifacts(job.products),
        "byproducts": {},
        "environment": {},
    }


def _escape_pattern(path: str) -> str:
    """Return a path as a pattern of in-toto's rules that matches only it."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in path)


def _material_rules(
    job: JobAttestation, makers: dict[tuple[str, str], str], made: Container[str]
) -> Iterator[list[str]]:
    """Yield the rules of what a job may read: the product of a job with its hash, or raw data by name; nothing else."""
    for name, sha256 in job.materials.items():
        pattern = _escape_pattern(name)
        if maker := makers.get((name, sha256)):
            yield ["MATCH", pattern, "WITH", "PRODUCTS", "FROM", maker]
        elif name in made:
            raise InputError(
                f"{job.name} read {name} with a hash that no job attested: run that job again, or export without --key"
            )
        else:
            yield ["ALLOW", pattern]
    yield ["DISALLOW", "*"]


def _key_identifier(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a key as canonical JSON, which has line ends as they are."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).replace("\\n", "\n")
    return hashlib.sha256(canonical.encode()).hexdigest()


def describe_key(key: PublicKey) -> dict[str, Any]:
    """Return a public key as in-toto has it; its identifier is the SHA-256 of the rest as canonical JSON."""
    if isinstance(key, Ed25519PublicKey):
        kind, scheme, public = "ed25519", "ed25519", key.public_bytes_raw().hex()
    else:
        kind, scheme, public = "ecdsa", "ecdsa-sha2-nistp256", public_key_pem(key).decode()
    content = {"keytype": kind, "scheme": scheme, "keyval": {"public": public}}
    return {"keyid": _key_identifier(content), **content}


def _golang_key_identifier(key: PublicKey) -> str:
    """Return the identifier that in-toto-golang computes of a key: with hash algorithms, without the last line end."""
    described = describe_key(key)
    content = {
        "keytype": described["keytype"],
        "scheme": described["scheme"],
        "keyval": {"public": described["keyval"]["public"].rstrip("\n")},
        "keyid_hash_algorithms": ["sha256", "sha512"],
    }
    return _key_identifier(content)


def build_layout(run_directory: Path, jobs: list[JobAttestation], key: PublicKey) -> dict[str, Any]:
    """Return the layout of a run: each job a step by one key, from raw data to the files of the final models.

    Its one inspection compares the files of final models in the working directory with what jobs wrote. Models whose
    folder is gone, such as one that was renamed, are left out of it.

    Raises:
        InputError: a job read what no job of that name wrote.
    """
    described = describe_key(key)
    identifier = described["keyid"]
    in_order = sorted(jobs, key=lambda job: job.line)
    makers = {item: job.name for job in in_order for item in job.products.items()}
    last_makers = {name: job.name for job in in_order for name in job.products}
    folders = {name: Path(name).parent for name in last_makers}
    finals = sorted(
        name
        for name, folder in folders.items()
        if layout.FINAL_MODEL.parse(str(folder)) and (run_directory / folder).is_dir()
    )
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
                "expected_materials": [*_material_rules(job, makers, last_makers)],
                "expected_products": [
                    *(["CREATE", _escape_pattern(name)] for name in job.products),
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
                    *(
                        ["MATCH", _escape_pattern(name), "WITH", "PRODUCTS", "FROM", last_makers[name]]
                        for name in finals
                    ),
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
    """Write a layout or a link in its DSSE envelope, signed under each implementation's identifier of the key."""
    payload = json.dumps(content, sort_keys=True, ensure_ascii=False).encode()
    signature = base64.b64encode(sign_message(key, pre_authentication_encoding(payload))).decode()
    public = key.public_key()
    identifiers = (describe_key(public)["keyid"], _golang_key_identifier(public))
    signatures = [{"keyid": identifier, "sig": signature} for identifier in identifiers]
    encoded = base64.b64encode(payload).decode()
    _write_json(path, {"payload": encoded, "payloadType": PAYLOAD_TYPE, "signatures": signatures})


def export_attestations(run_directory: Path, folder: Path, key: Path | None = None) -> ExportedAttestations:
    """Write a bundle for each job into a new folder; with the key of the run also its layout and links.

    Raises:
        InputError: the folder exists, the run is not signed, the key is not the run's, or a job read what none wrote.
    """
    if folder.exists():
        raise InputError(f"{folder} exists: name a new folder")
    jobs = select_job_attestations(run_directory)
    private = load_private_key(key) if key else None
    signers = {job.envelope["signatures"][0]["keyid"] for job in jobs}
    if private and signers != {key_sha256(private.public_key())}:
        raise InputError(f"{key} is not the key that signed {run_directory}: give that one")
    content = build_layout(run_directory, jobs, private.public_key()) if private else None
    (folder / BUNDLES).mkdir(parents=True)
    for job in jobs:
        _write_json(folder / BUNDLES / f"{job.name}.sigstore.json", build_bundle(job.envelope))
    if private is not None and content is not None:
        write_signed(folder / LAYOUT, content, private)
        identifier = describe_key(private.public_key())["keyid"]
        for job in jobs:
            write_signed(folder / f"{job.name}.{identifier[:8]}.link", build_link(job), private)
    return ExportedAttestations(len(jobs), private is not None)
