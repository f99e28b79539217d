"""Runs datatrove blocks in this process with datatrove's executor."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from loguru import logger


def run_blocks(blocks: Sequence[PipelineStep], tasks: int = 1) -> list[PipelineStep]:
    """Run the blocks and return those that ran, which are copies; with several tasks, those of the last one.

    The executor's own log is left out: it shows a user's mistake as a traceback. Its statistics go to standard error.
    """
    logger.disable("datatrove")
    try:
        with tempfile.TemporaryDirectory() as logs:
            executor = LocalPipelineExecutor(list(blocks), tasks=tasks, workers=1, logging_dir=logs)
            statistics = executor.run()
    finally:
        logger.enable("datatrove")
    print(statistics.get_repr(), file=sys.stderr)
    executed: list[PipelineStep] = executor.pipeline
    return executed
