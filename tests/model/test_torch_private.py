"""The private PyTorch names used in training exist in the installed version."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
import torch

from pipeline.model import decoder, torch_private

USED = (  # by methods that a class of Polder overrides, and by patches
    ("torch.distributed.pipelining", "PipelineStage._setup_forward_recv_info"),
    ("torch.distributed.pipelining", "PipelineStage._setup_backward_recv_info"),
    ("torch._inductor.config", "_micro_pipeline_tp"),
    ("torch._C._distributed_c10d", "_dump_fr_trace_json"),
)


def imported_names(file: Path) -> list[tuple[str, str]]:
    """Return the torch names that a module imports, with their modules; also within functions."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    results = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch")]
    return sorted({(str(node.module), alias.name) for node in results for alias in node.names})


def is_there(module: str, name: str) -> bool:
    """Return whether a torch module has a name, possibly an attribute."""
    result = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(result, part):
            return False
        result = getattr(result, part)
    return True


def missing_sentence(module: str, name: str, tried_with: str) -> str:
    """Return the advice for a missing name."""
    return f"torch {torch.__version__} has no {module}.{name}, as torch {tried_with} had: see what took its place"


@pytest.mark.parametrize(("module", "name"), [*imported_names(Path(torch_private.__file__)), *USED])
def test_private_torch_name_exists(module: str, name: str) -> None:
    assert is_there(module, name), missing_sentence(module, name, torch_private.TRIED_WITH)


def test_torch_version_is_the_one_the_names_were_tested_with() -> None:
    assert torch.__version__.startswith(f"{torch_private.TRIED_WITH}."), (
        f"torch {torch.__version__} is installed, and the private names were tried with {torch_private.TRIED_WITH}: "
        "run the tests of training, then write the new version into TRIED_WITH"
    )


def test_missing_private_name_is_reported() -> None:
    assert not is_there("torch._C._distributed_c10d", "NoStore") and not is_there("torch", "Tensor.nothing")
    assert missing_sentence("torch", "no", "2.13").startswith(
        f"torch {torch.__version__} has no torch.no, as torch 2.13 had"
    )


def test_operators_with_saved_results_exist() -> None:
    assert len(decoder._SAVED_OPERATORS) == 8 and all(
        isinstance(one, torch._ops.OpOverload) for one in decoder._SAVED_OPERATORS
    )
