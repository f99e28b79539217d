"""The audit finds the content of each sample and the samples of each document, and both agree."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.audit.training_documents import TrainingAudit
from pipeline.cli.entry_point import main
from pipeline.core.errors import InputError
from pipeline.pretrain import segment
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokens.token_reader import TokenReader
from tests.pretrain.conftest import token_set

pytestmark = pytest.mark.usefixtures("warm_processes")
STEPS = 300
TWO = "torchrun --standalone --nproc-per-node=2"
SKIPS = [3, 150]


@pytest.fixture(scope="module")
def run_directory(
    tokens: dict[str, Path], settings: Callable[..., SegmentSettings], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run with a model trained for 300 steps, of which two batches were skipped."""
    run = tmp_path_factory.mktemp("audit") / "run"
    shutil.copytree(tokens["index"].parent, run / "tokens/main")
    written(run, settings(last_step=STEPS, steps=STEPS), tokens)
    (run / f"models/tiny/milestones/{STEPS}").mkdir(parents=True)
    (run / f"models/tiny/milestones/{STEPS}/state.json").write_text(json.dumps({"step": STEPS, "skips": SKIPS}))
    (run / "sources/words").mkdir(parents=True)
    manifest = {"source": {"name": "words", "license": "CC0-1.0"}, "units": {}}
    (run / "sources/words/manifest.json").write_text(json.dumps(manifest))
    (run / "corpus/main/filtered").mkdir(parents=True)
    shutil.copy(tokens["index"].parent / "documents.parquet", run / "corpus/main/filtered/words.0.parquet")
    return run


def written(run: Path, chosen: SegmentSettings, tokens: dict[str, Path]) -> None:
    """Write the record of a segment of the model `tiny`, as its job does."""
    metrics = f"models/tiny/milestones/{chosen.last_step}/metrics.jsonl"
    entries = []
    for name, path, content in (
        ("index", "tokens/main/index.json", tokens["index"].read_bytes()),
        ("milestone", metrics, (run / metrics).read_bytes() if (run / metrics).exists() else None),
    ):
        if content is not None:
            hashed = hashlib.sha256(content).hexdigest()
            entries.append({"name": name, "path": path, "sha256": hashed, "bytes": len(content)})
    record = {
        "step": "pretrain.segment",
        "instance": {"model": "tiny", "step": str(chosen.last_step)},
        "settings": chosen.model_dump(mode="json"),
        "command": [],
        "inputs": entries[:1],
        "outputs": entries[1:],
        **dict.fromkeys(("code_version", "environment_version", "started", "ended"), ""),
        **dict.fromkeys(("wall_seconds", "cpu_seconds", "peak_memory_bytes"), 0),
    }
    (run / "provenance/records").mkdir(parents=True, exist_ok=True)
    (run / f"provenance/records/pretrain.segment.tiny.{chosen.last_step}.json").write_text(json.dumps(record))


def test_sample_and_document_lookups_agree_on_all_tokens(run_directory: Path) -> None:
    audit = TrainingAudit(run_directory, "tiny")
    wanted = "words/all/7"
    results: dict[tuple[int, int], int] = {}
    for step in range(1, STEPS + 1):
        for sample in range(4):
            rows = audit.list_documents_in_sequence(step, sample)
            assert sum(row["tokens"] for row in rows) == audit.length
            results.update(((step, sample), row["tokens"]) for row in rows if row["id"] == wanted)
    visits = audit.find_document_visits(wanted)
    assert {(v["step"], v["sample"]): v["tokens"] for v in visits if v["step"] is not None} == results
    assert len(visits) >= len(results) > 3
    reader = TokenReader(run_directory / "tokens/main/index.json", "train")
    [(start, end)] = [
        (row["start"], row["end"]) for row in reader.documents_in(0, reader.tokens) if row["id"] == wanted
    ]
    epochs = STEPS * 4 / audit.sampler.sequences
    assert abs(sum(results.values()) - epochs * (end - start)) <= 1.5 * (end - start)


def test_skipped_batch_is_reported_as_not_seen(run_directory: Path) -> None:
    audit = TrainingAudit(run_directory, "tiny")
    reader = audit.sampler.reader
    sequence = int(audit.sampler.order.batch_sequences_of_all_streams(SKIPS[0])[0])
    wanted = reader.documents_in(sequence * audit.length, 1)[0]["id"]
    skipped = [visit for visit in audit.find_document_visits(wanted) if visit["step"] is None]
    assert (SKIPS[0], 0) in [(visit["data_step"], visit["sample"]) for visit in skipped]
    assert {visit["data_step"] for visit in skipped} <= set(SKIPS)


