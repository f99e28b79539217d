"""Archives in a folder of results are found, except batch archives, which contain no texts."""

from __future__ import annotations

from pathlib import Path

from pipeline import layout
from pipeline.core.archived_run_files import FileStore
from pipeline.opt_out.other_runs_fingerprint import find_archives, hash_other_runs


def test_batch_archives_are_ignored_and_other_archives_are_found(tmp_path: Path) -> None:
    run = tmp_path / "old"
    record = layout.RECORD.path(run, job="corpus.filter.main.laws.0")
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    before = hash_other_runs(tmp_path, "new")["old"]
    archive = FileStore(run).archive("corpus.filter.main.laws.0", [record])
    assert archive is not None and [*find_archives(tmp_path)] == []
    others = [archive.with_name("texts.zip"), run / "corpus/x/provenance/archives" / archive.name]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(archive.read_bytes())
    texts = layout.BATCH_ARCHIVE.path(run, stamp="20260101T000000000000", process=1, job="a.b.c.0")
    texts.write_bytes(b"no ZIP file")
    assert {*find_archives(tmp_path)} == {*others, texts}
    hash_other_runs.cache_clear()
    assert hash_other_runs(tmp_path, "new")["old"] != before
