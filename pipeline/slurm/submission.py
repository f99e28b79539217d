"""The jobs of one snakemake, whatever Slurm answers: none is submitted twice, and the end of none is missed.

Where the controller is away or busy `sbatch` gives up after ten seconds. Slurm may have taken the job all the same:
called a failure, it would be tried again beside itself. And some minutes after its end (MinJobAge) squeue forgets a
job, which the plugin would then wait for without end.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from pipeline.errors import InputError
from pipeline.pretrain.launch import option
from pipeline.slurm import sacct
from pipeline.slurm.queue import comments

# slurm_errno.c: what sbatch says where it does not know whether its request has arrived, or that it has not.
UNANSWERED = re.compile(r"unable to contact|timed out|temporarily|zero bytes|communication|connection|authentica", re.I)
SECONDS_BETWEEN = 10.0
SECONDS_BETWEEN_SACCT = 60.0


class Submissions:
    """What an executor of the plugin has submitted; made before it submits anything.

    Args:
        executor: the plugin's executor, whose reports are changed.
        say: tells a person.
        seconds_between: two questions while Slurm does not answer.
    """

    def __init__(self, executor: Any, say: Callable[[str], None], seconds_between: float = SECONDS_BETWEEN) -> None:
        self._executor, self._say, self._seconds_between = executor, say, seconds_between
        self._began = datetime.now(UTC) - timedelta(minutes=1)
        self._numbers: set[str] = set()
        self._over: dict[str, str] = {}
        self._asked_seconds = float("-inf")
        self._submit, self._query = executor.run_job, plugin.query_job_status
        self._report, self._report_error = (
            executor._report_job_submission_threadsafe,
            executor._report_job_error_threadsafe,
        )
        executor.run_job = self._run
        executor._report_job_submission_threadsafe = self._submitted
        executor._report_job_error_threadsafe = self._failed
        plugin.query_job_status = self._states

    @property
    def _is_ended(self) -> bool:
        """Whether snakemake was interrupted: it has cancelled its jobs, and what still waits for sbatch stays here."""
        return bool(self._executor._job_submission_executor._shutdown)

    def _run(self, job: Any) -> None:
        if not self._is_ended:
            self._submit(job)

    def _submitted(self, info: SubmittedJobInfo) -> None:
        self._numbers.add(str(info.external_jobid))
        self._report(info)

    def _failed(self, info: SubmittedJobInfo, msg: str) -> None:
        said, _, call = msg.partition("sbatch call:")
        if not UNANSWERED.search(said):
            self._report_error(info, msg)
            return
        words = shlex.split(call)
        comment, log = option(words, "--comment"), option(words, "--output") or ""
        self._say(f"Slurm did not say whether it has taken a job of {info.job.name}: looking as soon as it answers")
        for _ in range(2):  # what was asked before may be answered after
            time.sleep(self._seconds_between)
            while (known := comments(self._executor.run_uuid)) is None and not self._is_ended:
                time.sleep(self._seconds_between)
        taken = [number for number, other in (known or {}).items() if other == comment and number not in self._numbers]
        if taken:
            path = Path(log.replace("%j", taken[0]))
            self._submitted(SubmittedJobInfo(info.job, external_jobid=taken[0], aux={"slurm_logfile": path}))
        else:
            self._run(info.job)

    async def _states(self, command: str, logger: Any) -> Any:
        """Return the plugin's answer, with the ends of the jobs that squeue does not know any more."""
        states, seconds = await self._query(command, logger)
        if states is not None:
            self._over |= {number: state for number, state in states.items() if state == "COMPLETED"}
            if self._numbers - states.keys() - self._over.keys():
                self._ask()
            states = {**self._over, **states}
        return states, seconds

    def _ask(self) -> None:
        """Ask the accounting how jobs have ended; where it does not answer, they are asked for again."""
        if time.monotonic() < self._asked_seconds + SECONDS_BETWEEN_SACCT:
            return
        self._asked_seconds = time.monotonic()
        try:
            jobs = sacct.ask([self._executor.run_uuid], self._began)
        except InputError as error:
            self._say(str(error))
            return
        ends = {number: job.allocations[-1] for number, job in jobs.items()}
        self._over |= {number: end.state for number, end in ends.items() if end.is_over}
