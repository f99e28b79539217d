"""Run one process of a training, which pretrain.segment starts as `python -m MODULE ARGUMENTS.json`.

The node's meter starts before all that takes long to import.
"""

from __future__ import annotations

import os
import sys

from pipeline.energy.startup_counters import keep_startup_sample, meters_additional_node


def main() -> int:
    """Run one process and return its exit code."""
    if meters_additional_node():
        keep_startup_sample()
    from pipeline.core.lock_owner import die_with_parent
    from pipeline.energy.meter_recorder import meter_additional_node

    die_with_parent()
    # Expandable segments avoid fragmentation of GPU memory when sizes differ between steps.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "200")  # recorded collectives, to explain a hang
    with meter_additional_node():
        from pipeline.pretrain.processes import trainer

        return trainer.main()


if __name__ == "__main__":
    sys.exit(main())
