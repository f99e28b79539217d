"""Verification detects every changed byte, and names exactly the changed file."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.cli.application import main
from pipeline.core.errors import InputError
from pipeline.core.job_records import load_records
from pipeline.provenance.evidence_attestation import attest_evidence
from pipeline.provenance.inventory import list_artifacts
from pipeline.provenance.verify_run import TrustAnchors, _check_statistics, verify_run
from tests.provenance.conftest import ENVIRONMENT, RunBuilder, build, command_of

LAWS_RECORD = "provenance/records/corpus.filter.main.laws.0.json"
SHARD_RECORD = "provenance/records/tokens.shard.main.0.json"
WEIGHTS = "models/base/milestones/10/model.safetensors"
CHANGES = 50


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_untouched_run_matches_its_records(template: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, sha256 = template
    assert verify_run(folder).problems == []
    assert verify_run(folder, TrustAnchors(sha256)).problems == []
    assert main(["verify", str(folder), "--crate-sha256", sha256]) == 0
    whole, unsigned, *_ = capsys.readouterr().out.splitlines()
    assert "files and 10 records are as the crate and the records say" in whole and "unsigned" in unsigned


def test_command_with_a_wrong_settings_digest_is_reported(tmp_path: Path) -> None:
    code = hashlib.sha256(b"pretrain.segment").hexdigest()[:16]
    command = [*command_of("pretrain.segment", code, ENVIRONMENT)]
    command[command.index("--settings") + 1] = f"sha256:{'0' * 64}"
    build(tmp_path, command=command).crate()
    (problem,) = verify_run(tmp_path).problems
    assert problem.endswith("contradicts itself: its command has the digest of other settings.")


@pytest.mark.parametrize(("wall_seconds", "is_named"), [(5.0, False), (85.0, False), (95.0, True)])
def test_clock_may_be_set_while_a_job_runs(wall_seconds: float, is_named: bool, tmp_path: Path) -> None:
    """By wall-clock time the job lasts 30 seconds."""
    build(tmp_path, wall_seconds=wall_seconds).crate()
    problems = verify_run(tmp_path).problems
    assert len(problems) == is_named
    assert all(f"contradicts itself: it took {wall_seconds} s and lasted 30.000 s" in one for one in problems)


@pytest.mark.parametrize("seed", range(CHANGES))
def test_one_changed_byte_is_reported_for_exactly_that_file(finished: Path, seed: int) -> None:
    choose = random.Random(seed)
    files = [*list_artifacts(finished), layout.CRATE]
    path = files[seed % len(files)] if seed < len(files) else choose.choice(files)
    content = bytearray((finished / path).read_bytes())
    content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    (finished / path).write_bytes(content)
    problems = verify_run(finished).problems
    assert len(problems) == 1, problems
    assert problems[0].startswith(f"{path} ")


def test_missing_and_added_files_are_named(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (finished / "tokens/main/train/0.arrow").unlink()
    (finished / "report/notes.txt").write_text("x")
    assert verify_run(finished).problems == [
        "report/notes.txt is unknown: the crate does not list it.",
        "tokens/main/train/0.arrow is missing, the crate lists it.",
    ]
    assert main(["verify", str(finished)]) == 1
    assert "tokens/main/train/0.arrow is missing" in capsys.readouterr().out


def test_scratch_may_change_and_evidence_is_attested_again_at_the_end(finished: Path) -> None:
    (finished / "scratch/x").write_text("later")
    assert verify_run(finished).problems == []
    (finished / "logs/a.log").write_text("later")
    (finished / "logs/corpus.filter.log").write_text("a line\nand one more\n")
    unknown, grown = verify_run(finished).problems
    assert unknown == "logs/a.log is unknown: no attestation names it."
    assert grown.startswith("logs/corpus.filter.log was changed: 13 bytes were added to the 7 that line ")
    assert attest_evidence(finished) == 2 and attest_evidence(finished) == 0
    assert verify_run(finished).problems == []


def test_regenerated_crate_still_reports_the_changed_file(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    weights = run.folder / WEIGHTS
    weights.write_bytes(weights.read_bytes()[::-1])
    run.crate()
    (problem,) = verify_run(run.folder).problems
    assert problem.startswith(f"{WEIGHTS} was changed")


def test_forged_run_and_crate_do_not_match_the_published_hash(build_run: Callable[..., Any]) -> None:
    published = build_run("run").crate()
    forged = build_run("forged", loss=3.0)
    forged.crate()
    assert verify_run(forged.folder).problems == []
    (problem,) = verify_run(forged.folder, TrustAnchors(published)).problems
    assert problem.startswith(f"{layout.CRATE} was changed")


def test_forged_record_breaks_the_chain(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    edit(run.folder / SHARD_RECORD, lambda record: record["inputs"][0].update(sha256="f" * 64))
    run.crate()
    report, shard = (problem for problem in verify_run(run.folder).problems if "crate.json" not in problem)
    assert report.startswith("provenance/records/report.page.json breaks the chain: it read " + SHARD_RECORD)
    assert shard.startswith(f"{SHARD_RECORD} breaks the chain: it read corpus/main/filtered/laws.0.parquet")


def test_job_that_read_a_file_before_a_job_had_written_it_is_reported(build_run: Callable[..., Any]) -> None:
    run, weights = build_run("run"), "models/base/milestones/20/model.safetensors"
    run.write(weights, "weights")
    evaluation = run.job("evaluate.suites", {"model": "base", "step": "20"}, [weights], {"evaluation/20.json": b"{}"})
    run.job("pretrain.segment", {"model": "base", "step": "20"}, ["tokens/main/train/0.arrow"], {weights: b"weights"})
    run.crate()
    assert verify_run(run.folder).problems == [f"{evaluation} read {weights} before any job had written it so."]


def test_snapshot_of_a_job_matches_its_record(build_run: Callable[..., Any]) -> None:
    planned = b'{"configuration": {"run": {"seed": 42}}}'
    snapshot = {"path": "provenance/frozen/1.json", "sha256": hashlib.sha256(planned).hexdigest()}
    run = build_run("run", frozen=snapshot)
    frozen = run.folder / snapshot["path"]
    frozen.parent.mkdir()
    frozen.write_bytes(planned)
    run.crate()
    assert verify_run(run.folder).problems == []
    frozen.write_bytes(planned.replace(b"42", b"43"))
    (problem,) = verify_run(run.folder).problems
    assert problem.startswith("provenance/frozen/1.json was changed")
    frozen.unlink()
    (problem,) = verify_run(run.folder).problems
    assert problem.startswith("provenance/frozen/1.json is missing, provenance/records/pretrain.segment.base.10.json")


def test_file_added_to_another_unit_changes_only_the_manifest(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    raw = b"De Grondwet garandeert de grondrechten van iedere ingezetene.\n"
    run.manifest("laws", {"0": raw, "1": b"een nieuwe wet\n"})
    run.crate()
    assert not [
        problem for problem in verify_run(run.folder).problems if LAWS_RECORD in problem and "manifest" in problem
    ]
    run.manifest("laws", {"0": b"een andere wet\n"})
    run.crate()
    assert [
        problem for problem in verify_run(run.folder).problems if problem.startswith(f"{LAWS_RECORD} breaks the chain")
    ]


def test_two_producers_of_one_file_are_reported(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    run.job("tokens.shard", {"tokens": "main", "shard": "1"}, [], {"tokens/main/train/0.arrow": bytes(range(64))})
    run.crate()
    assert "tokens/main/train/0.arrow has two makers" in " ".join(verify_run(run.folder).problems)


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b'{"step": "corpus.filter"}', b"\xff\xfe"])
def test_invalid_record_is_one_problem(finished: Path, broken: bytes) -> None:
    (finished / LAWS_RECORD).write_bytes(broken)
    problems = verify_run(finished).problems
    assert len(problems) == 1
    assert problems[0].startswith(f"{LAWS_RECORD} is not a valid record")


@pytest.mark.parametrize("broken", [b"", b"[]", b"{}", b'{"@graph": [{}]}', b'{"@graph": 3}'])
def test_invalid_crate_is_one_problem(finished: Path, broken: bytes) -> None:
    (finished / layout.CRATE).write_bytes(broken)
    (finished / "provenance/records/provenance.crate.json").unlink()
    assert verify_run(finished).problems == [
        f"{layout.CRATE} is not a valid crate: it cannot be read as RO-Crate metadata."
    ]


def test_records_are_checked_without_a_crate(finished: Path) -> None:
    (finished / layout.CRATE).unlink()
    (finished / "tokens/main/train/0.arrow").write_bytes(b"x")
    crate, shard = verify_run(finished).problems
    assert crate.startswith(f"{layout.CRATE} is missing")
    assert shard.startswith("tokens/main/train/0.arrow was changed")


def test_crate_of_the_given_hash_is_not_that_of_its_record(finished: Path, template: tuple[Path, str]) -> None:
    edit(finished / layout.CRATE_RECORD, lambda record: record["outputs"][0].update(sha256="0" * 64))
    problems = verify_run(finished, TrustAnchors(template[1])).problems
    assert problems == [f"{layout.CRATE_RECORD} was changed: it says that the crate's sha256 is {'0' * 64}."]


def test_input_that_no_job_wrote_is_there_unchanged(build_run: Callable[..., Any]) -> None:
    run, path = build_run("run"), "tokens/list.txt"
    file = run.write(path, "a list")
    record = run.job("tokens.shard", {"tokens": "main", "shard": "1"}, [path], {"tokens/main/train/1.arrow": b"x"})
    was, now = (hashlib.sha256(text).hexdigest() for text in (b"a list", b"other"))
    for change, sentence in (
        (lambda: None, None),
        (
            lambda: file.write_text("other"),
            f"{record} breaks the chain: it read {path} with sha256 {was}, the file has {now}.",
        ),
        (file.unlink, f"{path} is missing, {record} read it."),
    ):
        change()
        problems = [one for one in verify_run(run.folder).problems if path in one]
        assert problems == ([sentence] if sentence else [])


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        verify_run(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c["sources"]["laws"]["stages"][0].update(kept=8), "source laws, filter: 10 in is not 8 kept + 3"),
        (lambda c: c["sources"]["laws"]["stages"][1].update({"in": 6, "kept": 6}), "6 documents came in, but 7"),
        (lambda c: c["sources"]["wiki"].update(documents_out=4), "source wiki: 4 documents came out, but 5 were kept"),
        (lambda c: c["totals"].update(documents_in=16), "documents_in of the sources add up to 15, the total says 16"),
        (lambda c: c.pop("totals"), "is not valid"),
    ],
)
def test_lost_documents_in_the_counts_are_reported(
    build_run: Callable[..., Any], change: Callable[[Any], None], sentence: str
) -> None:
    run = build_run("run")
    path = "corpus/main/statistics.json"
    edit(run.folder / path, change)
    run.job("corpus.statistics", {"corpus": "main"}, [], {path: (run.folder / path).read_bytes()})
    run.crate()
    problems = [problem for problem in verify_run(run.folder).problems if problem.startswith(path)]
    assert any(sentence in problem for problem in problems), problems


@pytest.mark.parametrize(
    "place",
    [
        "provenance/records/x.json",
        "provenance/attempts/x.json",
        "corpus/main/pipe",
        layout.CRATE,
        "provenance/signer.json",
    ],
)
def test_pipe_is_reported_without_blocking(finished: Path, place: str) -> None:
    (finished / place).unlink(missing_ok=True)
    os.mkfifo(finished / place)
    assert verify_run(finished).problems == [
        f"{place} is a pipe, a socket or a device, or leads to one: remove it; no file was read."
    ]
    if "records" in place:
        (finished / place).rename(finished / "provenance/records/y.json")
        with pytest.raises(InputError, match=r"provenance/records/y\.json is missing, or is no file"):
            load_records(finished)


def test_file_name_with_a_line_end_is_printed_on_one_line(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (finished / "corpus/main/a\nall is well").write_text("x")
    assert main(["verify", str(finished)]) == 1
    assert "corpus/main/a\\nall is well is unknown" in capsys.readouterr().out.splitlines()[0]


def test_problems_contain_no_terminal_control_characters(finished: Path) -> None:
    for name in ("corpus/main/\x1b[2Jgone", "logs/\x1b]0;title\x07", "corpus/main/\udcff"):
        (finished / name).write_text("x")
    problems = verify_run(finished).problems
    assert len(problems) == 3 and all(problem.isprintable() for problem in problems), problems


def test_link_to_a_device_is_not_followed(finished: Path) -> None:
    (finished / layout.ATTESTATION_LOG).unlink()
    (finished / layout.ATTESTATION_LOG).symlink_to("/dev/zero")
    assert [problem.split(" is ")[0] for problem in verify_run(finished).problems] == [layout.ATTESTATION_LOG]


def test_scratch_that_is_a_file_is_reported(finished: Path) -> None:
    shutil.rmtree(finished / "scratch")
    (finished / "scratch").write_text("x")
    assert verify_run(finished).problems == ["scratch is unknown: a results folder has no such file."]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"@graph": ' + "[" * 100_000])
def test_too_deeply_nested_json_is_not_a_crate(finished: Path, text: str) -> None:
    (finished / layout.CRATE).write_text(text)
    (finished / layout.CRATE_RECORD).unlink(missing_ok=True)
    assert (
        f"{layout.CRATE} is not a valid crate: it cannot be read as RO-Crate metadata." in verify_run(finished).problems
    )


def test_infinite_counts_are_invalid(finished: Path) -> None:
    path = finished / "corpus/main/statistics.json"
    path.write_text(re.sub(r'"documents_in": \d+', '"documents_in": Infinity', path.read_text()))
    assert _check_statistics(finished, "corpus/main/statistics.json", {}) == [
        "corpus/main/statistics.json is not valid: it does not hold the counts of a corpus."
    ]


@pytest.mark.parametrize(
    ("documents_in", "problems"), [(15, []), (13, ["documents_in of the totals is 15, its record says 13."])]
)
def test_counts_that_add_up_are_those_of_their_record(
    build_run: Callable[..., RunBuilder], documents_in: int, problems: list[str]
) -> None:
    run, path = build_run("run"), "corpus/main/statistics.json"
    content = (run.folder / path).read_bytes()
    run.job("corpus.statistics", {"corpus": "main"}, [], {path: content}, counts={"documents_in": documents_in})
    output = [problem for problem in verify_run(run.folder).problems if problem.startswith(path)]
    assert output == [f"{path}: {problem}" for problem in problems]


def as_one_who_obeys_permissions(folder: Path) -> subprocess.CompletedProcess[str]:
    """Verify a run as a user with permissions: for root, without the capability to bypass them."""
    words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    words += [sys.executable, "-m", "pipeline", "verify", str(folder)]
    return subprocess.run(words, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("models/base", 1),
        ("corpus/main", 1),
        ("report/index.html", 1),
        ("corpus/main/hidden", 1),
        ("", 2),
        ("provenance", 2),
        ("provenance/records", 2),
        ("provenance/attempts", 2),
        (layout.CRATE, 2),
        (layout.ATTESTATION_LOG, 2),
    ],
)
def test_unreadable_file_is_reported_and_not_accepted(finished: Path, place: str, code: int) -> None:
    if not (finished / place).exists():
        (finished / place).mkdir()
        (finished / place / "payload").write_text("x")
    (finished / place).chmod(0)
    try:
        done = as_one_who_obeys_permissions(finished)
    finally:
        (finished / place).chmod(0o755)
    output = (done.stdout + done.stderr).splitlines()
    assert done.returncode == code, output
    assert f"{place or 'it'} may not be read by this user: verify the run as one who may" in output[0]
    assert (len(output) == 1) if code == 2 else " 1 problem in " in output[1]
