"""Signing keys: P-256 (ECDSA with SHA-256, FIPS 186-5) or Ed25519 (RFC 8032), as PEM files."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Literal, cast

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256

from pipeline.core.errors import InputError

Algorithm = Literal["p256", "ed25519"]
PrivateKey = ec.EllipticCurvePrivateKey | Ed25519PrivateKey
PublicKey = ec.EllipticCurvePublicKey | Ed25519PublicKey


def generate_key_pair(path: Path, algorithm: Algorithm) -> Path:
    """Write a new private key, readable by its owner only, and its public key; return the path of the public key.

    Raises:
        InputError: one of the files is there already, or cannot be written.
    """
    key: PrivateKey = ec.generate_private_key(ec.SECP256R1()) if algorithm == "p256" else Ed25519PrivateKey.generate()
    public = path.with_name(f"{path.name}.pub")
    plain = serialization.NoEncryption()
    private_text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    for file, mode, text in ((path, 0o600, private_text), (public, 0o644, public_key_pem(key.public_key()))):
        try:
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as written:
                written.write(text)
        except FileExistsError:
            raise InputError(f"{file} is there already, and a key is never written over: name another file") from None
        except OSError as error:
            hint = ": make its folder first" if isinstance(error, FileNotFoundError) else f": {error.strerror}"
            raise InputError(f"{file} cannot be written{hint}") from None
    return public


def public_key_pem(key: PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _has_known_curve(key: object) -> bool:
    return isinstance(key, Ed25519PrivateKey | Ed25519PublicKey) or (
        isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    )


def key_sha256(key: PublicKey) -> str:
    """Return the fingerprint of a key: the SHA-256 of its SubjectPublicKeyInfo in DER, in hexadecimal digits."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def key_algorithm(key: PublicKey) -> Algorithm:
    """Return which of the two kinds a key is."""
    return "ed25519" if isinstance(key, Ed25519PublicKey) else "p256"


@cache
def load_private_key(path: Path) -> PrivateKey:
    """Read a private key.

    Raises:
        InputError: it is missing, others may read it, it has a passphrase, or it is of another kind.
    """
    try:
        mode, text = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise InputError(
            f"provenance.key: the signing key {path.name} cannot be read on this machine ({error.strerror}): "
            "make one with `polder provenance keygen`, or put it where every node can read it"
        ) from None
    if mode & 0o077:
        raise InputError(
            f"provenance.key: others may read the signing key {path.name}: take that right from them (chmod 600)"
        )
    try:
        key = serialization.load_pem_private_key(text, password=None)
        if _has_known_curve(key):
            return cast(PrivateKey, key)
    except TypeError:
        raise InputError(
            f"provenance.key: {path.name} has a passphrase, which no job can type: use a key without"
        ) from None
    except ValueError:
        raise InputError(f"provenance.key: {path.name} is no private key in PEM") from None
    except UnsupportedAlgorithm:
        pass
    raise InputError(f"provenance.key: {path.name} is neither a P-256 nor an Ed25519 key: make one with keygen")


def load_public_key(path: Path) -> PublicKey:
    """Read a public key.

    Raises:
        InputError: it is missing, no PEM, or of another kind.
    """
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
        if _has_known_curve(key):
            return cast(PublicKey, key)
    except OSError as error:
        raise InputError(f"the public key {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{path} is no public key in PEM: give the file that ends in .pub") from None
    except UnsupportedAlgorithm:
        pass
    raise InputError(f"{path} is neither a P-256 nor an Ed25519 key")


def sign_message(key: PrivateKey, message: bytes) -> bytes:
    """Return the signature of a message: 64 bytes for Ed25519, DER for P-256."""
    return key.sign(message) if isinstance(key, Ed25519PrivateKey) else key.sign(message, ec.ECDSA(SHA256()))


def verify_signature(key: PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, message)
        else:
            key.verify(signature, message, ec.ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True
