"""Loss and bits per byte of held-out documents: of all that validation sees, and of each language and each source.

Every document has its own sum of losses; a mean is a ratio of two sums over the same documents, nats over predicted
tokens or bits over bytes of text. Its interval says how far it would move with other documents of the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from pipeline.pretrain.gauges.metrics import Metrics
from pipeline.pretrain.parallel.backend import Backend, Batch
from pipeline.pretrain.settings import Training
from pipeline.tokens.held_out import HeldOut
from pipeline.tokens.sampler import IGNORED

Floats = NDArray[np.float64]
Added = Callable[[Floats], Floats]
CONFIDENCE = 0.95


class Ratio(NamedTuple):
    """A mean with its 95 % interval; without one where a single document tells nothing of others."""

    value: float
    low: float | None
    high: float | None


def ratio(over_D: NDArray[Any], under_D: NDArray[Any]) -> Ratio:
    """Return the sum of one figure of documents over the sum of another one, such as nats over tokens.

    The documents are the units that are drawn (tokens of one document are alike), so the interval is Student's around
    the ratio, with the jackknife's variance of it: each document is left out once (Cochran, Sampling Techniques,
    1977, section 6.17). A few long documents tell as little as few documents, so the degrees of freedom follow from
    Kish's effective number of them (Survey Sampling, 1965, section 11.7).
    """
    over, under, count = float(over_D.sum()), float(under_D.sum()), len(over_D)
    if count < 2 or not (under - under_D > 0).all():
        return Ratio(over / under, None, None)
    without_D = (over - over_D) / (under - under_D)
    error = math.sqrt((count - 1) / count * float(((without_D - without_D.mean()) ** 2).sum()))
    freedom = max(under**2 / float((under_D.astype(np.float64) ** 2).sum()) - 1, 1)
    reach = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return Ratio(over / under, over / under - reach, over / under + reach)


def document_losses(
    backend: Backend,
    held_out: HeldOut,
    training: Training,
    split: Callable[..., list[Batch]],
    added: Added,
    beat: Callable[[], None],
) -> Floats:
    """Return the sum of the losses of each document in nats, (D,), on all processes; all of them call this.

    `split` makes micro-batches of input and target tokens, `added` adds an array up over all processes, and `beat` is
    called after every micro-batch.
    """
    loss_D = np.zeros(len(held_out.tokens_D))
    shape = (training.sequence_length, training.batch_size, backend.data_rank, backend.data_size)
    for input_BT, target_BT, document_BT in held_out.batches(*shape):
        losses = []
        for batch in split(input_BT, target_BT):
            losses.append(backend.token_losses(batch).cpu().numpy())
            beat()
        counted_BT = target_BT != IGNORED
        documents, loss_BT = document_BT[counted_BT], np.concatenate(losses)[counted_BT]
        if len(documents):  # which follow each other
            first = int(documents.min())
            found = np.bincount(documents - first, weights=loss_BT.astype(np.float64))
            loss_D[first : first + len(found)] += found
    return added(loss_D)


def validate(
    backend: Backend,
    held_out: HeldOut,
    training: Training,
    split: Callable[..., list[Batch]],
    added: Added,
    beat: Callable[[], None],
) -> Metrics:
    """Return the mean loss in nats per token and in bits per byte with intervals, of all and per language and source.

    All processes call this; see `document_losses` for what it is given.
    """
    loss_D = document_losses(backend, held_out, training, split, added, beat)
    line: dict[str, float | None] = {}

    def add(name: str, of_D: NDArray[Any]) -> None:
        nats_D, bytes_D = loss_D[of_D], held_out.bytes_D[of_D]
        line_of = {"loss": ratio(nats_D, held_out.tokens_D[of_D])}
        if bytes_D.sum():
            line_of["bits_per_byte"] = ratio(nats_D / math.log(2), bytes_D)
        for kind, found in line_of.items():
            line[f"validation_{kind}{name}"] = found.value
            line[f"validation_{kind}_low{name}"], line[f"validation_{kind}_high{name}"] = found.low, found.high

    add("", np.ones(len(loss_D), dtype=bool))
    for column, place in (("language", 1), ("source", 0)):
        for name in sorted({group[place] for group in held_out.groups}):
            codes = [number for number, group in enumerate(held_out.groups) if group[place] == name]
            add(f"/{column}/{name}", np.isin(held_out.group_D, codes))
    return line
