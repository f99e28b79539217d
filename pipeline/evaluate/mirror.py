"""A mirror of data sets, FOLDER/NAMESPACE/DATASET, and what its mirror.json says of their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of
from pipeline.core.settings import Settings
from pipeline.evaluate.shipped import data_sets_of

LIST = "mirror.json"


class File(Settings):
    """A file of a data set."""

    bytes: int = Field(ge=0)
    sha256: str


class DataSet(Settings):
    """A data set at one revision of its repository."""

    revision: str = Field(description="the commit")
    license: str | None = Field(description="as the data set's card says")
    files: dict[str, File]


class Mirror(Settings):
    """What mirror.json holds."""

    data_sets: dict[str, DataSet] = Field(default={}, description="by NAMESPACE/DATASET, the name of their repository")


def read_mirror(folder: Path) -> Mirror:
    """Return what a mirror's list says; it is empty where there is none.

    Raises:
        InputError: when the list is not one that the command `mirror` wrote.
    """
    path = folder / LIST
    try:
        return Mirror.model_validate_json(path.read_bytes()) if path.exists() else Mirror()
    except (OSError, ValidationError):
        raise InputError(
            f"{path} is not as `python -m pipeline mirror` writes it; delete the folder {folder} and run that again"
        ) from None


def problem(folder: Path, files: dict[str, File]) -> str | None:
    """Return which file of a data set's folder is not as listed, and how; None where all are."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(found.keys() | files.keys()):
        if name not in files:
            return f"{folder / name} is not listed in {LIST}"
        if name not in found:
            return f"{folder / name} is listed in {LIST} and missing"
        size = found[name].stat().st_size
        if size != files[name].bytes or sha256_of(found[name]) != files[name].sha256:
            return f"{folder / name} is not the file that {LIST} lists: its bytes are others"
    return None


class Mirrors:
    """The mirrors of which files are given, with absolute paths; each data set that a task reads is checked once."""

    def __init__(self, given: Sequence[Path]) -> None:
        mirrors = {path.parent.parent.parent for path in given if path.name == "README.md"}
        self._folders = sorted(folder for folder in mirrors if folder / LIST in given)
        self._problems: dict[Path, str | None] = {}

    def revisions(self, task: str) -> dict[str, str]:
        """Return the revisions of the data sets that a shipped task reads, having checked the sha256 of their files.

        Data sets of a mirror without mirror.json are left out.

        Raises:
            InputError: for an unknown task, or a file that differs from its list, is missing or is not listed.
        """
        revisions: dict[str, str] = {}
        wanted = sorted({name for _, name in data_sets_of([task]) if name})
        for mirror in self._folders:
            listed = read_mirror(mirror).data_sets
            for name in wanted:
                folder, data_set = mirror / name, listed.get(name)
                if not data_set and not folder.is_dir():
                    continue  # it may be in another mirror, and where it is in none, it does not load
                if folder not in self._problems:
                    self._problems[folder] = problem(folder, data_set.files if data_set else {})
                if found := self._problems[folder]:
                    raise InputError(f"{found}; run `python -m pipeline mirror {mirror} {task}` again")
                revisions |= {name: data_set.revision} if data_set else {}
        return revisions
