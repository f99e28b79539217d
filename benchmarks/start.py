"""What a training on many processes spends before its first step, at a milestone and when it goes on.

    PYTHONPATH=. python benchmarks/start.py weights [--preset gptnl-30b] [--processes 64 256]

Each is what one process does, without the others and without a device, beside what it would do alone.
"""

from __future__ import annotations

import argparse
import time

from pipeline.model.networks import initial_weight, parameter_shapes
from pipeline.model.settings import Architecture

VOCABULARY = 128_256


def weights(options: argparse.Namespace) -> None:
    """Print the seconds to draw the whole model, and the chunk of rows that FSDP gives to a process in the middle."""
    architecture = Architecture(preset=options.preset)
    for processes in (1, *options.processes):
        began, held = time.process_time(), 0
        for name, shape in parameter_shapes(architecture, VOCABULARY).items():
            rows = -(-shape[0] // processes)
            first = min(processes // 2 * rows, shape[0])
            part = [slice(first, min(first + rows, shape[0])), *(slice(0, size) for size in shape[1:])]
            held += initial_weight(name, shape, architecture, 1, part).numel()
        print(f"{processes} processes: {held:,} elements in {time.process_time() - began:.2f} s", flush=True)


def main() -> None:
    """Measure what the first argument names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    of_weights = parts.add_parser("weights")
    of_weights.add_argument("--preset", default="gptnl-30b")
    of_weights.add_argument("--processes", type=int, nargs="*", default=[64, 256])
    of_weights.set_defaults(measure=weights)
    options = parser.parse_args()
    options.measure(options)


if __name__ == "__main__":
    main()
