"""Find, validate and remove the recovery checkpoints of an unfinished segment, and keep its rewinds."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.core import atomic_files
from pipeline.core.errors import Diverged, InputError
from pipeline.core.full_disk_errors import full_folder_error, is_disk_full
from pipeline.core.hashing import hash_each_file
from pipeline.pretrain.bad_batches import ADVICE
from pipeline.pretrain.settings import EXECUTION_KEYS, SegmentSettings

_EXCLUDED_KEYS = ("index_sha256", "energy_options")  # the index itself is hashed
_FAULT_KEYS = {"restarts", "hang_seconds", "skips_in_a_row"}


def training_identity(settings: SegmentSettings, index: Path, previous: Path | None) -> str:
    """Return a hash of what a segment's results depend on: settings, tokens and the milestone that it starts from.

    It excludes settings of the division of work and of fault handling: a checkpoint loads under all of them.
    """
    training: dict[str, Any] = {**dict.fromkeys(EXECUTION_KEYS, True), "stability": _FAULT_KEYS}
    content = settings.model_dump(mode="json", exclude={"training": training, **dict.fromkeys(_EXCLUDED_KEYS, True)})
    parts = [json.dumps(content, sort_keys=True).encode(), index.read_bytes()]
    if previous is not None:
        parts.append((previous / layout.CHECKPOINT_STATE).read_bytes())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def list_recovery_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the complete recovery checkpoints with their steps, newest first."""
    return sorted(((int(path.name), path) for path in folder.glob("*") if path.name.isdigit()), reverse=True)


def find_damage(folder: Path) -> str | None:
    """Return the damage of a checkpoint with the file's name; None where every byte is as written."""
    try:
        state = json.loads((folder / layout.CHECKPOINT_STATE).read_text(encoding="utf-8"))
        files = {folder / name: (int(known["bytes"]), str(known["sha256"])) for name, known in state["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{folder / layout.CHECKPOINT_STATE} is missing or torn"
    for path, (size, _) in files.items():
        if not path.is_file() or path.stat().st_size != size:
            there = f"has {path.stat().st_size} of {size} bytes" if path.is_file() else "is missing"
            return f"{path} {there}"
    for (path, (_, expected)), sha256 in zip(files.items(), hash_each_file([*files]), strict=True):
        if sha256 != expected:
            return f"{path} was altered after it was written"
    return None


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)


def choose_recovery_folder(scratch: Path, wanted: Path | None) -> Path:
    """Return the folder of a segment's recovery checkpoints: its first one, else `wanted`, else below its scratch.

    A link in the scratch points to a folder elsewhere. Where its target is gone, as after a purge, the choice is new.

    Raises:
        InputError: `wanted` cannot be written.
    """
    link = scratch / "recovery"
    if link.is_symlink():
        target = link.readlink()
        if target.is_dir():
            return target
        _warn(f"{target} is gone, as after a purge: the training continues from what is left")
        link.unlink()
    if link.is_dir():
        if wanted:
            print(f"recovery checkpoints stay in {link}, where this segment began", flush=True)
        return link
    if wanted is None:
        return link
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise full_folder_error(wanted) from error
        raise InputError(
            f"{wanted} cannot be written ({error.strerror}): correct scratch in the platform's file, or leave it out"
        ) from None
    link.symlink_to(wanted.absolute())
    return wanted.absolute()


def remove_recovery_checkpoints(scratch: Path, keep_every: int | None) -> None:
    """Remove the recovery checkpoints of a finished segment, except those of every `keep_every`-th step."""
    link = scratch / "recovery"
    folder = link.readlink() if link.is_symlink() else link
    prune(folder, 0, keep_every)
    for pattern in ("damaged-*", ".partial-*"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
    if not any(folder.glob("*")):
        with suppress(OSError):
            for empty in (folder, *folder.parents[:3]) if link.is_symlink() else (folder,):
                empty.rmdir()  # CODE, STEP, MODEL and the run, if empty
        if link.is_symlink():
            link.unlink()


def select_newest_valid(folder: Path, expected: str, reached: int) -> Path | None:
    """Return the newest undamaged checkpoint of this training up to the step `reached`, or None; remove the others."""
    for step, path in list_recovery_checkpoints(folder):
        try:
            foreign = json.loads((path / layout.CHECKPOINT_STATE).read_text(encoding="utf-8"))["identity"] != expected
        except (OSError, ValueError, KeyError, TypeError):
            foreign = False
        if foreign:
            _warn(f"{path} belongs to other settings, tokens or another milestone: it is removed")
            shutil.rmtree(path)
        elif step > reached:
            _warn(f"{path} is removed, because the metrics end at step {reached}, before its step {step}")
            shutil.rmtree(path)
        elif problem := find_damage(path):
            aside = folder / f"damaged-{step}"
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            _warn(f"{problem}: the checkpoint is renamed to {aside.name}, and the previous one is used")
        else:
            return path
    return None


def prune(folder: Path, keep: int, keep_every: int | None) -> None:
    """Remove all recovery checkpoints except the newest `keep` and those of every `keep_every`-th step."""
    for step, path in list_recovery_checkpoints(folder)[keep:]:
        if not keep_every or step % keep_every:
            try:
                shutil.rmtree(path)
            except OSError as error:
                _warn(f"{path} is not needed any more and cannot be removed ({error}): remove it")


# Rewinds and the batches that they skip, in scratch/rewinds.json. A rewind returns to the last regular checkpoint, even
# where a stop left a newer one, so that it does not depend on stops.


def last_regular_step(step: int, every: int, first_step: int) -> int:
    """Return the step of the last regular checkpoint before a step, or the segment's first step."""
    return max((step - 1) // every * every, first_step) if every else first_step


class Rewinds:
    """The rewinds of one training: each has `back_to`, the skipped `data_steps`, the bad `step` and the `reason`."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.entries: list[dict[str, Any]] = content["entries"] if content.get("identity") == identity else []

    def record_rewind(self, rewind: dict[str, Any], most_in_a_row: int) -> None:
        """Add a rewind.

        Raises:
            Diverged: the training went back to the same step too often.
        """
        self.entries.append(rewind)
        same = sum(entry["back_to"] == rewind["back_to"] for entry in self.entries)
        if same > most_in_a_row:
            raise Diverged(f"{rewind['reason']} in step {rewind['step']}, after {same} rewinds: {ADVICE}")
        atomic_files.write_json(self.path, {"identity": self.identity, "entries": self.entries})

    def remove_affected_checkpoints(self, folder: Path) -> None:
        """Remove the recovery checkpoints that include a batch which is skipped by now."""
        for step, path in list_recovery_checkpoints(folder):
            try:
                skips = set(json.loads((path / layout.CHECKPOINT_STATE).read_text(encoding="utf-8"))["skips"])
            except (OSError, ValueError, KeyError):
                continue  # damaged: `select_newest_valid` handles it
            if any(step > entry["back_to"] and not skips.issuperset(entry["data_steps"]) for entry in self.entries):
                shutil.rmtree(path)


def add_rewinds_to_skips(entries: list[dict[str, Any]], skips: list[int]) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the skips including those of the rewinds, and the rewinds that are new to them."""
    new = [entry for entry in entries if not set(skips).issuperset(entry["data_steps"])]
    return sorted({*skips, *(number for entry in entries for number in entry["data_steps"])}), new
