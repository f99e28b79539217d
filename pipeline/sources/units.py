"""The files and units of a source: what lies where, what is cut into parts, whether files are as a manifest says.

Each part of a large file, or of a data set without files, is a unit of its own. A part is Parquet with one row per
record, those without a text included, and with the ids that the records have in the whole file.
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

from pipeline.core.command_lines import substitute_data_folder
from pipeline.core.errors import InputError
from pipeline.core.formatting import file_name_problem
from pipeline.core.hashing import hash_file
from pipeline.sources.byte_streams import Damage, DamagedFile
from pipeline.sources.raw_documents import RawDocument
from pipeline.sources.settings import Source

PART_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in ("number", "size")),
        *(pa.field(name, pa.string()) for name in ("text", "url", "title", "date", "holder", "original_id", "license")),
        *(pa.field(name, pa.string()) for name in ("reason", "value", "encoding_known_by")),
        pa.field("decoding_errors", pa.int64()),
    ]
)
ROWS_PER_GROUP = 1000
BYTES_PER_GROUP = 1 << 23
MAXIMUM_OPEN_PARTS = 100


def part_name(part: int) -> str:
    """Return the name of a part's file."""
    return f"{part:05d}.parquet"


def count_parts(size: int, unit_bytes: int) -> int:
    """Return how many parts a file of `size` bytes is cut into; 1 leaves it whole."""
    return max(-(-size // unit_bytes), 1)


def file_number(name: str) -> str:
    """Return the number of a file that is cut, which depends on its name alone: at most 12 digits."""
    return str(1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % (10**12 - 1))


class PartWriter:
    """Writes the parts of one file into a folder; every part exists in the end, also one without a row.

    Groups of rows of parts beyond PARTS_OPEN wait in files of their own until their part is finished.

    Args:
        raw_bytes: of the raw file, those that each part stands for; none where there is no raw file.
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
        """Add one document to a part."""
        self.documents += 1
        self.bytes += document.size
        self._rows[part].append(vars(document))
        self._sizes[part] += document.size
        if len(self._rows[part]) == ROWS_PER_GROUP or self._sizes[part] >= BYTES_PER_GROUP:
            self._flush(part)

    def finish(self, part: int) -> None:
        """Write what remains of a part to which nothing more is added."""
        self._close(part, {})

    def finish_damaged(self, damage: Damage) -> None:
        """Write all parts of a file that cannot be read whole: none has a row, and each says why."""
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
    """Return what a Parquet file says of the raw file that it is a part of, where it is one."""
    stored = (file.metadata.metadata or {}).get(b"polder")
    return dict(json.loads(stored)) if stored else {}


def count_raw_bytes(path: Path) -> int:
    """Return the bytes of the raw file that a part stands for; of a data set, which has none, its own."""
    with pq.ParquetFile(path) as file:
        return int(_read_part_metadata(file).get("raw_bytes", path.stat().st_size))


def read_part(path: Path) -> Iterator[RawDocument]:
    """Yield the documents of a part.

    Raises:
        DamagedFile: the raw file that it is a part of cannot be read whole.
        InputError: the file is no part, or damaged.
    """
    try:
        with pq.ParquetFile(path) as file:
            if damage := _read_part_metadata(file).get("damage"):
                raise DamagedFile(f"{path} is a part of a file that cannot be read whole ({damage})", damage)
            for group in range(file.num_row_groups):
                for row in file.read_row_group(group).to_pylist():
                    yield RawDocument(**row)
    except (pa.ArrowException, OSError, TypeError):
        raise InputError(f"{path} is damaged: delete its folder, so that the source is cut again") from None


def write_parts_in_order(
    folder: Path, raw_bytes: list[int], documents: Iterable[tuple[int, RawDocument]]
) -> PartWriter:
    """Write (part, document) pairs whose parts never decrease, holding one part open at a time.

    Args:
        raw_bytes: of the raw file, those that each part stands for.
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


# Where a source does not say how many units a job has. A job is billed for 24 cores or 48 on some machines: 240 units
# fill them in ten rounds or five. More than a hundred jobs of a step and source are too many for Slurm and Snakemake.
# It does not depend on the machine: with another number no unit is done again, but copies are sought again.
UNITS_PER_JOB, NODE_CORES, MAXIMUM_JOBS = 240, 48, 100
PARTS_PER_FILE = 100_000  # from which on the number of a unit is that of a file, followed by five digits of a part


def file_sizes(files: dict[str, Path]) -> dict[str, int]:
    """Return the bytes of files, by name."""
    return {name: path.stat().st_size for name, path in files.items()}


def divide_files(
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
            # The file's number and five digits of the part, so that no other file moves it.
            divided[f"{file_number(name)}{part:05d}"] = {name: parts / file_number(name) / part_name(part)}
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

    def resolve(self, path: str) -> str:
        """Return a path of this source with the folder of the data filled in."""
        return substitute_data_folder(f"source {self.source.name}", path, self._data)

    def divided_path(self) -> tuple[Path, str | None]:
        """Return the folder that the raw files lie in and the pattern of their names; none of a data set."""
        if self.source.path is None:
            return self._parts, None
        return divide_pattern(self.resolve(self.source.path))

    @cached_property
    def files(self) -> dict[str, Path]:
        """The raw files, name to path; none for a data set of the hub."""
        if self.source.path is not None:
            return list_files(self.resolve(self.source.path))
        dataset = self.source.dataset
        return list_files(f"{dataset.name}/**") if dataset is not None and dataset.is_folder() else {}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of the raw files, by name, as the run's start finds them: each is asked for many times."""
        return file_sizes(self.files)

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

    @cached_property
    def part_folders(self) -> dict[str, Path | None]:
        """By unit the folder that its file lies in where it is a part; None where it holds raw files."""
        first = {unit: next(iter(files.values())) for unit, files in self.units.items()}
        return {unit: path.parent if path.is_relative_to(self._parts) else None for unit, path in first.items()}

    @cached_property
    def units(self) -> dict[str, dict[str, Path]]:
        """The units that have files, each with its files, name to path."""
        source = self.source
        if source.dataset is not None:
            return dataset_units(source.dataset.split, source.units, self._parts)
        return divide_files(self.files, self.sizes, source.units, source.unit_bytes, self._parts)

    @cached_property
    def batches(self) -> dict[str, list[str]]:
        """The units that one job works on, by the number of the batch.

        It does not depend on other files, but for the parts of large files by the power of two above their number:
        those of one file lie together, in one of so many batches.
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
        if problem := file_name_problem(match):
            raise InputError(problem)
        files[path.relative_to(base).as_posix()] = path
    if not files:
        raise InputError(f"no file matches {pattern}: correct the path of the source, or fetch its files")
    return dict(sorted(files.items()))


def assign_unit(name: str, units: int) -> int:
    """Return the unit of a file, which depends on its name alone, so that a new file moves no other."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % units


def check_unit_files(content: dict[str, Any], files: list[Path]) -> None:
    """Raise InputError where a raw file has other bytes than when the manifest was made.

    Args:
        content: what the unit's file of the manifest says: names, sizes and hashes of the files.
        files: the raw files, or a part of one, in the order of their names.
    """
    for entry, path in zip(content["files"], files, strict=True):
        if path.stat().st_size != entry["bytes"] or hash_file(path) != entry["sha256"]:
            raise InputError(
                f"source {content['source']}, unit {content['unit']}: {path} has other bytes than the manifest "
                "describes: start snakemake again, which reads it anew"
            )
