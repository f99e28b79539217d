"""The files and units of a source, as a run's rules need them: what lies where, and what is cut into parts."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from pipeline.errors import InputError
from pipeline.sources.listing import assign_unit, list_files
from pipeline.sources.parts import count_parts, file_number, part_name, part_unit
from pipeline.sources.settings import Source


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
        if "{data}" in path and self._data is None:
            raise InputError(f"source {self.source.name}: its path {path} needs the folder: add --config data=FOLDER")
        return path.replace("{data}", self._data or "")

    @cached_property
    def files(self) -> dict[str, Path]:
        """The raw files, name to path; none for a data set of the hub."""
        if self.source.path is not None:
            return list_files(self.place(self.source.path))
        dataset = self.source.dataset
        return list_files(f"{dataset.name}/**") if dataset is not None and dataset.is_folder() else {}

    @cached_property
    def large_files(self) -> dict[str, tuple[str, int]]:
        """Number to (name, parts) of the files that are cut into parts."""
        large: dict[str, tuple[str, int]] = {}
        for name, path in self.files.items() if self.source.dataset is None else ():
            if (parts := count_parts(path.stat().st_size, self.source.unit_bytes)) > 1:
                if (number := file_number(name)) in large:
                    raise InputError(
                        f"source {self.source.name}: {name} and {large[number][0]} get the same number: rename one"
                    )
                large[number] = name, parts
        return large

    def parts(self, number: str) -> Path:
        """Return the folder of the parts of a large file, or, of the number `dataset`, of a data set."""
        return self._parts / number

    def parts_of(self, unit: str) -> Path | None:
        """Return the folder that a unit's file lies in where it is a part; None where it holds raw files."""
        if self.source.dataset is not None:
            return self.parts("dataset")
        return next(iter(self.units[unit].values())).parent if int(unit) >= self.source.units else None

    @cached_property
    def units(self) -> dict[str, dict[str, Path]]:
        """The units that have files, each with its files, name to path; a part is a unit of its own."""
        source = self.source
        if source.dataset is not None:
            folder = self.parts("dataset")
            return {str(unit): {source.dataset.split: folder / part_name(unit)} for unit in range(source.units)}
        units: dict[str, dict[str, Path]] = {}
        for number, (name, parts) in self.large_files.items():
            for part in range(parts):
                units[part_unit(name, part)] = {name: self.parts(number) / part_name(part)}
        cut = {name for name, _ in self.large_files.values()}
        for name, path in self.files.items():
            if name not in cut:
                units.setdefault(str(assign_unit(name, source.units)), {})[name] = path
        return dict(sorted(units.items(), key=lambda item: int(item[0])))
