"""The files and units of a source: what lies where, what is cut into parts, whether files are as a manifest says."""

from __future__ import annotations

import glob
import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.formatting import name_problem
from pipeline.core.hashing import sha256_of
from pipeline.core.paths import with_data
from pipeline.sources.parts import count_parts, file_number, part_name, part_unit
from pipeline.sources.settings import Source

# Where a source does not say how many units a job has. A job is billed for 24 cores or 48 on some machines: 240 units
# fill them in ten rounds or five. More than a hundred jobs of a step and source are too many for Slurm and Snakemake.
# It does not depend on the machine: with another number no unit is done again, but copies are sought again.
UNITS_PER_JOB, WHOLE, MOST_JOBS = 240, 48, 100
PARTS = 100_000  # from which on the number of a unit is that of a file, followed by five digits of a part


def sizes_of(files: dict[str, Path]) -> dict[str, int]:
    """Return the bytes of files, by name."""
    return {name: path.stat().st_size for name, path in files.items()}


def divide(
    files: dict[str, Path], sizes: dict[str, int], units: int, unit_bytes: int, parts: Path
) -> dict[str, dict[str, Path]]:
    """Return the units that have files, each with its files, name to path; a part of a large file is its own unit.

    Args:
        files: name to path of the raw files.
        sizes: their bytes.
        parts: the folder in which the parts of what is cut lie.
    """
    divided: dict[str, dict[str, Path]] = {}
    for name, path in files.items():
        if (count := count_parts(sizes[name], unit_bytes)) == 1:
            divided.setdefault(str(assign_unit(name, units)), {})[name] = path
        for part in range(count) if count > 1 else ():
            divided[part_unit(name, part)] = {name: parts / file_number(name) / part_name(part)}
    return dict(sorted(divided.items(), key=lambda item: int(item[0])))


def dataset_units(split: str, units: int, parts: Path) -> dict[str, dict[str, Path]]:
    """Return the units of a data set, each with one part, name to path."""
    return {str(unit): {split: parts / "dataset" / part_name(unit)} for unit in range(units)}


def listing_sha256(units: dict[str, dict[str, Path]]) -> str:
    """Return one hash of the names of each unit's files."""
    return hashlib.sha256(json.dumps([[unit, [*files]] for unit, files in units.items()]).encode()).hexdigest()


class SourceUnits:
    """Lists the files of one source once.

    Args:
        data: the folder that `{data}` in a path stands for.
        parts: the folder in which the parts of what is cut lie.
    """

    def __init__(self, source: Source, data: str | None, parts: Path) -> None:
        self.source = source
        self._data = data
        self._parts = parts

    def place(self, path: str) -> str:
        """Return a path of this source with the folder of the data filled in."""
        return with_data(f"source {self.source.name}", path, self._data)

    def divided_path(self) -> tuple[Path, str | None]:
        """Return the folder that the raw files lie in and the pattern of their names; none of a data set."""
        if self.source.path is None:
            return self._parts, None
        return divide_pattern(self.place(self.source.path))

    @cached_property
    def files(self) -> dict[str, Path]:
        """The raw files, name to path; none for a data set of the hub."""
        if self.source.path is not None:
            return list_files(self.place(self.source.path))
        dataset = self.source.dataset
        return list_files(f"{dataset.name}/**") if dataset is not None and dataset.is_folder() else {}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of the raw files, by name, as the run's start finds them: each is asked for many times."""
        return sizes_of(self.files)

    @cached_property
    def large_files(self) -> dict[str, tuple[str, int]]:
        """Number to (name, parts) of the files that are cut into parts."""
        large: dict[str, tuple[str, int]] = {}
        for name, size in self.sizes.items() if self.source.dataset is None else ():
            if (parts := count_parts(size, self.source.unit_bytes)) > 1:
                if (number := file_number(name)) in large:
                    raise InputError(
                        f"source {self.source.name}: {name} and {large[number][0]} get the same number: rename one"
                    )
                large[number] = name, parts
        return large

    def parts_of(self, unit: str) -> Path | None:
        """Return the folder that a unit's file lies in where it is a part; None where it holds raw files."""
        return self._folders[unit]

    @cached_property
    def _folders(self) -> dict[str, Path | None]:
        first = {unit: next(iter(files.values())) for unit, files in self.units.items()}
        return {unit: path.parent if path.is_relative_to(self._parts) else None for unit, path in first.items()}

    @cached_property
    def units(self) -> dict[str, dict[str, Path]]:
        """The units that have files, each with its files, name to path."""
        source = self.source
        if source.dataset is not None:
            return dataset_units(source.dataset.split, source.units, self._parts)
        return divide(self.files, self.sizes, source.units, source.unit_bytes, self._parts)

    @cached_property
    def batches(self) -> dict[str, list[str]]:
        """The units that one job works on, by the number of the batch.

        It does not depend on other files, but for the parts of large files by the power of two above their number:
        those of one file lie together, in one of so many batches.
        """
        units = max(len(self.units), self.source.units)
        usual = max(UNITS_PER_JOB, -(-units // MOST_JOBS // WHOLE) * WHOLE)
        units_per_job = self.source.units_per_job or usual
        numbers = [int(unit) for unit in self.units]
        of_parts = -(-sum(number >= PARTS for number in numbers) // units_per_job)
        batches: dict[str, list[str]] = {}
        for unit, number in zip(self.units, numbers, strict=True):
            file, _ = divmod(number, PARTS)
            batch = PARTS + file % (1 << (of_parts - 1).bit_length()) if file else number // units_per_job
            batches.setdefault(str(batch), []).append(unit)
        return batches


def divide_pattern(pattern: str) -> tuple[Path, str]:
    """Return the last folder of a glob's path that holds no wildcard, and what follows it."""
    parts = Path(pattern).parts
    literal = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return Path(*parts[:literal]), "/".join(parts[literal:])


def list_files(pattern: str) -> dict[str, Path]:
    """Return the files that a glob matches, by name, sorted by name.

    A name is the path relative to the last folder of the pattern that holds no wildcard, with forward slashes, so that
    it is the same on every machine.

    Raises:
        InputError: nothing matches, a match is a dangling link, its name would have a meaning in a rule or is no UTF-8.
    """
    base, _ = divide_pattern(pattern)
    files = {}
    for match in glob.glob(pattern, recursive=True):
        path = Path(match)
        if path.is_dir():
            continue
        if not path.exists():
            raise InputError(f"{path} is a link to a file that is missing: restore the file or remove the link")
        if any(sign in match for sign in "{}\n"):
            raise InputError(f"{match!r}: a raw file's name may hold no brace and no line break: rename the file")
        if problem := name_problem(match):
            raise InputError(problem)
        files[path.relative_to(base).as_posix()] = path
    if not files:
        raise InputError(f"no file matches {pattern}: correct the path of the source, or fetch its files")
    return dict(sorted(files.items()))


def assign_unit(name: str, units: int) -> int:
    """Return the unit of a file, which depends on its name alone, so that a new file moves no other."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % units


def refuse_other_files(content: dict[str, Any], files: list[Path]) -> None:
    """Raise InputError where a raw file has other bytes than when the manifest was made.

    Args:
        content: what the unit's file of the manifest says: names, sizes and hashes of the files.
        files: the raw files, or a part of one, in the order of their names.
    """
    for entry, path in zip(content["files"], files, strict=True):
        if path.stat().st_size != entry["bytes"] or sha256_of(path) != entry["sha256"]:
            raise InputError(
                f"source {content['source']}, unit {content['unit']}: {path} has other bytes than the manifest "
                "describes: start snakemake again, which reads it anew"
            )
