"""What records tell of files, while the steps beside write theirs."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.core.recorded import Recorded, recorded


def write_record(folder: Path, name: str, path: str) -> None:
    outputs = [{"path": path, "sha256": "ab" * 32, "bytes": 7}]
    step = ".".join(name.split(".")[:2])
    content = {"step": step, "ended": "1970-01-01T00:00:09+00:00", "outputs": outputs}
    (folder / name).write_text(json.dumps(content))


def test_the_record_of_a_file_is_found_by_the_words_in_its_path(tmp_path: Path) -> None:
    write_record(tmp_path, "corpus.filter.main.nl.0.json", "corpus/main/filtered/nl.0.parquet")
    write_record(tmp_path, "corpus.filter.main.en.0.json", "corpus/main/filtered/en.0.parquet")
    found = recorded(tmp_path, ["corpus/main/filtered/en.0.parquet", "corpus/main/filtered/en.1.parquet"])
    assert found == {"corpus/main/filtered/en.0.parquet": Recorded("ab" * 32, 7, 9.0)}


def test_a_record_that_goes_while_the_folder_is_read_is_passed_over(tmp_path: Path) -> None:
    # Snakemake removes the record of a job that it starts: a name that leads nowhere is such a one, always.
    (tmp_path / "corpus.describe.main.json").symlink_to(tmp_path / "gone")
    write_record(tmp_path, "corpus.publish.main.json", "corpus/main/final.json")
    assert set(recorded(tmp_path, ["corpus/main/final.json"])) == {"corpus/main/final.json"}