def test_license_is_taken_from_the_document_or_its_source(run_directory: Path) -> None:
    audit = TrainingAudit(run_directory, "tiny")
    assert audit.document_license({"source": "words", "license": None}) == "CC0-1.0"
    assert audit.document_license({"source": "words", "license": "MIT"}) == "MIT"
    assert audit.document_license({"source": "others", "license": None}) == "not known: its manifest is not here"


def test_command_looks_up_documents_and_samples(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["audit", str(run_directory), "tiny"]
    assert main([*ask, "--step", "12", "--sample", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "model tiny: trained to step 300, 4 sequences of 32 tokens in a step, seed 7, "
        "skipped data steps (from 0): 3, 150"
    )
    assert lines[1] == "step 12, sample 2"
    assert lines[2].endswith(": source words, language nl, license CC0-1.0")
    assert lines[3:6] == ["    source words: license CC0-1.0", "    corpus main", "      filter: kept (nl 1.0000)"]
    document = lines[2].split()[3].rstrip(":")
    assert main([*ask, "--document", document]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"{document}: ") and any(line.startswith("  step 12, sample 2: ") for line in lines)
    assert main([*ask, "--step", "12"]) == 0
    assert sum(line.startswith("step 12, sample") for line in capsys.readouterr().out.splitlines()) == 4
    assert main([*ask, "--document", document, "--sample", "2"]) == 2
    assert "leave it out" in capsys.readouterr().err


def test_missing_document_or_sample_error_explains_why(run_directory: Path, tmp_path: Path) -> None:
    audit = TrainingAudit(run_directory, "tiny")
    for step, sample, message in ((301, 0, "no step 301: name one from 1 to 300"), (1, 4, "no sample 4")):
        with pytest.raises(InputError, match=message):
            audit.list_documents_in_sequence(step, sample)
    ids = pq.read_table(run_directory / "corpus/main/filtered/words.0.parquet", columns=["id"])["id"].to_pylist()
    reader = audit.sampler.reader
    held_out = sorted(set(ids) - {row["id"] for row in reader.documents_in(0, reader.tokens)})
    with pytest.raises(InputError, match=f"hold no document {held_out[0]}: it was held out for validation"):
        audit.find_document_visits(held_out[0])
    with pytest.raises(InputError, match="hold no document words/all/x: ask corpus why"):
        audit.find_document_visits("words/all/x")
    with pytest.raises(InputError, match="no record of a training of base: it has tiny"):
        TrainingAudit(run_directory, "base")
    changed = Path(shutil.copytree(run_directory, tmp_path / "run"))
    (changed / "tokens/main/index.json").write_text("{}")
    with pytest.raises(InputError, match=r"index\.json is gone or no longer what .* names"):
        TrainingAudit(changed, "tiny")


@pytest.fixture(scope="module")
def trained(settings: Callable[..., SegmentSettings], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a model trained by two processes: two segments, three mixtures of two sources, skipped batches."""
    run = tmp_path_factory.mktemp("trained") / "run"
    (run / "tokens/main").mkdir(parents=True)
    tokens = token_set(run / "tokens/main", "words", "verbs")
    phases = [{"from_step": 7, "weights": {"words": 3, "verbs": 1}}, {"from_step": 15, "epochs": {"words": 2}}]
    stability = {"window": 8, "loss_deviations": 0, "gradient_norm_deviations": 1e-9, "skips_in_a_row": 100}
    usual: dict[str, Any] = {"steps": 20, "sampling": {"phases": phases}, "stability": stability}
    previous: list[Path] = []
    for first, last in ((0, 12), (12, 20)):
        chosen = settings(first, last, **usual)
        milestone = run / f"models/tiny/milestones/{last}"
        segment.run(
            chosen, **tokens, previous=previous, milestone=milestone, scratch=run / f"scratch{last}", launch=TWO
        )
        written(run, chosen, tokens)
        previous = [milestone]
    return run


def altered(run: Path, folder: Path, change: Callable[[dict[str, Any]], None], file: str) -> Path:
    """Copy a run and replace one of its files."""
    other = Path(shutil.copytree(run, folder / "run"))
    content = json.loads((other / file).read_text())
    change(content)
    (other / file).write_text(json.dumps(content))
    return other


def test_audited_batches_match_the_logged_batch_hashes(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = TrainingAudit(trained, "tiny")
    assert len(audit.logged_hashes) == 20 and audit.skips, "without skipped batches the test shows nothing"
    assert main(["audit", str(trained), "tiny", "--check"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "checked: 20 of 20 steps logged the hash of this batch"
    for question in (["--step", "16"], ["--document", audit.list_documents_in_sequence(16, 0)[0]["id"]]):
        assert main(["audit", str(trained), "tiny", *question]) == 0
        assert capsys.readouterr().out.splitlines()[-1].startswith("checked: ")


LAST = "provenance/records/pretrain.segment.tiny.20.json"


@pytest.mark.parametrize(
    ("file", "change", "first"),
    [
        (LAST, lambda record: record["settings"].update(seed=8), 1),
        (LAST, lambda record: record["settings"]["training"]["sampling"].update(phases=[]), 1),
        (LAST, lambda record: record["settings"]["training"]["sampling"]["phases"][0]["weights"].update(words=9), 8),
        (
            LAST,
            lambda record: record["settings"]["training"]["sampling"]["phases"].pop(),
            17,
        ),  # where 2 of 3 and 3 of 4 first differ
        ("models/tiny/milestones/20/state.json", lambda state: state.update(skips=[]), None),
    ],
    ids=["another seed", "no phases", "other weights", "one phase less", "nothing left out"],
)
def test_batches_of_other_data_fail_the_hash_check(
    file: str,
    change: Callable[[dict[str, Any]], None],
    first: int | None,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = first or TrainingAudit(trained, "tiny").skips[0] + 1
    other = altered(trained, tmp_path, change, file)
    assert main(["audit", str(other), "tiny", "--check"]) == 1
    output = capsys.readouterr().out.splitlines()[-1]
    assert (
        output.startswith("WRONG: in ") and f" of 20 steps, the first of them {first}, the processes logged" in output
    )
    assert main(["audit", str(other), "tiny", "--step", str(first)]) == 1
    assert "WRONG: in 1 of 1 steps" in capsys.readouterr().out
    document = TrainingAudit(other, "tiny").list_documents_in_sequence(first, 0)[0]["id"]
    assert main(["audit", str(other), "tiny", "--document", document]) == 1


def test_altered_metrics_are_not_accepted_as_evidence(trained: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(trained, tmp_path / "run"))
    with (other / "models/tiny/milestones/12/metrics.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(InputError, match=r"12/metrics\.jsonl is gone or no longer what .* names: put it back"):
        TrainingAudit(other, "tiny").verify_steps([1])


def test_branch_audit_covers_only_its_own_steps(trained: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(trained, tmp_path / "run"))
    (other / "provenance/records/pretrain.segment.tiny.12.json").unlink()  # as if another model had taken these steps
    last = json.loads((other / LAST).read_text())
    described = {"name": "previous", "path": "models/other/milestones/12/state.json", "sha256": "0" * 64, "bytes": 1}
    (other / LAST).write_text(json.dumps({**last, "inputs": [*last["inputs"], described]}))
    audit = TrainingAudit(other, "tiny")
    assert "trained from step 12 of model other to step 20" in audit.describe_training()
    with pytest.raises(InputError, match="there is no step 12: name one from 13 to 20"):
        audit.list_documents_in_sequence(12, 0)
    seen = [
        row["id"]
        for sample in range(4)
        for row in TrainingAudit(trained, "tiny").list_documents_in_sequence(12, sample)
    ]
    visits = [visit for name in seen for visit in audit.find_document_visits(name)]
    assert visits and all(visit["step"] is None or visit["step"] > 12 for visit in visits)
    assert audit.verify_steps(range(13, 21)) == ("checked: 8 of 8 steps logged the hash of this batch", False)


def test_batch_ramp_steps_have_fewer_samples(
    run_directory: Path, tokens: dict[str, Path], settings: Callable[..., SegmentSettings], tmp_path: Path
) -> None:
    other = Path(shutil.copytree(run_directory, tmp_path / "run"))
    ramp = [{"to_step": 10, "batch_size": 2}]
    written(other, settings(last_step=STEPS, steps=STEPS, ramp=ramp), tokens)
    audit = TrainingAudit(other, "tiny")
    assert "to step 300, 2, then 4 sequences of 32 tokens" in audit.describe_training()
    assert [audit.count_step_sequences(step) for step in (1, 9, 10)] == [2, 2, 4], "a skipped batch counts as a step"
    with pytest.raises(InputError, match="there is no sample 2: name one from 0 to 1"):
        audit.list_documents_in_sequence(9, 2)
    document = audit.list_documents_in_sequence(4, 1)[0]["id"]
    results = {(visit["step"], visit["sample"]) for visit in audit.find_document_visits(document)}
    assert (4, 1) in results and all(sample < (2 if step and step < 10 else 4) for step, sample in results)


def test_training_without_batch_hashes_is_reported_as_unchecked(run_directory: Path) -> None:
    assert TrainingAudit(run_directory, "tiny").verify_steps([1, 2]) == (
        "checked: 0 of 2 steps logged the hash of this batch; 2 have no hash",
        False,
    )
