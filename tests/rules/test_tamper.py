"""Verification names exactly the altered file, and each file of the crate has its stated format."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lxml import html

from pipeline.provenance.verify_run import verify_run
from tests.conftest import Project


@pytest.mark.slow
def test_finished_run_verifies_and_any_flipped_byte_is_named(project: Project) -> None:
    assert verify_run(project.results).problems == []
    artifacts = sorted(
        path
        for path in project.results.rglob("*")
        if path.is_file()
        and path.stat().st_size
        and path.name != ".snakemake_timestamp"
        and path.parts[len(project.results.parts)] != "scratch"
        # nothing covers the last line of an unsigned log
        and path.name not in ("ro-crate-metadata.json", "provenance.crate.json", "attestations.intoto.jsonl")
    )
    chosen = random.Random(11)
    for path in chosen.sample(artifacts, min(50, len(artifacts))):
        original = path.read_bytes()
        place = chosen.randrange(len(original))
        path.write_bytes(original[:place] + bytes([original[place] ^ 1]) + original[place + 1 :])
        problems = verify_run(project.results).problems
        name = path.relative_to(project.results).as_posix()
        assert problems, name
        assert all(name in problem for problem in problems), (name, problems)
        path.write_bytes(original)
    assert verify_run(project.results).problems == []


@pytest.mark.slow
def test_altered_record_and_crate_do_not_match_the_printed_hash(project: Project) -> None:
    crate = project.results / "ro-crate-metadata.json"
    printed = hashlib.sha256(crate.read_bytes()).hexdigest()
    record = project.results / "provenance" / "records" / "tokenizer.train.main.json"
    before = hashlib.sha256(record.read_bytes()).hexdigest()
    record.write_text(record.read_text().replace('"wall_seconds":', '"wall_seconds":1'))
    after = hashlib.sha256(record.read_bytes()).hexdigest()
    assert before in crate.read_text()
    crate.write_text(crate.read_text().replace(before, after))
    done = project.call("verify", "results/micro", "--crate-sha256", printed)
    assert done.returncode == 1
    assert "ro-crate-metadata.json" in done.stdout


# Each opens a file by the format of that media type, and fails on any other one.
OPEN: dict[str, Callable[[Path], object]] = {
    "application/json": lambda path: json.loads(path.read_bytes()),
    "application/jsonl": lambda path: [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]],
    "application/vnd.apache.arrow.file": lambda path: pa.ipc.open_file(path).read_all(),
    "application/vnd.apache.arrow.stream": lambda path: pa.ipc.open_stream(path).read_all(),
    "application/vnd.apache.parquet": pq.read_table,
    "application/zip": lambda path: ZipFile(path).testzip(),
    "text/html": lambda path: html.document_fromstring(path.read_bytes()),
    "text/markdown": lambda path: path.read_text(encoding="utf-8"),
    "text/plain": lambda path: path.read_text(encoding="utf-8"),
}


@pytest.mark.slow
def test_each_crate_file_has_its_stated_format(finished: Project) -> None:
    graph = json.loads((finished.results / "ro-crate-metadata.json").read_bytes())["@graph"]
    formats = {unquote(entity["@id"]): entity["encodingFormat"] for entity in graph if "encodingFormat" in entity}
    assert formats["tokens/main/train/0.arrow"] == "application/vnd.apache.arrow.stream"
    for name, media_type in formats.items():
        if media_type in OPEN:
            OPEN[media_type](finished.results / name)
    unnamed = {Path(name).suffix for name, media_type in formats.items() if media_type not in OPEN}
    assert unnamed == {".safetensors", ".0"}


@pytest.mark.slow
def test_trace_connects_the_model_to_the_licenses(finished: Project) -> None:
    done = finished.call("trace", "results/micro", "models/base/final/model.safetensors")
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("pretrain.segment", "corpus.filter", "en_guide", "CC0-1.0"))
