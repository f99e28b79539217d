"""Muon's update is the published one: it equals PyTorch's optimizer on whole matrices, and a decomposition."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipeline.model.networks import initial_state
from pipeline.pretrain.parallel.optimizer import make_optimizer, orthogonalize, set_learning_rate
from pipeline.pretrain.processes.launch_command import build_command
from pipeline.pretrain.settings import Model, SegmentSettings

pytestmark = pytest.mark.usefixtures("warm_processes")
ROOT = Path(__file__).parents[3]
VOCABULARY = 96
RATE = 0.02
DRAW = torch.Generator().manual_seed(3)


@pytest.mark.parametrize("shape", [(48, 48), (96, 32), (24, 80)])
def test_orthogonalization_keeps_singular_vectors_and_sets_values_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=DRAW)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    result = left.T @ orthogonalize(matrix, torch.float32) @ right.T
    near = result.diagonal()[values > 0.01 * values.norm()]
    assert len(near) > 0.9 * min(shape) and near.min() > 0.65 and near.max() < 1.25
    assert (result - result.diagonal().diag()).abs().max() < 1e-3
    assert torch.allclose(orthogonalize(1e-3 * matrix, torch.float32), orthogonalize(matrix, torch.float32), atol=1e-4)
    assert not orthogonalize(torch.zeros(shape), torch.float32).any()


def stepped(settings: SegmentSettings, gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the weights after these steps of a single process's backend."""
    weights = initial_state(settings.architecture, VOCABULARY, 1)
    named = {name: torch.nn.Parameter(weight.clone()) for name, weight in weights.items()}
    optimizer = make_optimizer(named, settings, fused=False)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            kinds = ("exp_avg",) if group["orthogonalizes"] else ("exp_avg", "exp_avg_sq")
            moments = {kind: torch.zeros_like(parameter) for kind in kinds}
            optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}
    set_learning_rate(optimizer, RATE)
    for given in gradients:
        for name, parameter in named.items():
            parameter.grad = given[name].clone()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in named.items()}


@pytest.mark.parametrize(("precision", "apart"), [("bf16", 0.005), ("fp32", 0.05)])
def test_blocks_are_updated_as_by_pytorch_muon_and_the_rest_by_adamw(
    precision: str, apart: float, settings: Callable[..., SegmentSettings]
) -> None:
    """PyTorch iterates in bf16, and the fp32 iteration is as close as bf16 allows."""
    shape = {"feed_forward_width": 80}
    chosen = settings(optimizer="muon", precision=precision, architecture=shape, weight_decay=0.3)
    first = initial_state(chosen.architecture, VOCABULARY, 1)
    gradients = [{name: torch.randn(w.shape, generator=DRAW) for name, w in first.items()} for _ in range(4)]
    result = stepped(chosen, gradients)
    plain = chosen.model_copy(update={"training": chosen.training.model_copy(update={"optimizer": "adamw"})})
    as_adamw = stepped(plain, gradients)
    blocks = [name for name, weight in first.items() if name.startswith("blocks.") and weight.dim() == 2]
    expected = {name: torch.nn.Parameter(first[name].clone()) for name in blocks}
    theirs = torch.optim.Muon(expected.values(), RATE, weight_decay=0.3, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for given in gradients:
        for name, parameter in expected.items():
            parameter.grad = given[name].clone()
        theirs.step()
    assert len(blocks) == 2 * 7
    for name in first:
        if name in expected:
            moved, right = result[name] - first[name], expected[name].detach() - first[name]
            assert (moved - right).norm() < apart * right.norm(), name
            assert moved.square().mean().sqrt() < 2 * (as_adamw[name] - first[name]).square().mean().sqrt()
        else:
            torch.testing.assert_close(result[name], as_adamw[name], rtol=0, atol=0)  # it says how many differ


def test_processes_orthogonalize_part_of_the_matrices_with_equal_results() -> None:
    words = build_command("torchrun --standalone --nproc-per-node=4", "tests.pretrain.parallel.muon_worker", [])
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]


def test_base_width_is_refused_with_muon() -> None:
    training = {"sequence_length": 8, "batch_size": 1, "micro_batch_size": 1, "steps": 1, "learning_rate": 0.1}
    shape = {"layers": 1, "width": 32, "heads": 4, "base_width": 16}
    with pytest.raises(ValueError, match=r"base_width scales the rates of adamw: remove it"):
        Model.model_validate({"architecture": shape, "training": {**training, "optimizer": "muon"}})
