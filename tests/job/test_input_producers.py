"""The record of an input is found by its path, and only matching ones are read."""

from __future__ import annotations

from pathlib import Path

from pipeline import layout
from pipeline.job.input_producers import find_producers
from tests.core.test_job_records import write_record


def test_producer_record_is_found_by_the_wildcards_in_a_path(tmp_path: Path) -> None:
    for source in ("nl", "en"):
        outputs = [{"path": f"corpus/main/filtered/{source}.0.parquet"}]
        write_record(tmp_path, f"corpus.filter.main.{source}.0", outputs=outputs)
    producers = find_producers(tmp_path, ["corpus/main/filtered/en.0.parquet", "corpus/main/filtered/en.1.parquet"])
    ((path, (record, output)),) = producers.items()
    assert path == output.path == "corpus/main/filtered/en.0.parquet" and record.name == "corpus.filter.main.en.0"


def test_record_deleted_during_the_listing_is_skipped(tmp_path: Path) -> None:
    # Snakemake removes the record of a job that it starts: a dangling link always looks like that.
    folder = tmp_path / layout.RECORDS
    write_record(tmp_path, "corpus.publish.main", outputs=[{"path": "corpus/main/final.json"}])
    (folder / "corpus.describe.main.json").symlink_to(tmp_path / "gone")
    assert set(find_producers(tmp_path, ["corpus/main/final.json"])) == {"corpus/main/final.json"}
