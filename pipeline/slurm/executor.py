"""Runs the jobs of a DAG through Slurm: the executor behind `--profile slurm`.

Snakemake's own plugin starts Snakemake twice more in each job, which parses the whole run again: with 10,000 units ten
CPU seconds and 300,000 file calls a start, and a configuration that was edited meanwhile. Here a job is the command of
its rule as this process has planned it, and its start is that of one Python. The plugin has no hooks for that, nor for
limits that pass, so this class takes its place in Snakemake's registry. It is written against the public interface of
executors; of the plugin only the name `slurm` and its options on the command line are left.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import DeploymentMethod

from pipeline.config.slurm_settings import Slurm
from pipeline.core.errors import NO_ROOM, InputError
from pipeline.slurm import allocation, queue, retry, sacct, submission
from pipeline.slurm.allocation import ALLOCATIONS, REFUSED
from pipeline.slurm.packing import pack
from pipeline.slurm.ready import Ready, prepared, side_by_side, whole
from pipeline.slurm.waiting import Waiting

KILLED = 128 + 9  # a job that nobody has cancelled is killed for lack of memory, by Slurm or by the kernel
LONGEST_PAUSE_SECONDS = 120.0
SECONDS_BETWEEN_SACCT = 60.0
SECONDS_BETWEEN_WORDS = 3600.0  # about one thing that lasts
WORDS = {
    "silent": "Slurm did not say whether it has taken {what}: waiting until it does",
    "full": "Slurm has no room for {what} and what follows: waiting until it has, or for you to ask for less",
}


class Executor(RemoteExecutor):  # type: ignore[misc]
    """Submits jobs, several in one allocation where they are small, and sees how each ends.

    One thread submits and waits where Slurm has no room or does not answer; another asks for states. Snakemake's main
    loop waits for neither.
    """

    # Set by `register`: Snakemake makes the object and knows nothing of a run.
    settings: Slurm
    run_directory: Path
    prefix: str
    pause_seconds = 10.0

    def __post_init__(self) -> None:
        """Prepare what the threads share; called by the base class when it is made.

        Raises:
            WorkflowError: Snakemake's own way into an image, from inside of which no training could be started.
        """
        if DeploymentMethod.APPTAINER in self.workflow.deployment_settings.deployment_method:
            raise WorkflowError(
                "--sdm apptainer does not go with --profile slurm: leave it out, and write container: IMAGE into the "
                "platform's file (docs/platform.md, An image)"
            )
        self.name = str(uuid.uuid4())
        self.folder = ALLOCATIONS / self.name
        self._began = datetime.now(UTC) - timedelta(minutes=1)
        self._groups: deque[list[Ready]] = deque()  # what waits for its submission, an allocation each
        self._changed = threading.Condition()
        self._ended = False
        self._live: set[str] = set()  # numbers of the allocations that were submitted and are not over
        self._all: set[str] = set()
        self._over: dict[str, str] = {}  # states of those that squeue has forgotten
        self._asked_seconds = float("-inf")
        self._count = 0
        self._waiting = Waiting(60.0 * self.settings.start_minutes, self.logger.warning)
        self._thread = threading.Thread(target=self._submit_all, name="submission", daemon=True)

    # From Snakemake's job to a task

    def run_jobs(self, jobs: list[Any]) -> None:
        """Take the jobs that are ready; they are submitted in their order as Slurm has room for them."""
        ready = []
        for job in jobs:
            self.run_job_pre(job)
            ready.append(self._prepared(job))
        with self._changed:
            self._groups += [[ready[n] for n in group] for group in pack([one.request for one in ready])]
            self._changed.notify_all()
        if not self._thread.is_alive() and not self._ended:
            self._thread.start()

    def run_job(self, job: Any) -> None:
        """Take one job."""
        self.run_jobs([job])

    def _prepared(self, job: Any) -> Ready:
        for path in job.log:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        modules = DeploymentMethod.ENV_MODULES in self.workflow.deployment_settings.deployment_method
        return prepared(job, self.prefix, self.run_directory / "logs/slurm", modules=modules)

    # Submission, in a thread of its own

    def _submit_all(self) -> None:
        while (group := self._next()) is not None:
            try:
                self._submit(group)
            except Exception as error:  # a thread that dies would leave Snakemake waiting for ever
                for ready in group:
                    self.report_job_error(SubmittedJobInfo(ready.job), msg=f"it could not be submitted: {error!r}\n")

    def _next(self) -> list[Ready] | None:
        """Return the jobs of the next allocation, as soon as the queue may hold one more; None at the end."""
        with self._changed:
            while not self._ended:
                if self._groups and self._is_asked_to_end:
                    self._leave_out()
                elif self._groups and len(self._live) < self.settings.queue:
                    return self._groups.popleft()
                self._changed.wait(self.pause_seconds)
            return None

    @property
    def _is_asked_to_end(self) -> bool:
        """Whether Snakemake only waits for the jobs that run, as SIGTERM asks of it."""
        return getattr(self.workflow.scheduler, "_user_kill", None) == "graceful"

    def _leave_out(self) -> None:
        """Give up what is not submitted yet: the next start does it."""
        left = [one for group in self._groups for one in group]
        self._groups.clear()
        self.logger.warning(f"snakemake was asked to end: {len(left)} jobs are not submitted; those in Slurm go on")
        for one in left:
            self._last_attempt(one.job)
            self.workflow.scheduler.error_callback(one.job)

    def _submit(self, group: list[Ready]) -> None:
        """Submit an allocation, however long Slurm has no room or no answer."""
        self._count += 1
        path = (self.folder / f"{self._count}.json").absolute()
        sha256 = allocation.write(path, side_by_side(group))
        script = allocation.batch_script(path, sha256)
        first, what = group[0], self._called(group)
        first.log.parent.mkdir(parents=True, exist_ok=True)
        words = [*submission.options(whole(group)), f"--job-name={self.name}", f"--comment={what}"]
        words += [f"--output={first.log.absolute()}", "--open-mode=append"]
        words += [f"--account={self.settings.account}"] if self.settings.account else []
        pause, told_seconds = self.pause_seconds, float("-inf")
        while not self._ended:
            answer = submission.submit(words, script, Path(self.workflow.workdir_init))
            if answer.outcome in ("silent", "full") and time.monotonic() > told_seconds + SECONDS_BETWEEN_WORDS:
                told_seconds = time.monotonic()
                self.logger.warning(f"{WORDS[answer.outcome].format(what=what)} ({answer.said})")
            if answer.outcome == "silent":
                answer = self._asked_again(answer, pause)
            if answer.outcome == "taken":
                self._taken(group, path, answer.number, what)
                return
            if answer.outcome == "refused":
                for one in group:
                    self._last_attempt(one.job)
                    self.report_job_error(SubmittedJobInfo(one.job), msg=f"sbatch refused it: {answer.said}\n")
                return
            self._sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    @staticmethod
    def _called(group: list[Ready]) -> str:
        names = [one.task.what for one in group]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

    def _asked_again(self, answer: submission.Answer, pause: float) -> submission.Answer:
        """Return what came of a submission that was not answered, once Slurm answers: taken, or to be repeated."""
        known = None
        for _ in range(2):  # what was asked before may be answered after
            self._sleep(pause)
            while (known := queue.jobs([self.name], ended=True)) is None and not self._ended:
                self._sleep(pause)
        new = sorted((known or {}).keys() - self._all, key=int)
        return submission.Answer("taken", number=new[0]) if new else answer

    def _taken(self, group: list[Ready], path: Path, number: str, what: str) -> None:
        with self._changed:
            self._live.add(number)
            self._all.add(number)
        log = str(group[0].log).replace("%j", number)
        self.logger.info(f"{what} has been submitted as job {number} of Slurm (its log: {log})")
        for place, one in enumerate(group):
            aux = {"path": path, "place": place, "size": len(group), "log": log, "what": one.task.what}
            self.report_job_submission(SubmittedJobInfo(one.job, external_jobid=number, aux=aux))

    def _sleep(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended, timeout=seconds)

    # How jobs end, in the thread of the base class

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report the jobs that are over and yield the others."""
        if not active_jobs:  # the base class asks from its constructor on, before `__post_init__`
            return
        try:
            over = await asyncio.to_thread(self._states, {str(info.external_jobid) for info in active_jobs})
            failed = [info for info in active_jobs if over.get(str(info.external_jobid)) not in (None, "COMPLETED")]
            causes = await asyncio.to_thread(self._causes, failed, over)
        except InputError as error:  # a cluster that does not answer is asked again
            self.logger.warning(str(error))
            over, causes = {}, {}
        for info in active_jobs:
            number = str(info.external_jobid)
            if number not in over:
                yield info
            elif over[number] == "COMPLETED" or allocation.ends(info.aux["path"]).get(info.aux["place"]) == 0:
                self.report_job_success(info)
            else:
                self._failed(info, over[number], causes.get(number, "failed"))
        with self._changed:
            self._live -= over.keys()
            self._changed.notify_all()

    def _states(self, numbers: set[str]) -> dict[str, str]:
        """Return the states of the allocations that are over."""
        known = queue.jobs([self.name], ended=True)
        if known is None:
            return {}
        self._waiting.look(known)
        forgotten = numbers - known.keys() - self._over.keys()
        if forgotten and time.monotonic() > self._asked_seconds + SECONDS_BETWEEN_SACCT:
            self._asked_seconds = time.monotonic()
            jobs = sacct.ask([self.name], self._began)
            self._over |= {n: j.allocations[-1].state for n, j in jobs.items() if j.allocations[-1].is_over}
        told = {number: job.state for number, job in known.items() if job.state not in sacct.WAITING}
        return {number: state for number, state in {**self._over, **told}.items() if number in numbers}

    def _causes(self, failed: list[SubmittedJobInfo], over: dict[str, str]) -> dict[str, sacct.Cause]:
        """Return why allocations have failed; a failure by itself may be one of memory, which the accounting knows."""
        causes = {n: sacct.CAUSES.get(over[n], "failed") for info in failed if (n := str(info.external_jobid))}
        unsure = {number for number in causes if over[number] == "FAILED"}
        for attempt in range(3 if unsure else 0):
            time.sleep(self.pause_seconds if attempt else 0)  # the database learns of a job's end later than squeue
            try:
                jobs = sacct.ask([self.name], self._began)
            except InputError:
                break
            found = {number: jobs[number].allocations[-1] for number in unsure & jobs.keys()}
            causes |= {number: last.cause for number, last in found.items() if last.is_over}
            if all(last.is_over for last in found.values()) and found.keys() == unsure:
                break
        return causes

    def _failed(self, info: SubmittedJobInfo, state: str, cause: sacct.Cause) -> None:
        code = allocation.ends(info.aux["path"]).get(info.aux["place"])
        if code is None and info.aux["size"] == 1:
            code = queue.exit_code(str(info.external_jobid))
        if code == KILLED and cause == "failed":
            cause = "memory"
        retry.failed(info.aux["what"], cause)
        msg = f"Slurm's job {info.external_jobid} ended as {state}" + (f", exit code {code}" if code else "") + ".\n"
        if code == REFUSED and state == "FAILED":
            self._last_attempt(info.job)
            msg = f"It was refused, and is not tried again: its log says why. {msg}"
        if code == NO_ROOM:
            msg = f"A disk or a quota is full: make room, then what is left is done. {msg}"
        self.report_job_error(info, msg=msg, aux_logs=[info.aux["log"]])

    @staticmethod
    def _last_attempt(job: Any) -> None:
        """Let Snakemake not try a job again."""
        job.attempt = job.restart_times + 1

    # The end

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel everything that this start has submitted, what has not been told yet included."""
        self._stop()
        if self._all or active_jobs:
            self.logger.info("Slurm is asked to cancel the jobs of this run")
            problem = queue.cancel(self.name)
            if problem:
                self.logger.error(f"Jobs may still run ({problem}): scancel --name={self.name}")

    def shutdown(self) -> None:
        """End the threads; jobs that are submitted go on."""
        self._stop()
        super().shutdown()

    def _stop(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
