"""The attestation log: concurrent appends, complete after a full disk, and unusable keys are refused."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource as limits
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import attestation_log, signing_keys
from pipeline.core.attestation_log import append_statement, read_log, resource_descriptor
from pipeline.core.errors import InputError
from pipeline.core.job_command_lines import replace_settings_by_digest
from pipeline.core.job_records import Attempt, Record
from pipeline.layout import ATTESTATION_LOG
from tests.record_content import attempt_content, record_content

HASH = "a" * 64
KIND = "urn:polder:evidence:1"


def _append(folder: Path, writer: int, number: int) -> None:
    for count in range(number):
        append_statement(
            folder, KIND, [resource_descriptor(f"{writer}/{count}", HASH)], {"text": "x" * 1000 * (count % 90)}
        )


def chained(folder: Path) -> bool:
    expected = attestation_log.NO_PREVIOUS_LINE
    for line in read_log(folder):
        if line.statement.previous_line_sha256 != expected:
            return False
        expected = line.sha256
    return True


def test_concurrent_appends_form_one_chain(tmp_path: Path) -> None:
    writers = [multiprocessing.Process(target=_append, args=(tmp_path, writer, 40)) for writer in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    names = [line.statement.subject[0].name for line in read_log(tmp_path)]
    assert len(names) == 240 == len(set(names)) and chained(tmp_path)
    own = [name for name in names if name.startswith("3/")]
    assert own == [f"3/{count}" for count in range(40)]


def test_line_longer_than_a_block_is_read_back(tmp_path: Path) -> None:
    many = [resource_descriptor(f"file {number}", HASH) for number in range(5000)]
    for subject in ([resource_descriptor("a", HASH)], many, [resource_descriptor("b", HASH)]):
        append_statement(tmp_path, KIND, subject, {})
    assert [len(line.statement.subject) for line in read_log(tmp_path)] == [1, 5000, 1] and chained(tmp_path)


def test_slsa_byproducts_include_the_previous_line(tmp_path: Path) -> None:
    first = append_statement(tmp_path, KIND, [resource_descriptor("a", HASH)], {})
    predicate = {
        "buildDefinition": {"resolvedDependencies": []},
        "runDetails": {"byproducts": [resource_descriptor("x", HASH)]},
    }
    append_statement(tmp_path, attestation_log.SLSA_PROVENANCE, [resource_descriptor("b", HASH)], predicate)
    *_, last = read_log(tmp_path)
    assert last.statement.previous_line_sha256 == first and [entry.name for entry in last.statement.byproducts] == ["x"]


def _append_where_little_room_is(folder: Path, room_bytes: int) -> None:
    limits.setrlimit(limits.RLIMIT_FSIZE, (room_bytes, room_bytes))
    with suppress(OSError):
        append_statement(folder, KIND, [resource_descriptor("b", HASH)], {"text": "x" * 4000})
        os._exit(1)


@pytest.mark.parametrize("is_full", [True, False])
def test_line_is_not_started_when_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    monkeypatch.setattr(attestation_log, "is_disk_full", lambda error: is_full)
    append_statement(tmp_path, KIND, [resource_descriptor("a", HASH)], {})
    size = (tmp_path / ATTESTATION_LOG).stat().st_size
    writer = multiprocessing.Process(target=_append_where_little_room_is, args=(tmp_path, size + 1000))
    writer.start()
    writer.join()
    assert writer.exitcode == 0 and (tmp_path / ATTESTATION_LOG).stat().st_size == size
    append_statement(tmp_path, KIND, [resource_descriptor("c", HASH)], {})
    assert [line.statement.subject[0].name for line in read_log(tmp_path)] == ["a", "c"] and chained(tmp_path)


def test_signature_depends_on_line_and_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for algorithm in ("p256", "ed25519"):
        public = signing_keys.load_public_key(signing_keys.generate_key_pair(tmp_path / algorithm, algorithm))  # type: ignore[arg-type]
        monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, str(tmp_path / algorithm))
        append_statement(tmp_path, KIND, [resource_descriptor("a", HASH)], {})
        *_, line = read_log(tmp_path)
        assert signing_keys.key_algorithm(public) == algorithm and list(line.signatures) == [
            signing_keys.key_sha256(public)
        ]
        (signature,) = line.signatures.values()
        assert signing_keys.verify_signature(public, signature, line.signed)
        assert not signing_keys.verify_signature(public, signature, line.signed + b" ")


def test_number_that_is_none_is_read_as_it_was_written(tmp_path: Path) -> None:
    append_statement(tmp_path, KIND, [resource_descriptor("a", HASH)], {"loss": float("nan")})
    (line,) = read_log(tmp_path, strict=True)
    assert line.number == 1


def test_log_without_a_key_is_unsigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(attestation_log.SIGNING_KEY_VARIABLE, raising=False)
    append_statement(tmp_path, KIND, [resource_descriptor("a", HASH)], {})
    assert [line.signatures for line in read_log(tmp_path)] == [{}]
    attestation_log.load_signing_key()


@pytest.mark.parametrize(
    ("content", "mode", "sentence"),
    [
        (None, 0, "cannot be read on this machine"),
        (b"none", 0o600, "is no private key in PEM"),
        ("p256", 0o644, "others may read the signing key"),
    ],
)
def test_key_that_cannot_sign_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | str | None, mode: int, sentence: str
) -> None:
    key = tmp_path / "key.pem"
    if isinstance(content, str):
        signing_keys.generate_key_pair(key, "p256")
    elif content is not None:
        key.write_bytes(content)
    if mode:
        key.chmod(mode)
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, str(key))
    with pytest.raises(InputError, match=sentence):
        attestation_log.load_signing_key()


def test_key_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    signing_keys.generate_key_pair(tmp_path / "key.pem", "ed25519")
    assert os.stat(tmp_path / "key.pem").st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match="is there already"):
        signing_keys.generate_key_pair(tmp_path / "key.pem", "p256")
    with pytest.raises(InputError, match=r"is no public key in PEM: give the file that ends in \.pub"):
        signing_keys.load_public_key(tmp_path / "key.pem")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"payload": 1, "payloadType": "x", "signatures": []}', "\x00"])
def test_invalid_line_is_reported_with_its_number(tmp_path: Path, text: str) -> None:
    append_statement(tmp_path, KIND, [resource_descriptor("a", HASH)], {})
    with (tmp_path / ATTESTATION_LOG).open("a") as file:
        file.write(text + "\n")
    with pytest.raises(InputError, match=f"{ATTESTATION_LOG}, line 2, is no attestation"):
        list(read_log(tmp_path))


@pytest.mark.parametrize(
    "respell",
    [
        lambda line: line.replace(b'":', b'" : ', 1),
        lambda line: line.rstrip(b"\n"),
        lambda line: line.replace(b"\n", b" \n"),
        lambda line: line.replace(b"{", b'{"payloadType":"application/vnd.in-toto+json",', 1),
    ],
)
def test_line_of_another_spelling_is_refused_only_by_strict_reading(
    tmp_path: Path, respell: Callable[[bytes], bytes]
) -> None:
    append_statement(tmp_path, KIND, [resource_descriptor("a", HASH)], {})
    log = tmp_path / ATTESTATION_LOG
    assert len(list(read_log(tmp_path, strict=True))) == 1
    log.write_bytes(respell(log.read_bytes()))
    assert len(list(read_log(tmp_path))) == 1
    with pytest.raises(InputError, match="line 1, is no attestation"):
        list(read_log(tmp_path, strict=True))


def test_envelope_follows_the_dsse_specification(tmp_path: Path) -> None:
    append_statement(tmp_path, KIND, [resource_descriptor("a", HASH)], {})
    (text,) = (tmp_path / ATTESTATION_LOG).read_text().splitlines()
    assert json.loads(text)["payloadType"] == "application/vnd.in-toto+json"
    assert (
        attestation_log.pre_authentication_encoding(b"hello world")
        == b"DSSEv1 28 application/vnd.in-toto+json 11 hello world"
    )


def test_line_without_line_end_is_followed_by_a_separate_line(tmp_path: Path) -> None:
    first = append_statement(tmp_path, KIND, [resource_descriptor("a", HASH)], {})
    (tmp_path / ATTESTATION_LOG).write_bytes((tmp_path / ATTESTATION_LOG).read_bytes().removesuffix(b"\n"))
    append_statement(tmp_path, KIND, [resource_descriptor("b", HASH)], {})
    result = list(read_log(tmp_path))
    assert [line.number for line in result] == [1, 2] and result[1].statement.previous_line_sha256 == first


@pytest.mark.parametrize("written", [1, 60, -2])
@pytest.mark.parametrize("before", [0, 2])
def test_partial_line_of_a_killed_job_is_replaced_by_the_next_line(tmp_path: Path, before: int, written: int) -> None:
    for number in range(before):
        append_statement(tmp_path, KIND, [resource_descriptor(f"{number}", HASH)], {})
    whole = (tmp_path / ATTESTATION_LOG).read_bytes() if before else b""
    append_statement(tmp_path, KIND, [resource_descriptor("of the killed one", HASH)], {})
    begun = (tmp_path / ATTESTATION_LOG).read_bytes().removeprefix(whole)
    (tmp_path / ATTESTATION_LOG).write_bytes(whole + begun[:written])
    append_statement(tmp_path, KIND, [resource_descriptor("next", HASH)], {})
    names = [line.statement.subject[0].name for line in read_log(tmp_path)]
    assert names == [*map(str, range(before)), "next"] and chained(tmp_path)


def test_attempt_attestation_contains_the_digest_of_its_command() -> None:
    command = ["python", "-m", "pipeline", "corpus", "filter", "--settings", "{}", "--code", "x"]
    attempt = attempt_content("corpus.filter", command=command, snakemake=None, host=None, slurm=None)
    facts = attestation_log.fixed_attempt_fields(attempt)
    assert facts["command"].startswith("sha256:") and attestation_log.fixed_attempt_fields(facts) == facts
    assert attestation_log.fixed_attempt_fields({**attempt, "command": replace_settings_by_digest(command)}) == facts
    assert attestation_log.fixed_attempt_fields({**attempt, "command": [*command, "--other"]}) != facts


def test_finished_job_is_attested_with_its_step_instance_and_settings(tmp_path: Path) -> None:
    instance = {"model": "base", "step": "10"}
    job: dict[str, Any] = {"step": "pretrain.segment", "instance": instance, "settings": {"seed": 42}}
    (path := tmp_path / "record.json").write_text(json.dumps(record_content(**job)))
    (attempt := tmp_path / "attempt.json").write_text("{}")
    attestation_log.attest_finished_job(tmp_path, attempt, [], path, Record.load(path))
    (line,) = read_log(tmp_path)
    definition = line.statement.predicate.buildDefinition
    assert definition and definition.externalParameters == job


def test_checkpoint_before_a_running_attempt_is_the_line_before_it_began(tmp_path: Path) -> None:
    def checkpoint() -> attestation_log.LogCheckpoint | None:
        return attestation_log.find_checkpoint_before_attempt(tmp_path, "provenance.crate")

    def begin(name: str) -> Path:
        (path := tmp_path / name).write_text(json.dumps(attempt_content("provenance.crate")))
        attestation_log.attest_attempt_begin(tmp_path, path, Attempt.load(path))
        return path

    assert checkpoint() is None
    first = begin("first.json")
    assert checkpoint() is None, "there was no line before"
    attestation_log.attest_attempt_end(tmp_path, first, "failed", [])
    *_, end = read_log(tmp_path)
    assert checkpoint() == (2, end.sha256)
    begin("second.json")
    append_statement(tmp_path, KIND, [resource_descriptor("a", HASH)], {})
    assert checkpoint() == (2, end.sha256)
