"""`python -m pipeline STAGE STEP --settings …` runs a job of a rule; all else is the command line `polder`."""

import os
import sys

from pipeline.energy.startup_counters import keep_startup_sample


def start() -> int:
    """Run the command of this process and return the exit code; a job's first act is to read the energy counters."""
    if "--settings" in sys.argv:
        keep_startup_sample()
        # PyTorch's threads spin for a short while only, a thirtieth of libgomp's default, before they sleep: on a busy
        # machine a spinning thread takes the core that the other one needs (docs/results/evaluation.md).
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    from pipeline.cli import entry_point

    return entry_point.start()


if __name__ == "__main__":
    sys.exit(start())
