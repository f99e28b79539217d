"""Recovery checkpoints of an unfinished segment: which there are, and which of them is whole and of this training."""

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
from pipeline.core.disk_space import full_folder_error, is_disk_full
from pipeline.core.errors import Diverged, InputError
from pipeline.core.hashing import hash_files
from pipeline.pretrain.bad_batches import ADVICE
from pipeline.pretrain.settings import EXECUTION_KEYS, SegmentSettings

_EXCLUDED_KEYS = ("index_sha256", "energy_options")  # what a start says beside them; the index itself is hashed
_FAULT_KEYS = {"restarts", "hang_seconds", "skips_in_a_row"}


def training_identity(settings: SegmentSettings, index: Path, previous: Path | None) -> str:
    """Return a hash of what a segment's numbers depend on: settings, tokens and the milestone that it starts from.

    Settings that divide the work otherwise, or say when to give up, are not among them: a checkpoint loads under all.
    """
    training: dict[str, Any] = {**dict.fromkeys(EXECUTION_KEYS, True), "stability": _FAULT_KEYS}
    content = settings.model_dump(mode="json", exclude={"training": training, **dict.fromkeys(_EXCLUDED_KEYS, True)})
    parts = [json.dumps(content, sort_keys=True).encode(), index.read_bytes()]
    if previous is not None:
        parts.append((previous / layout.CHECKPOINT_STATE).read_bytes())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def list_recovery_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return the finished recovery checkpoints with their steps, the newest first."""
    return sorted(((int(path.name), path) for path in folder.glob("*") if path.name.isdigit()), reverse=True)


def find_damage(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint, naming the file; None where every byte is as it was written."""
    try:
        state = json.loads((folder / layout.CHECKPOINT_STATE).read_text(encoding="utf-8"))
        files = {folder / name: (int(known["bytes"]), str(known["sha256"])) for name, known in state["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{folder / layout.CHECKPOINT_STATE} is missing or torn"
    for path, (size, _) in files.items():
        if not path.is_file() or path.stat().st_size != size:
            there = f"has {path.stat().st_size} of {size} bytes" if path.is_file() else "is missing"
            return f"{path} {there}"
    for (path, (_, expected)), found in zip(files.items(), hash_files([*files]), strict=True):
        if found != expected:
            return f"{path} was altered after it was written"
    return None


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)


def choose_folder(scratch: Path, wanted: Path | None) -> Path:
    """Return the folder of a segment's recovery checkpoints: where it began, else `wanted`, else below its scratch.

    What lies elsewhere has a link in the scratch. Where its target is gone, as after a purge, there is a new beginning.

    Raises:
        InputError: `wanted` cannot be written.
    """
    link = scratch / "recovery"
    if link.is_symlink():
        target = link.readlink()
        if target.is_dir():
            return target
        _warn(f"{target} is gone, as after a purge: the training goes on from what is left")
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
    """Remove the recovery checkpoints of a segment that has its milestone, but those of every `keep_every`-th step."""
    link = scratch / "recovery"
    folder = link.readlink() if link.is_symlink() else link
    prune(folder, 0, keep_every)
    for pattern in ("damaged-*", ".partial-*"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
    if not any(folder.glob("*")):
        with suppress(OSError):
            for empty in (folder, *folder.parents[:3]) if link.is_symlink() else (folder,):
                empty.rmdir()  # CODE, STEP, MODEL and the run; one that holds more stays
        if link.is_symlink():
            link.unlink()


def find_newest(folder: Path, expected: str, reached: int) -> Path | None:
    """Return the newest whole checkpoint with that identity up to the step `reached`, or None; warn of others."""
    for step, path in list_recovery_checkpoints(folder):
        try:
            foreign = json.loads((path / layout.CHECKPOINT_STATE).read_text(encoding="utf-8"))["identity"] != expected
        except (OSError, ValueError, KeyError, TypeError):
            foreign = False
        if foreign:
            _warn(f"{path} is of other settings, tokens or another milestone than this training: it is removed")
            shutil.rmtree(path)
        elif step > reached:
            _warn(f"{path} is removed: the metrics of the steps up to {step} are not all there, only up to {reached}")
            shutil.rmtree(path)
        elif problem := find_damage(path):
            aside = folder / f"damaged-{step}"
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            _warn(f"{problem}: the checkpoint is set aside as {aside.name}, and the one before is used")
        else:
            return path
    return None


def prune(folder: Path, keep: int, keep_every: int | None) -> None:
    """Remove all recovery checkpoints but the newest `keep` and those of every `keep_every`-th step."""
    for step, path in list_recovery_checkpoints(folder)[keep:]:
        if not keep_every or step % keep_every:
            try:
                shutil.rmtree(path)
            except OSError as error:
                _warn(f"{path} is no longer needed and cannot be removed ({error}): remove it")


# Where a training went back to, and which batches it left out for that: scratch/rewinds.json. A rewind goes back to the
# last regular checkpoint, even where a stop has left a newer one: so it does not depend on when a training was stopped.


def last_regular_step(step: int, every: int, first_step: int) -> int:
    """Return the last regular checkpoint before a step, or the step that the segment starts after."""
    return max((step - 1) // every * every, first_step) if every else first_step


class Rewinds:
    """The rewinds of one training: each a step `back_to`, the `data_steps` left out, the bad `step`, the `reason`."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = path, identity
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.entries: list[dict[str, Any]] = content["entries"] if content.get("identity") == identity else []

    def add(self, rewind: dict[str, Any], most_in_a_row: int) -> None:
        """Keep one more; raise Diverged where the training went back to the same step too often."""
        self.entries.append(rewind)
        same = sum(entry["back_to"] == rewind["back_to"] for entry in self.entries)
        if same > most_in_a_row:
            raise Diverged(f"{rewind['reason']} in step {rewind['step']}, after {same} rewinds: {ADVICE}")
        atomic_files.write_json(self.path, {"identity": self.identity, "entries": self.entries})

    def discard(self, folder: Path) -> None:
        """Remove the recovery checkpoints that saw a batch which is left out by now."""
        for step, path in list_recovery_checkpoints(folder):
            try:
                skips = set(json.loads((path / layout.CHECKPOINT_STATE).read_text(encoding="utf-8"))["skips"])
            except (OSError, ValueError, KeyError):
                continue  # it is not whole, which others find
            if any(step > entry["back_to"] and not skips.issuperset(entry["data_steps"]) for entry in self.entries):
                shutil.rmtree(path)


def merge_rewinds(entries: list[dict[str, Any]], skips: list[int]) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the skips with those of the rewinds, and the rewinds that they did not hold yet."""
    new = [entry for entry in entries if not set(skips).issuperset(entry["data_steps"])]
    return sorted({*skips, *(number for entry in entries for number in entry["data_steps"])}), new
