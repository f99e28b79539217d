"""The one command line.

`STAGE STEP …` and `provenance attest` are for rules; `verify`, `trace`, `reproduce`, `audit`, `accounting`,
`corpus why`, `model import`, `model export`, `runs`, `ladder`, `compare`, `plan`, `mirror`, `items`, `energy`,
`follow`, `profile`, `environment`, `platform check`, `provenance keygen`, `provenance pack`, `provenance quote` and
`schema` are for people.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from pipeline.core import disk_space
from pipeline.core.errors import NO_ROOM, TRY_AGAIN, InputError, Stopped
from pipeline.core.formatting import visible_output

COMMANDS = {
    "verify": ("pipeline.commands", "verify"),
    "trace": ("pipeline.commands", "trace"),
    "audit": ("pipeline.audit.training_documents", "main"),
    "provenance quote": ("pipeline.audit.token_origin", "main"),
    "corpus why": ("pipeline.audit.document_lineage", "main"),
    "model import": ("pipeline.model.huggingface", "import_model"),
    "model export": ("pipeline.model.huggingface", "export_model"),
    "provenance attest": ("pipeline.provenance.evidence", "main"),
    "provenance pack": ("pipeline.provenance.pack", "main"),
    "runs": ("pipeline.experiment.runs", "main"),
    "ladder": ("pipeline.experiment.ladder", "main"),
    "scaling": ("pipeline.experiment.device_scaling", "main"),
    "compare": ("pipeline.commands", "compare"),
    "reproduce": ("pipeline.audit.reproduce", "main"),
    "accounting": ("pipeline.slurm.accounting", "main"),
    "plan": ("pipeline.commands", "plan"),
    "mirror": ("pipeline.commands", "mirror"),
    "items": ("pipeline.commands", "items"),
    "energy": ("pipeline.workflow.progress", "main"),
    "follow": ("pipeline.slurm.pending_jobs", "main"),
    "profile": ("pipeline.pretrain.monitors.profiler", "main"),
    "platform check": ("pipeline.slurm.platform_check", "main"),
    "provenance keygen": ("pipeline.provenance.seal", "keygen"),
    "environment": ("pipeline.job.environments", "main"),
    "schema": ("pipeline.commands", "schema"),
}


def stop_on_sigterm() -> None:
    """Let a step end with `Stopped` on SIGTERM in a job of Slurm: so a preemption begins, some time before its end."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Stopped("as asked by Slurm: start again to continue")

    if "SLURM_JOB_ID" in os.environ:
        signal.signal(signal.SIGTERM, stop)


def main(arguments: list[str]) -> int:
    """Run a person's command or a step and return the exit code.

    With one sentence: 2 for a mistake of the user; 74 where a disk is full and 75 where the step was asked to stop:
    started again, it continues.
    """
    if not arguments:
        print(__doc__)
        return 2
    # `plan estimate` is the step of the stage of that name; `plan CONFIG` is the person's question.
    words = 2 if " ".join(arguments[:2]) in COMMANDS else 1
    is_command = " ".join(arguments[:words]) in COMMANDS and arguments[1:2] != ["estimate"]
    module, function = COMMANDS[" ".join(arguments[:words])] if is_command else ("pipeline.job.batch", "main")
    if not is_command and not any(word.startswith("--settings") for word in arguments):  # a rule's call has them
        print(f"error: there is no command {arguments[0]!r}: one of {', '.join(sorted(COMMANDS))}", file=sys.stderr)
        return 2
    if not is_command:
        stop_on_sigterm()
    try:
        called = getattr(importlib.import_module(module), function)
        with visible_output(sys.stdout):
            code = int(called(arguments[words:] if is_command else arguments))
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Stopped as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm asks more than once
        print(f"stopped: {stop}", file=sys.stderr, flush=True)
        return TRY_AGAIN
    except BrokenPipeError:  # whoever reads what is printed has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not disk_space.is_full(error):
            raise
        disk_space.say(str(disk_space.disk_full(error)))
        return NO_ROOM


if __name__ == "__main__":
    disk_space.forgive_full_logs()
    sys.exit(main(sys.argv[1:]))
