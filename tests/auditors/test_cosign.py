"""cosign verifies every job's attestation of a signed run and the signature of its model, without any server."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import signing_keys
from pipeline.core.output_archives import OutputArchives
from pipeline.provenance.attestation_export import export_attestations
from pipeline.provenance.run_signing_and_log_checkpoint import sign_models
from tests.auditors.conftest import Run
from tests.conftest import ROOT
from tests.stored import read_records

PAGE = ROOT / "docs/howto/verify-a-run.md"
MODEL_SIGNATURE = "https://model_signing/signature/v1.0"
Verify = Callable[..., tuple[bool, str]]


@pytest.fixture
def verify(verifier: Run, signed: tuple[Path, Path], tmp_path: Path) -> Verify:
    """Returns whether cosign accepts a bundle of the run as an attestation of a file, and its last line."""
    trusted = tmp_path / "no-services.json"
    assert verifier("cosign", "trusted-root", "create", "--out", trusted).returncode == 0
    run, key = signed

    def accepts(
        bundle: Path, file: Path, public: Path | None = None, kind: str = "slsaprovenance1"
    ) -> tuple[bool, str]:
        options = ("--new-bundle-format", "--insecure-ignore-tlog", "--trusted-root", trusted, "--type", kind)
        files = ("--key", public or key.with_name("key.pem.pub"), "--bundle", bundle, file)
        done = verifier("cosign", "verify-blob-attestation", *options, *files, folder=run)
        return done.returncode == 0, done.stderr.splitlines()[-1]

    return accepts


def statement(bundle: Path) -> dict[str, Any]:
    """Return the in-toto statement of a bundle."""
    content: dict[str, Any] = json.loads(base64.b64decode(json.loads(bundle.read_text())["dsseEnvelope"]["payload"]))
    return content


def hashes(entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return name and SHA-256 of files that a statement lists."""
    return [(entry["name"], entry["digest"]["sha256"]) for entry in entries if "sha256" in entry["digest"]]


def change(bundle: Path, content: dict[str, Any]) -> Path:
    """Write a bundle with the signature of another one next to it."""
    whole = json.loads(bundle.read_text())
    whole["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(content).encode()).decode()
    changed = bundle.with_suffix(".changed")
    changed.write_text(json.dumps(whole))
    return changed


def test_commands_of_the_page_accept_the_run(signed: tuple[Path, Path], verifier: Run) -> None:
    run, key = signed
    export_attestations(run, run / "attestations", key)
    (run / "OWNER.pub").write_bytes(key.with_name("key.pem.pub").read_bytes())
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (commands,) = [block for block in blocks if "cosign" in block]
    assert commands.count("cosign verify") == 1 and "in-toto-golang verify" in commands
    own = re.sub(r"(export\.|models/)base", r"\1own", commands)
    done = verifier("bash", "-euc", own, folder=run)
    assert done.returncode == 0 and "Verified OK" in done.stdout + done.stderr, done.stderr


def test_cosign_verifies_the_chain_from_the_sources_to_the_final_model(
    signed: tuple[Path, Path], verify: Verify, tmp_path: Path
) -> None:
    run, _ = signed
    export_attestations(run, tmp_path / "exported")
    bundles = {path.name.removesuffix(".sigstore.json"): path for path in (tmp_path / "exported/bundles").iterdir()}
    assert len(bundles) == len(read_records(run))
    for path in OutputArchives(run).archived.values():
        path.copy_into_folder(run)  # as the page says
    answers = {name: verify(path, Path(statement(path)["subject"][-1]["name"])) for name, path in bundles.items()}
    assert answers == dict.fromkeys(bundles, (True, "Verified OK"))

    # From the final model back to raw data, by what the verified statements say.
    statements = {name: statement(path) for name, path in bundles.items()}
    makers = {item: name for name, content in statements.items() for item in hashes(content["subject"])}
    (final,) = (item for item in makers if item[0] == "models/own/final/model.safetensors")
    left, jobs, raw = [final], set[str](), set[str]()
    for item in left:
        if (job := makers.get(item)) is None:
            raw.add(item[0])
        elif job not in jobs:
            jobs.add(job)
            left += hashes(statements[job]["predicate"]["buildDefinition"]["resolvedDependencies"])
    assert len(jobs) == 7, "two manifests, two filters, a shard, a segment, an export"
    assert raw == {"data:laws/0.jsonl", "data:wiki/0.jsonl"}

    last, weights = bundles["pretrain.export.own"], run / "models/own/final/model.safetensors"
    assert verify(last, weights)[0]
    assert "provided artifact digest" in verify(bundles["pretrain.segment.base.10"], weights)[1], "of another job"
    other = signing_keys.generate_key_pair(tmp_path / "other.pem", "p256")
    assert "could not verify envelope" in verify(last, weights, other)[1]
    content = statement(last)
    for changed in (
        {**content, "predicate": statement(bundles["pretrain.segment.base.10"])["predicate"]},
        {**content, "predicateType": "https://example.org/other"},
        {**content, "subject": content["subject"][1:]},
    ):
        assert "could not verify envelope" in verify(change(last, changed), weights)[1]
    weights.write_bytes(b"other")
    assert "provided artifact digest" in verify(last, weights)[1]


@pytest.mark.parametrize("signed", ["p256"], indirect=True)  # model-signing's format has no Ed25519
def test_cosign_verifies_the_signature_of_a_model(signed: tuple[Path, Path], verify: Verify, tmp_path: Path) -> None:
    run, key = signed
    sign_models(run, key)
    signature, sums = run / "provenance/signatures/own.sig", tmp_path / "sums"
    files = sorted((run / "models/own/final").iterdir())
    for weights, accepted in (("weights", True), ("other", False)):
        (run / "models/own/final/model.safetensors").write_text(weights)
        sums.write_bytes(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files))
        assert verify(signature, sums, kind=MODEL_SIGNATURE)[0] == accepted
