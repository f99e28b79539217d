"""The training loop of one process."""

from __future__ import annotations

import gc
import json
import math
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
from pipeline.core import disk_space
from pipeline.core.errors import DiskFull, InputError, OutOfMemory, Superseded
from pipeline.core.lease import Lease
from pipeline.core.training_steps import StepRange
from pipeline.model import execution_options, huggingface
from pipeline.pretrain.bad_batches import BadBatchDetector, Rewind
from pipeline.pretrain.checkpoints import checkpoint
from pipeline.pretrain.checkpoints.recovery import last_regular_step, merge_rewinds
from pipeline.pretrain.checkpoints.saver import Saver
from pipeline.pretrain.data_loader import PrefetchingLoader, find_documents, make_micro_batches, split_batch
from pipeline.pretrain.learning_rate import learning_rate_at
from pipeline.pretrain.monitors import memory_estimate, metrics
from pipeline.pretrain.monitors.profiler import Profiler
from pipeline.pretrain.monitors.telemetry import Telemetry
from pipeline.pretrain.monitors.watchdog import SLOW_FACTOR, Watchdog
from pipeline.pretrain.parallel import process_groups
from pipeline.pretrain.parallel.backend import Backend
from pipeline.pretrain.parallel.expert_parallel import measure_largest_share
from pipeline.pretrain.processes import rendezvous
from pipeline.pretrain.processes.supervisor import PROCESS_OUTCOME_FILE, WorkerArguments
from pipeline.pretrain.validation import document_losses, summarize_losses
from pipeline.tokens.data_order import batch_hash, batch_hash_words
from pipeline.tokens.sampler import Sampler, count_tokens_seen
from pipeline.tokens.shard_files import copy_to_node
from pipeline.tokens.token_reader import TokenReader
from pipeline.tokens.validation_set import ValidationSet

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGURG)


class BatchResult(NamedTuple):
    """What became of a batch: loss and gradient_norm, its hash, why it was left out, if to stop, what gauges tell."""

    values: dict[str, float]
    hash: str
    reason: str | None
    stop: bool
    gauges: NDArray[np.float64]


