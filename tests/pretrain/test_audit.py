"""The audit finds what each sample held and which samples held a document, and the two agree."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.__main__ import main
from pipeline.ground.errors import InputError
from pipeline.pretrain.audit import Audit
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokens.reader import TokenReader

STEPS = 300
SKIPS = [3, 150]


@pytest.fixture(scope="module")
def run_directory(
    tokens: dict[str, Path], settings: Callable[..., SegmentSettings], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run whose model was trained for 300 steps, two batches of which were skipped."""
    run = tmp_path_factory.mktemp("audit") / "run"
    shutil.copytree(tokens["index"].parent, run / "tokens/main")
    content = tokens["index"].read_bytes()
    entry = {"name": "index", "path": "tokens/main/index.json", "sha256": hashlib.sha256(content).hexdigest()}
    record = {
        "step": "pretrain.segment",
        "instance": {"model": "tiny", "step": str(STEPS)},
        "settings": settings(last_step=STEPS, steps=STEPS).model_dump(mode="json"),
        "command": [],
        "inputs": [{**entry, "bytes": len(content)}],
        "outputs": [],
        "code_version": "",
        "environment_version": "",
        "started": "",
        "ended": "",
        "wall_seconds": 0,
        "cpu_seconds": 0,
        "peak_memory_bytes": 0,
    }
    (run / "provenance/records").mkdir(parents=True)
    (run / f"provenance/records/pretrain.segment.tiny.{STEPS}.json").write_text(json.dumps(record))
    (run / f"models/tiny/milestones/{STEPS}").mkdir(parents=True)
    (run / f"models/tiny/milestones/{STEPS}/state.json").write_text(json.dumps({"step": STEPS, "skips": SKIPS}))
    (run / "sources/words").mkdir(parents=True)
    manifest = {"source": {"license": "CC0-1.0"}, "units": {}}
    (run / "sources/words/manifest.json").write_text(json.dumps(manifest))
    (run / "corpus/main/filtered").mkdir(parents=True)
    shutil.copy(tokens["index"].parent / "documents.parquet", run / "corpus/main/filtered/words.0.parquet")
    return run


def test_both_directions_agree_and_no_token_is_lost(run_directory: Path) -> None:
    audit = Audit(run_directory, "tiny")
    wanted = "words/all/7"
    found: dict[tuple[int, int], int] = {}
    for step in range(1, STEPS + 1):
        for sample in range(4):
            rows = audit.sample(step, sample)
            assert sum(row["tokens"] for row in rows) == audit.length
            found.update(((step, sample), row["tokens"]) for row in rows if row["id"] == wanted)
    visits = audit.visits(wanted)
    assert {(v["step"], v["sample"]): v["tokens"] for v in visits if v["step"] is not None} == found
    assert len(visits) >= len(found) > 3
    reader = TokenReader(run_directory / "tokens/main/index.json", "train")
    [(start, end)] = [span[1:] for span in reader.document_spans(0, reader.tokens) if span[0] == wanted]
    epochs = STEPS * 4 / audit.sampler.sequences
    assert abs(sum(found.values()) - epochs * (end - start)) <= 1.5 * (end - start)


def test_a_skipped_batch_is_named_and_counts_as_not_seen(run_directory: Path) -> None:
    audit = Audit(run_directory, "tiny")
    reader = audit.sampler.reader
    sequence = int(audit.sampler.order.batch(SKIPS[0])[0])
    wanted = reader.document_at(sequence * audit.length)
    skipped = [visit for visit in audit.visits(wanted) if visit["step"] is None]
    assert (SKIPS[0], 0) in [(visit["data_step"], visit["sample"]) for visit in skipped]
    assert {visit["data_step"] for visit in skipped} <= set(SKIPS)


def test_the_command_answers_in_both_directions(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["audit", str(run_directory), "tiny"]
    assert main([*ask, "--step", "12", "--sample", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "model tiny: trained to step 300, 4 sequences of 32 tokens in a step, seed 7, skipped data steps: 3, 150"
    )
    assert lines[1] == "step 12, sample 2"
    assert lines[2].endswith(": source words, language nl, licence CC0-1.0")
    assert lines[3:6] == ["    source words: licence CC0-1.0", "    corpus main", "      filter: kept (nl 1.0000)"]
    document = lines[2].split()[3].rstrip(":")
    assert main([*ask, "--document", document]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(f"{document}: ") and any(line.startswith("  step 12, sample 2: ") for line in lines)
    assert main([*ask, "--step", "12"]) == 0
    assert sum(line.startswith("step 12, sample") for line in capsys.readouterr().out.splitlines()) == 4
    assert main([*ask, "--document", document, "--sample", "2"]) == 2
    assert "leave it out" in capsys.readouterr().err


def test_what_is_not_there_is_a_sentence(run_directory: Path, tmp_path: Path) -> None:
    audit = Audit(run_directory, "tiny")
    for step, sample, message in ((301, 0, "no step 301: name one from 1 to 300"), (1, 4, "no sample 4")):
        with pytest.raises(InputError, match=message):
            audit.sample(step, sample)
    ids = pq.read_table(run_directory / "corpus/main/filtered/words.0.parquet", columns=["id"])["id"].to_pylist()
    reader = audit.sampler.reader
    held_out = sorted(set(ids) - {name for name, _, _ in reader.document_spans(0, reader.tokens)})
    with pytest.raises(InputError, match=f"hold no document {held_out[0]}: it was held out for validation"):
        audit.visits(held_out[0])
    with pytest.raises(InputError, match="hold no document words/all/x: ask corpus why"):
        audit.visits("words/all/x")
    with pytest.raises(InputError, match="no record of a training of base: it has tiny"):
        Audit(run_directory, "base")
    changed = Path(shutil.copytree(run_directory, tmp_path / "run"))
    (changed / "tokens/main/index.json").write_text("{}")
    with pytest.raises(InputError, match=r"index\.json is gone or no longer what .* names"):
        Audit(changed, "tiny")
