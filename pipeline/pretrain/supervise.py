"""Keeps a training alive: starts its processes, and starts them again from the newest checkpoint where they ended."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import InputError, Stopped
from pipeline.pretrain import metrics, recovery
from pipeline.pretrain.launch import command, die_with_parent, launcher
from pipeline.pretrain.rewinds import Rewinds
from pipeline.pretrain.settings import SegmentSettings
from pipeline.pretrain.watchdog import stacks

WORKER = "pipeline.pretrain.worker"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGURG, signal.SIGINT)
POLL_SECONDS = 0.2
# torchrun passes these on to the processes, and waits so long for their checkpoint.
TORCHRUN = {
    "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGURG",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600",
}


@dataclass
class Course:
    """How a training came to its end.

    The checkpoint found at the start and the layout that wrote it, why it was started again, and how many checkpoints a
    full disk has cost since then.
    """

    resumed_from: int | None = None
    resumed_layout: dict[str, Any] | None = None
    restarts: list[str] = field(default_factory=list)
    failed_checkpoints: int = 0


@contextmanager
def _stop_on_signal(stop_file: Path) -> Iterator[Callable[[], bool]]:
    """Turn a signal into a file that the training looks for after every step; a second interrupt interrupts.

    What is yielded tells whether there was one.
    """

    def stop(number: int, frame: object) -> None:
        stop_file.touch()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, stop) for number in SIGNALS} if main else {}
    try:
        yield stop_file.exists
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop_file.unlink(missing_ok=True)


def train(
    settings: SegmentSettings,
    paths: dict[str, Path],
    identity: str,
    processes: int,
    launch: str | None,
    platform: str | None = None,
) -> Course:
    """Train until the milestone is there.

    `paths` are index, tokenizer, configuration, milestone, scratch and, except at first, `previous`.

    Raises:
        InputError: a process refused its input; nothing is tried again.
        RuntimeError: the training failed, or its processes died too often without progress.
        Stopped: this process was asked to stop.
    """
    scratch, stability = paths["scratch"], settings.training.stability
    for pattern in ("stop-*", "arguments-*"):
        for left in scratch.glob(pattern):
            left.unlink()
    rewinds = Rewinds(scratch / "rewinds.json", identity)
    stop_file = scratch / f"stop-{secrets.token_hex(8)}"
    course, reached, tries = Course(), -1, 0
    with _stop_on_signal(stop_file) as asked:
        while True:
            rewinds.discard(scratch / "recovery")
            found = recovery.newest(scratch / "recovery", identity)
            step = int(found.name) if found else settings.first_step
            if "previous" in paths and not found and (problem := recovery.damage(paths["previous"])):
                raise InputError(f"{problem}: remove {paths['previous']}, so that it is trained again")
            if not course.restarts:
                course.resumed_from = step if found else None
                course.resumed_layout = json.loads((found / "state.json").read_text())["layout"] if found else None
            if found:
                print(f"continuing from the recovery checkpoint of step {step}", flush=True)
            tries, reached = (1 if step > reached else tries + 1), step
            metrics.truncate(scratch / "metrics.jsonl", step)
            if paths["milestone"].exists():
                shutil.rmtree(paths["milestone"])
            start = found or paths.get("previous")
            places = {name: path for name, path in paths.items() if name != "previous"}
            outcome = _once(
                {
                    "settings": settings.model_dump(mode="json"),
                    "paths": {k: str(v.absolute()) for k, v in (places | ({"start": start} if start else {})).items()},
                    "identity": identity,
                    "launcher": launcher(launch),
                    "platform": platform,
                    "world_size": processes,
                    "stop_file": str(stop_file.absolute()),
                    "rewinds": rewinds.entries,
                },
                scratch,
                launch,
            )
            status = outcome["status"]
            course.failed_checkpoints += outcome.get("failed_checkpoints", 0)  # none is known of processes that died
            if status == "finished":
                return course
            if status == "refused":
                raise InputError(outcome["error"])
            if status == "failed":
                raise RuntimeError(outcome["error"])
            # Under srun a signal comes from Slurm, which also starts the job again.
            if asked() or (status == "stopped" and launcher(launch) == "srun"):
                raise Stopped(_stopped(outcome, scratch))
            if status == "rewind":
                rewinds.add(outcome["rewind"], stability.skips_in_a_row)
                tries = 0
            elif tries > stability.restarts:
                raise RuntimeError(f"{outcome['reason']} {tries} times without progress: see the messages above")
            course.restarts.append(outcome["reason"])
            print(f"{outcome['reason']}: starting again", flush=True)


def _stopped(outcome: dict[str, Any], scratch: Path) -> str:
    done = f"as asked after step {outcome['step']}" if "step" in outcome else f"as asked ({outcome['reason']})"
    kept = recovery.recoveries(scratch / "recovery")
    where = f"with a recovery checkpoint of step {kept[0][0]}" if kept else "without a recovery checkpoint"
    return f"{done} {where}: start again to continue"


def _once(arguments: dict[str, Any], scratch: Path, launch: str | None) -> dict[str, Any]:
    """Start the processes, wait for their end and return the outcome that they wrote; without one, they died."""
    outcome = scratch / "outcome.json"
    outcome.unlink(missing_ok=True)
    token = secrets.token_hex(8)
    file = scratch / f"arguments-{token}.json"
    file.write_text(json.dumps({**arguments, "outcome": str(outcome.absolute()), "token": token}), encoding="utf-8")
    words = command(launch, WORKER, [str(file.absolute())])
    # A session of its own keeps a terminal's interrupt away from a launcher that would kill the processes.
    try:
        process = subprocess.Popen(
            words, preexec_fn=die_with_parent, start_new_session=True, env={**TORCHRUN, **os.environ}
        )
    except OSError as error:
        raise InputError(f"launch: {words[0]} cannot be started ({error.strerror}): install it or correct it") from None
    try:
        # srun takes all processes down where one ends badly; torchrun would wait long for one that cannot answer.
        while process.poll() is None and not (launcher(launch) != "srun" and stacks(scratch, token)):
            time.sleep(POLL_SECONDS)
        if process.poll() is None:
            time.sleep(1)  # for the stacks of the others
    finally:
        if process.poll() is None:
            process.kill()
        code = process.wait()
    hung = stacks(scratch, token)
    for path in (scratch / "logs").glob(f"stacks-{token}-*.txt"):
        if path not in hung:
            path.unlink()  # of a process that was killed
    if hung:
        return {"status": "died", "reason": f"a process hung, its stacks are in {', '.join(p.name for p in hung)}"}
    if not outcome.exists() and launcher(launch) == "srun" and code == 128 + signal.SIGUSR1:
        return {"status": "stopped", "reason": "Slurm's warning came before the processes had started"}
    if not outcome.exists():
        return {"status": "died", "reason": f"the training ended with exit code {code} before it was done"}
    result: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
    if result["status"] == "stopped":
        result["reason"] = f"a process was asked to stop after step {result['step']}"
    return result
