"""Run the jobs of a DAG through Slurm: the executor of `--profile slurm`.

Snakemake's own plugin starts Snakemake twice in each job, which parses the whole run again: with 10,000 units that is
ten CPU seconds and 300,000 file calls per start, and it reads a configuration that may have been edited. Here a job is
the command of its rule as this process planned it, and starts one Python. The plugin has no hooks for that, nor for
temporary limits, so this class replaces it in Snakemake's registry. It uses the public interface of executors; only the
name `slurm` and the command line options of the plugin remain.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import DeploymentMethod

from pipeline.slurm.executor import allocation_runner, job_requests, slurm_commands, snakemake_private
from pipeline.slurm.executor.allocation_runner import ALLOCATIONS_FOLDER, REFUSED_CODE
from pipeline.slurm.executor.host_interface import CAUSES, ENDED_STATES, Cause, ExecutorHost, JobEnd, SlurmError
from pipeline.slurm.executor.job_requests import (
    PreparedJob,
    allocation_resources,
    pack_jobs,
    prepare_job,
    split_allocation_into_tasks,
)
from pipeline.slurm.executor.slurm_commands import SubmissionAnswer, WaitMonitor
from pipeline.slurm.executor.slurm_environment import list_ignored_options

KILLED_CODE = 128 + 9  # if nobody canceled the job, Slurm or the kernel killed it for lack of memory
MAX_PAUSE_SECONDS = 120.0
SECONDS_BETWEEN_SACCT = 60.0
FORGOTTEN_SECONDS = 300.0  # then a job is over that neither squeue nor the accounting knows
# Lines of `allocation_runner` and srun, which follow the cause.
EXIT_CODE = re.compile(r"(ended|Exited) with exit code \d+$")
WAIT_MESSAGES = {
    "silent": "Slurm did not confirm the submission of {what}: waiting until it does",
    "full": "Slurm's limits do not admit {what} and later jobs now: waiting until they do, or until you ask for less",
}


class SlurmExecutor(RemoteExecutor):  # type: ignore[misc]
    """Submits jobs, several small ones in one allocation, and reports how each ends.

    One thread submits, and waits if Slurm is full or does not answer; another queries states. Snakemake's main loop
    waits for neither.
    """

    host: ExecutorHost  # set by `plugin.register`, because Snakemake creates the object
    pause_seconds = 10.0

    def __post_init__(self) -> None:
        """Prepare the state that the threads share; called by the base class.

        Raises:
            WorkflowError: `--sdm apptainer` is set, with which no training could be started, or Slurm could not open
                its logs.
        """
        if DeploymentMethod.APPTAINER in self.workflow.deployment_settings.deployment_method:
            raise WorkflowError(
                f"--sdm apptainer does not go with --profile slurm: leave it out, and {self.host.image_advice}"
            )
        folder = str(self.host.log_folder.absolute())
        if replaced_characters := {*"%\\"} & {*folder}:
            raise WorkflowError(
                f"Slurm replaces {' and '.join(sorted(replaced_characters))} in paths, and {folder} has it: rename it"
            )
        self.name = str(uuid.uuid4())
        self.folder = ALLOCATIONS_FOLDER / self.name
        self._began = datetime.now(UTC) - timedelta(minutes=1)
        self._groups: deque[list[PreparedJob]] = deque()  # waiting for submission, one allocation each
        self._changed = threading.Condition()
        self._ended = False
        self._live: set[str] = set()  # numbers of submitted allocations that are not over
        self._all: set[str] = set()
        self._queue: dict[str, slurm_commands.QueuedJob] = {}
        self._over: dict[str, str] = {}  # states of allocations that squeue has forgotten
        self._forgotten: dict[str, float] = {}  # when squeue did not name them for the first time
        self._asked_seconds = float("-inf")
        self._count = 0
        self._requeued_codes: list[int] | None = None
        self._unanswered = False  # whether the last request may arrive yet
        self._warned: set[str] = set()  # lasting conditions
        self._causes: set[str] = set()  # last lines of Slurm's logs that were shown
        self._waiting = WaitMonitor(60.0 * self.host.start_minutes, self.logger.warning)
        self._thread = threading.Thread(target=self._submit_all, name="submission", daemon=True)
        if ignored := list_ignored_options(os.environ):
            self.logger.warning(f"{', '.join(ignored)} of this shell: not used for jobs; {self.host.options_advice}")

    # From Snakemake's job to a task

    def run_jobs(self, jobs: list[Any]) -> None:
        """Queue the ready jobs; they are submitted in order as Slurm's limits admit them."""
        ready = []
        for job in jobs:
            self.run_job_pre(job)
            ready.append(self._prepare(job))
        with self._changed:
            self._groups += [[ready[n] for n in group] for group in pack_jobs([one.request for one in ready])]
            self._changed.notify_all()
        if not self._thread.is_alive() and not self._ended:
            self._thread.start()

    def run_job(self, job: Any) -> None:
        self.run_jobs([job])

    def _prepare(self, job: Any) -> PreparedJob:
        for path in job.log:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        modules = DeploymentMethod.ENV_MODULES in self.workflow.deployment_settings.deployment_method
        return prepare_job(job, self.host.command_prefix, self.host.log_folder, modules=modules)

    # Submission, in a thread of its own

    def _submit_all(self) -> None:
        while (group := self._next_group()) is not None:
            try:
                self._submit(group)
            except Exception as error:  # otherwise Snakemake would wait forever
                for ready in group:
                    snakemake_private.exhaust_attempts(ready.job)  # it may have been submitted
                    self.report_job_error(SubmittedJobInfo(ready.job), msg=f"it could not be submitted: {error!r}\n")

    def _next_group(self) -> list[PreparedJob] | None:
        """Return the jobs of the next allocation as soon as the queue limit admits it; None at the end."""
        with self._changed:
            while not self._ended:
                if self._groups and snakemake_private.is_stopping(self.workflow):
                    self._abandon_queue()
                elif self._groups and len(self._live) < self.host.queue_limit:
                    return self._groups.popleft()
                self._changed.wait(self.pause_seconds)
            return None

    def _abandon_queue(self) -> None:
        """Abandon the jobs that are not submitted yet; the next invocation runs them."""
        left = [one for group in self._groups for one in group]
        self._groups.clear()
        self.logger.warning(f"snakemake ends: {len(left)} jobs are not submitted; those in Slurm continue")
        for one in left:
            snakemake_private.abandon_job(self.workflow, one.job)

    def _submit(self, group: list[PreparedJob]) -> None:
        """Submit an allocation, and repeat while Slurm is full or does not answer."""
        self._count += 1
        path = (self.folder / f"{self._count}.json").absolute()
        sha256 = allocation_runner.write_allocation(path, split_allocation_into_tasks(group))
        if self._requeued_codes is None and (configuration := slurm_commands.query_configuration()):
            self._requeued_codes = slurm_commands.parse_requeued_codes(configuration)
        script = allocation_runner.format_batch_script(path, sha256, self._requeued_codes or ())
        first, what = group[0], self._describe(group)
        first.log.parent.mkdir(parents=True, exist_ok=True)
        words = [
            *slurm_commands.sbatch_options(allocation_resources(group)),
            f"--job-name={self.name}",
            f"--comment={what}",
        ]
        words += [f"--output={first.log.absolute()}", "--open-mode=append"]
        pause = self.pause_seconds
        while not self._ended:
            answer = slurm_commands.submit_batch(words, script, snakemake_private.working_directory(self.workflow))
            if answer.outcome in WAIT_MESSAGES:
                self._warn_once(answer.outcome, f"{WAIT_MESSAGES[answer.outcome].format(what=what)} ({answer.said})")
            self._unanswered = answer.outcome == "silent"
            if self._unanswered:
                answer = self._resolve_unanswered_submission(answer, pause)
            if answer.outcome == "taken":
                self._report_submission(group, path, answer.number, what)
                return
            if answer.outcome == "refused":
                for one in group:
                    snakemake_private.exhaust_attempts(one.job)
                    self.report_job_error(SubmittedJobInfo(one.job), msg=f"sbatch refused it: {answer.said}\n")
                return
            self._sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    @staticmethod
    def _describe(group: list[PreparedJob]) -> str:
        names = [one.task.what for one in group]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

    def _resolve_unanswered_submission(self, answer: SubmissionAnswer, pause: float) -> SubmissionAnswer:
        """Return the outcome of a submission without an answer, once Slurm answers again."""
        known = None
        for _ in range(2):  # an earlier request may be processed after a later query
            self._sleep(pause)
            while (known := slurm_commands.query_jobs([self.name], ended=True)) is None and not self._ended:
                self._sleep(pause)
        new = sorted((known or {}).keys() - self._all, key=int)
        return SubmissionAnswer("taken", number=new[0]) if new else answer

    def _report_submission(self, group: list[PreparedJob], path: Path, number: str, what: str) -> None:
        with self._changed:
            self._live.add(number)
            self._all.add(number)
        log = str(group[0].log.with_name(group[0].log.name.replace("%j", number)))
        self.logger.info(f"{what} has been submitted as job {number} of Slurm (its log: {log})")
        for place, one in enumerate(group):
            aux = {"path": path, "place": place, "size": len(group), "log": log, "what": one.task.what}
            self.report_job_submission(SubmittedJobInfo(one.job, external_jobid=number, aux=aux))

    def _warn_once(self, condition: str, sentence: str) -> None:
        """Warn of a lasting condition, once for this invocation."""
        if condition not in self._warned:
            self._warned.add(condition)
            self.logger.warning(sentence)

    def _sleep(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended, timeout=seconds)

    # Ends of jobs, in the thread of the base class

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report the ended jobs and yield the others."""
        if not active_jobs:  # the base class calls this before `__post_init__`
            return
        try:
            over = await asyncio.to_thread(self._ended_states, active_jobs)
        except SlurmError as error:  # there is no squeue now: the query is repeated
            self._warn_once("squeue", str(error))
            over = {}
        failed = [info for info in active_jobs if over.get(str(info.external_jobid)) not in (None, "COMPLETED")]
        causes = await asyncio.to_thread(self._failure_causes, failed, over)
        for info in active_jobs:
            number = str(info.external_jobid)
            if number not in over:
                yield info
            elif (
                over[number] == "COMPLETED"
                or allocation_runner.read_exit_codes(info.aux["path"]).get(info.aux["place"]) == 0
            ):
                self.report_job_success(info)
            else:
                self._report_failure(info, over[number], causes.get(number, "failed"))
        with self._changed:
            self._live -= over.keys()
            self._changed.notify_all()
        self._report_queue(active_jobs)

    def _report_queue(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Report the jobs that wait in Slurm's queue or for their submission, with the reasons."""
        with self._changed:
            reasons = {one.job.jobid: "not submitted yet" for group in self._groups for one in group}
        for info in active_jobs:
            queued = self._queue.get(str(info.external_jobid))
            if queued is not None and queued.state == "PENDING":
                reasons[info.job.jobid] = queued.reason
        self.host.report_queue(reasons)

    def _query_accounting(self) -> Mapping[str, JobEnd] | None:
        """Return the last allocations of this invocation's jobs; None if the accounting does not answer."""
        try:
            return self.host.query_accounting([self.name], self._began)
        except SlurmError as error:
            self._warn_once("accounting", f"{error}; this run continues without it")
            return None

    def _ended_states(self, active_jobs: list[SubmittedJobInfo]) -> dict[str, str]:
        """Return the states of the allocations that are over.

        What squeue has forgotten is over. The accounting knows its state; where it does not, the allocation's own file
        does, if all of its jobs have ended there.
        """
        known = slurm_commands.query_jobs([self.name], ended=True)
        if known is None:
            return {}
        self._waiting.warn_of_waiting_jobs(known)
        self._queue = known
        now, files = time.monotonic(), {str(info.external_jobid): info.aux for info in active_jobs}
        forgotten = files.keys() - known.keys() - self._over.keys()
        self._forgotten = {number: self._forgotten.get(number, now) for number in forgotten}
        if forgotten and now > self._asked_seconds + SECONDS_BETWEEN_SACCT:
            self._asked_seconds = now
            ends = self._query_accounting() or {}
            self._over |= {number: end.state for number, end in ends.items() if end.is_over and number in forgotten}
            for number in forgotten - ends.keys():
                codes = allocation_runner.read_exit_codes(files[number]["path"])
                have_all_ended = len(codes) == files[number]["size"]
                if have_all_ended or now > self._forgotten[number] + FORGOTTEN_SECONDS:
                    succeeded = have_all_ended and not any(codes.values())
                    self._over[number] = "COMPLETED" if succeeded else "FAILED"
        ended = {number: job.state for number, job in known.items() if job.state in ENDED_STATES}
        return {number: state for number, state in {**self._over, **ended}.items() if number in files}

    def _failure_causes(self, failed: list[SubmittedJobInfo], over: dict[str, str]) -> dict[str, Cause]:
        """Return why allocations have failed; the accounting knows whether a plain failure was one of memory."""
        causes = {n: CAUSES.get(over[n], "failed") for info in failed if (n := str(info.external_jobid))}
        unsure = {number for number in causes if over[number] == "FAILED"}
        for attempt in range(3 if unsure else 0):
            time.sleep(self.pause_seconds if attempt else 0)  # the database knows the end of a job later than squeue
            if (ends := self._query_accounting()) is None:
                break
            over_now = {number: end for number, end in ends.items() if number in unsure and end.is_over}
            causes |= {number: end.cause for number, end in over_now.items()}
            if over_now.keys() == unsure:
                break
        return causes

    def _report_failure(self, info: SubmittedJobInfo, state: str, cause: Cause) -> None:
        code = allocation_runner.read_exit_codes(info.aux["path"]).get(info.aux["place"])
        if code is None and info.aux["size"] == 1:
            code = slurm_commands.query_exit_code(str(info.external_jobid))
        if code == KILLED_CODE and cause == "failed":
            cause = "memory"
        job_requests.record_failure(info.aux["what"], cause)
        msg = f"Slurm's job {info.external_jobid} ended as {state}" + (f", exit code {code}" if code else "") + ".\n"
        if code == REFUSED_CODE and state == "FAILED":
            snakemake_private.exhaust_attempts(info.job)
            msg = f"The step refused its inputs, and is not retried: see its log. {msg}"
        if code == os.EX_IOERR:
            msg = f"A disk or a quota is full: free space, then run snakemake again. {msg}"
        self.report_job_error(info, msg=f"{msg}{self._quote_slurm_log(info)}", aux_logs=[info.aux["log"]])

    def _quote_slurm_log(self, info: SubmittedJobInfo) -> str:
        """Return the last line of Slurm's own log where the step wrote none; each cause is shown once."""
        if any(path.is_file() and path.stat().st_size for path in map(Path, info.job.log)):
            return ""
        try:
            lines = Path(info.aux["log"]).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip() and not EXIT_CODE.search(line)), "")
        cause = re.sub(r"\d+", "", last)  # numbers of jobs, nodes and times differ
        if not last or cause in self._causes:
            return ""
        self._causes.add(cause)
        return f"Slurm's own log ends with: {last}\n"

    # The end

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel all jobs of this invocation, also those that are not reported yet."""
        self._stop()
        count, problem = len(self._all), self._cancel_submitted() if self._all or active_jobs else ""
        try:
            self._wait_for_submission()
            if self._unanswered:  # it may be processed after a request to cancel
                time.sleep(self.pause_seconds)
            if self._unanswered or len(self._all) > count or self._thread.is_alive():
                problem = self._cancel_submitted()
        except KeyboardInterrupt:
            problem = "a submission is under way"
        if problem:
            self.logger.error(f"Jobs may still run ({problem}): scancel --name={self.name}")

    def _cancel_submitted(self) -> str:
        self.logger.info("Slurm cancels the jobs of this run")
        return slurm_commands.cancel_jobs(self.name)

    def _wait_for_submission(self) -> None:
        """Wait until Slurm has answered to the submission that is under way."""
        if self._thread.is_alive():
            self._thread.join(1.0)
            if self._thread.is_alive():
                self.logger.info("A submission is under way: its job is cancelled when Slurm answers")
                self._thread.join(slurm_commands.SBATCH_SECONDS)

    def shutdown(self) -> None:
        """End the threads; submitted jobs continue."""
        self._stop()
        super().shutdown()

    def _stop(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
