"""`python -m pipeline STAGE STEP --settings …` runs a job of a rule; all else is the command line `polder`."""

import os
import sys

from pipeline.energy.startup_counters import keep_startup_sample


def start() -> int:
    """Run the command of this process and return the exit code; a job's first act is to read the energy counters."""
    if "--settings" in sys.argv:
        keep_startup_sample()
        # PyTorch's threads sleep while they wait for each other: a spinning one takes the core that the other needs.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from pipeline.cli import entry_point

    return entry_point.start()


if __name__ == "__main__":
    sys.exit(start())
