"""Kernels without fixed results are refused where determinism is asked for, and taken where it is not."""

from collections.abc import Iterator

import pytest
import torch

from pipeline.core.errors import InputError
from pipeline.model.determinism import explained, is_deterministic, set_determinism


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    mode, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    yield
    torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def without_a_fixed_order() -> torch.Tensor:
    """Return what one of the few operations gives that has no deterministic kernel on a CPU."""
    return torch.zeros(2).put_(torch.tensor([1]), torch.tensor([3.0]), accumulate=False)


def test_a_kernel_without_fixed_results_is_refused_by_name_with_the_way_out() -> None:
    set_determinism(True)
    assert is_deterministic()
    match = r"put_ has no kernel .*: set training\.deterministic to false"
    with pytest.raises(InputError, match=match), explained("training.deterministic"):
        without_a_fixed_order()


def test_any_kernel_is_taken_where_it_is_not_asked_for() -> None:
    set_determinism(False)
    assert not is_deterministic() and without_a_fixed_order().tolist() == [0, 3]


def test_a_warning_alone_is_not_determinism() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert not is_deterministic()


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="must match"), explained("training.deterministic"):
        torch.ones(2) + torch.ones(3)
