"""Width invariance: the coordinate check of Yang et al. 2022, appendix D."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch

from pipeline.model.networks import get_network, initial_state
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import learning_rate_factor
from pipeline.pretrain.parallel.optimizer import make_optimizer, set_learning_rate
from pipeline.pretrain.settings import SegmentSettings, Training

BASE, WIDTHS = 32, (32, 64, 128, 256)
VOCABULARY, STEPS, SEEDS = 64, 3, 2


def settings_of(width: int, base_width: int | None) -> SegmentSettings:
    architecture = Architecture(layers=2, width=width, heads=width // 16, base_width=base_width)
    training = Training(sequence_length=32, batch_size=8, micro_batch_size=8, steps=STEPS, learning_rate=0.005)
    return SegmentSettings(architecture=architecture, training=training, seed=0, first_step=0, last_step=STEPS)


def changes(width: int, base_width: int | None, seed: int) -> dict[str, float]:
    """Return the change of each part's output after a few steps, per coordinate."""
    settings = settings_of(width, base_width)
    architecture = settings.architecture
    model = get_network(architecture.name).model(architecture, VOCABULARY)
    model.load_state_dict(initial_state(architecture, VOCABULARY, seed))
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(VOCABULARY, (8, 33), generator=generator)
    given: dict[str, torch.Tensor] = {}
    parts = {"stream": model.blocks[1], "feed-forward": model.blocks[1].feed_forward, "logits": model.output}
    for name, part in parts.items():
        part.register_forward_hook(lambda _, __, result, name=name: given.__setitem__(name, result.detach()))

    def looked() -> dict[str, torch.Tensor]:
        with torch.no_grad():
            model(tokens[:, :-1])
        return dict(given)

    before = looked()
    optimizer = make_optimizer(dict(model.named_parameters()), settings, fused=False)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(tokens[:, :-1], tokens[:, 1:]) / tokens[:, 1:].numel()).backward()
        optimizer.step()
    return {name: float((after - before[name]).abs().mean()) for name, after in looked().items()}


def growth(base_width: int | None) -> dict[str, float]:
    """Return the exponent of the width in each change: the slope of the logarithms."""
    logs = [math.log(width / BASE) for width in WIDTHS]
    middle = fmean(logs)
    results = [[changes(width, base_width, seed) for seed in range(SEEDS)] for width in WIDTHS]
    slopes = {}
    for name in results[0][0]:
        values = [fmean(math.log(one[name]) for one in of_width) for of_width in results]
        slopes[name] = sum((log - middle) * value for log, value in zip(logs, values, strict=True))
        slopes[name] /= sum((log - middle) ** 2 for log in logs)
    return slopes


def test_update_size_is_independent_of_width_only_with_a_base_width() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for such small products more threads only wait for each other
    try:
        standard, transferred = growth(None), growth(BASE)
    finally:
        torch.set_num_threads(threads)
    assert all(power > 0.5 for power in standard.values()), standard
    assert all(abs(power) < 0.4 for power in transferred.values()), transferred


def test_four_times_the_width_scales_initialization_outputs_and_rates() -> None:
    shape, base = (Architecture(layers=2, width=128, heads=4, base_width=width) for width in (32, None))
    first, plain = initial_state(shape, VOCABULARY, 5), initial_state(base, VOCABULARY, 5)
    for name, weight in first.items():
        block = weight.dim() == 2 and name.startswith("blocks.")
        factor, rate = (1 / 4, 1 / 4) if name == "output.weight" else (1 / 2, 1 / 4) if block else (1, 1)
        assert torch.allclose(weight, factor * plain[name], rtol=1e-6, atol=0), name
        assert learning_rate_factor(name, weight.dim(), shape) == rate, name


def test_base_width_model_is_the_ordinary_model() -> None:
    at_base = Architecture(layers=2, width=32, heads=2, base_width=32)
    ordinary = at_base.model_copy(update={"base_width": None})
    first, plain = (initial_state(shape, VOCABULARY, 5) for shape in (at_base, ordinary))
    assert all(torch.equal(first[name], plain[name]) for name in plain)


def test_update_follows_the_learning_rate_and_decay_is_equal_at_each_width() -> None:
    settings = settings_of(128, 32)
    names = {"embedding.weight": 2, "blocks.0.attention.query.weight": 2, "output.weight": 2, "norm.weight": 1}
    named = {name: torch.nn.Parameter(torch.full((4,) * dimensions, 0.5)) for name, dimensions in names.items()}
    optimizer = make_optimizer(named, settings, fused=False)
    set_learning_rate(optimizer, 0.1)
    for parameter in named.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    # The first step of Adam is the rate itself; the decay is 0.1 of 0.1 of the weight at any width, and none of norms.
    moved = {name: 0.5 - float(parameter.detach().mean()) for name, parameter in named.items()}
    assert moved == {
        "embedding.weight": pytest.approx(0.1 + 0.005, rel=1e-4),
        "blocks.0.attention.query.weight": pytest.approx(0.025 + 0.005, rel=1e-4),
        "output.weight": pytest.approx(0.025 + 0.005, rel=1e-4),
        "norm.weight": pytest.approx(0.1, rel=1e-4),
    }


@pytest.mark.parametrize("base_width", [None, 32])
def test_embedding_without_decay_is_updated_as_a_norm(
    base_width: int | None,
) -> None:
    settings = settings_of(128, base_width)
    names = {"embedding.weight": 2, "blocks.0.attention.query.weight": 2, "output.weight": 2, "norm.weight": 1}
    moved: dict[bool, dict[str, float]] = {}
    for decays in (True, False):
        chosen = settings.training.model_copy(update={"decay_embedding": decays})
        named = {name: torch.nn.Parameter(torch.full((4,) * dimensions, 0.5)) for name, dimensions in names.items()}
        optimizer = make_optimizer(named, settings.model_copy(update={"training": chosen}), fused=False)
        assert all(group["params"] for group in optimizer.param_groups)
        set_learning_rate(optimizer, 0.1)
        for parameter in named.values():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        moved[decays] = {name: 0.5 - float(parameter.detach().mean()) for name, parameter in named.items()}
    assert moved[True].pop("embedding.weight") == pytest.approx(0.1 + 0.005, rel=1e-4)
    assert moved[False].pop("embedding.weight") == pytest.approx(0.1, rel=1e-4)
    assert moved[False] == moved[True]


def test_tied_embeddings_are_refused_with_two_learning_rates() -> None:
    with pytest.raises(ValueError, match=r"base_width .* set tie_embeddings to false"):
        Architecture(layers=2, width=64, heads=4, base_width=32, tie_embeddings=True)
