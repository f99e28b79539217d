"""One process of a training run: `python -m pipeline.pretrain.worker ARGUMENTS.json`, started by pretrain.segment."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipeline.model import huggingface
from pipeline.pretrain import checkpoint, launch, metrics
from pipeline.pretrain.backend import Backend, Batch
from pipeline.pretrain.loader import Loader
from pipeline.pretrain.schedule import learning_rate
from pipeline.pretrain.settings import SegmentSettings
from pipeline.pretrain.telemetry import Telemetry
from pipeline.pretrain.validation import validate
from pipeline.tokens.reader import TokenReader
from pipeline.tokens.sampler import Sampler

STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGURG)


def _refuse_not_finite(value: float, what: str) -> None:
    if not math.isfinite(value):
        raise FloatingPointError(f"{what} is {value}: lower learning_rate, lengthen warmup_steps or use precision fp32")


class Worker:
    """The training loop of one process."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.settings = SegmentSettings.model_validate(arguments["settings"])
        self.training = self.settings.training
        self.paths = {name: Path(path) for name, path in arguments["paths"].items()}
        self.identity: str = arguments["identity"]
        self.stop_file = self.paths["scratch"] / f"stop-{arguments['token']}"
        self.stopping = False
        for number in SIGNALS:
            signal.signal(number, self._stop)
        torch.set_num_threads(self.training.threads)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        rendezvous = self.paths["scratch"] / f"rendezvous-{arguments['token']}"
        self.device = launch.join(arguments["launcher"], rendezvous)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if self.world_size != arguments["world_size"]:
            raise RuntimeError(f"{self.world_size} processes were started, {arguments['world_size']} were expected")
        self.reader = TokenReader(self.paths["index"], "train")
        self.sampler = Sampler(self.reader, self.training.sequence_length, self.training.batch_size, self.settings.seed)
        self.start = checkpoint.Start(self.paths.get("start"), self.settings, self.reader.vocabulary_size)
        self.backend = self._backend()
        self.loader = Loader(lambda step: self.sampler.batch_tokens(step - 1, self.rank, self.world_size), self.device)
        scratch = self.paths["scratch"] if self.rank == 0 else None
        self.telemetry = Telemetry(self.settings, self.reader.vocabulary_size, self.device, scratch)

    def _stop(self, number: int, frame: object) -> None:
        self.stopping = True

    def _backend(self) -> Backend:
        arguments = (self.settings, self.reader.vocabulary_size, self.start, self.device)
        if self.training.backend == "deepspeed":
            from pipeline.pretrain.deepspeed import DeepSpeedBackend

            return DeepSpeedBackend(*arguments)
        from pipeline.pretrain.fsdp import FsdpBackend

        return FsdpBackend(*arguments)

    def _micro_batches(self, step: int) -> list[Batch]:
        """Return this process's share of a step, counted from 1."""
        input_BT, target_BT = self.loader.get(step)
        size = self.training.micro_batch_size
        return list(zip(torch.split(input_BT, size), torch.split(target_BT, size), strict=True))

    def _sums(self, *values: float | torch.Tensor) -> list[float]:
        """Return the sums of these values over all processes."""
        tensor = torch.stack([torch.as_tensor(v, dtype=torch.float64, device=self.device) for v in values])
        dist.all_reduce(tensor)
        return [float(v) for v in tensor.tolist()]

    def _train_step(self, step: int) -> tuple[metrics.Metrics, bool]:
        """Take one step; return its metrics and whether any process has been asked to stop."""
        training = self.training
        tokens = training.batch_size * training.sequence_length
        started = time.perf_counter()
        loss = self.backend.accumulate(self._micro_batches(step))
        asked = self.stopping or (self.rank == 0 and self.stop_file.exists())
        loss_sum, stop = self._sums(loss, float(asked))
        _refuse_not_finite(loss_sum, f"the loss of step {step}")
        rate = learning_rate(training, step)
        norm = self.backend.update(rate)
        _refuse_not_finite(norm, f"the gradient's norm of step {step}")
        seconds = time.perf_counter() - started
        line = {
            "step": step,
            "tokens_seen": step * tokens,
            "loss": loss_sum / tokens,
            "learning_rate": rate,
            "gradient_norm": norm,
            **self.telemetry.line(tokens, seconds, self.loader.stall_seconds),
            "seconds": seconds,
        }
        return line, stop > 0

    def _validate(self, step: int) -> metrics.Metrics:
        """Return loss and bits per byte of the held-out tokens, of all and of each language and source."""
        shape = (self.rank, self.world_size)
        line = validate(self.backend, self.paths["index"], self.training, self.device, *shape, self._sums)
        return {"step": step, **line}

    def _save(self, folder: Path, step: int, *, milestone: bool) -> None:
        """Write a checkpoint; all processes take part, process 0 writes."""
        weights = self.backend.weights()
        if self.rank == 0:
            folder.mkdir(parents=True)
            checkpoint.save_tensors(weights, folder / "model.safetensors")
            if milestone:
                huggingface.export(
                    weights,
                    self.settings.architecture,
                    self.reader.vocabulary_size,
                    self.training.sequence_length,
                    tokenizer=self.paths["tokenizer"],
                    tokenizer_configuration=self.paths["configuration"],
                    folder=folder / "huggingface",
                )
        del weights
        moments = self.backend.moments()
        if self.rank == 0:
            checkpoint.save_tensors(moments, folder / "optimizer.safetensors")
            checkpoint.save_state(folder, step, self.settings, self.identity, hashed=milestone)

    def _save_recovery(self, step: int, log: metrics.Log | None) -> None:
        folder = self.paths["scratch"] / "recovery"
        partial = folder / f".partial-{step}"
        if log:
            log.sync()
            shutil.rmtree(partial, ignore_errors=True)
        self._save(partial, step, milestone=False)
        if log:
            checkpoint.commit_recovery(partial, folder / str(step))

    def run(self) -> dict[str, Any]:
        """Train to the last step and return how it went: `status` finished or stopped, and the step."""
        training, settings = self.training, self.settings
        first, last = self.start.step, settings.last_step
        self.telemetry.start()
        log = metrics.Log(self.paths["scratch"], first, last) if self.rank == 0 else None
        for step in range(first + 1, last + 1):
            line, stop = self._train_step(step)
            lines = [line]
            if training.validation_every and (step % training.validation_every == 0 or step == training.steps):
                lines.append(self._validate(step))
            if log:
                for entry in lines:
                    log.add(entry)
                log.tell(line)
            if step < last and (stop or (training.checkpoint_every and step % training.checkpoint_every == 0)):
                self._save_recovery(step, log)
                if stop:
                    return {"status": "stopped", "step": step}
        if log:
            log.close()
        self._save(self.paths["milestone"], last, milestone=True)
        if self.rank == 0:
            shutil.copyfile(self.paths["scratch"] / "metrics.jsonl", self.paths["milestone"] / "metrics.jsonl")
        return {"status": "finished", "step": last}


def main() -> int:
    """Run one process and return its exit code."""
    launch.die_with_parent()
    warnings.simplefilter("ignore", FutureWarning)  # the libraries' own, several a step
    arguments = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    worker = Worker(arguments)
    try:
        outcome = worker.run()
    except FloatingPointError as error:
        outcome = {"status": "failed", "error": str(error)}
    if worker.rank == 0:
        Path(arguments["outcome"]).write_text(json.dumps(outcome), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    # torchrun would report another code than 0 as a crash; what happened stands in the outcome.
    return STOPPED if outcome["status"] == "stopped" and arguments["launcher"] != "torchrun" else 0


if __name__ == "__main__":
    sys.exit(main())
