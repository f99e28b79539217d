"""What a person types begins at once: libraries that take long to load wait until something is computed."""

from __future__ import annotations

import subprocess
import sys


def test_the_commands_load_no_library_of_statistics_or_learning_to_begin() -> None:
    code = "import sys, pipeline.commands; print(*sorted({'scipy.stats', 'torch', 'lm_eval'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=True, text=True, capture_output=True).stdout == "\n"
