"""The tasks that lm-eval ships: their index, and which data sets they read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InputError

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager


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
