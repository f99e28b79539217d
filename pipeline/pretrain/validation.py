"""Loss and bits per byte of the held-out text: of all of it, and of each language and each source.

Every target token's loss goes to the group of the document that the token is in. Bits per byte of a group are its mean
loss times the tokens per byte of all its held-out text, which holds where validation sees a part of that text only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from pipeline.pretrain.gauges.metrics import Metrics
from pipeline.pretrain.parallel.backend import Backend, Batch
from pipeline.pretrain.settings import Training
from pipeline.tokens.reader import TokenReader, open_shard
from pipeline.tokens.sampler import IGNORED, validation_batches

Sums = Callable[..., list[float]]
COLUMNS = ("language", "source")


class Groups:
    """The language and the source of every token of a split, with the tokens and bytes of each."""

    def __init__(self, index: Path, split: str = "validation") -> None:
        entries = json.loads(index.read_text(encoding="utf-8"))[split]["shards"]
        rows: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "bytes")}
        lengths = [np.zeros(0, dtype=np.int64)]
        for entry in entries:
            for batch in open_shard(index.parent / entry["path"])[1]:
                lengths.append(np.diff(batch.column("tokens").offsets.to_numpy().astype(np.int64)))
                for name, values in rows.items():
                    values += batch.column(name).to_pylist()
        length_D = np.concatenate(lengths)
        self._ends_D = np.cumsum(length_D)
        self.names: list[tuple[str, str]] = []
        codes = []
        for column in COLUMNS:
            present = sorted(set(rows[column]))
            place = {value: number + len(self.names) for number, value in enumerate(present)}
            codes.append(np.array([place[value] for value in rows[column]], dtype=np.int64))
            self.names += [(column, value) for value in present]
        self._codes = codes
        self.tokens_per_byte = self._sum(np.arange(len(length_D)), length_D) / np.maximum(
            self._sum(np.arange(len(length_D)), np.array(rows["bytes"], dtype=np.float64)), 1
        )

    def _sum(self, documents: NDArray[Any], values: NDArray[Any]) -> NDArray[np.float64]:
        total = np.zeros(len(self.names))
        for code_D in self._codes:
            total += np.bincount(code_D[documents], weights=values, minlength=len(self.names))
        return total

    def sum(self, positions: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.float64]:
        """Return the sum of the values of tokens, given by their positions in the split, per group."""
        return self._sum(np.searchsorted(self._ends_D, positions, side="right"), values)


def validate(
    backend: Backend,
    index: Path,
    training: Training,
    split: Callable[..., list[Batch]],
    sums: Sums,
    beat: Callable[[], None],
) -> Metrics:
    """Return the mean loss in nats per token and in bits per byte, of all and per group; all processes call this.

    `split` makes micro-batches of input and target tokens, `sums` adds numbers up over all processes, and `beat` is
    called after every micro-batch.
    """
    reader, groups = TokenReader(index, "validation"), Groups(index)
    length, rank, size = training.sequence_length, backend.data_rank, backend.data_size
    share = size / dist.get_world_size()  # processes that hold parts of the same batch count its tokens once together
    total, tokens = 0.0, 0
    loss_G, tokens_G = np.zeros(len(groups.names)), np.zeros(len(groups.names))
    shape = (length, training.batch_size, rank, size)
    for number, (inputs, targets) in enumerate(validation_batches(reader, *shape, batches=training.validation_batches)):
        first = number * training.batch_size + rank * len(inputs)
        counted = targets != IGNORED
        tokens += int(counted.sum())
        losses = []
        for batch in split(inputs, targets):
            loss_BT = backend.token_losses(batch)
            total += float(loss_BT.sum(dtype=torch.float64))
            losses.append(loss_BT.cpu().numpy())
            beat()
        position_BT = (first + np.arange(len(inputs)))[:, None] * length + np.arange(1, length + 1)
        loss_G += groups.sum(position_BT[counted], np.concatenate(losses)[counted].astype(np.float64))
        tokens_G += groups.sum(position_BT[counted], np.ones(int(counted.sum())))
    loss_sum, token_sum, *grouped = sums(total, tokens * share, *loss_G.tolist(), *(tokens_G * share).tolist())
    mean = loss_sum / token_sum
    line: dict[str, float | int | None] = {
        "validation_loss": mean,
        "validation_bits_per_byte": mean * reader.tokens / (math.log(2) * reader.bytes),
    }
    halves = grouped[: len(grouped) // 2], grouped[len(grouped) // 2 :]
    for (column, name), per_byte, loss, count in zip(groups.names, groups.tokens_per_byte, *halves, strict=True):
        if count:
            line[f"validation_loss/{column}/{name}"] = loss / count
            line[f"validation_bits_per_byte/{column}/{name}"] = loss / count * float(per_byte) / math.log(2)
    return line
