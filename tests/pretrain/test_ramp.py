"""A batch ramp: smaller batches and shorter sequences first, equal in any layout, interrupted or not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pipeline.model.llama_network import Llama
from pipeline.model.networks import initial_state
from pipeline.pretrain import segment
from pipeline.pretrain.learning_rate import learning_rate_at
from pipeline.pretrain.monitors import metrics
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokens.data_order import format_batch_hash, partial_batch_hash
from pipeline.tokens.sampler import Sampler
from pipeline.tokens.token_reader import TokenReader

pytestmark = pytest.mark.usefixtures("warm_processes")
Make = Callable[..., SegmentSettings]
Tokens = dict[str, Path]
TWO = "torchrun --standalone --nproc-per-node=2"
RAMP = [{"to_step": 3, "batch_size": 4, "sequence_length": 8}, {"to_step": 6, "batch_size": 4}]
USUAL = {"batch_size": 8, "micro_batch_size": 2, "ramp": RAMP}
SIZES = [(4, 8)] * 3 + [(4, 32)] * 3 + [(8, 32)] * 4


def train(settings: SegmentSettings, tokens: Tokens, folder: Path, launch: str = "") -> dict[str, Any]:
    folder.mkdir()
    places = {"milestone": folder / "milestone", "scratch": folder / "scratch", "previous": []}
    return segment.run(settings, **tokens, **places, launch=launch)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [line for line in metrics.read_metrics(folder / "milestone/metrics.jsonl") if "loss" in line]


def by_hand(settings: SegmentSettings, index: Path) -> list[tuple[float, float, str]]:
    """Return loss, gradient norm and hash of each step of a plain loop over single sequences.

    With masked documents, the model reads each separately.
    """

    def read(model: Llama, input_BT: torch.Tensor) -> torch.Tensor:
        if not training.sampling.mask_documents:
            return model(input_BT)
        rows = []
        for row_T in input_BT:
            begins = (row_T == reader.begin_of_text_id).nonzero().flatten()
            rows.append(torch.cat([model(part[None]) for part in row_T.tensor_split(begins) if len(part)], dim=1))
        return torch.cat(rows)

    torch.set_num_threads(1)  # each operation is so small that threads only wait for each other
    training, reader = settings.training, TokenReader(index, "train")
    order = Sampler(reader, training.sequence_length, 1, settings.seed)  # one sequence a step: the order itself
    model = Llama(settings.architecture, reader.vocabulary_size)
    model.load_state_dict(initial_state(settings.architecture, reader.vocabulary_size, settings.seed))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    result, taken = [], 0
    for step, (sequences, length) in enumerate(SIZES, start=1):
        rows = order.read_rows(
            np.concatenate([order.global_batch_sequence_numbers(taken + n) for n in range(sequences)])
        )
        taken += sequences
        tokens_BT = torch.from_numpy(rows.astype(np.int64))
        losses = []
        for start in range(0, training.sequence_length, length):
            input_BT, target_BT = tokens_BT[:, start : start + length], tokens_BT[:, start + 1 : start + length + 1]
            losses.append(F.cross_entropy(read(model, input_BT).flatten(0, 1), target_BT.flatten()))
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(training, step)
        optimizer.step()
        result.append((float(loss), float(norm), format_batch_hash(partial_batch_hash(rows, 0))))
    return result


def check_equal(folder: Path, expected: list[tuple[float, float, str]]) -> None:
    for line, (loss, norm, hashed) in zip(lines(folder), expected, strict=True):
        assert line["loss"] == pytest.approx(loss, abs=1e-5), line["step"]
        assert line["gradient_norm"] == pytest.approx(norm, rel=1e-4), line["step"]
        assert line["batch_hash"] == hashed, line["step"]


@pytest.mark.parametrize("masked", [False, True])
def test_ramp_equals_a_plain_loop_over_truncated_sequences(
    masked: bool, settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    chosen = settings(**USUAL, sampling={"mask_documents": masked})
    record = train(chosen, tokens, tmp_path / "alone")
    check_equal(tmp_path / "alone", by_hand(chosen, tokens["index"]))
    seen = np.cumsum([sequences * 32 for sequences, _ in SIZES]).tolist()
    assert [line["tokens_seen"] for line in lines(tmp_path / "alone")] == seen
    assert record["tokens"] == record["tokens_seen"] == seen[-1]
    assert json.loads((tmp_path / "alone/milestone/state.json").read_text())["tokens_seen"] == seen[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"mesh": {"tensor": 2}}, {"mesh": {"context": 2}}, {"mesh": {"pipeline": 2}, "validation_every": 2}]
    + [{"backend": "deepspeed", "strategy": f"zero{stage}"} for stage in range(4)],
    ids=str,
)
def test_two_processes_equal_one_with_a_ramp(
    changes: dict[str, Any], settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    chosen = settings(**USUAL, **changes)
    train(chosen, tokens, tmp_path / "two", TWO)
    check_equal(tmp_path / "two", by_hand(chosen, tokens["index"]))


def test_skipped_batch_keeps_its_place_in_the_ramp(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    """Of data steps 0 to 2 one is skipped, so the third step takes the first batch of the second stage."""
    chosen = settings(**USUAL, last_step=4, steps=10)
    places = {"milestone": tmp_path / "milestone", "scratch": tmp_path / "scratch", "previous": []}
    rewinds = tmp_path / "scratch/rewinds.json"
    rewinds.parent.mkdir()
    identity = segment.recovery.training_identity(chosen, tokens["index"], None)
    entry = {"back_to": 0, "data_steps": [1], "step": 2, "reason": "a test"}
    rewinds.write_text(json.dumps({"identity": identity, "entries": [entry]}))
    record = segment.run(chosen, **tokens, **places, launch="")
    result = lines(tmp_path)
    assert [line["data_step"] for line in result] == [0, 2, 3, 4]
    assert [line["tokens_seen"] for line in result] == [128, 256, 384, 512]
    assert record["tokens_seen"] == 512


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ramp": [{"to_step": 3, "batch_size": 3}]}, "batch_size 3 is not divisible by micro_batch_size 2"),
        ({"ramp": [{"to_step": 10}]}, "ramp: its last step 10 is not below the 10 steps"),
    ],
)
def test_invalid_ramps_are_refused(changes: dict[str, Any], sentence: str, settings: Make) -> None:
    with pytest.raises(ValueError, match=sentence):
        settings(**{**USUAL, **changes})
