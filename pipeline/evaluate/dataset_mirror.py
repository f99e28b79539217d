"""The tasks that lm-eval ships, and the mirror of their data sets that `polder mirror` downloads."""

from __future__ import annotations

import difflib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import Field, ValidationError

from pipeline.core.errors import InputError
from pipeline.core.full_disk_errors import is_disk_full
from pipeline.core.hashing import hash_file
from pipeline.core.settings import Settings
from pipeline.evaluate.settings import KNOWN_SUITES, Suite, SuiteSettings
from pipeline.evaluate.task_file_reader import (
    CARD,
    MIRROR_LIST,
    format_mirror_command_arguments,
    list_suite_task_files,
    read_data_set_name,
    read_task_config,
)

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager
if TYPE_CHECKING:
    from huggingface_hub import DatasetInfo


class MirroredFile(Settings):
    bytes: int = Field(ge=0)
    sha256: str


class MirroredDataSet(Settings):
    """A data set at one revision of its repository."""

    revision: str = Field(description="the commit")
    license: str | None = Field(description="as the data set's card says")
    files: dict[str, MirroredFile]


class Mirror(Settings):
    data_sets: dict[str, MirroredDataSet] = Field(
        default={}, description="by NAMESPACE/DATASET, the name of their repository"
    )


def read_mirror_list(folder: Path) -> Mirror:
    """Read a mirror's list; it is empty if there is none.

    Raises:
        InputError: when the list is not one that the command `mirror` wrote.
    """
    path = folder / MIRROR_LIST
    try:
        return Mirror.model_validate_json(path.read_bytes()) if path.exists() else Mirror()
    except (OSError, ValidationError):
        raise InputError(
            f"{path} was not written by `polder mirror`; delete the folder {folder} and run that again"
        ) from None


def find_altered_file(folder: Path, files: dict[str, MirroredFile]) -> str | None:
    """Return a sentence on the first file of a data set's folder that differs from the list; None without any."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(paths.keys() | files.keys()):
        if name not in files:
            return f"{folder / name} is not listed in {MIRROR_LIST}"
        if name not in paths:
            return f"{folder / name} is listed in {MIRROR_LIST} and missing"
        size = paths[name].stat().st_size
        if size != files[name].bytes or hash_file(paths[name]) != files[name].sha256:
            return f"{folder / name} is not the file that {MIRROR_LIST} lists: its bytes differ"
    return None


class MirrorFolders:
    """The mirrors of the given absolute files; each data set that a task reads is checked once."""

    def __init__(self, given: Sequence[Path]) -> None:
        mirrors = {path.parent.parent.parent for path in given if path.name == CARD}
        self._folders = sorted(folder for folder in mirrors if folder / MIRROR_LIST in given)
        self._problems: dict[Path, str | None] = {}

    def verify_data_sets(self, task: str, data_sets: Iterable[str], suite: SuiteSettings) -> dict[str, str]:
        """Check the sha256 of the data sets that a task of a suite reads; return their revisions.

        Data sets of a mirror without mirror.json are left out.

        Raises:
            InputError: for a file that differs from its list, is missing or is not listed.
        """
        revisions: dict[str, str] = {}
        wanted = sorted(data_sets)
        for mirror in self._folders:
            listed = read_mirror_list(mirror).data_sets
            for name in wanted:
                folder, data_set = mirror / name, listed.get(name)
                if not data_set and not folder.is_dir():
                    continue  # it may be in another mirror, else it does not load
                if folder not in self._problems:
                    self._problems[folder] = find_altered_file(folder, data_set.files if data_set else {})
                if problem := self._problems[folder]:
                    words = format_mirror_command_arguments(suite) if suite.folder else task
                    raise InputError(f"{problem}; run `polder mirror {mirror} {words}` again")
                revisions |= {name: data_set.revision} if data_set else {}
        return revisions


@cache
def load_lm_eval_task_index() -> TaskManager:
    """Load the index of lm-eval's 14,683 shipped tasks, which takes several seconds."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def find_data_sets(names: Iterable[str | Suite]) -> set[tuple[str, str]]:
    """Return (task, NAMESPACE/DATASET) of each task in these tasks, groups, tags, known suites and suites.

    Only configurations are read. The data set is "" for a task that reads only a file, or chooses its data by code.

    Raises:
        InputError: when lm-eval ships no task of a name.
    """
    data_sets = set()
    for name in names:
        if isinstance(name, Suite):
            data_sets |= find_suite_data_sets(name)
            continue
        if name in KNOWN_SUITES:
            data_sets |= find_suite_data_sets(KNOWN_SUITES[name])
            continue
        if name not in load_lm_eval_task_index().task_index:
            near = difflib.get_close_matches(name, load_lm_eval_task_index().all_tasks, n=1)
            advice = f"did you mean {near[0]!r}?" if near else "`lm-eval ls tasks` lists them"
            raise InputError(f"lm-eval ships no task {name!r}: {advice}")
        for _, task in _expand_task(name):
            path = str(task.get("dataset_path", ""))
            data_sets.add((str(task.get("task", name)), path if path.count("/") == 1 else ""))
    return data_sets


