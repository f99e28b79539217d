"""`python -m pipeline follow results/RUN`: how far its trainings are, and which of its jobs wait in Slurm's queue."""

from __future__ import annotations

from pipeline.pretrain import follow
from pipeline.slurm.waiting import waiting


def main(arguments: list[str]) -> int:
    """Follow a run until it is interrupted."""
    return follow.main(arguments, waiting)
