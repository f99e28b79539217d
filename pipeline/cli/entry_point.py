"""Run a job of a rule, a command that rules call, or the command line `polder`, and turn errors into exit codes."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pipeline.core import full_disk_errors
from pipeline.core.display_text import escape_standard_output
from pipeline.core.errors import EXIT_DISK_FULL, EXIT_TEMPORARY_FAILURE, InputError, Stopped

EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
RULE_COMMANDS = {
    ("accounting",): ("pipeline.slurm.accounting", "update_accounting"),
    ("provenance", "attest"): ("pipeline.provenance.evidence_attestation", "attest_evidence"),
}
"""Commands that rules call with the folder of the run: the module and the function."""


def stop_on_sigterm() -> None:
    """Let a step end with `Stopped` on SIGTERM in a job of Slurm: so a preemption begins, some time before its end."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Stopped("as asked by Slurm: start again to continue")

    if "SLURM_JOB_ID" in os.environ:
        signal.signal(signal.SIGTERM, stop)


def run(arguments: list[str]) -> int:
    """Run a step, or a command of `polder`; what rules run does not load the command line.

    Raises:
        InputError: a mistake of the user.
        Stopped: the step was asked to stop.
    """
    if any(word.startswith("--settings") for word in arguments):  # the call of a rule has them
        stop_on_sigterm()
        return int(importlib.import_module("pipeline.job.job_entry_point").main(arguments))
    for words, (module, function) in RULE_COMMANDS.items():
        if arguments[:-1] == [*words] and not arguments[-1].startswith("-"):
            getattr(importlib.import_module(module), function)(Path(arguments[-1]))
            return 0
    return int(importlib.import_module("pipeline.cli.application").main(arguments))


def main(arguments: list[str]) -> int:
    """Run a command or a step and return the exit code.

    With one sentence: 2 for a mistake of the user; 74 where a disk is full and 75 where the step was asked to stop:
    started again, it continues. 141, without a sentence, where nobody reads what is printed.
    """
    try:
        with escape_standard_output(sys.stdout):
            code = run(arguments)
        sys.stdout.flush()
        return code
    except InputError as error:
        print("".join(f"error: {sentence}\n" for sentence in error.sentences), end="", file=sys.stderr)
        return 2
    except Stopped as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm asks more than once
        print(f"stopped: {stop}", file=sys.stderr, flush=True)
        return EXIT_TEMPORARY_FAILURE
    except BrokenPipeError:  # whoever reads what is printed has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if not full_disk_errors.is_disk_full(error):
            raise
        full_disk_errors.print_error(str(full_disk_errors.disk_full_error(error)))
        return EXIT_DISK_FULL


def start() -> int:
    """Run the command of this process and return the exit code."""
    full_disk_errors.ignore_full_log_disk()
    return main(sys.argv[1:])
