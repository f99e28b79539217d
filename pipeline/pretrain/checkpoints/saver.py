"""Writes checkpoints while the training goes on, by a thread of each process: see docs/explanation/checkpoints.md.

Threads do not communicate over the network: each writes a small file next to its own, for the thread of process 0.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pipeline import layout
from pipeline.core.full_disk_errors import is_disk_full
from pipeline.core.output_lease import Lease
from pipeline.plan.sharding_strategy_definitions import STRATEGIES
from pipeline.pretrain.checkpoints import checkpoint, recovery
from pipeline.pretrain.checkpoints.checkpoint import CheckpointDiskFull, CheckpointError
from pipeline.pretrain.checkpoints.shard_layout import Box, assign_writers
from pipeline.pretrain.parallel.backend import Backend
from pipeline.pretrain.settings import SegmentSettings

PATIENCE_SECONDS = 3600.0  # of process 0, for the slowest file
SPARE_BYTES = 2**24  # for headers, state.json and what a file system rounds up


class Saver:
    """Saves the state of a backend. Every process has one and calls the same methods in the same order.

    Args:
        folder: the folder of recovery checkpoints, with a folder for each step.
        identity: the hash of the training, see `recovery.training_identity`.
        owner: the lease of the scratch, which is checked before a write; its number is in the names of partial files.
    """

    def __init__(
        self, backend: Backend, settings: SegmentSettings, identity: str, folder: Path, owner: Lease | None = None
    ) -> None:
        self.backend, self.settings, self.identity, self.folder = backend, settings, identity, folder
        self._owner = owner or Lease(folder)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        if self.rank == 0:
            self._owner.check()
            for left in folder.glob(".partial-*"):  # of a killed process
                shutil.rmtree(left, ignore_errors=True)
        pieces = backend.state_shards()
        holdings: list[Any] = [None] * self.world_size
        dist.all_gather_object(holdings, [(piece.name, piece.shape, piece.box) for piece in pieces])
        self._shapes = {name: shape for held in holdings for name, shape, _ in held}
        divided = assign_writers(holdings)
        self._mine = divided[self.rank]
        self._bytes = sum(box.elements for part in divided for _, box in part) * 4 + SPARE_BYTES
        self._keys = {(piece.name, piece.box): piece.key for piece in pieces if (piece.name, piece.box) in self._mine}
        devices = [piece.tensor.device for piece in pieces if piece.tensor.device.type == "cuda"]
        self._stream = torch.cuda.Stream(devices[0]) if devices else None  # type: ignore[no-untyped-call]
        self._copied = threading.Event()
        self._hook: Any = None
        self._on_disk = STRATEGIES[settings.training.strategy].optimizer_on_disk
        elements = 0 if self._on_disk else sum(box.elements for _, box in self._mine)
        # Touch the memory now, so that the first save does not wait for it.
        self._buffer = torch.empty(elements, pin_memory=bool(devices)).fill_(0)

    @property
    def failed(self) -> bool:
        """Whether the last checkpoint failed on this process; `wait` raises the reason."""
        return self._error is not None

    def wait(self) -> None:
        """Wait until the last checkpoint is written.

        Raises:
            CheckpointError: it was not written; raised once, on all processes.
        """
        self._finish_previous_save(None)

    def save(self, step: int, judged: Mapping[str, Any]) -> None:
        """Start to write a recovery checkpoint after the previous one is written.

        The state must not change until `wait_until_copied` returns; optimizers wait for it by themselves.

        Raises:
            CheckpointError: the previous checkpoint was not written, or this one cannot be started.
        """
        self._begin_save(self.folder / f".partial-{step}-{self._owner.number}", self.folder / str(step), step, judged)

    def save_milestone(self, folder: Path, step: int, judged: Mapping[str, Any]) -> None:
        """Write a checkpoint to a new folder and wait for it.

        Raises:
            CheckpointError: as `save`.
        """
        self._begin_save(folder, folder, step, judged)
        self.wait()

    def wait_until_copied(self) -> None:
        """Wait until the state is copied, or written from the disk, and may change."""
        if self._thread:
            self._copied.wait()

    def _finish_previous_save(self, partial: Path | None) -> None:
        """Join the thread, make the folder of the next checkpoint, and raise the first error of all processes."""
        if self._thread:
            self._thread.join()
            self._hook.remove()
            self._thread = None
        error, self._error = self._error, None
        if partial and self.rank == 0 and not error:
            error = self._make_folder(partial)
        errors: list[CheckpointError | None] = [None] * self.world_size
        dist.all_gather_object(errors, error)
        first_error = next((each for each in errors if each), None)
        if first_error:
            raise first_error

    def _make_folder(self, partial: Path) -> CheckpointError | None:
        try:
            partial.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(partial.parent).free
            if free < self._bytes:
                return CheckpointDiskFull(
                    f"{partial.parent} has {free / 1e9:.2f} GB free and a checkpoint takes {self._bytes / 1e9:.2f} GB: "
                    "free space there; earlier checkpoints are intact"
                )
            if partial.parent == self.folder:
                shutil.rmtree(partial, ignore_errors=True)  # of a failed attempt
            partial.mkdir()
            return None
        except OSError as error:
            kind = CheckpointDiskFull if is_disk_full(error) else CheckpointError
            return kind(f"a checkpoint cannot be written ({error}); earlier checkpoints are intact")

    def _begin_save(self, partial: Path, final: Path, step: int, judged: Mapping[str, Any]) -> None:
        self._finish_previous_save(partial)
        live = {(piece.name, piece.box): piece.tensor for piece in self.backend.state_shards()}
        ready = self._stream and torch.cuda.current_stream(self._stream.device).record_event()
        given = (partial, final, live, ready, step, self.backend.optimizer_step_count(), dict(judged))
        self._copied.clear()
        self._hook = register_optimizer_step_pre_hook(lambda *_: self.wait_until_copied())
        self._thread = threading.Thread(target=self._write, args=given, daemon=True)
        self._thread.start()

    @torch.no_grad()
    def _copy_to_host(
        self, live: Mapping[tuple[str, Box], Tensor], ready: torch.cuda.Event | None
    ) -> dict[str, Tensor]:
        """Copy the shards that this process writes into the host buffer."""
        tensors, used = {}, 0
        if self._stream:  # a thread starts on device 0, where using a stream would take memory
            torch.cuda.set_device(self._stream.device)
        with torch.cuda.stream(self._stream):
            if self._stream and ready:
                self._stream.wait_event(ready)
            for name, box in sorted(self._mine):
                host = self._buffer.narrow(0, used, box.elements).view(box.shape)
                host.copy_(live[name, box], non_blocking=True)
                tensors[self._keys[name, box]] = host
                used += box.elements
            if self._stream:
                self._stream.synchronize()
        return tensors

    def _write(
        self,
        partial: Path,
        final: Path,
        live: Mapping[tuple[str, Box], Tensor],
        ready: torch.cuda.Event | None,
        step: int,
        optimizer_step: int,
        judged: dict[str, Any],
    ) -> None:
        """Write this process's file and its note; process 0 also commits the checkpoint. Runs in the thread."""
        file, note = (partial / f"rank-{self.rank:05}.{kind}" for kind in ("safetensors", "json"))
        try:
            try:
                if self._on_disk:
                    tensors = {self._keys[place]: live[place] for place in sorted(self._mine)}
                else:
                    tensors = self._copy_to_host(live, ready)
                    self._copied.set()
                self._owner.check()
                written = checkpoint.write_tensors(file, tensors)
            finally:
                self._copied.set()
            pieces = {key: list(tensor.shape) for key, tensor in tensors.items()}
            checkpoint.write_json(note, {"file": file.name, "described": {**written, "pieces": pieces}})
            if self.rank == 0:
                files = self._collect_notes(partial)
                content = checkpoint.make_checkpoint_metadata(
                    self.settings, step, optimizer_step, judged, self.identity, self.world_size, files, self._shapes
                )
                self._commit(partial, final, content)
        except Exception as error:  # any error: other processes wait for this note
            kind = (
                CheckpointDiskFull if isinstance(error, CheckpointDiskFull) or is_disk_full(error) else CheckpointError
            )
            self._error = kind(f"the checkpoint of step {step} was not written ({error}); earlier ones are intact")
            if self.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
                return
            with suppress(OSError):  # process 0 removes the folder when it fails
                file.unlink(missing_ok=True)  # frees space for the note
                checkpoint.write_json(note, {"error": str(error), "full": kind is CheckpointDiskFull})

    def _collect_notes(self, partial: Path) -> dict[str, Any]:
        """Wait for the notes of all processes and return the files' descriptions by name."""
        deadline, files = time.monotonic() + PATIENCE_SECONDS, {}
        waiting = {f"rank-{rank:05}.json" for rank in range(self.world_size)}
        while waiting:
            # On network file systems a listing shows new files earlier than a look-up by name.
            for name in waiting.intersection(os.listdir(partial)):
                note = json.loads((partial / name).read_text(encoding="utf-8"))
                if "error" in note:
                    raise (CheckpointDiskFull if note["full"] else CheckpointError)(note["error"])
                files[note["file"]] = note["described"]
                waiting.discard(name)
            if waiting and time.monotonic() > deadline:
                raise CheckpointError(f"{min(waiting)} did not appear in {PATIENCE_SECONDS:.0f} s")
            time.sleep(0.01 if waiting else 0)
        return files

    def _commit(self, partial: Path, final: Path, content: dict[str, Any]) -> None:
        for rank in range(self.world_size):
            (partial / f"rank-{rank:05}.json").unlink()
        checkpoint.write_json(partial / layout.CHECKPOINT_STATE, content)
        checkpoint.flush_to_disk(partial)
        if final != partial:
            self._owner.check()
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
            checkpoint.flush_to_disk(final.parent)
            recovery.prune(final.parent, self.settings.training.keep_checkpoints, self.settings.training.keep_every)
