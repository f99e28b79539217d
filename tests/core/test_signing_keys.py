"""A key has one of the two signing kinds; every other file is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa, x25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from pipeline.core import signing_keys
from pipeline.core.errors import InputError

# A curve of 112 bits (secp112r1), insecure and unknown to the library; made with OpenSSL.
UNKNOWN = {
    "EC PRIVATE KEY": "MD4CAQEEDm9ssgiVFEaBZfphIKqAoAcGBSuBBAAGoSADHgAEQcOmtbbWErnFl3uF0Ygo259N2E9mZ2WHlabIdg==",
    "PUBLIC KEY": "MDIwEAYHKoZIzj0CAQYFK4EEAAYDHgAEQcOmtbbWErnFl3uF0Ygo259N2E9mZ2WHlabIdg==",
}


def pem(kind: str) -> bytes:
    return f"-----BEGIN {kind}-----\n{UNKNOWN[kind]}\n-----END {kind}-----\n".encode()


def write(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("algorithm", ["p256", "ed25519"])
def test_generated_public_key_verifies_signatures_of_its_private_key(
    tmp_path: Path, algorithm: signing_keys.Algorithm
) -> None:
    public = signing_keys.load_public_key(signing_keys.generate_key_pair(tmp_path / "key", algorithm))
    signature = signing_keys.sign_message(signing_keys.load_private_key(tmp_path / "key"), b"a message")
    assert signing_keys.verify_signature(public, signature, b"a message") and not signing_keys.verify_signature(
        public, signature, b"another one"
    )
    assert signing_keys.key_algorithm(public) == algorithm
    with pytest.raises(InputError, match="is there already"):
        signing_keys.generate_key_pair(tmp_path / "key", algorithm)


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(65537, 2048),
        x25519.X25519PrivateKey.generate(),
        ec.generate_private_key(ec.SECP256K1()),
    ],
    ids=["rsa", "x25519", "secp256k1"],
)
def test_keys_of_unsupported_kinds_are_refused(
    tmp_path: Path, key: rsa.RSAPrivateKey | x25519.X25519PrivateKey | ec.EllipticCurvePrivateKey
) -> None:
    private = write(tmp_path / "key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(InputError, match="neither a P-256 nor an Ed25519 key"):
        signing_keys.load_private_key(private)
    text = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(InputError, match="neither a P-256 nor an Ed25519 key"):
        signing_keys.load_public_key(write(tmp_path / "key.pub", text))


def test_keys_of_unknown_curves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a P-256 nor an Ed25519 key"):
        signing_keys.load_private_key(write(tmp_path / "key", pem("EC PRIVATE KEY")))
    with pytest.raises(InputError, match="neither a P-256 nor an Ed25519 key"):
        signing_keys.load_public_key(write(tmp_path / "key.pub", pem("PUBLIC KEY")))


def test_invalid_or_world_readable_key_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no private key in PEM"):
        signing_keys.load_private_key(write(tmp_path / "empty", b""))
    with pytest.raises(InputError, match="is no public key in PEM"):
        signing_keys.load_public_key(tmp_path / "empty")
    signing_keys.generate_key_pair(tmp_path / "open", "ed25519")
    (tmp_path / "open").chmod(0o644)
    with pytest.raises(InputError, match="others may read the signing key open"):
        signing_keys.load_private_key(tmp_path / "open")


def test_key_in_a_missing_folder_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"keys/polder\.pem cannot be written: make its folder first"):
        signing_keys.generate_key_pair(tmp_path / "keys/polder.pem", "p256")
