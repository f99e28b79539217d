"""The private names of PyTorch that training uses are in the version that is installed."""

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
    """Return the names that a module imports of torch, with their modules; those in functions too."""
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    found = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch")]
    return sorted({(str(node.module), alias.name) for node in found for alias in node.names})


def is_there(module: str, name: str) -> bool:
    """Return whether a module of torch has a name, which may be an attribute's."""
    found = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def missing_sentence(module: str, name: str, tried_with: str) -> str:
    """Return what is to be done where a name is gone."""
    return f"torch {torch.__version__} has no {module}.{name}, as torch {tried_with} had: see what took its place"


@pytest.mark.parametrize(("module", "name"), [*imported_names(Path(torch_private.__file__)), *USED])
def test_a_private_name_of_torch_is_there(module: str, name: str) -> None:
    assert is_there(module, name), missing_sentence(module, name, torch_private.TRIED_WITH)


def test_the_version_is_the_one_that_the_names_were_tried_with() -> None:
    assert torch.__version__.startswith(f"{torch_private.TRIED_WITH}."), (
        f"torch {torch.__version__} is installed, and the private names were tried with {torch_private.TRIED_WITH}: "
        "run the tests of training, then write the new version into TRIED_WITH"
    )


def test_a_name_that_is_gone_is_named() -> None:
    assert not is_there("torch._C._distributed_c10d", "NoStore") and not is_there("torch", "Tensor.nothing")
    assert missing_sentence("torch", "no", "2.13").startswith(
        f"torch {torch.__version__} has no torch.no, as torch 2.13 had"
    )


def test_the_operators_whose_results_are_kept_are_there() -> None:
    assert len(decoder._SAVED_OPERATORS) == 8 and all(
        isinstance(one, torch._ops.OpOverload) for one in decoder._SAVED_OPERATORS
    )
