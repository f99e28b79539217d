"""Trust anchors: the crate's hash covers the log up to the crate, the published log all of it, a lock nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.application import main
from pipeline.core import attestation_log
from pipeline.core.attestation_log import EVIDENCE_ATTESTED, find_checkpoint_before_attempt
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import Attempt, load_records
from pipeline.core.lock_owner import LockOwner
from pipeline.layout import ATTESTATION_LOG, CRATE, RUN_LOCK
from pipeline.provenance import run_signing_and_log_checkpoint
from pipeline.provenance.evidence_attestation import attest_evidence
from pipeline.provenance.verify_run import TrustAnchors, verify_run
from tests.provenance.conftest import RunBuilder, Signed, build
from tests.record_content import attempt_content

FAILED = "provenance/attempts/corpus.filter.failed.json"
READING = "provenance/readings/tokens.shard.main.0.20260105T1000.1@node1.jsonl"
OF_CRATE = "provenance/readings/provenance.crate.20260105T1000.1@node1.jsonl"
OF_SNAKEMAKE = "provenance/readings/snakemake.1@node1.jsonl"
FORGED = ("provenance/attempts/more.json", "provenance/accounting/2.json", "logs/more.log")


@pytest.fixture
def later(tmp_path: Path) -> RunBuilder:
    """An unsigned run with a crate, and a later failed invocation."""
    run = build(tmp_path / "run")
    run.crate()
    run.fail("corpus.filter.later", "failed")
    run.write("logs/corpus.filter.later.log", "Traceback\n")
    attest_evidence(run.folder)
    return run


def compact(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def rechain(folder: Path, keep: Callable[[dict[str, Any]], bool] = lambda statement: True) -> None:
    """Rewrite the log with the hashes of the current files, as anyone without a key can for an unsigned run."""
    before, written = attestation_log.NO_PREVIOUS_LINE, b""
    for line in (folder / ATTESTATION_LOG).read_bytes().splitlines():
        statement = json.loads(base64.b64decode(json.loads(line)["payload"]))
        if not keep(statement):
            continue
        made = statement["predicate"].get("runDetails", {}).get("byproducts", [])
        for entry in (*statement["subject"], *made):
            if entry["name"] == attestation_log.PREVIOUS_LINE:
                entry["digest"]["sha256"] = before
            elif (folder / entry["name"]).is_file() and "began" not in statement["predicateType"]:
                entry["digest"]["sha256"] = hash_file(folder / entry["name"])
        if "before" in statement["predicate"]:
            statement["predicate"]["before"] = before
        text = attestation_log.build_envelope(compact(statement))
        written, before = written + text + b"\n", hashlib.sha256(text).hexdigest()
    (folder / ATTESTATION_LOG).write_bytes(written)


def divide(folder: Path, name: str) -> None:
    text = (folder / name).read_text()
    assert "100.5" in text
    (folder / name).write_text(text.replace("100.5", "1.005"))


def test_empty_lock_does_not_hide_foreign_evidence(run: Signed) -> None:
    for name in (*FORGED, RUN_LOCK):
        (run.folder / name).write_text("" if name == RUN_LOCK else "{}")
    problems = run.problems(crate_sha256=hash_file(run.folder / CRATE), log=run.heads)
    assert {problem.split()[0] for problem in problems} == {*FORGED, RUN_LOCK}
    assert f"{RUN_LOCK} names no start: delete it where you know that no start is running." in problems


@pytest.mark.parametrize("process", [-1, 0, 2**31, 10**30])
def test_lock_with_an_impossible_process_id_is_reported(run: Signed, process: int) -> None:
    content = {**LockOwner.from_this_process(run.folder).model_dump(), "process": process}
    (run.folder / RUN_LOCK).write_text(json.dumps(content))
    assert run.problems() == [f"{RUN_LOCK} names no start: delete it where you know that no start is running."]


@pytest.mark.parametrize(
    ("change", "more", "sentence"),
    [
        ({"run": "elsewhere"}, "", "names a start that works on another folder, elsewhere"),
        ({"note": "hidden"}, "", "names no start"),
        ({}, "hidden\n", "names no start"),
        ({}, "000000000001\nhidden\n", "names no start"),
    ],
)
def test_lock_of_a_living_process_excuses_only_the_lock(
    run: Signed, change: dict[str, Any], more: str, sentence: str
) -> None:
    content = {**LockOwner.from_this_process(run.folder).model_dump(), **change}
    (run.folder / RUN_LOCK).write_text(f"{json.dumps(content)}\n{more}")
    (problem,) = run.problems()
    assert problem.startswith(RUN_LOCK) and sentence in problem


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"process_began_seconds": 1.0}, "which does not run"),
        ({"given_up": True}, "which does not run"),
        ({"host": "login9"}, "which cannot be seen from here"),
        ({"boot": "another"}, "which cannot be seen from here"),
    ],
)
def test_lock_with_an_unverifiable_owner_is_reported(finished: Path, change: dict[str, Any], sentence: str) -> None:
    owner = LockOwner.from_this_process(finished).model_copy(update=change)
    (finished / RUN_LOCK).write_text(owner.model_dump_json() + "\n000000000001\n")
    (finished / FORGED[0]).write_text("{}")
    forged, lock = sorted(verify_run(finished).problems)[::-1]
    assert lock.startswith(RUN_LOCK) and sentence in lock
    assert forged == f"{FORGED[0]} is unknown: no attestation names it."


def test_unattested_files_of_a_running_invocation_are_labelled(finished: Path) -> None:
    (finished / RUN_LOCK).write_text(LockOwner.from_this_process(finished).model_dump_json() + "\n000000000001\n")
    assert verify_run(finished).problems == []
    (finished / "logs/more.log").write_text("begun")
    with (finished / OF_SNAKEMAKE).open("a") as readings:
        readings.write('{"joules": 2.5}\n')
    more, grown = verify_run(finished).problems
    assert more.startswith("logs/more.log is not attested yet: ") and platform.node() in more
    assert grown.startswith(f"{OF_SNAKEMAKE} has 32 bytes, of which 16 are attested yet: ")
    assert main(["verify", str(finished)]) == 1


def test_failure_before_the_crate_cannot_be_dropped_if_the_crate_is_pinned(finished: Path) -> None:
    crate = hash_file(finished / CRATE)
    (finished / FAILED).unlink()
    rechain(finished, lambda statement: statement["subject"][0]["name"] != FAILED)
    (problem,) = verify_run(finished, TrustAnchors(crate)).problems
    assert problem.startswith(f"{ATTESTATION_LOG} was rewritten or truncated: {CRATE} says that line ")


def test_failure_after_the_crate_is_covered_by_the_published_log(
    later: RunBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, published = later.folder, tmp_path / "heads.jsonl"
    crate = hash_file(folder / CRATE)
    *_, last = attestation_log.read_log(folder)
    run_signing_and_log_checkpoint.append_to_checkpoint_log(
        published, run_signing_and_log_checkpoint.PublishedCheckpoint("run", last.number, last.sha256)
    )
    assert verify_run(folder, TrustAnchors(crate, log=published)).problems == []
    lines = (folder / ATTESTATION_LOG).read_bytes().splitlines(keepends=True)
    (folder / ATTESTATION_LOG).write_bytes(b"".join(lines[:-3]))
    (folder / "provenance/attempts/corpus.filter.later.json").unlink()
    (folder / "logs/corpus.filter.later.log").unlink()
    assert any(
        "was rewritten or truncated" in problem
        for problem in verify_run(folder, TrustAnchors(crate, log=published)).problems
    )
    assert verify_run(folder, TrustAnchors(crate)).problems == []
    capsys.readouterr()
    assert main(["verify", str(folder), "--crate-sha256", crate]) == 0
    *_, output = capsys.readouterr().out.splitlines()
    assert f"Not covered by --crate-sha256: {ATTESTATION_LOG} after line " in output and "--log" in output


def test_readings_before_the_crate_cannot_shrink_if_the_crate_is_pinned(finished: Path) -> None:
    crate = hash_file(finished / CRATE)
    divide(finished, READING)
    rechain(finished)
    (problem,) = verify_run(finished, TrustAnchors(crate)).problems
    assert problem.startswith(f"{ATTESTATION_LOG} was rewritten or truncated: {CRATE} says that line ")


@pytest.mark.parametrize("path", [READING, FAILED, "provenance/frozen/1.json", OF_SNAKEMAKE])
def test_attested_file_cannot_be_attested_with_other_content(build_run: Callable[..., RunBuilder], path: str) -> None:
    run = build_run("run")
    run.write("provenance/frozen/1.json", '{"seed": 100.5}')
    run.crate()
    file = run.folder / path
    file.write_text(file.read_text().replace("2.5", "0.5").replace("100.5", "1.005").replace("failed", "finished"))
    attestation_log.append_statement(
        run.folder,
        EVIDENCE_ATTESTED,
        [attestation_log.resource_descriptor(path, hash_file(file))],
        {"log": ATTESTATION_LOG},
    )
    (problem,) = verify_run(run.folder, TrustAnchors(hash_file(run.folder / CRATE))).problems
    assert problem.startswith(f"{path} was changed: line ") and "attests another content" in problem


def test_files_not_covered_by_the_crate_are_counted(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    crate = hash_file(finished / CRATE)
    divide(finished, OF_CRATE)
    rechain(finished)
    assert verify_run(finished, TrustAnchors(crate)).problems == [], "the crate's own attempt ends after it"
    capsys.readouterr()
    main(["verify", str(finished), "--crate-sha256", crate])
    *_, output = capsys.readouterr().out.splitlines()
    assert "and 3 files that it alone attests, such as provenance/attempts/provenance.crate." in output


def test_readings_may_grow_between_attestations(finished: Path) -> None:
    for _ in range(2):
        with (finished / OF_SNAKEMAKE).open("a") as readings:
            readings.write('{"joules": 2.5}\n')
        assert any(
            problem.startswith(f"{OF_SNAKEMAKE} was changed: 16 bytes") for problem in verify_run(finished).problems
        )
        attest_evidence(finished)
        assert verify_run(finished).problems == []


def test_run_is_named_by_its_invocations_and_by_its_earlier_name(build_run: Callable[..., RunBuilder]) -> None:
    run = build_run("run")
    invocations = (None, "snakemake.20260105T0859.2..renamed", "snakemake.20260105T0900.2..again")
    for names, snakemake in zip((["run"], ["run", "renamed"], ["run", "renamed", "again"]), invocations, strict=True):
        file = (
            run.folder / f"provenance/attempts/{run.attempt('corpus.filter', {}, 'failed', snakemake=snakemake)}.json"
        )
        attestation_log.attest_attempt_begin(run.folder, file, Attempt.load(file))
        lines = attestation_log.read_log(run.folder)
        assert run_signing_and_log_checkpoint.find_logged_run_names(lines) == names
    sentence = "this is the run again, and before that run, renamed, as its log of attestations says."
    assert verify_run(run.folder).statements[0] == f"{run.folder}: {sentence}"


def test_attempt_that_has_only_begun_keeps_its_beginning(finished: Path) -> None:
    content = {**attempt_content("report.page"), "host": "node1", "slurm": None, "attempt": "page.2.json", "ended": ""}
    file = RunBuilder(finished).attempted(content, "running")
    written = json.loads(file.read_text())
    assert verify_run(finished).problems == []
    file.write_text(json.dumps({**written, "last_seen": "2026", "wall_seconds": 9.0}))
    assert verify_run(finished).problems == [], "it goes on"
    number = len((finished / ATTESTATION_LOG).read_bytes().splitlines())
    sentence = f"was changed: it is not the attempt whose beginning line {number} attests."
    for text in (json.dumps({**written, "host": "node2"}), "", "[]"):
        file.write_text(text)
        assert verify_run(finished).problems == [f"provenance/attempts/page.2.json {sentence}"]


def test_checkpoint_precedes_the_current_attempt(later: RunBuilder) -> None:
    *_, last = attestation_log.read_log(later.folder)
    assert find_checkpoint_before_attempt(later.folder, "provenance.crate") == (last.number, last.sha256), (
        "it has ended"
    )
    for step, name in (("provenance.crate", "crate.2.json"), ("report.page", "page.2.json")):
        later.attempted({**attempt_content(step), "host": None, "slurm": None, "attempt": name, "ended": ""}, "running")
    assert find_checkpoint_before_attempt(later.folder, "provenance.crate") == (last.number, last.sha256)


def on_last_line(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def attack(folder: Path) -> None:
        *lines, last = (folder / ATTESTATION_LOG).read_bytes().splitlines(keepends=True)
        (folder / ATTESTATION_LOG).write_bytes(b"".join([*lines, change(last)]))

    return attack


def with_payload(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def changed(line: bytes) -> bytes:
        envelope = json.loads(line)
        envelope["payload"] = base64.b64encode(change(base64.b64decode(envelope["payload"]))).decode()
        return compact(envelope) + b"\n"

    return changed


SPELLINGS = {
    "a field more": lambda line: line[:-2] + b',"zzz":"more"}\n',
    "a key twice": lambda line: b'{"payload":"e30=",' + line[1:],
    "a space": lambda line: line.replace(b'","', b'", "', 1),
    "a space at the end": lambda line: line[:-1] + b" \n",
    "no end": lambda line: line[:-1],
    "an empty line": lambda line: line + b"\n",
    "another base64": lambda line: line.replace(b'"payload":"', b'"payload":"\\n'),
    "a signature of somebody else": lambda line: line.replace(
        b'"signatures":[', b'"signatures":[{"keyid":"a","sig":""},{"keyid":"b","sig":""}'
    ),
    "a key of the statement twice": with_payload(lambda text: b'{"subject":[],' + text[1:]),
    "a space in the statement": with_payload(lambda text: text.replace(b'","', b'", "', 1)),
}


@pytest.mark.parametrize("name", SPELLINGS, ids=lambda name: name.replace(" ", "-"))
def test_last_line_has_one_spelling(finished: Path, name: str) -> None:
    on_last_line(SPELLINGS[name])(finished)
    (problem,) = verify_run(finished).problems
    assert problem.startswith(f"{ATTESTATION_LOG}, line ") and problem.endswith(
        "is no attestation: it was truncated or changed."
    )


def test_partial_line_of_a_killed_job_does_not_prevent_attestations(finished: Path) -> None:
    with (finished / ATTESTATION_LOG).open("ab") as file:
        file.write(b'{"payload":"e3')
    (finished / "logs/more.log").write_text("x")
    assert attest_evidence(finished) == 1 and verify_run(finished).problems == []


@pytest.mark.parametrize("place", [FAILED, "provenance/records/tokens.shard.main.0.json"])
def test_duplicate_key_in_a_record_or_attempt_is_reported(finished: Path, place: str) -> None:
    text = (finished / place).read_text().replace("{", '{"wall_seconds": 1.0, ', 1)
    (finished / place).write_text(text)
    assert [problem for problem in verify_run(finished).problems if problem.startswith(place)]
    if "records" in place:
        with pytest.raises(InputError, match="is not a valid record: the key 'wall_seconds' occurs twice"):
            load_records(finished)
