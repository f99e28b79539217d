"""Lists the files of each unit of a source, for the jobs that read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.sources.settings import ListingSettings
from pipeline.sources.source_units import (
    divide_dataset_into_units,
    divide_files,
    file_sizes,
    find_files_by_glob,
    listing_sha256,
)

PARTS = Path("parts")


def run(settings: ListingSettings, *, raw: Path, listing: Path) -> dict[str, Any]:
    """Write a file UNIT.json for each unit: the names of its files, and the paths of parts.

    Args:
        raw: the folder of the raw files, to which their names are relative.

    Raises:
        InputError: no file matches the pattern, or the files changed after the run was planned.
    """
    if settings.split is not None:
        units = divide_dataset_into_units(settings.split, settings.units, PARTS)
    else:
        files = find_files_by_glob(str(raw / str(settings.pattern)))
        units = divide_files(files, file_sizes(files), settings.units, settings.unit_bytes, PARTS)
    if listing_sha256(units) != settings.listing_sha256:
        raise InputError(f"the files of {settings.source} changed while the job waited: run snakemake again")
    listing.mkdir()
    for unit, members in units.items():
        files_of_unit = [
            {"name": name, "part": path.relative_to(PARTS).as_posix() if path.is_relative_to(PARTS) else None}
            for name, path in members.items()
        ]
        content = {"unit": int(unit), "files": files_of_unit}
        (listing / f"{unit}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return {"units": len(units), "files": len({name for members in units.values() for name in members})}
