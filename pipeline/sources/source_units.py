"""Lists the files of a source, divides them into units, splits large files into parts, and checks files.

Each part of a large file, or of a data set without files, is its own unit. A part is a Parquet file with one row per
record, including records without text, with the ids of the complete file.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.display_text import file_name_problem
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_command_lines import format_search_folder, substitute_data_folder
from pipeline.sources.decompression import Damage, DamagedFile
from pipeline.sources.raw_documents import RawDocument
from pipeline.sources.settings import Source

PART_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in ("number", "size")),
        *(pa.field(name, pa.string()) for name in ("text", "url", "title", "date", "holder", "original_id", "license")),
        pa.field("language", pa.string()),
        *(pa.field(name, pa.string()) for name in ("reason", "value", "encoding_known_by")),
        pa.field("decoding_errors", pa.int64()),
        pa.field("reservation", pa.string()),
    ]
)
ROWS_PER_GROUP = 1000
BYTES_PER_GROUP = 1 << 23
MAXIMUM_OPEN_PARTS = 100


def part_name(part: int) -> str:
    return f"{part:05d}.parquet"


def count_file_parts(size: int, unit_bytes: int) -> int:
    """Return the number of parts of a file of `size` bytes; 1 does not split it."""
    return max(-(-size // unit_bytes), 1)


def stable_file_number(name: str) -> str:
    """Return the number of a split file, at most 12 digits, which depends only on its name."""
    return str(1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % (10**12 - 1))


class PartWriter:
    """Writes the parts of one file into a folder, including parts without rows.

    Row groups of parts beyond MAXIMUM_OPEN_PARTS go to temporary files until their part is finished.

    Args:
        raw_bytes: the bytes of the raw file that each part covers; None without a raw file.
    """

    def __init__(self, folder: Path, parts: int, raw_bytes: list[int] | None = None) -> None:
        self.documents = 0
        self.bytes = 0
        self._folder = folder
        self._raw_bytes = raw_bytes
        self._rows: dict[int, list[dict[str, Any]]] = {part: [] for part in range(parts)}
        self._sizes = dict.fromkeys(self._rows, 0)
        self._writers: dict[int, pq.ParquetWriter] = {}
        self._waiting: dict[int, list[Path]] = {}

    def write(self, part: int, document: RawDocument) -> None:
        self.documents += 1
        self.bytes += document.size
        self._rows[part].append(vars(document))
        self._sizes[part] += document.size
        if len(self._rows[part]) == ROWS_PER_GROUP or self._sizes[part] >= BYTES_PER_GROUP:
            self._flush(part)

    def finish(self, part: int) -> None:
        """Write the remaining rows of a part and close it."""
        self._close(part, {})

    def finish_damaged(self, damage: Damage) -> None:
        """Write all parts of a damaged file without rows, with the damage in their metadata."""
        for part in self._rows:
            self._close(part, {"damage": damage})

    def _close(self, part: int, described: dict[str, Any]) -> None:
        self._flush(part)
        with self._writers.pop(part, None) or self._open(part) as writer:
            for path in self._waiting.pop(part, []):
                writer.write_table(pq.read_table(path))
                path.unlink()
            if self._raw_bytes is not None:
                stored = {"raw_bytes": self._raw_bytes[part], **described}
                writer.add_key_value_metadata({"polder": json.dumps(stored)})

    def _open(self, part: int) -> pq.ParquetWriter:
        return pq.ParquetWriter(self._folder / part_name(part), PART_SCHEMA, compression="zstd")

    def _flush(self, part: int) -> None:
        if self._rows[part]:
            rows = pa.Table.from_pylist(self._rows[part], schema=PART_SCHEMA)
            if not (part in self._writers or part in self._waiting) and len(self._writers) < MAXIMUM_OPEN_PARTS:
                self._writers[part] = self._open(part)
            if part in self._writers:
                self._writers[part].write_table(rows)
            else:
                waiting = self._waiting.setdefault(part, [])
                waiting.append(self._folder / f"{part}.{len(waiting)}")
                pq.write_table(rows, waiting[-1], compression="zstd")
        self._rows[part], self._sizes[part] = [], 0


def _read_part_metadata(file: pq.ParquetFile) -> dict[str, Any]:
    stored = (file.metadata.metadata or {}).get(b"polder")
    return dict(json.loads(stored)) if stored else {}


def count_raw_bytes(path: Path) -> int:
    """Return the bytes of the raw file that a part covers; for a part of a data set, its own size."""
    with pq.ParquetFile(path) as file:
        return int(_read_part_metadata(file).get("raw_bytes", path.stat().st_size))


def read_part(path: Path) -> Iterator[RawDocument]:
    """Yield the documents of a part.

    Raises:
        DamagedFile: its raw file is truncated or damaged.
        InputError: the file is no part, or is damaged.
    """
    try:
        with pq.ParquetFile(path) as file:
            if damage := _read_part_metadata(file).get("damage"):
                raise DamagedFile(f"{path} is a part of a truncated or damaged file ({damage})", damage)
            for group in range(file.num_row_groups):
                for row in file.read_row_group(group).to_pylist():
                    yield RawDocument(**row)
    except (pa.ArrowException, OSError, TypeError):
        raise InputError(f"{path} is damaged: delete its folder, so that the source is split again") from None


def write_sorted_documents_to_parts(
    folder: Path, raw_bytes: list[int], documents: Iterable[tuple[int, RawDocument]]
) -> PartWriter:
    """Write (part, document) pairs in ascending order of parts, with one open part at a time.

    Args:
        raw_bytes: the bytes of the raw file that each part covers.
    """
    writer = PartWriter(folder, len(raw_bytes), raw_bytes)
    current = 0
    for part, document in documents:
        for before in range(current, part):
            writer.finish(before)
        current = part
        writer.write(part, document)
    for part in range(current, len(raw_bytes)):
        writer.finish(part)
    return writer


# The default number of units per job. Some clusters bill 24 or 48 cores per job; 240 units fill them in ten or five
# rounds. More than a hundred jobs per step and source are too many for Slurm and Snakemake. The number does not depend
# on the machine: with another number no unit is processed again, but duplicates are searched again.
UNITS_PER_JOB, NODE_CORES, MAXIMUM_JOBS = 240, 48, 100
PARTS_PER_FILE = 100_000  # a larger unit number is the number of a file followed by five digits of a part


def file_sizes(files: dict[str, Path]) -> dict[str, int]:
    """Return the sizes of files in bytes, by name."""
    return {name: path.stat().st_size for name, path in files.items()}


def divide_files(
    files: dict[str, Path], sizes: dict[str, int], units: int, unit_bytes: int, parts: Path
) -> dict[str, dict[str, Path]]:
    """Return the nonempty units, each with its files, name to path; a part of a large file is its own unit.

    Args:
        files: raw files, name to path.
        sizes: their sizes in bytes.
        parts: the folder of the parts of split files.
    """
    divided: dict[str, dict[str, Path]] = {}
    for name, path in files.items():
        if (count := count_file_parts(sizes[name], unit_bytes)) == 1:
            divided.setdefault(str(assign_unit(name, units)), {})[name] = path
        for part in range(count) if count > 1 else ():
            # The file's number and five digits of the part, so that no other file moves it.
            divided[f"{stable_file_number(name)}{part:05d}"] = {
                name: parts / stable_file_number(name) / part_name(part)
            }
    return dict(sorted(divided.items(), key=lambda item: int(item[0])))


def divide_dataset_into_units(split: str, units: int, parts: Path) -> dict[str, dict[str, Path]]:
    """Return the units of a data set, each with one part, by name and path."""
    return {str(unit): {split: parts / "dataset" / part_name(unit)} for unit in range(units)}


def listing_sha256(units: dict[str, dict[str, Path]]) -> str:
    """Return one hash of the names of each unit's files."""
    return hashlib.sha256(json.dumps([[unit, [*files]] for unit, files in units.items()]).encode()).hexdigest()


