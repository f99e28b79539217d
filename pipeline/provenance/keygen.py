"""`python -m pipeline provenance keygen FILE`: a key that signs runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.core import signing_keys


def main(arguments: list[str]) -> int:
    """Make a key and print what it is called, which its owner publishes."""
    parser = argparse.ArgumentParser(prog="python -m pipeline provenance keygen", description=main.__doc__)
    parser.add_argument("file", type=Path, help="the private key to write; the public one gets .pub behind its name")
    parser.add_argument(
        "--algorithm", choices=("p256", "ed25519"), default="p256", help="models are signed with P-256 keys alone"
    )
    options = parser.parse_args(arguments)
    public = signing_keys.generate(options.file, options.algorithm)
    print(f"private key: {options.file} (keep it to yourself: whoever has it can sign as you)")
    print(f"public key: {public} (publish it, and its sha256 {signing_keys.key_sha256(signing_keys.public(public))})")
    return 0
