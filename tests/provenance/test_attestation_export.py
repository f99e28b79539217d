"""Bundles contain the unchanged lines of the log; the layout lists the allowed inputs and the outputs of each job."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from sigstore_models.bundle.v1 import Bundle

from pipeline import layout
from pipeline.cli.application import main
from pipeline.core import attestation_log, signing_keys
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.provenance.attestation_export import export_attestations
from tests.provenance.conftest import RunBuilder, build


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    signing_keys.generate_key_pair(tmp_path / "key.pem", "p256")
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, str(tmp_path / "key.pem"))
    return tmp_path / "key.pem"


@pytest.fixture
def run(key: Path, tmp_path: Path) -> RunBuilder:
    return build(tmp_path / "run")


def payload(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(base64.b64decode(json.loads(path.read_text())["payload"]))
    return content


def test_bundle_is_the_log_line_in_sigstore_format(run: RunBuilder, key: Path, tmp_path: Path) -> None:
    done = export_attestations(run.folder, tmp_path / "out")
    assert not done.has_layout and {path.name for path in (tmp_path / "out").iterdir()} == {"bundles"}
    lines = [json.loads(line) for line in (run.folder / layout.ATTESTATION_LOG).read_text().splitlines()]
    bundles = {path.name: path for path in (tmp_path / "out/bundles").iterdir()}
    assert len(bundles) == done.jobs >= 9
    for path in bundles.values():
        bundle = Bundle.from_json(path.read_text())
        envelope = json.loads(path.read_text())["dsseEnvelope"]
        (signature,) = bundle.dsse_envelope.signatures
        assert not signature.keyid, "cosign would compare it with an identifier of its own"
        hint = bundle.verification_material.public_key.hint
        assert {**envelope, "signatures": [{**envelope["signatures"][0], "keyid": hint}]} in lines


def test_repeated_job_has_the_bundle_of_its_last_execution(run: RunBuilder, tmp_path: Path) -> None:
    metrics = "models/base/metrics.jsonl"
    run.job("pretrain.export", {"model": "base"}, [metrics], {metrics: b'{"step": 11}\n'})
    export_attestations(run.folder, tmp_path / "out")
    bundle = json.loads((tmp_path / "out/bundles/pretrain.export.base.sigstore.json").read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    (read,) = [
        one["name"]
        for one in statement["predicate"]["buildDefinition"]["resolvedDependencies"]
        if one["name"].startswith("models/")
    ]
    assert read == metrics
    assert statement["predicate"]["buildDefinition"]["buildType"] == "urn:polder:step:1"


def test_layout_matches_each_input_with_the_job_that_wrote_it(run: RunBuilder, key: Path, tmp_path: Path) -> None:
    run.job("pretrain.export", {"model": "own"}, [], {"models/own/final/a[1].safetensors": b"w"})
    done = export_attestations(run.folder, tmp_path / "out", key)
    content = payload(tmp_path / "out/root.layout")
    steps = {step["name"]: step for step in content["steps"]}
    assert done.has_layout and len(steps) == done.jobs == len(list((tmp_path / "out").glob("*.link")))
    rules = steps["tokens.shard.main.0"]["expected_materials"]
    place = "corpus/main/filtered/laws.0.parquet"
    assert ["MATCH", place, "WITH", "PRODUCTS", "FROM", "corpus.filter.main.laws.0"] in rules
    assert rules[-1] == ["DISALLOW", "*"] and not [rule for rule in rules if rule[0] == "ALLOW" and "corpus" in rule[1]]
    raw = [rule[1] for rule in steps["sources.manifest.laws"]["expected_materials"] if rule[0] == "ALLOW"]
    raw += [rule[1] for rule in steps["corpus.filter.main.laws.0"]["expected_materials"] if rule[0] == "ALLOW"]
    assert any(name.startswith("data:") for name in raw)
    assert ["CREATE", "models/own/final/a[[]1].safetensors"] in steps["pretrain.export.own"]["expected_products"]
    (inspection,) = content["inspect"]
    assert ["REQUIRE", "models/own/final/a[1].safetensors"] in inspection["expected_materials"]
    assert ["DISALLOW", "models/*/final/*"] in inspection["expected_materials"]
    assert content["expires"].startswith("2036-01-")  # ten years after the last job of the example


def test_links_list_files_and_not_the_commit(run: RunBuilder, key: Path, tmp_path: Path) -> None:
    export_attestations(run.folder, tmp_path / "out", key)
    links = [payload(path) for path in (tmp_path / "out").glob("*.link")]
    files = {name: digest["sha256"] for link in links for name, digest in link["materials"].items()}
    read = {entry.name for line in attestation_log.read_log(run.folder) for entry in line.statement.dependencies}
    assert {*files} == read - {"code"} and "code" in read
    assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in files.values())


def test_removed_model_is_not_required(run: RunBuilder, key: Path, tmp_path: Path) -> None:
    for name in ("old", "own"):
        run.job("pretrain.export", {"model": name}, [], {f"models/{name}/final/{file}": b"w" for file in ("a", "b")})
    shutil.rmtree(run.folder / "models/old")
    (run.folder / "models/own/final/b").unlink()
    export_attestations(run.folder, tmp_path / "out", key)
    (inspection,) = payload(tmp_path / "out/root.layout")["inspect"]
    required = [rule[1] for rule in inspection["expected_materials"] if rule[0] == "REQUIRE"]
    assert required == ["models/own/final/a", "models/own/final/b"], "a missing file of an existing model"


def test_final_model_is_matched_with_the_job_that_wrote_it_last(run: RunBuilder, key: Path, tmp_path: Path) -> None:
    for model in ("z", "a"):
        run.job("pretrain.export", {"model": model}, [], {"models/own/final/w": model.encode()})
    export_attestations(run.folder, tmp_path / "out", key)
    (inspection,) = payload(tmp_path / "out/root.layout")["inspect"]
    match = ["MATCH", "models/own/final/w", "WITH", "PRODUCTS", "FROM", "pretrain.export.a"]
    assert match in inspection["expected_materials"]


def test_regenerated_input_is_matched_with_its_earlier_producer(run: RunBuilder, key: Path, tmp_path: Path) -> None:
    line = sum(1 for _ in attestation_log.read_log(run.folder))
    old, new = "corpus/again/filtered/laws.0.parquet", "tokens/again/shards/0.bin"
    instance = {"corpus": "again", "source": "laws", "unit": "0"}
    raw = "sources/again/fingerprint.json"
    run.job("sources.fingerprint", {"source": "again"}, [], {raw: b"1"})
    run.job("corpus.filter", instance, [raw], {old: b"1"})
    run.job("tokens.shard", {"tokens": "again", "shard": "0"}, [old], {new: b"1"})
    run.job("sources.fingerprint", {"source": "again"}, [], {raw: b"2"})
    run.job("corpus.filter", instance, [raw], {old: b"2"})
    run.job("corpus.filter", instance, [raw], {old: b"3"})
    done = export_attestations(run.folder, tmp_path / "out", key)
    steps = {step["name"]: step for step in payload(tmp_path / "out/root.layout")["steps"]}
    (match,) = [rule for rule in steps["tokens.shard.again.0"]["expected_materials"] if old in rule]
    earlier = [name for name in steps if name.startswith("corpus.filter.again.laws.0.")]
    assert match == ["MATCH", old, "WITH", "PRODUCTS", "FROM", *earlier], "one, not the unread attempt"
    assert int(earlier[0].rsplit(".", 1)[1]) > line and len(steps) == done.jobs
    (first,) = [name for name in steps if name.startswith("sources.fingerprint.again.")]
    assert ["MATCH", raw, "WITH", "PRODUCTS", "FROM", first] in steps[earlier[0]]["expected_materials"]
    latest = ["MATCH", raw, "WITH", "PRODUCTS", "FROM", "sources.fingerprint.again"]
    assert latest in steps["corpus.filter.again.laws.0"]["expected_materials"]
    assert {path.name.removesuffix(".sigstore.json") for path in (tmp_path / "out/bundles").iterdir()} == {*steps}


def test_input_without_a_matching_producer_is_refused_with_its_job(run: RunBuilder, key: Path, tmp_path: Path) -> None:
    place = "corpus/main/filtered/laws.0.parquet"
    run.written[place] = {**run.written[place], "sha256": "0" * 64}
    run.job("tokens.shard", {"tokens": "main", "shard": "9"}, [place], {"tokens/main/shards/9.bin": b"9"})
    with pytest.raises(
        InputError, match=rf"^tokens\.shard\.main\.9 read {place} with a hash that no job attested: run"
    ):
        export_attestations(run.folder, tmp_path / "out", key)
    assert not (tmp_path / "out").exists(), "no partial output"
    assert export_attestations(run.folder, tmp_path / "out").jobs > 9


def test_unexportable_run_is_refused(
    run: RunBuilder, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = signing_keys.generate_key_pair(tmp_path / "other.pem", "p256").with_suffix("")
    with pytest.raises(InputError, match=r"other\.pem is not the key that signed .*run: give that one"):
        export_attestations(run.folder, tmp_path / "out", other)
    with pytest.raises(InputError, match="run exists: name a new folder"):
        export_attestations(run.folder, run.folder)
    monkeypatch.delenv(attestation_log.SIGNING_KEY_VARIABLE)
    unsigned = build(tmp_path / "unsigned")
    with pytest.raises(InputError, match="has 0 signatures, and a bundle has one: sign the run from its beginning"):
        export_attestations(unsigned.folder, tmp_path / "out")
    with pytest.raises(InputError, match=r"nowhere/provenance/.* is missing: name the folder of a finished run"):
        export_attestations(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "empty/provenance").mkdir(parents=True)
    (tmp_path / "empty" / layout.ATTESTATION_LOG).write_text("")
    with pytest.raises(InputError, match="no job has been attested yet"):
        export_attestations(tmp_path / "empty", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_command_names_the_tools_that_read_its_output(
    run: RunBuilder, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["provenance", "export", str(run.folder), "--to", out, "--key", str(key)]) == 0
    printed = capsys.readouterr().out
    assert f"{out}/bundles: " in printed and "for cosign verify-blob-attestation" in printed
    assert f"{out}/root.layout: " in printed and "for in-toto-verify" in printed


@pytest.mark.parametrize("algorithm", ["p256", "ed25519"])
def test_layout_of_one_job_is_complete_and_signed_by_the_key_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: signing_keys.Algorithm
) -> None:
    key = tmp_path / "key.pem"
    public = signing_keys.load_public_key(signing_keys.generate_key_pair(key, algorithm))
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, str(key))
    run = RunBuilder(tmp_path / "run")
    model = "models/own/final/w[1]"
    run.job("pretrain.export", {"model": "own"}, [], {model: b"w"}, raw={"raw?": b"r"})
    export_attestations(run.folder, tmp_path / "out", key)
    content = payload(tmp_path / "out/root.layout")
    keys = {
        "p256": ("ecdsa", "ecdsa-sha2-nistp256", (tmp_path / "key.pem.pub").read_text()),
        "ed25519": ("ed25519", "ed25519", public.public_bytes_raw().hex() if algorithm == "ed25519" else ""),
    }
    kind, scheme, text = keys[algorithm]

    def identify(public: str, **more: Any) -> str:
        described = {**more, "keytype": kind, "keyval": {"public": public}, "scheme": scheme}
        return hashlib.sha256(json.dumps(described, separators=(",", ":")).replace("\\n", "\n").encode()).hexdigest()

    own = identify(text)
    golang = identify(text.rstrip("\n"), keyid_hash_algorithms=["sha256", "sha512"])
    (one,) = content["steps"]
    record = "provenance/records/pretrain.export.own.json"
    frozen = [rule for rule in one["expected_materials"] if rule[0] == "ALLOW"]
    assert frozen == [["ALLOW", "data:raw[?]"]]
    assert one["expected_products"] == [["CREATE", record], ["CREATE", "models/own/final/w[[]1]"], ["DISALLOW", "*"]]
    assert {name: one[name] for name in ("_type", "name", "pubkeys", "threshold", "expected_command")} == {
        "_type": "step",
        "name": "pretrain.export.own",
        "pubkeys": [own],
        "threshold": 1,
        "expected_command": [],
    }
    assert content["keys"] == {own: {"keyid": own, "keytype": kind, "scheme": scheme, "keyval": {"public": text}}}
    assert content["inspect"] == [
        {
            "_type": "inspection",
            "name": "final-models",
            "run": ["true"],
            "expected_materials": [
                ["REQUIRE", model],
                ["MATCH", "models/own/final/w[[]1]", "WITH", "PRODUCTS", "FROM", "pretrain.export.own"],
                ["ALLOW", "*/.snakemake_timestamp"],
                ["DISALLOW", "models/*/final/*"],
                ["ALLOW", "*"],
            ],
            "expected_products": [["ALLOW", "*"]],
        }
    ]
    assert content["expires"] == "2036-01-06T10:00:30Z" and content["_type"] == "layout"
    link = payload(tmp_path / f"out/pretrain.export.own.{own[:8]}.link")
    names = {"_type": "link", "name": "pretrain.export.own", "command": [], "byproducts": {}, "environment": {}}
    hashes = {record: hash_file(run.folder / record), model: hash_file(run.folder / model)}
    assert link == {
        **names,
        "materials": {"data:raw?": {"sha256": hashlib.sha256(b"r").hexdigest()}},
        "products": {name: {"sha256": sha256} for name, sha256 in hashes.items()},
    }
    envelope = json.loads((tmp_path / "out/root.layout").read_text())
    assert [one["keyid"] for one in envelope["signatures"]] == [own, golang]
    signed = attestation_log.pre_authentication_encoding(base64.b64decode(envelope["payload"]))
    assert all(
        signing_keys.verify_signature(public, base64.b64decode(one["sig"]), signed) for one in envelope["signatures"]
    )
