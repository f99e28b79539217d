"""The contract of a step, on a real one: refusal, temporary names, attempt and record."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from pipeline import layout
from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.energy.readings import read_intervals
from pipeline.job import job_entry_point as job
from pipeline.job import job_execution as stage
from pipeline.job import reuse_under_another_name, versions
from pipeline.sources.settings import FingerprintSettings
from pipeline.workflow.steps import step_settings

STEP = ("sources", "fingerprint")
MICRO = yaml.safe_load(Path("config/micro.yaml").read_text())


def options(run: Path, raw: Path, **changes: str) -> list[str]:
    module = "pipeline.sources.fingerprint"
    listing = run.parent / "0.json"
    listing.parent.mkdir(parents=True, exist_ok=True)
    listing.write_text(json.dumps({"unit": 0, "files": [{"name": raw.name, "part": None}]}))
    values = {
        "settings": json.dumps({"source": "laws"}),
        "code": versions.code_version(module),
        "environment": versions.environment_version(module, "cpu"),
        "record": str(run / "provenance/records/sources.fingerprint.laws.0.json"),
        **changes,
    }
    named = [word for name, value in values.items() for word in (f"--{name}", value)]
    files = [
        "--input",
        "listing",
        str(listing),
        "--input",
        "files",
        str(raw),
        "--output",
        "fingerprint",
        str(run / "sources/laws/fingerprints/0.json"),
    ]
    return [*STEP, *named, "--instance", "source=laws", "unit=0", *files]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "laws.jsonl"
    path.write_text('{"text": "Artikel 1"}\n')
    return path


def left(run: Path) -> list[Path]:
    """Return the files of a run, without meter readings and attestations."""
    files = [path for path in run.rglob("*") if path.is_file() and path.parent.name != "readings"]
    return [path for path in files if path != run / layout.ATTESTATION_LOG]


def test_step_writes_its_output_record_and_attempt(tmp_path: Path, raw: Path) -> None:
    run = tmp_path / "results/test"
    assert job.main(options(run, raw)) == 0
    record = json.loads((run / "provenance/records/sources.fingerprint.laws.0.json").read_text())
    output = run / "sources/laws/fingerprints/0.json"
    assert record["outputs"] == [
        {
            "name": "fingerprint",
            "path": "sources/laws/fingerprints/0.json",
            "sha256": hashlib.sha256(output.read_bytes()).hexdigest(),
            "bytes": output.stat().st_size,
        }
    ]
    assert record["inputs"][1]["sha256"] == hashlib.sha256(raw.read_bytes()).hexdigest()
    assert record["inputs"][1]["path"] == "data:laws.jsonl"
    assert record["instance"] == {"source": "laws", "unit": "0"}
    attempt = json.loads((run / "provenance/attempts" / record["attempt"]).read_text())
    assert attempt["status"] == "finished" and attempt["ended"]
    (readings,) = (run / "provenance/readings").iterdir()
    assert readings.name == f"{Path(record['attempt']).stem}@{platform.node()}.jsonl"
    assert {interval.node for interval in read_intervals(readings)} == {platform.node()}
    assert "energy" not in record and "energy" not in attempt
    assert not list(run.rglob(".partial*"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"code": "0" * 16}, ["the code of sources.fingerprint changed"]),
        ({"environment": "cpu-" + "0" * 16}, ["the environment of sources.fingerprint changed"]),
        ({"settings": '{"source": "laws", "sead": 1}'}, ["sead"]),
        ({"settings": '{"source": 7}'}, ["source"]),
        (
            {"settings": f"sha256:{'0' * 64}"},
            ["settings of sources.fingerprint", "in the place of their hash"],
        ),
    ],
)
def test_refused_step_has_one_sentence_and_no_output(
    tmp_path: Path, raw: Path, changes: dict[str, str], words: list[str]
) -> None:
    run = tmp_path / "results/test"
    with pytest.raises(InputError) as caught:
        job.main(options(run, raw, **changes))
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)
    assert left(run) == list((run / "provenance/attempts").glob("[!.]*.json"))
    (attempt,) = (run / "provenance/attempts").glob("[!.]*.json")
    assert json.loads(attempt.read_text())["status"] == "refused"


def test_missing_input_is_named(tmp_path: Path, raw: Path) -> None:
    arguments = options(tmp_path / "results/test", raw)
    raw.unlink()
    with pytest.raises(InputError, match=r"laws\.jsonl does not exist"):
        job.main(arguments)


def test_unknown_step_is_named() -> None:
    arguments = ["sources", "nothing", "--settings", "{}", "--code", "0", "--environment", "cpu-0", "--record", "r"]
    with pytest.raises(InputError, match=r"there is no step sources\.nothing: the stages are folders of pipeline/"):
        job.main(arguments)


def test_failing_step_leaves_no_partial_output(tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: stage.Job) -> list[dict[str, object]]:
        raise OSError("disk full")

    monkeypatch.setattr(stage.Job, "hash_outputs", full)
    folder = tmp_path / "results/test"
    with pytest.raises(OSError, match="disk full"):
        job.main(options(folder, raw))
    (attempt,) = (folder / "provenance/attempts").glob("[!.]*.json")
    assert left(folder) == [attempt]
    assert json.loads(attempt.read_text())["error"] == "OSError: disk full"


def test_node_local_folder_is_filled_from_environment_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = step_settings(
        parse_configuration(MICRO), "pretrain.segment", {"model": "base", "step": "4"}
    ).model_dump_json()
    files = {name: tmp_path / name for name in ("index", "tokenizer", "configuration")}
    for path in files.values():
        path.write_text("")
    arguments = Namespace(
        settings=settings,
        operation="{}",
        record=str(tmp_path / "run/provenance/records/pretrain.segment.base.4.json"),
        instance=["model=base", "step=4"],
        input=[[name, str(path)] for name, path in files.items()],
        output=[["milestone", str(tmp_path / "4")]],
        raw=None,
        scratch=str(tmp_path / "scratch"),
        launch="",
        platform="local",
        staging="$NODE_DISK/tokens",
        recovery="$LARGE/polder/micro",
    )
    monkeypatch.setenv("NODE_DISK", "/scratch-node/ada.7")
    monkeypatch.setenv("LARGE", "/scratch-shared/ada")
    _, _, keywords = stage.Job("pretrain.segment", arguments).bind_arguments()
    assert keywords["staging"] == Path("/scratch-node/ada.7/tokens")
    assert keywords["recovery_folder"] == Path("/scratch-shared/ada/polder/micro")
    monkeypatch.delenv("NODE_DISK")
    with pytest.raises(InputError, match="needs the variable NODE_DISK, which is not set"):
        stage.Job("pretrain.segment", arguments).bind_arguments()


def test_leftovers_of_a_killed_attempt_are_removed_and_other_outputs_kept(tmp_path: Path, raw: Path) -> None:
    run = tmp_path / "results/test"
    folder = run / "sources/laws/fingerprints"
    folder.mkdir(parents=True)
    (folder / ".partial-7.0.4711-0.json").write_text("{")
    (folder / ".partial-7.0.4711-1.json").write_text("{")
    assert job.main(options(run, raw)) == 0
    assert sorted(path.name for path in folder.iterdir()) == [".partial-7.0.4711-1.json", "0.json"]


def end_to_write(pipe: Path) -> int | None:
    """Open a pipe to write; None while nobody reads it."""
    with suppress(OSError):
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    return None


def test_superseded_attempt_keeps_the_outputs_and_record_of_the_later_one(tmp_path: Path, raw: Path) -> None:
    """As on a node that Slurm has lost: the first process waits at a pipe, the next one finds a file in its place."""
    run, pipe = tmp_path / "results/test", tmp_path / "pipe"
    os.mkfifo(pipe)
    content = raw.read_bytes()
    raw.unlink()
    raw.hardlink_to(pipe)
    command = [sys.executable, "-m", "pipeline", *options(run, raw)]
    slurm = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "a"}
    early = subprocess.Popen(command, env=slurm | {"SLURM_RESTART_COUNT": "0"}, stderr=subprocess.PIPE, text=True)
    try:
        while (end := end_to_write(pipe)) is None:  # until it waits at the pipe
            assert early.poll() is None
            time.sleep(0.05)
        raw.unlink()
        raw.write_bytes(content)
        late = subprocess.run(command, env=slurm | {"SLURM_RESTART_COUNT": "1"}, capture_output=True, text=True)
        assert late.returncode == 0, late.stderr
        results = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (run / "sources").rglob("*.json")}
        record = run / "provenance/records/sources.fingerprint.laws.0.json"
        results[record] = (record.read_bytes(), record.stat().st_mtime_ns)
        os.write(end, content)
        os.close(end)
        message = early.communicate(timeout=60)[1]
    finally:
        early.kill()
    assert early.returncode == 2
    assert message.startswith("error: a later start of this step has finished it (") and "restart 1" in message
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in results} == results
    assert not list((run / "sources").rglob(".partial*"))
    attempts = [json.loads(path.read_text()) for path in (run / "provenance/attempts").glob("[!.]*.json")]
    assert sorted(attempt["status"] for attempt in attempts) == ["failed", "finished"]
    assert any((attempt["error"] or "").startswith("Superseded: ") for attempt in attempts)


def of_corpus(corpus: str, run: Path, raw: Path) -> list[str]:
    """Return the options of a job of a corpus whose identical job belongs to another corpus."""
    words = options(run, raw, record=str(run / f"provenance/records/sources.fingerprint.{corpus}.0.json"))
    output = str(run / f"corpus/{corpus}/0.json")
    return [f"corpus={corpus}" if word == "source=laws" else word for word in words[:-1]] + [output]


@pytest.mark.parametrize("altered", [False, True])
def test_outputs_of_an_identical_job_are_reused_if_their_bytes_match(tmp_path: Path, raw: Path, altered: bool) -> None:
    run = tmp_path / "results/test"
    job.main(of_corpus("a", run, raw))
    first, second = run / "corpus/a/0.json", run / "corpus/b/0.json"
    true = first.read_bytes()
    if altered:
        first.write_bytes(true.replace(b"0", b"1"))
    reuse_under_another_name.index_records.cache_clear()
    job.main(of_corpus("b", run, raw))
    assert second.read_bytes() == true
    record = json.loads((run / "provenance/records/sources.fingerprint.b.0.json").read_text())
    assert (record["taken_over_from"] is None) == altered


def test_step_that_keeps_private_texts_reuses_no_outputs(
    tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "results/test"
    job.main(of_corpus("a", run, raw))
    reuse_under_another_name.index_records.cache_clear()
    monkeypatch.setattr(FingerprintSettings, "keep_removed", True, raising=False)
    job.main(of_corpus("b", run, raw))
    record = json.loads((run / "provenance/records/sources.fingerprint.b.0.json").read_text())
    assert record["taken_over_from"] is None and (run / "corpus/b/0.json").is_file()
