"""in-toto's own library verifies the attestations and signatures; OpenSSF's command verifies a model."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import layout
from pipeline.core import attestation_log, signing_keys
from pipeline.provenance import run_signing_and_log_checkpoint
from pipeline.provenance.attestation_export import (
    build_link,
    describe_key,
    export_attestations,
    select_job_attestations,
    write_signed,
)
from pipeline.provenance.settings import Provenance
from tests.auditors.conftest import Run
from tests.provenance.conftest import build
from tests.stored import read_records

FILTERED = "corpus/main/filtered/laws.0.parquet"
CHECK = """
import json, sys
from google.protobuf.json_format import Parse
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

key = SSlibKey.from_crypto(load_pem_public_key(open(sys.argv[2], "rb").read()), keyid=sys.argv[3])
kinds = []
for line in open(sys.argv[1]):
    envelope = Envelope.from_dict(json.loads(line))
    envelope.verify([key], 1)
    statement = Statement.copy_from_pb(Parse(envelope.payload, statement_pb2.Statement()))
    statement.validate()
    kinds.append(statement.pb.predicate_type)
    if kinds[-1] == "https://slsa.dev/provenance/v1":
        predicate = json.dumps(json.loads(envelope.payload)["predicate"])
        Parse(predicate, provenance_pb2.Provenance())
print(len(kinds), kinds.count("https://slsa.dev/provenance/v1"))
"""


@pytest.mark.parametrize("algorithm", ["p256", "ed25519"])
def test_in_toto_verifies_every_attestation(
    algorithm: signing_keys.Algorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auditor: Run
) -> None:
    public = signing_keys.generate_key_pair(tmp_path / "key.pem", algorithm)
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, str(tmp_path / "key.pem"))
    run = build(tmp_path / "run").folder
    lines, jobs = sum(1 for _ in attestation_log.read_log(run)), len(read_records(run))
    name = signing_keys.key_sha256(signing_keys.load_public_key(public))
    done = auditor("python", "-c", CHECK, run / layout.ATTESTATION_LOG, public, name)
    assert done.stdout.split() == [str(lines), str(jobs)], done.stderr
    changed = (run / layout.ATTESTATION_LOG).read_text().replace('"payload":"eyJ', '"payload":"eyK', 1)
    (run / layout.ATTESTATION_LOG).write_text(changed)
    assert auditor("python", "-c", CHECK, run / layout.ATTESTATION_LOG, public, name).returncode != 0


def verified(public: Path, run: Path) -> int:
    words = ["verify", "key", "--public_key", public, "--signature", run / "provenance/signatures/base.sig"]
    command = [Path(sys.executable).with_name("model_signing"), *words, run / "models/base/final"]
    return subprocess.run([*map(str, command)], capture_output=True).returncode


def test_model_signing_command_verifies_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, "")
    public, run = signing_keys.generate_key_pair(tmp_path / "key.pem", "p256"), tmp_path / "run"
    settings = Provenance(key=str(tmp_path / "key.pem"), owner="Stichting Proef")
    run_signing_and_log_checkpoint.begin_signing(run, settings, print)
    build(run)
    for name in ("model.safetensors", "config.json"):
        (run / "models/base/final").mkdir(exist_ok=True)
        (run / "models/base/final" / name).write_text(name)
    mark = run / "models/base/final/.snakemake_timestamp"
    mark.touch()
    messages: list[str] = []
    assert run_signing_and_log_checkpoint.finish_signing(run, settings, messages.append) and len(messages) == 1
    assert verified(public, run) == 0
    mark.unlink()
    assert verified(public, run) == 0, "a copy has no such file"
    (run / "models/base/final/model.safetensors").write_text("other")
    assert verified(public, run) != 0


@pytest.mark.parametrize("implementation", ["python", "go"])
def test_in_toto_verifier_accepts_the_layout(
    signed: tuple[Path, Path], tmp_path: Path, implementation: str, request: pytest.FixtureRequest
) -> None:
    run, key = signed
    exported = tmp_path / "exported"
    export_attestations(run, exported, key)
    other = signing_keys.generate_key_pair(tmp_path / "other.pem", "p256")

    def verify(public: Path = tmp_path / "key.pem.pub") -> tuple[int, str]:
        folders = ("--layout", exported / "root.layout", "--link-dir", exported)
        if implementation == "go":
            command: Run = request.getfixturevalue("verifier")
            done = command("in-toto-golang", "verify", *folders, "--layout-keys", public, folder=run)
        else:
            command = request.getfixturevalue("auditor")
            done = command("in-toto-verify", *folders, "--verification-keys", public, folder=run)
        (run / "final-models.link").unlink(missing_ok=True)
        return done.returncode, done.stdout + done.stderr

    (run / "models/own/final/.snakemake_timestamp").touch()
    assert verify() == (0, ""), verify()
    assert verify(other)[0] != 0
    (run / "models/own/final/config.json").write_text("changed")
    code, output = verify()
    assert code != 0 and "models/own/final/config.json" in output
    (run / "models/own/final/config.json").write_text("{}")
    (link,) = exported.glob("corpus.filter.main.laws.*.link")
    text = link.read_text()
    link.write_text(text.replace('"payload": "ey', '"payload": "eX'))
    assert verify()[0] != 0, "a link that was changed"
    link.unlink()
    code, output = verify()
    assert code != 0 and "corpus.filter.main.laws" in output, "a job without its link"
    link.write_text(text)
    assert verify()[0] == 0


def test_in_toto_layout_covers_a_renamed_model_and_a_regenerated_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, auditor: Run
) -> None:
    public = signing_keys.generate_key_pair(tmp_path / "key.pem", "p256")
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, str(tmp_path / "key.pem"))
    run = build(tmp_path / "run")
    for model in ("old", "new"):
        weights = {f"models/{model}/final/model.safetensors": b"weights"}
        run.job("pretrain.export", {"model": model}, ["models/base/milestones/10/model.safetensors"], weights)
    shutil.rmtree(run.folder / "models/old")
    run.job("corpus.filter", {"corpus": "main", "source": "laws", "unit": "0"}, [], {FILTERED: b"made again"})
    export_attestations(run.folder, tmp_path / "exported", tmp_path / "key.pem")
    folders = ("--layout", tmp_path / "exported/root.layout", "--link-dir", tmp_path / "exported")
    done = auditor("in-toto-verify", *folders, "--verification-keys", public, folder=run.folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_layout_rejects_an_input_that_no_job_wrote(signed: tuple[Path, Path], tmp_path: Path, auditor: Run) -> None:
    run, key = signed
    jobs = select_job_attestations(run)
    shard = next(job for job in jobs if job.name.startswith("tokens.shard"))
    entry = next(one for one in shard.statement.dependencies if one.name.startswith("corpus/"))
    entry.digest["sha256"] = "0" * 64
    private, exported = signing_keys.load_private_key(key), tmp_path / "exported"
    export_attestations(run, exported, key)
    identifier = describe_key(private.public_key())["keyid"]
    write_signed(exported / f"{shard.name}.{identifier[:8]}.link", build_link(shard), private)
    folders = ("--layout", exported / "root.layout", "--link-dir", exported)
    done = auditor("in-toto-verify", *folders, "--verification-keys", key.with_name("key.pem.pub"), folder=run)
    assert done.returncode != 0 and entry.name in done.stdout + done.stderr