class SourceUnits:
    """The files, units and batches of one source, listed once.

    Args:
        data: the folder for `{data}` in a path.
        parts: the folder of the parts of split files.
    """

    def __init__(self, source: Source, data: str | None, parts: Path) -> None:
        self.source = source
        self._data = data
        self._parts = parts

    def resolve_path(self, path: str) -> str:
        """Return a path of this source with `{data}` replaced."""
        return substitute_data_folder(f"source {self.source.name}", path, self._data)

    def folder_and_pattern(self) -> tuple[Path, str | None]:
        """Return the folder of the raw files and the pattern of their names, which is None for a data set."""
        if self.source.path is None:
            return self._parts, None
        return split_glob_pattern(self.resolve_path(self.source.path))

    @cached_property
    def files(self) -> dict[str, Path]:
        """The raw files, name to path; empty for a data set of the hub."""
        dataset = self.source.dataset
        if self.source.path is not None:
            pattern = self.resolve_path(self.source.path)
        elif dataset is not None and dataset.is_folder():
            pattern = f"{dataset.name}/**"
        else:
            return {}
        try:
            return find_files_by_glob(pattern)
        except InputError as error:
            raise InputError(f"source {self.source.name}: {error}") from None

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Sizes of the raw files in bytes, by name, cached at the start of the run."""
        return file_sizes(self.files)

    @cached_property
    def large_files(self) -> dict[str, tuple[str, int]]:
        """The split files: number to (name, parts)."""
        large: dict[str, tuple[str, int]] = {}
        for name, size in self.sizes.items() if self.source.dataset is None else ():
            if (parts := count_file_parts(size, self.source.unit_bytes)) > 1:
                if (number := stable_file_number(name)) in large:
                    raise InputError(
                        f"source {self.source.name}: {name} and {large[number][0]} get the same number: rename one"
                    )
                large[number] = name, parts
        return large

    @cached_property
    def part_folders(self) -> dict[str, Path | None]:
        """The folder of each unit that is a part; None for a unit of raw files."""
        first = {unit: next(iter(files.values())) for unit, files in self.units.items()}
        return {unit: path.parent if path.is_relative_to(self._parts) else None for unit, path in first.items()}

    @cached_property
    def units(self) -> dict[str, dict[str, Path]]:
        """The nonempty units, each with its files, name to path."""
        source = self.source
        if source.dataset is not None:
            return divide_dataset_into_units(source.dataset.split, source.units, self._parts)
        return divide_files(self.files, self.sizes, source.units, source.unit_bytes, self._parts)

    @cached_property
    def batches(self) -> dict[str, list[str]]:
        """The units of each job, by batch number.

        The batch of a unit does not depend on other files. Only the number of batches for parts of large files is the
        power of two above the number of parts; all parts of one file are in one batch.
        """
        units = max(len(self.units), self.source.units)
        usual = max(UNITS_PER_JOB, -(-units // MAXIMUM_JOBS // NODE_CORES) * NODE_CORES)
        units_per_job = self.source.units_per_job or usual
        numbers = [int(unit) for unit in self.units]
        of_parts = -(-sum(number >= PARTS_PER_FILE for number in numbers) // units_per_job)
        batches: dict[str, list[str]] = {}
        for unit, number in zip(self.units, numbers, strict=True):
            file, _ = divmod(number, PARTS_PER_FILE)
            batch = PARTS_PER_FILE + file % (1 << (of_parts - 1).bit_length()) if file else number // units_per_job
            batches.setdefault(str(batch), []).append(unit)
        return batches


def split_glob_pattern(pattern: str) -> tuple[Path, str]:
    """Return the last folder of a glob pattern without wildcard, and the rest of the pattern."""
    parts = Path(pattern).parts
    literal = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return Path(*parts[:literal]), "/".join(parts[literal:])


def find_files_by_glob(pattern: str) -> dict[str, Path]:
    """Return the files that match a glob, name to path, sorted by name.

    A name is the path relative to the last folder of the pattern without wildcard, with forward slashes, so that it is
    the same on every machine.

    Raises:
        InputError: nothing matches, a match is a dangling link, or a name has characters that rules cannot handle or
            is no UTF-8.
    """
    base, _ = split_glob_pattern(pattern)
    files = {}
    for match in glob.glob(pattern, recursive=True):
        path = Path(match)
        if path.is_dir():
            continue
        if not path.exists():
            raise InputError(f"{path} is a link to a file that is missing: restore the file or remove the link")
        if any(sign in match for sign in "{}\n"):
            raise InputError(f"{match!r}: a raw file's name must not contain braces or line breaks: rename the file")
        if problem := file_name_problem(match):
            raise InputError(problem)
        files[path.relative_to(base).as_posix()] = path
    if not files:
        raise InputError(
            f"no file matches {pattern}{format_search_folder(pattern)}: correct the path of the source, "
            "or fetch its files"
        )
    return dict(sorted(files.items()))


def assign_unit(name: str, units: int) -> int:
    """Return the unit of a file, which depends only on its name, so that a new file moves no other."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % units


def check_unit_files(content: dict[str, Any], files: list[Path]) -> None:
    """Raise InputError if the bytes of a raw file differ from the manifest.

    Args:
        content: the unit's entry of the manifest: names, sizes and hashes of its files.
        files: the raw files, or a part of one, sorted by name.
    """
    for entry, path in zip(content["files"], files, strict=True):
        if path.stat().st_size != entry["bytes"] or hash_file(path) != entry["sha256"]:
            raise InputError(
                f"source {content['source']}, unit {content['unit']}: {path} has other bytes than the manifest "
                "describes: run snakemake again to read it again"
            )