def find_suite_data_sets(suite: Suite) -> set[tuple[str, str]]:
    """Return (task, NAMESPACE/DATASET) of each task of a suite whose data a mirror holds.

    Raises:
        InputError: its folder has no task file.
    """
    if suite.folder is None:
        return find_data_sets(suite.tasks)
    files = list_suite_task_files(suite, suite.folder)
    return {(file.stem, name) for file in files if (name := read_data_set_name(read_task_config(file)))}


def list_group_members(name: str) -> list[str]:
    """Return the names of the tasks in a task, group or tag of lm-eval.

    A group that changes its tasks is its own and only member.
    """
    members = [member for member, _ in _expand_task(name)]
    return [name] if None in members else [one for one in dict.fromkeys(members) if one]


def _expand_task(member: str | dict[str, Any], is_own: bool = True) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield the name and the configuration of each task in a name or an inline group.

    The name is None for a task that the member or a group changes.
    """
    from lm_eval.config.group import GroupConfig

    inline: dict[str, Any] = {"task": member} if isinstance(member, str) else member
    structural = {field.name for field in fields(GroupConfig)}
    is_own &= isinstance(member, str) or ("group" in inline and inline.keys() <= structural)
    name = str(inline.get("group", inline.get("task")))
    has_members = inline.keys() >= {"group", "task"}
    entry = None if has_members else load_lm_eval_task_index().task_index.get(name)
    kind = entry.kind.name if entry else "GROUP" if "group" in inline else "TASK"
    keys = (entry.cfg or {}) if entry else inline
    if entry and kind == "TAG":
        below: list[Any] = sorted(entry.tags)
    elif kind == "GROUP":
        is_own &= "group" in keys and keys.keys() <= structural
        below = [keys["task"]] if isinstance(keys["task"], str) else keys["task"]
    else:
        yield name if is_own else None, keys
        return
    for one in below:
        yield from _expand_task(one, is_own)


# Files that are only data: no script, no pickle, and no archive that may contain one.
DATA_PATTERNS = ("*.parquet", *(f"*.{kind}{end}" for kind in ("json", "jsonl", "csv", "tsv") for end in ("", ".gz")))


def mirror_data_sets(folder: Path, tasks: Iterable[str | Suite], revisions: Mapping[str, str]) -> None:
    """Copy the data sets that shipped tasks read into a folder, and list their files in its mirror.json.

    A listed data set keeps its revision, and is copied only if its files differ from the list. Downloads are in
    FOLDER.partial until they are complete and match the hub's hashes; the next call resumes them.

    Args:
        folder: the mirror; it is created if necessary.
        tasks: suites, or names of known suites, tasks, groups and tags that lm-eval ships.
        revisions: a commit, tag or branch by data set; others have the listed or the newest revision.

    Raises:
        InputError: for an unknown task, one whose data set cannot be mirrored, or a data set that is not available.
    """
    folder = folder.resolve()
    mirror = read_mirror_list(folder)
    for name in _required_data_sets(tasks, revisions):
        listed = mirror.data_sets.get(name)
        if listed is None and (folder / name).exists():
            raise InputError(f"{folder / name} is not listed in {MIRROR_LIST}: move it away, and it is downloaded")
        whole = listed.revision if listed and find_altered_file(folder / name, listed.files) is None else None
        asked = revisions.get(name, listed.revision if listed else None)
        info = None if whole and whole == asked else _query_hub(name, asked)
        if info is None or info.sha == whole:
            print(f"{name}: is there at revision {whole}", flush=True)
            continue
        begun = folder.with_name(f"{folder.name}.partial") / name
        downloaded = _download(info, begun)
        data_set = _describe_data_set(downloaded, str(info.sha))
        mirror = Mirror(data_sets={**mirror.data_sets, name: data_set})
        # Write the list first: after a kill anywhere, the next call copies data sets that differ from it.
        _write_mirror_list(folder, mirror)
        if (folder / name).exists():
            shutil.rmtree(folder / name)
        (folder / name).parent.mkdir(exist_ok=True)
        os.rename(downloaded, folder / name)
        shutil.rmtree(begun)
        print(f"{name}: revision {data_set.revision}, license {data_set.license or 'not stated'}", flush=True)
    shutil.rmtree(folder.with_name(f"{folder.name}.partial"), ignore_errors=True)


def _required_data_sets(tasks: Iterable[str | Suite], revisions: Mapping[str, str]) -> list[str]:
    wanted = set()
    for task, name in sorted(find_data_sets(tasks)):
        if not name:
            raise InputError(
                f"the task {task} names no data set NAMESPACE/DATASET in its configuration, so that none can be "
                "mirrored for it; leave the task out"
            )
        wanted.add(name)
    if not wanted:
        raise InputError(
            "there is no task to mirror data for: name some with data on a hub, or a --configuration whose suites do"
        )
    for name in revisions:
        if name not in wanted:
            raise InputError(f"--revision: no task reads {name!r}, but {', '.join(sorted(wanted))}; name one of these")
    return sorted(wanted)


def _query_hub(name: str, revision: str | None) -> DatasetInfo:
    """Query the hub for a data set at a revision, with its commit and files."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi

    try:
        info = HfApi().dataset_info(name, revision=revision, files_metadata=True)
    except (OSError, ValueError, HTTPError) as error:
        raise _download_error(name, error) from None
    files = {file.rfilename for file in info.siblings or ()}
    if f"{name.rpartition('/')[2]}.py" in files:
        raise InputError(
            f"the data set {name} is a loading script, which is code and not data; leave out the tasks that read it, "
            "or name with --revision a commit at which it is files"
        )
    if CARD not in files or not any(_is_data_file(file) for file in files):
        raise InputError(
            f"the data set {name} needs {CARD} and files of {', '.join(DATA_PATTERNS)}, and its hub has {len(files)} "
            "other files; leave out the tasks that read it"
        )
    return info


