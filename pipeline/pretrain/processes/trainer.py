"""The training loop of one process."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import time
import warnings
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from pipeline import layout
from pipeline.core import full_disk_errors
from pipeline.core.batch_schedule import StepRange
from pipeline.core.errors import DiskFull, InputError, OutOfMemory, Superseded
from pipeline.core.output_lease import Lease
from pipeline.model import compilation_and_precision, huggingface
from pipeline.pretrain.bad_batches import BadBatchDetector, Rewind
from pipeline.pretrain.checkpoints import checkpoint
from pipeline.pretrain.checkpoints.recovery import add_rewinds_to_skips, last_regular_step
from pipeline.pretrain.checkpoints.saver import Saver
from pipeline.pretrain.data_loader import (
    PrefetchingLoader,
    find_document_offsets,
    make_batch,
    split_into_micro_batches,
)
from pipeline.pretrain.learning_rate import learning_rate_at
from pipeline.pretrain.monitors import memory_estimate, metrics
from pipeline.pretrain.monitors.profiler import Profiler
from pipeline.pretrain.monitors.telemetry import Telemetry
from pipeline.pretrain.monitors.watchdog import SLOW_FACTOR, Watchdog
from pipeline.pretrain.parallel import process_groups
from pipeline.pretrain.parallel.backend import Backend
from pipeline.pretrain.parallel.expert_parallel import measure_largest_share
from pipeline.pretrain.processes import batch_result_exchange, device_and_process_group
from pipeline.pretrain.processes.supervisor import PROCESS_OUTCOME_FILE, WorkerArguments
from pipeline.pretrain.validation import document_losses, summarize_losses
from pipeline.tokens.data_order import format_batch_hash, partial_batch_hash
from pipeline.tokens.memory_mapped_shards import copy_to_node
from pipeline.tokens.sampler import Sampler, count_total_tokens_seen
from pipeline.tokens.token_reader import TokenReader
from pipeline.tokens.validation_reader import ValidationSet

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGURG)


class BatchResult(NamedTuple):
    """The global result of a batch: loss and gradient_norm, hash, reason of a skip, stop request, telemetry."""

    values: dict[str, float]
    hash: str
    reason: str | None
    stop: bool
    measurements: NDArray[np.float64]


class Trainer:
    """The training loop of one process."""

    def __init__(self, arguments: WorkerArguments, watchdog: Watchdog) -> None:
        self.watchdog, self.stop_file = watchdog, arguments.stop_file
        self.settings, self.training = arguments.settings, arguments.settings.training
        self.paths = {**arguments.paths}
        self.owner = Lease(self.paths["scratch"], arguments.number)
        self.stopping = False
        for number in SIGNALS:
            signal.signal(number, self._request_stop)
        torch.set_num_threads(self.training.threads)
        compilation_and_precision.set_determinism(self.training.deterministic)
        self.device = device_and_process_group.join_process_group(arguments.launcher, arguments.platform)
        if self.device.type == "cpu":
            device_and_process_group.keep_freed_memory()
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if self.world_size != arguments.world_size:
            raise RuntimeError(f"{self.world_size} processes were started, {arguments.world_size} were expected")
        if "staging" in self.paths:
            self.paths["index"] = copy_to_node(self.paths["index"], self.paths["staging"])
        self.reader = TokenReader(self.paths["index"], "train")
        if "start" in self.paths:
            checkpoint.check_model_shape(self.paths["start"], self.settings.architecture, self.reader.vocabulary_size)
        self.start = checkpoint.SegmentStart(self.paths.get("start"), self.settings, self.reader.vocabulary_size)
        skips, self.rewinds = add_rewinds_to_skips(arguments.rewinds, self.start.skips)
        self.detector = BadBatchDetector(self.training.stability, skips, self.start.recent)
        shape = (self.training.sequence_length, self.training.batch_size, self.settings.seed)
        sampling, steps = self.training.sampling, self.training.steps
        self.sampler = Sampler(self.reader, *shape, sampling, steps, self.detector.skips, self.training.ramp)
        self.saves_failed = 0
        self.backend = self._make_backend()
        self.saver = Saver(self.backend, self.settings, arguments.identity, self.paths["recovery"], self.owner)
        self.loader = PrefetchingLoader(self._read_batch, self.device)
        place = self.owner.private_start_folder if self.rank == 0 else None
        self.telemetry = Telemetry(self.settings, self.reader.vocabulary_size, self.device, place)
        self.profiler = Profiler(self.owner.folder if self.rank == 0 else None, self.device)

    def _request_stop(self, number: int, frame: object) -> None:
        self.stopping = True

    def _make_backend(self) -> Backend:
        arguments = (self.settings, self.reader.vocabulary_size, self.start, self.device)
        if self.training.backend == "deepspeed":
            from pipeline.pretrain.parallel.deepspeed import DeepSpeedBackend

            return DeepSpeedBackend(*arguments, disk=self.paths.get("staging"))
        from pipeline.pretrain.parallel.fsdp import FsdpBackend

        return FsdpBackend(*arguments)

    def _read_batch(self, step: int) -> tuple[NDArray[Any], ...]:
        """Return this process's inputs, targets, hash words and documents of a step, counted from 1."""
        rank, size = self.backend.data_rank, self.backend.data_size
        input_BT, target_BT = self.sampler.read_batch(step - 1, rank, size)
        tokens_BT = np.concatenate([input_BT, target_BT[:, -1:]], axis=1)
        length = self.sampler.batches.at(self.sampler.data_step(step - 1)).sequence_length
        words = partial_batch_hash(tokens_BT, rank * len(tokens_BT))
        documents = find_document_offsets(input_BT, self.training, self.reader.begin_of_text_id, length)
        return input_BT, target_BT, words, *documents

    def _try_batch(self, step: int, size: StepRange) -> tuple[BatchResult, dict[str, float]]:
        """Train on a batch of this size; return its result, and the norms of layers in steps that record them.

        All processes exchange their results once the gradient norm is known. The decision is made on the device, and
        the host waits for the results after it has queued the optimizer.
        """
        input_BT, target_BT, words, *documents = self.loader.get(step)
        loss = self.backend.accumulate_gradients(
            split_into_micro_batches(input_BT, target_BT, documents, self.training, size.sequence_length)
        )
        self.watchdog.beat()
        norms_every = self.training.norms_every
        norms = self.backend.norms_by_layer() if norms_every and step % norms_every == 0 else {}
        shares = measure_largest_share(self.backend.model, self.device)
        flags = self.stopping or (self.rank == 0 and self.stop_file.exists()), self.saver.failed
        results: list[batch_result_exchange.PendingResult] = []

        def exchange_and_judge_norm(norm: float | torch.Tensor) -> torch.Tensor:
            if not results:  # a backend calls this several times, or never
                pending = batch_result_exchange.all_gather_results(
                    loss,
                    norm,
                    tokens=size.batch_size * self.training.sequence_length,
                    others=[*flags, *words, *self.telemetry.local_values(self.loader.stall_seconds)],
                    equal=[*shares.values()],
                    thresholds=self.detector.thresholds(),
                )
                results.append(pending)
            return results[0].accepted

        exchange_and_judge_norm(self.backend.update(learning_rate_at(self.training, step), exchange_and_judge_norm))
        values, equal, table = results[0].wait_for_results()
        self.watchdog.beat()
        stop, failed = table[:, :2].T
        if failed.any():
            self.wait_for_checkpoint()
        # Processes of one model read the same batch, so the sum has each word that many times.
        summed = table[:, 2 : 2 + len(words)].sum(0) / (self.world_size // self.backend.data_size)
        reason, measurements = self.detector.find_reason(**values), table[:, 2 + len(words) :]
        result = BatchResult(values, format_batch_hash(summed), reason, bool(stop.any()), measurements)
        return result, norms | dict(zip(shares, equal, strict=True))

    def _train_step(self, step: int, *, pauses: bool) -> tuple[list[metrics.Metrics], bool]:
        """Take one step with the first good batch; return its lines of metrics, and whether to stop.

        The measured time ends when the device has its work queued, so the optimizer's time counts for the next step.
        Where the training `pauses` after this step, it waits for the device.
        """
        training = self.training
        started = time.perf_counter()
        lines: list[metrics.Metrics] = []
        while True:
            number = self.sampler.data_step(step - 1)
            size = self.sampler.batches.at(number)
            result, norms = self._try_batch(step, size)
            values, reason = result.values, result.reason
            if reason is None:
                break
            back_to = last_regular_step(step, training.checkpoint_every, self.settings.first_step)
            lines.append(self.detector.skip(step, number, values, reason, back_to))
            self.loader.discard_prefetched()  # the next batch is another one
        self.detector.record_good(**values)
        if pauses or result.stop:
            device_and_process_group.synchronize_device(self.device)
        seconds = time.perf_counter() - started
        line = {
            "step": step,
            "data_step": number,
            "batch_hash": result.hash,
            "tokens_seen": count_total_tokens_seen(self.sampler.batches, step, self.detector.skips),
            **values,
            **norms,
            "learning_rate": learning_rate_at(training, step),
            **self.telemetry.summarize(size, seconds, result.measurements),
            "seconds": seconds,
        }
        return [*lines, line], result.stop

    @cached_property
    def held_out(self) -> ValidationSet:
        return ValidationSet(self.paths["index"], self.training.validation_tokens)

    def _validate(self, step: int) -> metrics.Metrics:
        begin, added = self.reader.begin_of_text_id, partial(process_groups.all_reduce_sum, self.device)
        made = partial(make_batch, training=self.training, begin_of_text_id=begin, device=self.device)
        shape = self.training, self.settings.architecture
        loss_D = document_losses(self.backend, self.held_out, *shape, made, added, self.watchdog.beat)
        return {"step": step, **summarize_losses(self.held_out, loss_D)}

    def _save_recovery(self, step: int, log: metrics.MetricsLog | None) -> None:
        """Start to write a recovery checkpoint; the training continues without it on a full disk."""
        self.wait_for_checkpoint()
        if log:
            log.flush_to_disk()
        try:
            self.saver.save(step, self.detector.state())
        except checkpoint.CheckpointError as error:
            self._count_failed_save(error)

    def wait_for_checkpoint(self) -> None:
        """Wait until the last recovery checkpoint is written or has failed."""
        self.watchdog.beat(SLOW_FACTOR)
        try:
            self.saver.wait()
        except checkpoint.CheckpointError as error:
            self._count_failed_save(error)
        self.watchdog.beat()

    def _count_failed_save(self, error: checkpoint.CheckpointError) -> None:
        self.saves_failed += 1
        if self.rank == 0:
            print(f"{error}; the training continues without it", file=sys.stderr, flush=True)

    def _save_milestone(self, step: int, log: metrics.MetricsLog | None) -> None:
        """Write the milestone's checkpoint on all processes, and from its files the model for Transformers."""
        self.wait_for_checkpoint()
        folder = self.paths["milestone"]
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.watchdog.beat(SLOW_FACTOR)
        self.saver.save_milestone(folder, step, self.detector.state())
        previous, tokenizer = self.paths.get("previous"), self.paths["tokenizer"]
        model = previous and previous / layout.CHECKPOINT_MODEL
        places = (folder.parent, self.paths["scratch"])
        run_tasks = partial(
            process_groups.distribute_tasks, places=places, beat=partial(self.watchdog.beat, SLOW_FACTOR)
        )
        huggingface.save_pretrained(
            checkpoint.CheckpointReader(folder).weights(),
            self.settings.architecture,
            self.reader.vocabulary_size,
            self.training.sequence_length,
            tokenizer=tokenizer,
            tokenizer_configuration=self.paths["configuration"],
            folder=folder / layout.CHECKPOINT_MODEL,
            ends=huggingface.read_end_token_ids_of_same_tokenizer(model, tokenizer) if model else [],
            run_tasks=run_tasks,
        )

        def close() -> None:
            if log:
                log.close()
            shutil.copyfile(self.paths["scratch"] / layout.METRICS_FILE, folder / layout.METRICS_FILE)

        run_tasks([close])

    def run(self) -> dict[str, Any]:
        """Train to the last step and return the outcome: `status` finished, stopped, full or failed, and the step."""
        training, settings = self.training, self.settings
        first, last = self.start.step, settings.last_step
        log = metrics.MetricsLog(self.owner, first, last) if self.rank == 0 else None
        if log:
            for rewind in self.rewinds:
                log.add_once({"step": first, "skipped_data_steps": rewind["data_steps"], "reason": rewind["reason"]})
        gc.collect()
        gc.freeze()  # exclude existing objects from collections within a step
        for step in range(first + 1, last + 1):
            self.profiler.begin(step)
            saves = training.checkpoint_every and step % training.checkpoint_every == 0
            validates = training.validation_every and (step % training.validation_every == 0 or step == training.steps)
            lines, stop = self._train_step(step, pauses=bool(saves or validates or step == last))
            self.profiler.end(step, is_last=stop or step == last)
            if log:
                log.print_progress(lines[-1])
                if slow := metrics.format_slow_process(lines[-1], self.telemetry.nodes):
                    print(slow, file=sys.stderr, flush=True)
            self.telemetry.probe.begin(step)
            if validates:
                lines.append(self._validate(step))
            if log:
                for line in lines:
                    log.write_line(line)
            if step < last and (stop or saves):
                self._save_recovery(step, log)
                if stop:
                    self.wait_for_checkpoint()
                    return {"status": "stopped", "step": step}
        try:
            self._save_milestone(last, log)
        except checkpoint.CheckpointError as error:
            status = "full" if isinstance(error, checkpoint.CheckpointDiskFull) else "failed"
            return {"status": status, "error": f"{error}; start again then"}
        except DiskFull as error:
            return {"status": "full", "error": str(error)}
        return {"status": "finished", "step": last}


ERROR_STATUS = {Superseded: "superseded", OutOfMemory: "out of memory"}  # by the exception of a process


def _write_outcome(path: Path, rank: int, outcome: dict[str, Any]) -> None:
    """Write the outcome atomically; on a full disk, print that instead."""
    partial = path.with_name(f"{path.name}-{rank}")
    try:
        partial.write_text(json.dumps(outcome), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        if not full_disk_errors.is_disk_full(error):
            raise
        full_disk_errors.print_error(str(full_disk_errors.disk_full_error(error, [path.parent])))


def main() -> int:
    """Train by the arguments in the file that the command line names, and return the exit code."""
    full_disk_errors.ignore_full_log_disk()
    warnings.simplefilter("ignore", FutureWarning)  # of libraries, several a step
    file = Path(sys.argv[1])
    arguments = WorkerArguments.model_validate_json(file.read_text(encoding="utf-8"))
    settings, paths, path = arguments.settings, arguments.paths, file.with_name(PROCESS_OUTCOME_FILE)
    name = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    watchdog = Watchdog(paths["scratch"], str(arguments.number), name, settings.training.stability.hang_seconds)
    memory = memory_estimate.explain_out_of_memory(settings, paths["index"], arguments.world_size)
    try:
        with memory, compilation_and_precision.missing_kernel_as_input_error("training.deterministic"):
            worker = Trainer(arguments, watchdog)
            outcome = worker.run()
    except InputError as error:  # the launcher ends the other processes
        status = ERROR_STATUS.get(type(error), "refused")
        _write_outcome(path, int(name), {"status": status, "error": str(error)})
        return 2
    except FloatingPointError as error:
        worker.wait_for_checkpoint()  # keeps the checkpoint that is being written
        outcome = {"status": "diverged", "error": str(error)}
    except Rewind as rewind:
        worker.wait_for_checkpoint()  # the training may go back to the checkpoint that is being written
        outcome = {"status": "rewind", "rewind": rewind.args[0], "reason": rewind.args[0]["reason"]}
    if worker.rank == 0:
        _write_outcome(path, 0, {**outcome, "failed_checkpoints": worker.saves_failed})
    dist.barrier()
    dist.destroy_process_group()
    watchdog.stop()
    return 0  # torchrun and srun treat another code as a crash; the outcome file has the status