class Trainer:
    """The training loop of one process."""

    def __init__(self, arguments: WorkerArguments, watchdog: Watchdog) -> None:
        self.watchdog, self.stop_file = watchdog, arguments.stop_file
        self.settings, self.training = arguments.settings, arguments.settings.training
        self.paths = {**arguments.paths}
        self.owner = Lease(self.paths["scratch"], arguments.number)
        self.stopping = False
        for number in SIGNALS:
            signal.signal(number, self._stop)
        torch.set_num_threads(self.training.threads)
        execution_options.set_determinism(self.training.deterministic)
        self.device = rendezvous.join_process_group(arguments.launcher, arguments.platform)
        if self.device.type == "cpu":
            rendezvous.keep_freed_memory()
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if self.world_size != arguments.world_size:
            raise RuntimeError(f"{self.world_size} processes were started, {arguments.world_size} were expected")
        if "staging" in self.paths:
            self.paths["index"] = copy_to_node(self.paths["index"], self.paths["staging"])
        self.reader = TokenReader(self.paths["index"], "train")
        if "start" in self.paths:
            checkpoint.check_model_shape(self.paths["start"], self.settings.architecture, self.reader.vocabulary_size)
        self.start = checkpoint.SegmentStart(self.paths.get("start"), self.settings, self.reader.vocabulary_size)
        skips, self.rewinds = merge_rewinds(arguments.rewinds, self.start.skips)
        self.detector = BadBatchDetector(self.training.stability, skips, self.start.recent)
        shape = (self.training.sequence_length, self.training.batch_size, self.settings.seed)
        sampling, steps = self.training.sampling, self.training.steps
        self.sampler = Sampler(self.reader, *shape, sampling, steps, self.detector.skips, self.training.ramp)
        self.saves_failed = 0
        self.backend = self._backend()
        self.saver = Saver(self.backend, self.settings, arguments.identity, self.paths["recovery"], self.owner)
        self.loader = PrefetchingLoader(self._read, self.device)
        place = self.owner.place if self.rank == 0 else None
        self.telemetry = Telemetry(self.settings, self.reader.vocabulary_size, self.device, place)
        self.profiler = Profiler(self.owner.folder if self.rank == 0 else None, self.device)

    def _stop(self, number: int, frame: object) -> None:
        self.stopping = True

    def _backend(self) -> Backend:
        arguments = (self.settings, self.reader.vocabulary_size, self.start, self.device)
        if self.training.backend == "deepspeed":
            from pipeline.pretrain.parallel.deepspeed import DeepSpeedBackend

            return DeepSpeedBackend(*arguments, disk=self.paths.get("staging"))
        from pipeline.pretrain.parallel.fsdp import FsdpBackend

        return FsdpBackend(*arguments)

    def _read(self, step: int) -> tuple[NDArray[Any], ...]:
        """Return this process's input and target tokens of a step from 1, its part of the hash, and documents."""
        rank, size = self.backend.data_rank, self.backend.data_size
        input_BT, target_BT = self.sampler.batch_tokens(step - 1, rank, size)
        tokens_BT = np.concatenate([input_BT, target_BT[:, -1:]], axis=1)
        length = self.sampler.batches.at(self.sampler.data_step(step - 1)).sequence_length
        words = batch_hash_words(tokens_BT, rank * len(tokens_BT))
        documents = find_documents(input_BT, self.training, self.reader.begin_of_text_id, length)
        return input_BT, target_BT, words, *documents

    def _try_batch(self, step: int, size: StepRange) -> tuple[BatchResult, dict[str, float]]:
        """Train on a batch of this size; return also the norms of layers, where it is their turn.

        Processes tell each other all there is to tell when the gradient's norm is known. There they wait for the
        device, and nowhere else in a step of the native backend, but for norms of layers and visits of experts.
        """
        input_BT, target_BT, words, *documents = self.loader.get(step)
        loss = self.backend.accumulate(split_batch(input_BT, target_BT, documents, self.training, size.sequence_length))
        self.watchdog.beat()
        norms_every = self.training.norms_every
        norms = self.backend.layer_norms() if norms_every and step % norms_every == 0 else {}
        norms |= measure_largest_share(self.backend.model, self.device)
        tried: list[BatchResult] = []

        def accept(norm: float | torch.Tensor) -> bool:
            if not tried:  # a backend asks several times, or not at all
                tried.append(self._exchange_results(loss, norm, words, size))
            return tried[0].reason is None

        accept(self.backend.update(learning_rate_at(self.training, step), accept))
        self.watchdog.beat()
        return tried[0], norms

    def _exchange_results(
        self, loss: torch.Tensor, norm: float | torch.Tensor, words: torch.Tensor, size: StepRange
    ) -> BatchResult:
        """Tell the other processes what there is to tell of a batch, and return what all of them make of it."""
        flags = self.stopping or (self.rank == 0 and self.stop_file.exists()), self.saver.failed
        gauges = self.telemetry.local_values(self.loader.stall_seconds)
        table = process_groups.all_gather_values(self.device, loss, norm, *flags, *words, *gauges)
        losses, found, stop, failed = table[:, :4].T
        if failed.any():
            self.wait_for_checkpoint()
        values = {
            "loss": float(losses.sum()) / (size.batch_size * self.training.sequence_length),
            "gradient_norm": float(found.max()) if np.isfinite(found).all() else math.inf,
        }
        # Processes that share a model's work have read the same: each number stands so often in the sum.
        alike = self.world_size // self.backend.data_size
        summed = table[:, 4 : 4 + len(words)].sum(0) / alike
        reason = self.detector.find_reason(**values)
        return BatchResult(values, batch_hash(summed), reason, bool(stop.any()), table[:, 4 + len(words) :])

    def _train_step(self, step: int, *, pauses: bool) -> tuple[list[metrics.Metrics], bool]:
        """Take one step, with the first batch that is fit for it; return its lines of metrics, and whether to stop.

        Its seconds end when the device has its work, which it does while the next step begins: the optimizer's time is
        in the next step's. Where the training `pauses` for something else, the device is waited for.
        """
        training = self.training
        started = time.perf_counter()
        lines: list[metrics.Metrics] = []
        while True:
            number = self.sampler.data_step(step - 1)
            size = self.sampler.batches.at(number)
            tried, norms = self._try_batch(step, size)
            values, reason = tried.values, tried.reason
            if reason is None:
                break
            back_to = last_regular_step(step, training.checkpoint_every, self.settings.first_step)
            lines.append(self.detector.skip(step, number, values, reason, back_to))
            self.loader.forget()  # what comes next is another batch
        self.detector.record_good(**values)
        if pauses or tried.stop:
            rendezvous.synchronize(self.device)
        seconds = time.perf_counter() - started
        line = {
            "step": step,
            "data_step": number,
            "batch_hash": tried.hash,
            "tokens_seen": count_tokens_seen(self.sampler.batches, step, self.detector.skips),
            **values,
            **norms,
            "learning_rate": learning_rate_at(training, step),
            **self.telemetry.line(size, seconds, tried.gauges),
            "seconds": seconds,
        }
        return [*lines, line], tried.stop

    @cached_property
    def held_out(self) -> ValidationSet:
        """What each validation sees."""
        return ValidationSet(self.paths["index"], self.training.validation_tokens)

    def _validate(self, step: int) -> metrics.Metrics:
        begin, added = self.reader.begin_of_text_id, partial(process_groups.all_reduce_sum, self.device)
        made = partial(make_micro_batches, training=self.training, begin_of_text_id=begin, device=self.device)
        loss_D = document_losses(self.backend, self.held_out, self.training, made, added, self.watchdog.beat)
        return {"step": step, **summarize_losses(self.held_out, loss_D)}

    def _save_recovery(self, step: int, log: metrics.MetricsLog | None) -> None:
        """Begin to write a recovery checkpoint; without room for it the training goes on."""
        self.wait_for_checkpoint()
        if log:
            log.sync()
        try:
            self.saver.save(step, self.detector.state())
        except checkpoint.CheckpointError as error:
            self._count_failed_save(error)

    def wait_for_checkpoint(self) -> None:
        """Wait until the last recovery checkpoint is written, or is known not to be."""
        self.watchdog.beat(SLOW_FACTOR)
        try:
            self.saver.wait()
        except checkpoint.CheckpointError as error:
            self._count_failed_save(error)
        self.watchdog.beat()

    def _count_failed_save(self, error: checkpoint.CheckpointError) -> None:
        self.saves_failed += 1
        if self.rank == 0:
            print(f"{error}; the training goes on without it", file=sys.stderr, flush=True)

    def _save_milestone(self, step: int, log: metrics.MetricsLog | None) -> None:
        """Write the milestone's checkpoint, on all processes, and from its files the model for Transformers."""
        self.wait_for_checkpoint()
        folder = self.paths["milestone"]
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.watchdog.beat(SLOW_FACTOR)
        self.saver.save_milestone(folder, step, self.detector.state())
        previous, tokenizer = self.paths.get("previous"), self.paths["tokenizer"]
        model = previous and previous / layout.CHECKPOINT_MODEL
        places = (folder.parent, self.paths["scratch"])
        run_tasks = partial(
            process_groups.run_distributed, places=places, beat=partial(self.watchdog.beat, SLOW_FACTOR)
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
        """Train to the last step and return how it went: `status` finished, stopped, full or failed, and the step."""
        training, settings = self.training, self.settings
        first, last = self.start.step, settings.last_step
        log = metrics.MetricsLog(self.owner, first, last) if self.rank == 0 else None
        if log:
            for rewind in self.rewinds:
                log.add_once({"step": first, "skipped_data_steps": rewind["data_steps"], "reason": rewind["reason"]})
        gc.collect()
        gc.freeze()  # what is there by now stays: a collection in a step does not look through it again
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
                    log.add(line)
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


ERROR_STATUS = {Superseded: "superseded", OutOfMemory: "out of memory"}  # of what a process says of itself


def _write_outcome(path: Path, rank: int, outcome: dict[str, Any]) -> None:
    """Write how it went, in one stroke; on a full disk that is said instead."""
    partial = path.with_name(f"{path.name}-{rank}")
    try:
        partial.write_text(json.dumps(outcome), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        if not disk_space.is_disk_full(error):
            raise
        disk_space.print_error(str(disk_space.disk_full_error(error, [path.parent])))


def main() -> int:
    """Train as the file says that the command line names, and return the exit code."""
    disk_space.ignore_full_log_disk()
    warnings.simplefilter("ignore", FutureWarning)  # the libraries' own, several a step
    file = Path(sys.argv[1])
    arguments = WorkerArguments.model_validate_json(file.read_text(encoding="utf-8"))
    settings, paths, path = arguments.settings, arguments.paths, file.with_name(PROCESS_OUTCOME_FILE)
    name = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
    watchdog = Watchdog(paths["scratch"], str(arguments.number), name, settings.training.stability.hang_seconds)
    memory = memory_estimate.explain_out_of_memory(settings, paths["index"], arguments.world_size)
    try:
        with memory, execution_options.explain_missing_kernel("training.deterministic"):
            worker = Trainer(arguments, watchdog)
            outcome = worker.run()
    except InputError as error:  # of this process, or of all: the launcher ends the others
        status = ERROR_STATUS.get(type(error), "refused")
        _write_outcome(path, int(name), {"status": status, "error": str(error)})
        return 2
    except FloatingPointError as error:
        worker.wait_for_checkpoint()  # or the checkpoint that is being written would be lost
        outcome = {"status": "diverged", "error": str(error)}
    except Rewind as rewind:
        worker.wait_for_checkpoint()  # the training goes back to the checkpoint that is being written
        outcome = {"status": "rewind", "rewind": rewind.args[0], "reason": rewind.args[0]["reason"]}
    if worker.rank == 0:
        _write_outcome(path, 0, {**outcome, "failed_checkpoints": worker.saves_failed})
    dist.barrier()
    dist.destroy_process_group()
    watchdog.stop()
    return 0  # torchrun and srun would call another code a crash; what happened stands in the outcome
