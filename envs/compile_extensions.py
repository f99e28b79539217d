"""Compile, once, the C++ extension with which DeepSpeed communicates on CPU, so that no training job waits for it."""

import os
import sys


def main() -> int:
    """Compile and load the extension; return the exit code."""
    if os.environ.get("DS_ACCELERATOR") != "cpu":
        return 0  # on GPUs DeepSpeed communicates through NCCL or RCCL and compiles nothing for it
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    ShareMemCommBuilder().load()
    return 0


if __name__ == "__main__":
    sys.exit(main())
