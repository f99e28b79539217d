"""Supervise a training: start its processes, and restart them from the newest checkpoint when they end early."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.core import full_disk_errors
from pipeline.core.errors import DiskFull, Diverged, InputError, OutOfMemory, Stopped, Superseded
from pipeline.core.lock_owner import die_with_parent
from pipeline.core.output_lease import Lease
from pipeline.core.settings import Settings
from pipeline.pretrain.checkpoints import recovery
from pipeline.pretrain.monitors import metrics, watchdog
from pipeline.pretrain.processes.launch_command import build_command
from pipeline.pretrain.settings import SegmentSettings

WORKER = "pipeline.pretrain.processes.worker"
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGURG, signal.SIGINT)
POLL_SECONDS = 0.2
PROCESS_OUTCOME_FILE = "outcome.json"  # next to the arguments of a start
STATUS_ERRORS: dict[str, type[Exception]] = {
    "superseded": Superseded,
    "refused": InputError,
    "out of memory": OutOfMemory,
    "diverged": Diverged,
    "full": DiskFull,
    "failed": RuntimeError,
}
# torchrun forwards these signals to the processes, and waits that long for their checkpoint.
TORCHRUN_VARIABLES = {
    "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGURG",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600",
}


class WorkerArguments(Settings):
    """The arguments of each process of a training, passed in a file."""

    settings: SegmentSettings
    paths: dict[str, Path]
    """Absolute paths: index, tokenizer, configuration, milestone, scratch, recovery, and optionally `previous`,
    `staging` and `start`, the checkpoint that this start continues from."""
    identity: str
    launcher: str
    platform: str | None
    world_size: int
    stop_file: Path = Path()
    rewinds: list[dict[str, Any]] = []
    number: int = 0
    """Number of this start, which identifies its lease."""


@dataclass
class SupervisedTraining:
    resumed_from: int | None = None  # the step of the first checkpoint that was found
    resumed_layout: dict[str, Any] | None = None
    restarts: list[str] = field(default_factory=list)  # the reason of each restart
    failed_checkpoints: int = 0  # on a full disk, since then
    machine: dict[str, Any] = field(default_factory=dict)


@contextmanager
def _stop_on_signal(stop_file: Path) -> Iterator[Callable[[], bool]]:
    """Turn a signal into a file that the training polls after every step; yield whether a signal came."""
    received: list[int] = []

    def stop(number: int, frame: object) -> None:
        received.append(number)
        with suppress(OSError):  # without the file the processes run until they are killed
            stop_file.touch()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, stop) for number in SIGNALS} if main else {}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def supervise_training(arguments: WorkerArguments, owner: Lease, launch: str | None) -> SupervisedTraining:
    """Train until the milestone exists; `owner` has claimed the scratch. Raises the errors of `segment.run`."""
    settings, paths = arguments.settings, arguments.paths
    scratch, checkpoints, stability = paths["scratch"], paths["recovery"], settings.training.stability
    rewinds = recovery.Rewinds(scratch / "rewinds.json", arguments.identity)
    course, reached, tries = SupervisedTraining(), -1, 0
    stop_file = (owner.private_start_folder / "stop").absolute()
    with _stop_on_signal(stop_file) as is_stopping:
        while True:
            owner.claim()
            rewinds.remove_affected_checkpoints(checkpoints)
            known = metrics.find_last_step(scratch / layout.METRICS_FILE, settings.first_step)
            checkpoint = recovery.select_newest_valid(checkpoints, arguments.identity, known)
            step = int(checkpoint.name) if checkpoint else settings.first_step
            if "previous" in paths and not checkpoint and (problem := recovery.find_damage(paths["previous"])):
                raise InputError(f"{problem}: remove {paths['previous']}, and the run trains it again")
            if not course.restarts:
                course.resumed_from = step if checkpoint else None
                course.resumed_layout = (
                    json.loads((checkpoint / layout.CHECKPOINT_STATE).read_text())["layout"] if checkpoint else None
                )
            if checkpoint:
                print(f"continuing from the recovery checkpoint of step {step}", flush=True)
            if known > step:
                lost = f"steps {step + 1} to {known} are trained again: {checkpoints} has no later undamaged checkpoint"
                print(lost, file=sys.stderr, flush=True)
            tries, reached = (1 if step > reached else tries + 1), step
            metrics.truncate_metrics(scratch / layout.METRICS_FILE, step)
            if paths["milestone"].exists():
                shutil.rmtree(paths["milestone"])
            start = checkpoint or paths.get("previous")
            update = {
                "paths": paths | ({"start": start.absolute()} if start else {}),
                "stop_file": stop_file,
                "rewinds": rewinds.entries,
                "number": owner.number,
            }
            outcome = _run_processes(arguments.model_copy(update=update), owner, launch)
            status = outcome["status"]
            course.failed_checkpoints += outcome.get("failed_checkpoints", 0)  # unknown for processes that died
            if status != "finished":
                owner.check()  # a later start may be the cause
            else:
                with suppress(OSError, ValueError):
                    course.machine = json.loads(
                        (owner.private_start_folder / "device.json").read_text(encoding="utf-8")
                    )
                return course
            if status in STATUS_ERRORS:
                raise STATUS_ERRORS[status](outcome["error"])
            # Under srun the signal comes from Slurm, which requeues the job.
            if is_stopping() or (status == "stopped" and arguments.launcher == "srun"):
                raise Stopped(_format_stop(outcome, checkpoints))
            if status == "rewind":
                rewinds.record_rewind(outcome["rewind"], stability.skips_in_a_row)
                tries = 0
            elif tries > stability.restarts:
                raise RuntimeError(f"{outcome['reason']} {tries} times without progress: see the messages above")
            course.restarts.append(outcome["reason"])
            print(f"{outcome['reason']}: restarting", flush=True)


def _format_stop(outcome: dict[str, Any], checkpoints: Path) -> str:
    after = f"by a signal after step {outcome['step']}" if "step" in outcome else f"({outcome['reason']})"
    kept = recovery.list_recovery_checkpoints(checkpoints)
    where = f"with a recovery checkpoint of step {kept[0][0]}" if kept else "without a recovery checkpoint"
    return f"as asked {after} {where}: start again to continue"


def _find_late_process(logs: Path, token: str, processes: int) -> str | None:
    """Return which process a hang waited for, from the dumped collectives; None where they show none."""
    dumps = {int(path.stem.rpartition("-")[2]): path for path in logs.glob(f"collectives-{token}-*.json")}
    try:
        return watchdog.find_process_behind_in_collectives(dumps, processes)
    except (OSError, ValueError, KeyError):  # processes were killed while they wrote
        return None


def _run_processes(arguments: WorkerArguments, owner: Lease, launch: str | None) -> dict[str, Any]:
    """Start the processes, wait for them and return their outcome; without one, they died."""
    scratch, token = owner.folder, str(owner.number)
    outcome, file = owner.private_start_folder / PROCESS_OUTCOME_FILE, owner.private_start_folder / "arguments.json"
    file.write_text(arguments.model_dump_json(), encoding="utf-8")
    words = build_command(launch, WORKER, [str(file.absolute())])
    # A new session keeps a terminal's interrupt from the launcher, which would kill the processes.
    try:
        process = subprocess.Popen(
            words, preexec_fn=die_with_parent, start_new_session=True, env={**TORCHRUN_VARIABLES, **os.environ}
        )
    except OSError as error:
        message = f"launch: {words[0]} cannot be started ({error.strerror}): install it or correct launch"
        raise InputError(message) from None
    try:
        # srun ends all processes when one fails; torchrun would wait long for a hung one.
        while process.poll() is None and not (
            arguments.launcher != "srun" and watchdog.list_hung_stack_files(scratch, token)
        ):
            time.sleep(POLL_SECONDS)
        deadline = time.monotonic() + watchdog.report_grace_seconds(arguments.settings.training.stability.hang_seconds)
        while process.poll() is None and len(watchdog.list_hung_stack_files(scratch, token)) < arguments.world_size:
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
        code = process.wait()
    hung = watchdog.list_hung_stack_files(scratch, token)
    for path in (scratch / "logs").glob(f"stacks-{token}-*.txt"):
        if path not in hung:
            path.unlink()  # of a killed process
    if hung:
        late = _find_late_process(scratch / "logs", token, arguments.world_size)
        reason = f"a process hung, its stacks are in {', '.join(p.name for p in hung)}"
        return {"status": "died", "reason": f"{reason}{f'; {late}' if late else ''}"}
    if not outcome.exists() and arguments.launcher == "srun" and code == 128 + signal.SIGUSR1:
        return {"status": "stopped", "reason": "Slurm's warning came before the processes had started"}
    if not outcome.exists():
        if full := full_disk_errors.find_full_folder((scratch, arguments.paths["milestone"].parent)):
            raise full_disk_errors.full_folder_error(full)
        return {"status": "died", "reason": f"the training ended with exit code {code} before it was done"}
    result: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
    if result["status"] == "stopped":
        result["reason"] = f"a process was asked to stop after step {result['step']}"
    return result
