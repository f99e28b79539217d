"""Timestamps of checkpoints of the attestation log by an authority (RFC 3161)."""

from __future__ import annotations

import urllib.request
from datetime import datetime
from pathlib import Path

from cryptography.x509 import load_pem_x509_certificates
from rfc3161_client import (
    TimestampRequestBuilder,
    TimeStampResponse,
    VerificationError,
    VerifierBuilder,
    decode_timestamp_response,
)

from pipeline.core.errors import InputError
from pipeline.provenance.settings import Timestamps

TIMEOUT_SECONDS = 60.0


def _verify_response(answer: TimeStampResponse, checkpoint: str, certificates: Path) -> datetime:
    """Verify a response and return its time.

    Raises:
        InputError: the certificates are none.
        ValueError: the answer is not the authority's, or of another checkpoint.
    """
    try:
        known = load_pem_x509_certificates(certificates.read_bytes())
    except (OSError, ValueError):
        raise InputError(f"{certificates} holds no certificate in PEM: give the authority's root certificate") from None
    builder = VerifierBuilder()
    for certificate in known:
        builder = builder.add_root_certificate(certificate)
    try:
        builder.build().verify_message(answer, checkpoint.encode())
    except VerificationError as error:
        raise ValueError(str(error)) from None
    return answer.tst_info.gen_time


def request_timestamp(checkpoint: str, settings: Timestamps) -> bytes:
    """Request a timestamp of a checkpoint and return the response.

    Raises:
        InputError: it does not answer, or not as its certificate says.
    """
    request = TimestampRequestBuilder().data(checkpoint.encode()).build().as_bytes()
    headers = {"Content-Type": "application/timestamp-query"}
    http_request = urllib.request.Request(settings.url, request, headers, method="POST")
    try:
        with urllib.request.urlopen(http_request, timeout=TIMEOUT_SECONDS) as answer:
            content: bytes = answer.read()
        _verify_response(decode_timestamp_response(content), checkpoint, Path(settings.certificates).expanduser())
    except (OSError, ValueError) as error:
        raise InputError(
            f"provenance.timestamps: {settings.url} gave no timestamp ({error}): the next start asks again"
        ) from None
    return content


def read_timestamp(path: Path, certificates: Path | None) -> datetime:
    """Return the time of a timestamp file, which is named by the SHA-256 of its checkpoint.

    Without certificates the signature of the authority is not checked.

    Raises:
        InputError: the certificates are none.
        ValueError: the file is no answer, not the authority's, or of another checkpoint.
    """
    answer = decode_timestamp_response(path.read_bytes())
    if certificates is None:
        return answer.tst_info.gen_time
    return _verify_response(answer, path.stem, certificates)
