"""What a person types begins at once: libraries that take long to load wait until something is computed."""

from __future__ import annotations

import subprocess
import sys


def loaded(module: str, *libraries: str) -> list[str]:
    code = f"import sys, {module}; print(*sorted({set(libraries)} & {{*sys.modules}}))"
    return subprocess.run([sys.executable, "-c", code], check=True, text=True, capture_output=True).stdout.split()


def test_the_commands_load_no_library_of_statistics_or_learning_to_begin() -> None:
    assert loaded("pipeline.cli.application", "pydantic", "rich", "snakemake", "scipy.stats", "torch", "lm_eval") == []


def test_a_process_that_trains_loads_no_compiler_and_no_statistics_to_begin() -> None:
    libraries = "torch._inductor.compile_fx", "scipy.special", "transformers", "deepspeed"
    assert loaded("pipeline.pretrain.processes.trainer", "torch", *libraries) == ["torch"]


def test_a_job_that_hashes_files_loads_no_arrow_to_begin() -> None:
    assert loaded("pipeline.sources.fingerprint", "pyarrow", "numpy", "torch") == []


def test_the_start_of_a_run_loads_no_compiler_and_stays_small_on_the_login_node() -> None:
    assert loaded("pipeline.workflow.startup", "numba", "scipy", "datatrove", "spacy", "torch") == []