def _is_data_file(file: str) -> bool:
    return any(fnmatch(file, pattern) for pattern in DATA_PATTERNS)


def _download(info: DatasetInfo, begun: Path) -> Path:
    """Download a data set and verify the hub's hashes; return its folder."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi, snapshot_download

    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    taken = {file for file in sizes if file == CARD or _is_data_file(file)}
    left_out = f", {len(sizes) - len(taken)} others left out" if len(sizes) > len(taken) else ""
    print(f"{info.id}: {len(taken)} files, {sum(sizes[file] for file in taken):,} bytes{left_out}", flush=True)
    revision, folder = str(info.sha), begun / str(info.sha)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        snapshot_download(
            info.id, repo_type="dataset", revision=revision, local_dir=folder, allow_patterns=[CARD, *DATA_PATTERNS]
        )
        said = HfApi().verify_repo_checksums(info.id, repo_type="dataset", revision=revision, local_dir=folder)
    except (OSError, ValueError, RuntimeError, HTTPError) as error:
        if is_disk_full(error):
            raise
        raise _download_error(info.id, error) from None
    wrong = sorted({mismatch["path"] for mismatch in said.mismatches} | taken & {*said.missing_paths})
    if wrong:
        shutil.rmtree(folder)
        raise InputError(f"the data set {info.id}: {wrong[0]} was not downloaded as its hub has it; run this again")
    shutil.rmtree(folder / ".cache")
    return folder


def _download_error(name: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:300]
    return InputError(
        f"the data set {name} cannot be downloaded ({type(error).__name__}: {reason}); check that it exists and is "
        "open to you, and run this again: complete files are kept"
    )


def _describe_data_set(folder: Path, revision: str) -> MirroredDataSet:
    from huggingface_hub import metadata_load

    try:
        said = (metadata_load(folder / CARD) or {}).get("license") or []
    except (ValueError, yaml.YAMLError):  # an unreadable card states no license
        said = []
    return MirroredDataSet(
        revision=revision,
        license=", ".join(map(str, said if isinstance(said, list) else [said])) or None,
        files={
            path.relative_to(folder).as_posix(): MirroredFile(bytes=path.stat().st_size, sha256=hash_file(path))
            for path in folder.rglob("*")
            if path.is_file()
        },
    )


def _write_mirror_list(folder: Path, mirror: Mirror) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(mirror.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    partial = folder.with_name(f"{folder.name}.partial") / MIRROR_LIST
    partial.write_text(content, encoding="utf-8")
    os.replace(partial, folder / MIRROR_LIST)
