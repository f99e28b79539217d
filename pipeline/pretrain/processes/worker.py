"""One process of a training run, started by pretrain.segment as `python -m MODULE ARGUMENTS.json`.

The meter of a node runs before torch is loaded, which takes seconds of all its processors.
"""

from __future__ import annotations

import os
import sys

from pipeline.core.process_lifetime import die_with_parent
from pipeline.energy.node_meter import meter_other_node


def main() -> int:
    """Run one process and return its exit code."""
    die_with_parent()
    # Blocks of a GPU's memory that grow leave no holes where sizes differ from step to step.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "200")  # collectives that are known where a process hangs
    with meter_other_node():
        from pipeline.pretrain.processes import trainer

        return trainer.main()


if __name__ == "__main__":
    sys.exit(main())
