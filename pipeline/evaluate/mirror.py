"""The tasks that lm-eval ships, their data sets, and a mirror of these: FOLDER/NAMESPACE/DATASET and mirror.json."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of
from pipeline.core.settings import Settings

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager


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


def find_difference(folder: Path, files: dict[str, File]) -> str | None:
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
                    self._problems[folder] = find_difference(folder, data_set.files if data_set else {})
                if found := self._problems[folder]:
                    raise InputError(f"{found}; run `python -m pipeline mirror {mirror} {task}` again")
                revisions |= {name: data_set.revision} if data_set else {}
        return revisions


@cache
def shipped_index() -> TaskManager:
    """Return the index of what lm-eval ships: 14,683 tasks, several seconds."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def data_sets_of(names: Iterable[str]) -> set[tuple[str, str]]:
    """Return (task, NAMESPACE/DATASET) of each task that these tasks, groups and tags stand for.

    Only configurations are read. The data set is "" of a task that reads a file alone, or whose data are told by code.

    Raises:
        InputError: when lm-eval ships no task of a name.
    """
    found = set()
    for name in names:
        if name not in shipped_index().task_index:
            near = difflib.get_close_matches(name, shipped_index().all_tasks, n=1)
            advice = f"did you mean {near[0]!r}?" if near else "`lm-eval ls tasks` lists them"
            raise InputError(f"lm-eval ships no task {name!r}: {advice}")
        for task in _configurations(name):
            path = str(task.get("dataset_path", ""))
            found.add((str(task.get("task", name)), path if path.count("/") == 1 else ""))
    return found


def members_of(name: str) -> list[str]:
    """Return the names of the tasks that a task, group or tag of lm-eval stands for.

    A group that changes the tasks that it holds is its own and only member.
    """
    members = [*_members_by_name(name)]
    return [name] if None in members else [one for one in dict.fromkeys(members) if one]


def _members_by_name(member: str | dict[str, Any]) -> Iterator[str | None]:
    """Yield the names of the tasks below a name or a group that is written out; None of what has no name alone."""
    from lm_eval.config.group import GroupConfig

    index = shipped_index().task_index
    if isinstance(member, str) and (member not in index or index[member].kind.name not in ("TAG", "GROUP")):
        yield member
        return
    if isinstance(member, str) and index[member].kind.name == "TAG":
        below: list[Any] = sorted(index[member].tags)
    else:
        group: dict[str, Any] = (index[member].cfg or {}) if isinstance(member, str) else member
        structural = {field.name for field in fields(GroupConfig)}
        below = group["task"] if group.keys() <= structural and "group" in group else [None]
    for one in [below] if isinstance(below, str) else below:
        yield from [None] if one is None else _members_by_name(one)


def _configurations(name: str) -> Iterator[dict[str, Any]]:
    index = shipped_index().task_index
    entry = index[name]
    if entry.kind.name == "TAG":
        for task in sorted(entry.tags):
            yield from _configurations(task)
    elif entry.kind.name == "GROUP":
        yield from _members(entry.cfg or {})
    else:
        yield entry.cfg or {}


def _members(group: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the configurations of a group's tasks: each names one, or a group, or is itself a group or a task."""
    for member in group["task"]:
        keys: dict[str, Any] = {"task": member} if isinstance(member, str) else member
        name = str(keys.get("group", keys.get("task")))
        if name in shipped_index().task_index:
            yield from _configurations(name)
        elif "group" in keys:
            yield from _members(keys)
        else:
            yield keys
