"""A hostile auditor's attacks on a signed run: each is detected, the changed file is named, and the exit code is 1.

The first attacker changes files; the second rewrites everything without a key; the third has the key, but not the
authority's clock nor the checkpoint log outside the results.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.cli.application import main
from pipeline.core import attestation_log, signing_keys
from pipeline.core.errors import InputError
from pipeline.core.job_records import Attempt, Record
from pipeline.provenance import run_signing_and_log_checkpoint, verify_attestations
from pipeline.provenance.evidence_attestation import attest_batch_record_removal, attest_evidence
from pipeline.provenance.settings import Provenance
from pipeline.provenance.verify_run import verify_run
from tests.provenance.authority import Authority
from tests.provenance.conftest import FROZEN, PYTHON, Signed, describe, entry
from tests.stored import unpack_archives

pytestmark = pytest.mark.slow

RECORDS, ATTEMPTS, READINGS = "provenance/records", "provenance/attempts", "provenance/readings"
PYTHON_SHA256 = hashlib.sha256(f"{json.dumps(PYTHON, separators=(',', ':'), sort_keys=True)}\n".encode()).hexdigest()
PACKAGES = layout.ENVIRONMENT.relative_path(digest=PYTHON_SHA256[:16])
SHARD = f"{RECORDS}/tokens.shard.main.0.json"
FILTER = f"{RECORDS}/corpus.filter.main.laws.0.json"
WEIGHTS = "models/base/milestones/10/model.safetensors"
FAILED, KILLED = f"{ATTEMPTS}/corpus.filter.failed.json", f"{ATTEMPTS}/corpus.filter.killed.json"
READING = f"{READINGS}/tokens.shard.main.0.20260105T1000.1@node1.jsonl"
OF_SNAKEMAKE = f"{READINGS}/snakemake.1@node1.jsonl"
BOOKS, BATCH, LOG = "provenance/accounting/1.json", "provenance/batches/filter.0.json", "logs/corpus.filter.log"


def edit(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    """An attack that changes JSON."""

    def attack(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return attack


def write(name: str, text: str) -> Callable[[Path], None]:
    def attack(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return attack


def add(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: write(name, (folder / name).read_text() + text)(folder)


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def link(name: str, target: str) -> Callable[[Path], None]:
    def attack(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)

    return attack


def on_lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    """An attack on the lines of the log."""

    def attack(folder: Path) -> None:
        lines = (folder / layout.ATTESTATION_LOG).read_bytes().splitlines()
        (folder / layout.ATTESTATION_LOG).write_bytes(b"".join(line + b"\n" for line in change(lines)))

    return attack


def opened(line: bytes, change: Callable[[Any], object]) -> bytes:
    """A line with another statement in its envelope."""
    envelope = json.loads(line)
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement)
    envelope["payload"] = base64.b64encode(compact(statement)).decode()
    return compact(envelope)


def compact(content: Any) -> bytes:
    """JSON as the log has it."""
    return json.dumps(content, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def unsigned(line: bytes) -> bytes:
    return compact({**json.loads(line), "signatures": []})


def replay(folder: Path) -> None:
    """Restore an older record, of an attempt that the step has repeated since."""
    older = (folder / SHARD).read_bytes()
    content = json.loads(older)
    (folder / SHARD).write_text(json.dumps({**content, "counts": {"tokens": 7}}))
    newer = json.loads((folder / SHARD).read_text())
    os.environ[attestation_log.SIGNING_KEY_VARIABLE] = str(folder.parent / "owner.pem")
    attestation_log.attest_finished_job(
        folder, folder / ATTEMPTS / newer["attempt"], [], folder / SHARD, Record.load(folder / SHARD)
    )
    del os.environ[attestation_log.SIGNING_KEY_VARIABLE]
    (folder / SHARD).write_bytes(older)


NEW_LINE = b'{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[]}'
ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    # results
    "weights changed": (write(WEIGHTS, "other"), WEIGHTS),
    "weights gone": (remove(WEIGHTS), WEIGHTS),
    "a file more": (write("models/base/final/payload.py", "x"), "models/base/final/payload.py"),
    "a payload as Snakemake's mark": (write("corpus/.snakemake_timestamp", "x"), "corpus/.snakemake_timestamp"),
    "a payload in something unfinished": (write("corpus/.partial-x/payload", "x"), "corpus/.partial-x"),
    "an unfinished payload": (write("corpus/.partial-payload", "x"), "corpus/.partial-payload"),
    "a link out of the run": (link("corpus/main/more", "/etc"), "corpus/main/more"),
    "a link to a file": (link("report/more.html", "/etc/hostname"), "report/more.html"),
    "a loop of links": (link("corpus/loop", "."), "corpus/loop"),
    "a link to nothing": (link("report/more.html", "nowhere"), "report/more.html"),
    "the page changed": (write("report/index.html", "<p>beter</p>"), "report/index.html"),
    "joules of the report": (edit("report/energy.json", lambda e: e["total"].update(joules=1)), "report/energy.json"),
    "statistics": (edit("corpus/main/statistics.json", lambda s: s["totals"].clear()), "corpus/main/statistics.json"),
    "a score": (write("evaluation/base/10/results.json", '{"tasks": []}'), "evaluation/base/10/results.json"),
    "a loss": (write("models/base/metrics.jsonl", '{"step": 10, "loss": 1.0}\n'), "models/base/metrics.jsonl"),
    "a license": (
        edit("sources/wiki/manifest.json", lambda m: m["source"].update(license="CC0-1.0")),
        "sources/wiki/manifest.json",
    ),
    # records
    "counts emptied": (edit(SHARD, lambda r: r.update(counts={"tokens": 1})), SHARD),
    "a setting": (edit(SHARD, lambda r: r["settings"].update(seed=1)), SHARD),
    "a command": (edit(SHARD, lambda r: r["command"].append("--other")), SHARD),
    "an input's hash": (edit(SHARD, lambda r: r["inputs"][0].update(sha256="f" * 64)), SHARD),
    "an input fewer": (edit(SHARD, lambda r: r["inputs"].clear()), SHARD),
    "an output's size": (edit(SHARD, lambda r: r["outputs"][0].update(bytes=1)), SHARD),
    "the code": (edit(FILTER, lambda r: r.update(code_version="0" * 16)), FILTER),
    "the environment": (edit(FILTER, lambda r: r.update(environment={})), FILTER),
    "the digest of its settings": (edit(FILTER, lambda r: r["command"].__setitem__(6, "sha256:0")), FILTER),
    "the packages": (edit(PACKAGES, lambda e: e["packages"].update(pyarrow="26.0.2")), PACKAGES),
    "the packages gone": (remove(PACKAGES), PACKAGES),
    "the commit": (edit(FILTER, lambda r: r["git"].update(commit="1" * 40)), FILTER),
    "a host": (edit(FILTER, lambda r: r.update(host="elsewhere")), FILTER),
    "CPU seconds": (edit(FILTER, lambda r: r.update(cpu_seconds=0.1)), FILTER),
    "an end": (edit(FILTER, lambda r: r.update(ended="2026-01-05T10:00:01.000+00:00")), FILTER),
    "another attempt": (edit(FILTER, lambda r: r.update(attempt="none.json")), FILTER),
    "a record gone": (remove(SHARD), SHARD),
    "a record cut": (lambda folder: os.truncate(folder / SHARD, 200), SHARD),
    "a record that is none": (write(SHARD, "[]"), SHARD),
    "a record more": (write(f"{RECORDS}/corpus.filter.main.laws.9.json", "{}"), f"{RECORDS}/corpus.filter.main.laws.9"),
    "an older record": (replay, SHARD),
    "the crate's own record": (edit(layout.CRATE_RECORD, lambda r: r.update(cpu_seconds=0)), layout.CRATE_RECORD),
    # evidence
    "a failure gone": (remove(FAILED), FAILED),
    "a failure that is one no more": (edit(FAILED, lambda a: a.update(status="finished")), FAILED),
    "a killed attempt gone": (remove(KILLED), KILLED),
    "a killed attempt that took no time": (edit(KILLED, lambda a: a.update(wall_seconds=0)), KILLED),
    "a killed attempt of another host": (edit(KILLED, lambda a: a.update(host="elsewhere")), KILLED),
    "an attempt more": (write(f"{ATTEMPTS}/more.json", "{}"), f"{ATTEMPTS}/more.json"),
    "joules of a reading": (write(READING, '{"joules": 1.0}\n'), READING),
    "a reading cut": (write(READING, ""), READING),
    "a reading that grew": (add(READING, '{"joules": -99}\n'), READING),
    "a reading gone": (remove(READING), READING),
    "a reading more": (write(f"{READINGS}/more@node1.jsonl", "{}"), f"{READINGS}/more@node1.jsonl"),
    "Snakemake's reading that grew": (add(OF_SNAKEMAKE, '{"joules": -9999}\n'), OF_SNAKEMAKE),
    "what Snakemake used": (write(OF_SNAKEMAKE, '{"joules": 0.5}\n'), OF_SNAKEMAKE),
    "books": (edit(BOOKS, lambda b: b.update(slurm_energy_joules=4100)), BOOKS),
    "books gone": (remove(BOOKS), BOOKS),
    "books of a job more": (write("provenance/accounting/2.json", "{}"), "provenance/accounting/2.json"),
    "a batch": (write(BATCH, '{"outputs": []}'), BATCH),
    "a log cut": (write(LOG, ""), LOG),
    "a log that grew": (add(LOG, "3 documents kept against the opt-out list\n"), LOG),
    "a log changed": (write(LOG, "a line less\n"), LOG),
    "the configuration": (write(FROZEN, '{"configuration": {"run": {"seed": 43}}}'), FROZEN),
    "the configuration gone": (remove(FROZEN), FROZEN),
    # the crate
    "the crate changed": (edit(layout.CRATE, lambda c: c["@graph"].pop()), layout.CRATE),
    "the crate gone": (remove(layout.CRATE), layout.CRATE),
    "the crate cut": (lambda folder: os.truncate(folder / layout.CRATE, 999), layout.CRATE),
    # the log
    "no log": (remove(layout.ATTESTATION_LOG), layout.ATTESTATION_LOG),
    "an empty log": (write(layout.ATTESTATION_LOG, ""), layout.ATTESTATION_LOG),
    "the first line gone": (on_lines(lambda lines: lines[1:]), layout.ATTESTATION_LOG),
    "a line gone": (on_lines(lambda lines: lines[:5] + lines[6:]), layout.ATTESTATION_LOG),
    "two lines the other way round": (
        on_lines(lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]]),
        layout.ATTESTATION_LOG,
    ),
    "a line twice": (on_lines(lambda lines: [*lines, lines[-1]]), layout.ATTESTATION_LOG),
    "a line that is none": (on_lines(lambda lines: [*lines, b"{"]), layout.ATTESTATION_LOG),
    "an empty statement": (on_lines(lambda lines: [*lines, NEW_LINE]), layout.ATTESTATION_LOG),
    "a statement changed": (
        on_lines(lambda lines: [*lines[:5], opened(lines[5], lambda s: s["subject"].pop()), *lines[6:]]),
        layout.ATTESTATION_LOG,
    ),
    "a signature gone": (on_lines(lambda lines: [*lines[:-1], unsigned(lines[-1])]), layout.ATTESTATION_LOG),
    "all signatures gone": (on_lines(lambda lines: [*map(unsigned, lines)]), layout.ATTESTATION_LOG),
    # the signer
    "another owner": (edit(layout.SIGNER, lambda s: s.update(owner="Stichting Ander")), layout.SIGNER),
    "no owner": (remove(layout.SIGNER), layout.SIGNER),
    "a signer without name": (edit(layout.SIGNER, lambda s: s.pop("owner")), layout.SIGNER),
    "a signer that is a list": (write(layout.SIGNER, "[]"), layout.SIGNER),
    "a signer that is no JSON": (write(layout.SIGNER, "{"), layout.SIGNER),
}


def test_untouched_run_has_no_problems(run: Signed, authority: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.problems(timestamp_certificates=authority.certificate, log=run.heads) == []
    given = ["--key", str(run.trusted.key), "--timestamp-certificates", str(authority.certificate)]
    given += ["--log", str(run.heads), "--log-checkpoint", run.checkpoint.upper()]
    assert main(["verify", str(run.folder), *given]) == 0
    _, signed, stamped, *_ = capsys.readouterr().out.splitlines()
    assert "signed by Stichting Proef with the key given" in signed
    assert "timestamped by an authority with the given certificate" in stamped


def test_key_stored_in_the_run_is_only_self_asserted(run: Signed, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(run.folder), "--key", str(run.folder / layout.PUBLIC_KEY)]) == 0
    assert "signed by Stichting Proef, as the run itself says: compare the key's sha256" in capsys.readouterr().out
    assert main(["verify", str(run.folder)]) == 0
    assert "as the run itself says: compare the key's sha256" in capsys.readouterr().out
    assert verify_attestations.main([str(run.folder), str(run.trusted.key)]) == 0


def test_public_key_of_a_run_is_missing_or_no_key(run: Signed, tmp_path: Path) -> None:
    own = run.folder / layout.PUBLIC_KEY
    own.write_text("none")
    (problem,) = verify_run(run.folder).problems
    assert problem.startswith(f"{layout.PUBLIC_KEY} was changed: {own} is no public key in PEM")
    own.unlink()
    (problem,) = verify_run(run.folder).problems
    assert problem == f"{layout.PUBLIC_KEY} is missing: give the owner's key with --key."
    (tmp_path / "none.pub").write_text("none")
    with pytest.raises(InputError, match=r"none\.pub is no public key in PEM"):
        run.problems(key=tmp_path / "none.pub")
    with pytest.raises(InputError, match=r"none\.pub holds no certificate in PEM: give the authority's root"):
        run.problems(timestamp_certificates=tmp_path / "none.pub")


@pytest.mark.parametrize("name", ATTACKS, ids=lambda name: name.replace(" ", "-"))
def test_attack_is_detected_and_the_changed_file_named(
    run: Signed, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run.key, run.folder.parent / "owner.pem")
    attack, culprit = ATTACKS[name]
    attack(run.folder)
    problems = run.problems()
    assert any(problem.startswith(culprit) for problem in problems), problems
    assert len(problems) <= 3 and all(" " in problem and problem[-1] == "." for problem in problems), problems
    assert main(["verify", str(run.folder)]) == 1
    capsys.readouterr()


def damage_signature(line: bytes) -> bytes:
    """Return a line with a signature by the same key of other content."""
    envelope = json.loads(line)
    signature = bytearray(base64.b64decode(envelope["signatures"][0]["sig"]))
    signature[-1] ^= 1
    envelope["signatures"][0]["sig"] = base64.b64encode(bytes(signature)).decode()
    return compact(envelope)


def test_unsigned_log_wrong_key_and_damaged_signature_are_distinguished(
    run: Signed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = run.folder / layout.ATTESTATION_LOG
    content = log.read_bytes()
    on_lines(lambda lines: [*lines[:-1], damage_signature(lines[-1])])(run.folder)
    assert any("its signature does not match its content" in problem for problem in run.problems())
    assert checked(run) == 1 and "has a signature that does not match its content." in capsys.readouterr().out
    log.write_bytes(content)
    other = signing_keys.generate_key_pair(tmp_path / "other.pem", "p256")
    assert any("is signed with another key" in problem for problem in run.problems(key=other))
    assert verify_attestations.main([str(run.folder), str(other)]) == 1
    assert "is signed with another key than the one given" in capsys.readouterr().out
    rewrite(run.folder, BETTER, None)
    shutil.rmtree(run.folder / "provenance/timestamps")
    assert any("is not signed: whoever could write" in problem for problem in run.problems())
    assert any(
        "is not signed, although provenance/signer.pem is the key" in problem
        for problem in verify_run(run.folder).problems
    )
    assert checked(run) == 1 and " is not signed." in capsys.readouterr().out


def checked(run: Signed, *pins: str) -> int:
    return verify_attestations.main([str(run.folder), str(run.trusted.key), *pins])


def test_standalone_verifier_accepts_published_anchors(run: Signed, capsys: pytest.CaptureFixture[str]) -> None:
    crate = hashlib.sha256((run.folder / layout.CRATE).read_bytes()).hexdigest()
    assert checked(run, "--log-checkpoint", run.checkpoint.upper(), "--crate-sha256", crate.upper()) == 0
    printed = capsys.readouterr().out
    assert "nothing says" not in printed and f"{run.folder}: signed and unchanged: " in printed
    assert checked(run) == 0 and "whether the end of the log was cut off" in capsys.readouterr().out
    assert verify_attestations.main([str(run.folder), "--log-checkpoint", run.checkpoint]) == 0, (
        "as for an unsigned run"
    )
    with pytest.raises(SystemExit):
        verify_attestations.main([str(run.folder)])
    capsys.readouterr()
    # The log's end is truncated, and the page is changed, as is the crate.
    on_lines(lambda lines: lines[:-10])(run.folder)
    write("report/index.html", "<p>beter</p>")(run.folder)
    assert (
        checked(run) == 1 and "report/index.html was changed: it is not what the crate says" in capsys.readouterr().out
    )
    page = hashlib.sha256(b"<p>beter</p>").hexdigest()
    edit(
        layout.CRATE, lambda crate: [e.update(sha256=page) for e in crate["@graph"] if e["@id"] == "report/index.html"]
    )(run.folder)
    assert checked(run) == 0, "undetectable without a trust anchor"
    assert checked(run, "--log-checkpoint", run.checkpoint) == checked(run, "--crate-sha256", crate) == 1
    output = capsys.readouterr().out
    assert (
        f"{layout.ATTESTATION_LOG} was cut or changed: no line has the checkpoint given" in output
        and f"{layout.CRATE} was changed" in output
    )
    assert checked(run, "--log-checkpoint", "") == 1
    (problem,) = (p for p in run.problems(log_checkpoint=run.checkpoint) if "checkpoint" in p)
    assert problem.startswith(f"{layout.ATTESTATION_LOG} was cut or changed: no line has the checkpoint given")


def test_standalone_verifier_does_not_block_on_a_pipe_and_prints_one_error(
    run: Signed, capsys: pytest.CaptureFixture[str]
) -> None:
    for crate in ("[" * 100_000, '{"@graph":[{"@id":[],"@type":"File","sha256":"a"}]}'):
        write(layout.CRATE, crate)(run.folder)
        assert checked(run) == 1 and f"{layout.CRATE} is not a crate" in capsys.readouterr().out
    for resource in ({"name": 5, "digest": {"sha256": "a"}}, {"name": layout.CRATE, "digest": {"sha256": 5}}):
        forged = attestation_log.build_envelope(
            compact({"predicateType": "x", "predicate": {"before": "0" * 64}, "subject": [resource]})
        )
        on_lines(lambda lines, line=forged: [*lines, line])(run.folder)  # type: ignore[misc]
        assert checked(run) == 1 and "is no attestation." in capsys.readouterr().out
    (run.folder / layout.ATTESTATION_LOG).unlink()
    os.mkfifo(run.folder / layout.ATTESTATION_LOG)
    assert checked(run) == 2 and "is missing or no file" in capsys.readouterr().out


def test_checkpoint_of_an_earlier_invocation_is_not_the_newest(run: Signed, capsys: pytest.CaptureFixture[str]) -> None:
    *_, before, _ = attestation_log.read_log(run.folder)
    sentence = f"{layout.ATTESTATION_LOG} has 1 lines after the checkpoint given: ask the owner for the newest one."
    assert run.problems(log_checkpoint=before.sha256) == [sentence]
    assert checked(run, "--log-checkpoint", before.sha256) == 1 and sentence in capsys.readouterr().out


def test_standalone_verifier_escapes_terminal_control_characters(
    run: Signed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write("logs/\x1b[2J.log", "as it was")(run.folder)
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, str(run.key))
    attest_evidence(run.folder)
    write("logs/\x1b[2J.log", "other")(run.folder)
    assert checked(run) == 1
    output = capsys.readouterr().out
    assert "\x1b" not in output and "logs/\\x1b[2J.log was changed" in output


def test_standalone_verifier_names_a_missing_crate_and_a_path_outside_the_run(
    run: Signed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.folder / layout.CRATE).unlink()
    assert checked(run) == 0 and checked(run, "--crate-sha256", "0" * 64) == 1
    assert f"{layout.CRATE} is missing.\n" in capsys.readouterr().out
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, str(run.key))
    names = ["../key.pem", "logs/../../key.pem", str(run.key), "logs/gone.log"]
    subject = [attestation_log.resource_descriptor(name, "0" * 64) for name in names]
    attestation_log.append_statement(run.folder, attestation_log.EVIDENCE_ATTESTED, subject, {})
    assert checked(run) == 1
    *problems, last = capsys.readouterr().out.splitlines()
    number = len((run.folder / layout.ATTESTATION_LOG).read_bytes().splitlines())
    sentence = f"is no path in the run, though line {number} of the log names it."
    assert problems == [f"{name} {sentence}" for name in sorted(names[:3])]
    gone = 6  # of these four in archives, and the crate
    assert "problems: 3: " in last and last.endswith(f" {gone} attested or listed files are not here.")


@pytest.mark.parametrize("algorithm", ["p256", "ed25519"])
def test_standalone_verifier_accepts_what_the_library_signed_and_nothing_else(
    tmp_path: Path, algorithm: signing_keys.Algorithm
) -> None:
    public = signing_keys.generate_key_pair(tmp_path / "key.pem", algorithm)
    key = signing_keys.load_private_key(tmp_path / "key.pem")
    name, verifies = verify_attestations.read_public_key(str(public))
    assert name == signing_keys.key_sha256(key.public_key())

    def is_accepted(signature: bytes, message: bytes) -> bool:
        try:
            return verifies(signature, message)
        except (ValueError, IndexError):  # a line with it is reported as no attestation
            return False

    for message in (b"", b"message"):
        signature = signing_keys.sign_message(key, message)
        assert verifies(signature, message) and not verifies(signature, message + b" ")
        changes = [signature[:-1], signature + b"\0", b"", signature[1:], b"\0" + signature]
        for place in range(0, len(signature), 7):
            changes.append(signature[:place] + bytes([signature[place] ^ 1]) + signature[place + 1 :])
        assert [change for change in changes if is_accepted(change, message)] == []
    (tmp_path / "none.pub").write_text("-----BEGIN PUBLIC KEY-----\nbm9uZQ==\n-----END PUBLIC KEY-----\n")
    assert verify_attestations.main([str(tmp_path), str(tmp_path / "none.pub")]) == 2


def der(*numbers: bytes, tag: int = 2) -> bytes:
    content = b"".join(bytes([tag, len(number)]) + number for number in numbers)
    return bytes([0x30, len(content)]) + content


def test_standalone_verifier_refuses_numbers_and_points_out_of_range() -> None:
    p, n = verify_attestations.GENERATOR, verify_attestations.N
    public = b"\x04" + p[0].to_bytes(32, "big") + p[1].to_bytes(32, "big")
    one, order = b"\1", b"\0" + n.to_bytes(32, "big")
    for pair in ((b"\0", one), (one, b"\0"), (order, one), (one, order)):
        assert not verify_attestations.verify_p256(public, der(*pair), b"")
    for key in (b"\x02" + public[1:], public[:-1] + b"\0"):
        with pytest.raises(ValueError, match="no point of P-256"):
            verify_attestations.verify_p256(key, der(one, one), b"")
    whole = der(one, one)
    for broken in (b"\x31" + whole[1:], whole + b"\0", der(one, one, tag=3), whole[:5] + b"\3" + whole[6:]):
        with pytest.raises(ValueError, match="no ECDSA signature"):
            verify_attestations.parse_der_signature(broken)
    with pytest.raises(ValueError, match="no ECDSA signature"):
        verify_attestations.parse_der_signature(whole[:1] + b"\7" + whole[2:] + b"\0")
    add = verify_attestations.add_p256_points
    opposite = p[0], verify_attestations.P - p[1]
    assert add(p, opposite) is None and add(None, p) == add(p, None) == p
    assert verify_attestations.multiply_point(p, n + 1, add, None) == p
    q, order = verify_attestations.Q, verify_attestations.L.to_bytes(32, "little")
    identity = (1).to_bytes(32, "little")
    assert verify_attestations.decode_ed25519_point(identity) == (0, 1, 1, 0)
    assert verify_attestations.verify_ed25519(identity, identity + bytes(32), b"x"), "the neutral key signs all with 0"
    assert not verify_attestations.verify_ed25519(identity, identity + order, b"x"), "the same number in another form"
    assert not verify_attestations.verify_ed25519(identity, identity + bytes(33), b"x")
    for y in (q, q + 1, 2, 1 | 1 << 255):
        with pytest.raises(ValueError, match="no point of Ed25519"):
            verify_attestations.decode_ed25519_point(y.to_bytes(32, "little"))


# The standalone file on the auditor's machine cannot know: links, unattested and missing files.
BEYOND = ("gone", "more", "cut", "link", "payload", "older", "commit", "owner", "a loop of links")


@pytest.mark.parametrize(
    "name", [n for n in ATTACKS if not any(word in n for word in BEYOND)], ids=lambda name: name.replace(" ", "-")
)
def test_standalone_verifier_detects_changes(run: Signed, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    attack, culprit = ATTACKS[name]
    attack(run.folder)
    code = verify_attestations.main([str(run.folder), str(run.trusted.key)])
    assert code == (2 if name == "no log" else 1)
    assert culprit in capsys.readouterr().out or culprit == layout.ATTESTATION_LOG


def test_batch_lists_may_be_removed_if_attested_but_no_other_evidence(
    run: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, str(run.key))
    gone = [run.folder / BATCH, run.folder / BOOKS, run.folder.parent / "private.parquet"]
    attest_batch_record_removal(run.folder, gone)
    assert run.problems() == [f"{BATCH} is unknown: no attestation names it."]
    for path in gone[:2]:
        path.unlink()
    (problem,) = run.problems()
    assert problem.startswith(f"{BOOKS} is missing")
    statement = {"name": BOOKS, "digest": {"sha256": "0" * 64}}
    attestation_log.append_statement(
        run.folder, attestation_log.EVIDENCE_REMOVED, [statement], {"log": layout.ATTESTATION_LOG}
    )
    assert len(run.problems()) == 1, "even if the owner states it"


def rewrite(folder: Path, change: Callable[[Path], None], key: Path | None) -> None:
    """Change a file and everything that refers to it: hashes, records, crate, attempts and the whole log."""
    unpack_archives(folder)
    records = {path: json.loads(path.read_text()) for path in (folder / RECORDS).glob("*.json")}
    change(folder)
    (folder / layout.ATTESTATION_LOG).unlink()
    if key:
        os.environ[attestation_log.SIGNING_KEY_VARIABLE] = str(key)
        public = signing_keys.load_private_key(key).public_key()
        (folder / layout.PUBLIC_KEY).write_bytes(signing_keys.public_key_pem(public))
        edit(layout.SIGNER, lambda s: s.update(key_sha256=signing_keys.key_sha256(public)))(folder)
    for path, record in sorted(records.items(), key=lambda item: item[1]["started"]):
        for group in ("inputs", "outputs"):
            for file_entry in record[group]:
                if not file_entry["path"].startswith("data:"):
                    file_entry |= entry(
                        file_entry["name"], file_entry["path"], (folder / file_entry["path"]).read_bytes()
                    )
        if record["step"] == "provenance.crate":
            files = [file for file in path.parent.iterdir() if file != path]
            describe(folder, files)
            record["outputs"] = [entry("output", layout.CRATE, (folder / layout.CRATE).read_bytes())]
        path.write_text(json.dumps(record))
        attempt = folder / ATTEMPTS / record["attempt"]
        attestation_log.attest_attempt_begin(folder, attempt, Attempt.load(attempt))
        attestation_log.attest_finished_job(
            folder, attempt, [*(folder / READINGS).glob(f"{attempt.stem}@*")], path, Record.load(path)
        )
    for attempt in (folder / FAILED, folder / KILLED):
        attestation_log.attest_attempt_begin(folder, attempt, Attempt.load(attempt))
    attest_evidence(folder)
    os.environ.pop(attestation_log.SIGNING_KEY_VARIABLE, None)


BETTER = write("models/base/metrics.jsonl", '{"step": 10, "loss": 1.0, "seconds": 2.0}\n')


def test_run_rewritten_without_the_key_is_detected(run: Signed, tmp_path: Path) -> None:
    rewrite(run.folder, BETTER, None)
    shutil.rmtree(run.folder / "provenance/timestamps")
    assert [
        p for p in verify_run(run.folder).problems if layout.ATTESTATION_LOG not in p
    ] == []  # all of it is consistent
    assert any("is not signed" in problem for problem in run.problems())
    signing_keys.generate_key_pair(tmp_path / "own.pem", "ed25519")
    rewrite(run.folder, BETTER, tmp_path / "own.pem")
    assert verify_run(run.folder).problems == []
    problems = run.problems()
    assert problems and all(problem.startswith(layout.ATTESTATION_LOG) for problem in problems)
    assert "is signed with another key" in problems[0]
    assert verify_attestations.main([str(run.folder), str(run.trusted.key)]) == 1


def test_run_rewritten_with_the_key_does_not_match_timestamp_and_publication(run: Signed, authority: Authority) -> None:
    rewrite(run.folder, BETTER, run.key)
    (problem,) = run.problems()
    assert "was rewritten since" in problem and "provenance/timestamps/" in problem
    shutil.rmtree(run.folder / "provenance/timestamps")
    assert run.problems() == []  # whoever has the key can, and a reader without anchors cannot know
    (problem,) = run.problems(timestamp_certificates=authority.certificate)
    assert "no authority has seen the last line" in problem
    (problem,) = run.problems(log=run.heads)
    assert "was rewritten or truncated" in problem


def test_run_rolled_back_to_an_earlier_state_does_not_match_the_publication(run: Signed) -> None:
    on_lines(lambda lines: lines[:-1])(run.folder)
    assert any("was rewritten or truncated" in problem for problem in run.problems(log=run.heads))
    assert any("is unknown: no attestation names it" in problem for problem in run.problems())


def test_honest_copy_may_be_anywhere_and_a_renamed_run_is_named(
    run: Signed, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Signed(run.folder.rename(run.folder.with_name("demo")), run.house)
    assert main(["verify", str(copy.folder), "--log", str(run.heads)]) == 0
    assert f"{copy.folder}: this is the run run, as its log of attestations says." in capsys.readouterr().out
    # The hash of the log's first line identifies the run under any published name; so would the run's name.
    published = run.heads.read_text().replace('"run": "run"', '"run": "of then"')
    (renamed := run.folder.with_name("renamed.jsonl")).write_text(published)
    assert copy.problems(log=renamed) == []
    # A log of an earlier version has no hash of a first line: the run's name is used.
    older = [{k: v for k, v in json.loads(line).items() if k != "first"} for line in run.heads.read_text().splitlines()]
    (log_of_then := run.folder.with_name("older.jsonl")).write_text("".join(f"{json.dumps(e)}\n" for e in older))
    assert copy.problems(log=log_of_then) == []
    log_of_then.write_text(log_of_then.read_text().replace('"run": "run"', '"run": "other"'))
    (problem,) = copy.problems(log=log_of_then)
    assert problem.startswith(
        f"{layout.ATTESTATION_LOG} was never published in older.jsonl: it has no checkpoint of the run run"
    )


def test_run_rewritten_and_republished_is_detected_by_its_first_log(run: Signed, tmp_path: Path) -> None:
    rewrite(run.folder, BETTER, run.key)
    shutil.rmtree(run.folder / "provenance/timestamps")
    published = shutil.copy(run.heads, tmp_path / "heads.jsonl")
    forged = run_signing_and_log_checkpoint.current_log_checkpoint(run.folder)
    assert forged is not None
    run_signing_and_log_checkpoint.append_to_checkpoint_log(Path(published), forged)
    (problem,) = run.problems(log=published)
    assert "was rewritten or truncated: heads.jsonl has the checkpoint" in problem


# Files that nobody may write after an invocation ended, and those that only a repeated step may.
CLOSED = {
    OF_SNAKEMAKE: '{"joules": -9999}\n',
    READING: '{"joules": -9999}\n',
    FAILED: " ",
    FROZEN: " ",
    "logs/report.page.log": "3 documents kept against the opt-out list\n",
}


@pytest.mark.parametrize("place", CLOSED)
def test_changes_between_two_invocations_are_not_signed(
    run: Signed, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, "")
    settings = Provenance(key=str(run.key), owner="Stichting Proef")

    def start(number: int, log_text: str = "") -> list[str]:
        messages: list[str] = []
        run_signing_and_log_checkpoint.begin_signing(run.folder, settings, messages.append)
        if log_text:
            write(place, log_text)(run.folder)
        (run.folder / READINGS / f"snakemake.2.{number}@node1.jsonl").write_text(f"{number}")
        assert run_signing_and_log_checkpoint.finish_signing(run.folder, settings, print)
        return messages

    write("logs/report.page.log", "a line\n")(run.folder)
    assert start(1) == [] == run.problems()
    original = (run.folder / place).read_text()
    add(place, CLOSED[place])(run.folder)
    for number in (2, 3):
        (sentence,) = start(number)
        assert sentence.startswith(f"{place} was changed: ") and sentence.endswith("it is not attested again")
        (problem,) = run.problems()
        assert problem.startswith(f"{place} was changed: ") and checked(run) == 1
    (run.folder / place).write_text(original)
    assert start(4) == [] == run.problems() and checked(run) == 0
    if place.startswith("logs/"):
        add(place, CLOSED[place])(run.folder)
        assert start(5, log_text="the step ran again\n") != [] and run.problems() == []


def test_member_of_a_damaged_archive_is_recorded_as_changed(run: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, "")
    (archive,) = layout.BATCH_ARCHIVE.glob(run.folder)
    whole = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as members:
        (reading,) = [one for one in members.infolist() if one.filename.startswith(READINGS)]
    begin = reading.header_offset + 30 + len(reading.filename)  # of the compressed bytes
    archive.write_bytes(whole[:begin] + b"\xff" * reading.compress_size + whole[begin + reading.compress_size :])
    messages: list[str] = []
    settings = Provenance(key=str(run.key), owner="Stichting Proef")
    run_signing_and_log_checkpoint.begin_signing(run.folder, settings, messages.append)
    place = archive.relative_to(run.folder).as_posix()
    assert messages == [
        f"{reading.filename} cannot be read: its archive {place} is damaged. "
        "Put back what it was: it is not attested again"
    ]
    *_, line = attestation_log.read_log(run.folder)
    nothing = hashlib.sha256().hexdigest()
    assert line.statement.kind == attestation_log.EVIDENCE_CHANGED
    assert [(entry.name, entry.sha256) for entry in line.statement.subject] == [(reading.filename, nothing)]
    attest_evidence(run.folder)
    assert any(problem.startswith(f"{place} was changed: ") for problem in run.problems())
    archive.write_bytes(whole)
    assert run.problems() == []


def test_outputs_of_a_killed_invocation_or_unfinished_job_are_attested(
    run: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, "")
    settings = Provenance(key=str(run.key), owner="Stichting Proef")
    messages: list[str] = []
    add(LOG, "of a step with an attempt that was killed\n")(run.folder)
    edit(KILLED, lambda attempt: attempt.update(wall_seconds=61.0))(run.folder)
    run_signing_and_log_checkpoint.begin_signing(run.folder, settings, messages.append)
    assert (
        run_signing_and_log_checkpoint.finish_signing(run.folder, settings, print) and messages == [] == run.problems()
    )


def test_timestamp_of_another_head_or_authority_is_rejected(run: Signed, authority: Authority, tmp_path: Path) -> None:
    (stamp,) = (run.folder / "provenance/timestamps").iterdir()
    with Authority(tmp_path / "other") as other:
        (problem,) = run.problems(timestamp_certificates=other.certificate)
        assert problem.startswith(f"provenance/timestamps/{stamp.name} is no timestamp of that line")
    renamed = stamp.with_name("f" * 64 + ".tsr")
    stamp.rename(renamed)
    problems = run.problems(timestamp_certificates=authority.certificate)
    assert any(renamed.name in problem for problem in problems)
    renamed.write_bytes(b"none")
    assert any("is no timestamp of that line" in problem for problem in run.problems())
