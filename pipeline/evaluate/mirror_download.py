"""What `python -m pipeline mirror` does: data sets of shipped tasks are copied from their hub, at fixed revisions."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from pipeline.core.disk_space import is_full
from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of
from pipeline.evaluate.mirror import LIST, DataSet, File, Mirror, data_sets_of, find_difference, read_mirror

if TYPE_CHECKING:
    from huggingface_hub import DatasetInfo

CARD = "README.md"
# What is data and nothing else: no script, no pickle, and no archive that may hold one.
PLAIN = ("*.parquet", *(f"*.{kind}{end}" for kind in ("json", "jsonl", "csv", "tsv") for end in ("", ".gz")))


def mirror_data_sets(folder: Path, tasks: Iterable[str], revisions: Mapping[str, str]) -> None:
    """Copy the data sets that shipped tasks read into a folder, and list their files in its mirror.json.

    A data set that is listed stays at its revision, and is copied only where its files are not as listed. Downloads
    lie in FOLDER.partial until they are whole and as their hub says; the next call goes on with them.

    Args:
        folder: the mirror; it is made where there is none.
        tasks: names of tasks, groups and tags that lm-eval ships.
        revisions: a commit, tag or branch by data set; of the others it is the one listed, or the newest.

    Raises:
        InputError: for an unknown task, one whose data set cannot be mirrored, or a data set that is not to be had.
    """
    folder = folder.resolve()
    mirror = read_mirror(folder)
    for name in _wanted(tasks, revisions):
        listed = mirror.data_sets.get(name)
        if listed is None and (folder / name).exists():
            raise InputError(f"{folder / name} is not listed in {LIST}: move it away, and it is downloaded")
        whole = listed.revision if listed and find_difference(folder / name, listed.files) is None else None
        asked = revisions.get(name, listed.revision if listed else None)
        found = None if whole and whole == asked else _asked_of_hub(name, asked)
        if found is None or found.sha == whole:
            print(f"{name}: is there at revision {whole}", flush=True)
            continue
        begun = folder.with_name(f"{folder.name}.partial") / name
        downloaded = _downloaded(found, begun)
        data_set = _described(downloaded, str(found.sha))
        mirror = Mirror(data_sets={**mirror.data_sets, name: data_set})
        # The list goes first: wherever this is killed, a data set that is not as listed is copied by the next call.
        _write(folder, mirror)
        if (folder / name).exists():
            shutil.rmtree(folder / name)
        (folder / name).parent.mkdir(exist_ok=True)
        os.rename(downloaded, folder / name)
        shutil.rmtree(begun)
        print(f"{name}: revision {data_set.revision}, license {data_set.license or 'not stated'}", flush=True)
    shutil.rmtree(folder.with_name(f"{folder.name}.partial"), ignore_errors=True)


def _wanted(tasks: Iterable[str], revisions: Mapping[str, str]) -> list[str]:
    wanted = set()
    for task, name in sorted(data_sets_of(tasks)):
        if not name:
            raise InputError(
                f"the task {task} names no data set NAMESPACE/DATASET in its configuration, so that none can be "
                "mirrored for it; leave the task out"
            )
        wanted.add(name)
    for name in revisions:
        if name not in wanted:
            raise InputError(f"--revision: no task reads {name!r}, but {', '.join(sorted(wanted))}; name one of these")
    return sorted(wanted)


def _asked_of_hub(name: str, revision: str | None) -> DatasetInfo:
    """Return what the hub says of a data set at a revision, its commit and files among it."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi

    try:
        found = HfApi().dataset_info(name, revision=revision, files_metadata=True)
    except (OSError, ValueError, HTTPError) as error:
        raise _not_to_be_had(name, error) from None
    files = {file.rfilename for file in found.siblings or ()}
    if f"{name.rpartition('/')[2]}.py" in files:
        raise InputError(
            f"the data set {name} is a loading script, which is code and not data; leave out the tasks that read it, "
            "or name with --revision a commit at which it is files"
        )
    if CARD not in files or not any(_is_plain(file) for file in files):
        raise InputError(
            f"the data set {name} needs {CARD} and files of {', '.join(PLAIN)}, and its hub has {len(files)} files of "
            "which that is not so; leave out the tasks that read it"
        )
    return found


def _is_plain(file: str) -> bool:
    return any(fnmatch(file, pattern) for pattern in PLAIN)


def _downloaded(found: DatasetInfo, begun: Path) -> Path:
    """Return the folder of a whole download, whose files are those that the hub has the hashes of."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi, snapshot_download

    sizes = {file.rfilename: file.size or 0 for file in found.siblings or ()}
    taken = {file for file in sizes if file == CARD or _is_plain(file)}
    left_out = f", {len(sizes) - len(taken)} others left out" if len(sizes) > len(taken) else ""
    print(f"{found.id}: {len(taken)} files, {sum(sizes[file] for file in taken):,} bytes{left_out}", flush=True)
    revision, folder = str(found.sha), begun / str(found.sha)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        snapshot_download(
            found.id, repo_type="dataset", revision=revision, local_dir=folder, allow_patterns=[CARD, *PLAIN]
        )
        said = HfApi().verify_repo_checksums(found.id, repo_type="dataset", revision=revision, local_dir=folder)
    except (OSError, ValueError, RuntimeError, HTTPError) as error:
        if is_full(error):
            raise
        raise _not_to_be_had(found.id, error) from None
    wrong = sorted({mismatch["path"] for mismatch in said.mismatches} | taken & {*said.missing_paths})
    if wrong:
        shutil.rmtree(folder)
        raise InputError(f"the data set {found.id}: {wrong[0]} came over other than its hub has it; run this again")
    shutil.rmtree(folder / ".cache")
    return folder


def _not_to_be_had(name: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:300]
    return InputError(
        f"the data set {name} does not come ({type(error).__name__}: {reason}); see whether it is there and open "
        "to you, and run this again: what has come is kept"
    )


def _described(folder: Path, revision: str) -> DataSet:
    from huggingface_hub import metadata_load

    try:
        said = (metadata_load(folder / CARD) or {}).get("license") or []
    except (ValueError, yaml.YAMLError):  # a card that is not to be read states nothing
        said = []
    return DataSet(
        revision=revision,
        license=", ".join(map(str, said if isinstance(said, list) else [said])) or None,
        files={
            path.relative_to(folder).as_posix(): File(bytes=path.stat().st_size, sha256=sha256_of(path))
            for path in folder.rglob("*")
            if path.is_file()
        },
    )


def _write(folder: Path, mirror: Mirror) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(mirror.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    partial = folder.with_name(f"{folder.name}.partial") / LIST
    partial.write_text(content, encoding="utf-8")
    os.replace(partial, folder / LIST)
