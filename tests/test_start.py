"""Commands start immediately: slow libraries are imported when something is computed."""

from __future__ import annotations

import subprocess
import sys


def loaded(module: str, *libraries: str) -> list[str]:
    code = f"import sys, {module}; print(*sorted({set(libraries)} & {{*sys.modules}}))"
    return subprocess.run([sys.executable, "-c", code], check=True, text=True, capture_output=True).stdout.split()


def test_command_line_imports_no_statistics_or_learning_library() -> None:
    assert loaded("pipeline.cli.application", "pydantic", "rich", "snakemake", "scipy.stats", "torch", "lm_eval") == []


def test_trainer_imports_no_compiler_and_no_statistics_library() -> None:
    libraries = "torch._inductor.compile_fx", "scipy.special", "transformers", "deepspeed"
    assert loaded("pipeline.pretrain.processes.trainer", "torch", *libraries) == ["torch"]


def test_hashing_job_imports_no_arrow() -> None:
    assert loaded("pipeline.sources.fingerprint", "pyarrow", "numpy", "torch") == []


def test_workflow_startup_imports_no_compiler_and_uses_little_memory() -> None:
    assert loaded("pipeline.workflow.startup", "numba", "scipy", "datatrove", "spacy", "torch") == []
