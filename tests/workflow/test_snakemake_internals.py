"""Data read from Snakemake's metadata."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from pathlib import Path

from pipeline.workflow.snakemake_internals import NAME_BYTES, has_metadata


def test_metadata_of_a_long_file_name_is_found(tmp_path: Path) -> None:
    name = "results/" + "long/" * 100 + "record.json"
    encoded = urlsafe_b64encode(name.encode()).decode()
    assert len(encoded) > 2 * NAME_BYTES and not has_metadata(tmp_path, name)
    folder = tmp_path / f"@{encoded[:NAME_BYTES]}" / f"@{encoded[NAME_BYTES : 2 * NAME_BYTES]}"
    folder.mkdir(parents=True)
    (folder / encoded[2 * NAME_BYTES :]).write_text("{}")
    assert has_metadata(tmp_path, name)
