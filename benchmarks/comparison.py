"""Texts and measured processes for the benchmarks that compare two implementations."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def peak_bytes() -> int:
    """Return the largest resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measured(script: str, preset: str, results: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield, for each side, its name and what the script prints of it in a process of its own.

    What is compiled once for a machine is compiled before.
    """
    with tempfile.TemporaryDirectory() as folder:
        for side, some in (("ours", results[:50]), ("ours", results), ("stock", results)):
            file = Path(folder, f"{len(some)}.jsonl")
            file.write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
            command = [sys.executable, script, "--side", side, "--preset", preset, str(file)]
            ran = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
            if some is results:
                yield side, json.loads(ran.stdout.splitlines()[-1])


def texts(data: Path, every: int, names: str = "*.jsonl.gz") -> list[str]:
    """Return every N-th text of the files of these names in the folder."""
    files = (gzip.decompress(path.read_bytes()) for path in sorted(data.glob(names)))
    lines = (line for content in files for line in content.splitlines())
    return [json.loads(line)["text"] for number, line in enumerate(lines) if number % every == 0]
