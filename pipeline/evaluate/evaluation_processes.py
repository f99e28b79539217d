"""Evaluate one checkpoint in several processes, on one node or more: a launch command starts them, as in training.

Each answers a share of the batches and gets the answers of the others, so that all go through the suites side by side;
the first one writes the results. Batches do not depend on how many processes there are, so neither do the answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.parent_process import die_with_parent
from pipeline.pretrain.processes.launch import command, launcher

WORKER = "pipeline.evaluate.evaluation_worker"


def run_processes(launch: str, given: dict[str, Any], beside: Path) -> dict[str, Any]:
    """Evaluate in the processes that a launch command starts; return what the first one counts.

    Args:
        launch: the command.
        given: the keyword arguments of `pipeline.evaluate.suites.evaluate`, in the types of JSON.
        beside: a file in a folder that all nodes see.

    Raises:
        InputError: the command cannot be started, or a process refused its input.
        RuntimeError: the processes ended otherwise before they were done.
    """
    # A next start removes what is named like this, where this one is killed.
    prefix, suffix = f".partial-{os.getpid()}.", f"-{beside.name.rpartition('-')[2]}"
    with tempfile.TemporaryDirectory(dir=beside.parent, prefix=prefix, suffix=suffix) as folder:
        file, outcome = Path(folder, "arguments.json"), Path(folder, "outcome.json")
        arguments = {"given": given, "outcome": str(outcome.absolute()), "launcher": launcher(launch)}
        file.write_text(json.dumps(arguments), encoding="utf-8")
        words = command(launch, WORKER, [str(file.absolute())])
        try:
            ended = subprocess.run(words, preexec_fn=die_with_parent, check=False)
        except OSError as error:
            told = f"launch: {words[0]} cannot be started ({error.strerror}): install it or correct it"
            raise InputError(told) from None
        if not outcome.exists():
            raise RuntimeError(f"the evaluation ended with exit code {ended.returncode} before it was done")
        found: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
    if "refused" in found:
        raise InputError(found["refused"])
    return found
