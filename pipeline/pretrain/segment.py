"""Trains a model from one milestone to the next, on as many processes as the launch command starts.

A segment that was interrupted continues from its newest recovery checkpoint and gives the same bytes as one that was
not, at the same number of processes.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.model.size import parameter_count
from pipeline.pretrain import device, metrics, recovery
from pipeline.pretrain.consumption import ReadMeters, published
from pipeline.pretrain.launch import command, die_with_parent, launcher, world_size
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokens.reader import TokenReader
from pipeline.tokens.sampler import Sampler, validation_batches

WORKER = "pipeline.pretrain.worker"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGURG, signal.SIGINT)


def run(
    settings: SegmentSettings,
    *,
    index: Path,
    tokenizer: Path,
    configuration: Path,
    previous: list[Path],
    milestone: Path,
    scratch: Path,
    launch: str | None,
    platform: str | None = None,
    energy: ReadMeters | None = None,
) -> dict[str, Any]:
    """Train from `first_step` to `last_step` and write the milestone; return steps, tokens, loss, speed and so on.

    `platform` names a file of workflow/platforms, whose variables the training gets; `energy` reads the job's meters.

    Raises:
        InputError: the settings do not fit the tokens, the processes or the milestone before; nothing was started.
        RuntimeError: the training failed, or it was asked to stop and left a recovery checkpoint.
    """
    processes = world_size(launch)
    device.prepare(platform, launch)
    vocabulary_size = _check(settings, index, tokenizer, previous, processes)
    scratch.mkdir(parents=True, exist_ok=True)
    identity = recovery.identity(settings, index, previous[0] if previous else None)
    found = recovery.newest(scratch / "recovery", identity)
    start = found or (previous[0] if previous else None)
    resumed_from = int(found.name) if found else None
    metrics.truncate(scratch / "metrics.jsonl", settings.first_step if resumed_from is None else resumed_from)
    paths = {"index": index, "tokenizer": tokenizer, "configuration": configuration, "milestone": milestone}
    paths |= {"scratch": scratch, **({"start": start} if start else {})}
    if found:
        print(f"continuing from the recovery checkpoint of step {found.name}", flush=True)
    with published(energy, scratch / "energy.json"):
        outcome = _train(
            {
                "settings": settings.model_dump(mode="json"),
                "paths": {name: str(path.absolute()) for name, path in paths.items()},
                "identity": identity,
                "launcher": launcher(launch),
                "world_size": processes,
            },
            scratch,
            launch,
        )
    if outcome["status"] == "stopped":
        raise RuntimeError(
            f"stopped as asked after step {outcome['step']} with a recovery checkpoint: start again to continue"
        )
    if outcome["status"] == "failed":
        raise RuntimeError(outcome["error"])
    machine = json.loads((scratch / "device.json").read_text(encoding="utf-8"))
    return {**_counts(settings, milestone, processes, vocabulary_size, resumed_from), **machine}


def _check(settings: SegmentSettings, index: Path, tokenizer: Path, previous: list[Path], processes: int) -> int:
    """Check what can be known before anything starts and return the vocabulary size."""
    training = settings.training
    per_step = processes * training.micro_batch_size
    if training.batch_size % per_step:
        raise InputError(
            f"training.batch_size {training.batch_size} is not divisible by {processes} processes times "
            f"micro_batch_size {training.micro_batch_size}: change one of them"
        )
    reader = TokenReader(index, "train")
    Sampler(reader, training.sequence_length, training.batch_size, settings.seed)
    if training.validation_every:
        held_out = TokenReader(index, "validation")
        next(validation_batches(held_out, training.sequence_length, training.batch_size, batches=1))
    if hashlib.sha256(tokenizer.read_bytes()).hexdigest() != reader.tokenizer_sha256:
        raise InputError(f"{index} was made with another tokenizer than {tokenizer}: build the tokens again")
    if settings.first_step >= settings.last_step:
        raise InputError(f"last_step {settings.last_step} is not after first_step {settings.first_step}")
    if bool(settings.first_step) != bool(previous) or len(previous) > 1:
        raise InputError(f"first_step {settings.first_step} needs {int(settings.first_step > 0)} milestone as previous")
    for folder in previous:
        try:
            step = json.loads((folder / "state.json").read_text(encoding="utf-8"))["step"]
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{folder} is no milestone ({error!r}): remove it, so that it is trained again") from None
        if step != settings.first_step:
            raise InputError(f"{folder} is of step {step}, not {settings.first_step}: give the milestone before")
    return reader.vocabulary_size


@contextmanager
def _stop_on_signal(stop_file: Path) -> Iterator[None]:
    """Turn a signal into a file that the training looks for after every step; a second interrupt interrupts."""

    def stop(number: int, frame: object) -> None:
        stop_file.touch()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _train(arguments: dict[str, Any], scratch: Path, launch: str | None) -> dict[str, Any]:
    """Start the processes, wait for their end and return the outcome that process 0 wrote."""
    for left in (*scratch.glob("stop-*"), *scratch.glob("rendezvous-*"), *scratch.glob("arguments-*")):
        left.unlink()
    outcome = scratch / "outcome.json"
    outcome.unlink(missing_ok=True)
    token = secrets.token_hex(8)
    file = scratch / f"arguments-{token}.json"
    file.write_text(json.dumps({**arguments, "outcome": str(outcome.absolute()), "token": token}), encoding="utf-8")
    words = command(launch, WORKER, [str(file.absolute())])
    with _stop_on_signal(scratch / f"stop-{token}"):
        # A session of its own keeps a terminal's interrupt away from a launcher that would kill the processes.
        process = subprocess.Popen(words, preexec_fn=die_with_parent, start_new_session=True)
        try:
            code = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if not outcome.exists():
        raise RuntimeError(f"the training ended with exit code {code} before it was done: see the messages above")
    result: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
    return result


def _counts(
    settings: SegmentSettings, milestone: Path, processes: int, vocabulary_size: int, resumed_from: int | None
) -> dict[str, Any]:
    """Return what the segment's record tells, from its metrics."""
    lines = metrics.read(milestone / "metrics.jsonl")
    steps = [line for line in lines if "loss" in line]
    validations = [line["validation_loss"] for line in lines if "validation_loss" in line]
    seconds = sum(line["seconds"] or 0.0 for line in steps)
    training = settings.training
    tokens_per_step = training.batch_size * training.sequence_length
    utilization = [
        (line["model_flops_utilization"] or 0.0) * (line["seconds"] or 0.0)
        for line in steps
        if line["model_flops_utilization"] is not None
    ]
    return {
        "steps": len(steps),
        "first_step": settings.first_step,
        "last_step": settings.last_step,
        "resumed_from": resumed_from,
        "tokens": len(steps) * tokens_per_step,
        "tokens_seen": settings.last_step * tokens_per_step,
        "parameters": parameter_count(settings.architecture, vocabulary_size),
        "loss": steps[-1]["loss"],
        "validation_loss": validations[-1] if validations else None,
        "world_size": processes,
        "tokens_per_second": len(steps) * tokens_per_step / seconds,
        "model_flops_utilization": sum(utilization) / seconds if utilization else None,
    }
