"""The command shows the origin of a text, and prints only document names and the quoted text."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.audit.training_documents import TrainingAudit
from pipeline.cli.entry_point import main
from pipeline.core.settings import Settings
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokens import suffixes as suffixes_step

STEPS = 60


@pytest.fixture(scope="module")
def run_directory(
    tokens: dict[str, Path], settings: Callable[..., SegmentSettings], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run with a model trained for 60 steps and sorted training tokens."""
    run = tmp_path_factory.mktemp("quote") / "run"
    folder = run / "tokens/main"
    shutil.copytree(tokens["index"].parent, folder)
    (folder / "suffixes").mkdir()
    array = folder / "suffixes/0.arrow"
    suffixes_step.run(Settings(), train=folder / "train.arrow", tokenizer=folder / "tokenizer.json", suffixes=array)

    def entry(name: str, file: str) -> dict[str, object]:
        content = (folder / file).read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        return {"name": name, "path": f"tokens/main/{file}", "sha256": sha256, "bytes": len(content)}

    numbers = dict.fromkeys(("wall_seconds", "cpu_seconds", "peak_memory_bytes"), 0)
    record = {
        "step": "pretrain.segment",
        "instance": {"model": "tiny", "step": str(STEPS)},
        "settings": settings(last_step=STEPS, steps=STEPS).model_dump(mode="json"),
        "command": [],
        "inputs": [entry("index", "index.json"), entry("tokenizer", "tokenizer.json")],
        "outputs": [],
        **dict.fromkeys(("code_version", "environment_version", "started", "ended"), ""),
        **numbers,
    }
    (run / "provenance/records").mkdir(parents=True)
    (run / f"provenance/records/pretrain.segment.tiny.{STEPS}.json").write_text(json.dumps(record))
    (run / f"models/tiny/milestones/{STEPS}").mkdir(parents=True)
    (run / f"models/tiny/milestones/{STEPS}/state.json").write_text(json.dumps({"step": STEPS, "skips": []}))
    (run / "sources/words").mkdir(parents=True)
    rights = {"holder": "the writers of words", "basis": "public-domain"}
    manifest = {"source": {"name": "words", "license": "CC0-1.0", "rights": rights}, "units": {}}
    (run / "sources/words/manifest.json").write_text(json.dumps(manifest))
    return run


def text_of(run_directory: Path, document: str) -> str:
    table = pq.read_table(run_directory / "tokens/main/documents.parquet").to_pylist()
    return str(next(row["text"] for row in table if row["id"] == document))


def test_quote_output_shows_source_license_holder_and_steps(
    run_directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, around = text_of(run_directory, "words/all/7")[102:202], text_of(run_directory, "words/all/7")[92:212]
    assert main(["provenance", "quote", str(run_directory), "tiny", held]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[1] == "found: the whole text is in the training documents of tiny, in 1 part of at least 40 characters"
    assert lines[2] == f"characters 1 to 100, 1 time in 1 document: {held!r}"
    steps = sorted(
        {visit["step"] for visit in TrainingAudit(run_directory, "tiny").find_document_visits("words/all/7")}
    )
    assert lines[3].startswith(
        "  words/all/7: 1 time; source words, license CC0-1.0, holder the writers of words, basis public-domain; "
        f"seen in {len(steps)} steps: {', '.join(map(str, steps[:10]))}"
    )
    assert lines[4].startswith("not searched: ") and around not in out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{held}\n".encode())))
    assert main(["provenance", "quote", str(run_directory), "tiny", "-"]) == 0
    assert capsys.readouterr().out == out


def test_frequent_quote_is_counted_and_partly_listed(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["provenance", "quote", str(run_directory), "tiny", "het een"]
    assert main(ask) == 0
    few = capsys.readouterr().out.splitlines()
    assert main([*ask, "--all"]) == 0
    every = capsys.readouterr().out.splitlines()
    assert few[:6] == every[:6] and few[6].startswith("  and ") and few[6].endswith(" more, which --all names")
    named = [line.split(":")[0].strip() for line in every[3:-1]]
    rows = pq.read_table(run_directory / "tokens/main/documents.parquet").to_pylist()
    with_it = {row["id"] for row in rows if "het een" in row["text"]}
    assert set(named) <= with_it and len(set(named)) == len(named) == int(few[6].split()[1]) + 3


def test_absent_quote_is_reported_as_not_found(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["provenance", "quote", str(run_directory), "tiny"]
    assert main([*ask, "a sentence that nobody ever wrote down in these documents"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "not found: no part of it of 40 characters or more is in the training documents of tiny"
    )
    for wrong, message in (([" "], "the text is empty"), (["het", "--minimum", "0"], "--minimum 0 is no length")):
        assert main([*ask, *wrong]) == 2
        assert message in capsys.readouterr().err
    (run_directory / "tokens/main/suffixes/0.arrow").rename(run_directory / "tokens/main/suffixes/kept")
    assert main([*ask, "het"]) == 2
    assert "0.arrow is missing, and text search needs it" in capsys.readouterr().err
    (run_directory / "tokens/main/suffixes/kept").rename(run_directory / "tokens/main/suffixes/0.arrow")
