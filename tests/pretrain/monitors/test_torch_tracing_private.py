"""The private PyTorch names used in memory tracing exist in the installed version."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.pretrain.monitors import torch_tracing_private
from tests.model.test_torch_private import imported_names, is_there, missing_sentence

USED = (  # by methods that a class of Polder overrides, and by patches
    ("torch.distributed.pipelining.schedules", "_PipelineSchedule._warmup_p2p"),
    ("torch.distributed.pipelining.schedules", "_batch_p2p"),
    ("torch.distributed.tensor._sharding_prop", "ShardingPropagator._propagate_tensor_meta_non_cached"),
    ("torch.distributed.fsdp", "FSDPModule._get_fsdp_state"),
    ("torch.distributed._tools.fsdp2_mem_tracker", "FSDPMemTracker._fsdp_param_group_post_backward"),
    ("torch.distributed._tools.fsdp2_mem_tracker", "FSDPMemTracker._fsdp_state_post_forward"),
    ("torch.distributed._tools.fsdp2_mem_tracker", "FSDPMemTracker._track"),
    ("torch.distributed._tools.fsdp2_mem_tracker", "FSDPMemTracker._update_peak_stats"),
)


@pytest.mark.parametrize(("module", "name"), [*imported_names(Path(torch_tracing_private.__file__)), *USED])
def test_private_torch_name_exists(module: str, name: str) -> None:
    assert is_there(module, name), missing_sentence(module, name, torch_tracing_private.TRIED_WITH)


def test_torch_version_is_the_one_the_names_were_tested_with() -> None:
    assert torch.__version__.startswith(f"{torch_tracing_private.TRIED_WITH}."), (
        f"torch {torch.__version__} is installed, the private names need {torch_tracing_private.TRIED_WITH}: "
        "run tests/pretrain/monitors/test_memory_trace.py, then write the new version into TRIED_WITH"
    )
