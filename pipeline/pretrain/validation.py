"""Compute loss and bits per byte of held-out documents, in total and for each language and source.

A mean is a ratio of two sums over the same documents: nats over predicted tokens, or bits over bytes of text. Its
interval estimates the variation over other documents of the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.confidence_intervals import ratio_interval
from pipeline.model.settings import Architecture
from pipeline.pretrain.monitors.held_out_document_losses import DOCUMENTS, tabulate_document_losses
from pipeline.pretrain.monitors.metrics import Metrics
from pipeline.pretrain.parallel.backend import Backend, Batch
from pipeline.pretrain.settings import Training
from pipeline.tokens.sampler import IGNORE_INDEX
from pipeline.tokens.validation_reader import ValidationSet

Floats = NDArray[np.float64]
AllReduce = Callable[[Floats], Floats]


def rows_per_pass(training: Training, layers: int, rows: int) -> int:
    """Return how many of its `rows` sequences a process evaluates at once, in passes of equal size.

    It is half of the hidden states that a training step keeps under full recomputation, one for each layer of a process
    and sequence of a micro-batch, so that a pass needs no more memory: a stage of a pipeline holds what it receives and
    what it sends. An interleaved pipeline needs a multiple of its processes.
    """
    stages = training.mesh.pipeline
    most = training.micro_batch_size * max(layers // (2 * stages), 1)
    passes = -(-rows // most)
    each = -(-rows // passes)
    return each if training.mesh.interleaving == 1 else -(-each // stages) * stages


def document_losses(
    backend: Backend,
    held_out: ValidationSet,
    training: Training,
    architecture: Architecture,
    make_batch: Callable[..., Batch],
    added: AllReduce,
    beat: Callable[[], None],
) -> Floats:
    """Return the summed loss of each document in nats, (D,); all processes call this.

    Args:
        make_batch: makes a batch of input and target tokens.
        added: sums an array over all processes.
        beat: reports progress to the watchdog.
    """
    loss_D = np.zeros(len(held_out.tokens_D))
    length, rank, size = training.sequence_length, backend.data_rank, backend.data_size
    each = rows_per_pass(training, architecture.layers, -(-held_out.count_rows(length) // size))
    for input_BT, target_BT, document_BT in held_out.batches(length, each * size, rank, size):
        losses_BT = backend.token_losses(make_batch(input_BT, target_BT)).cpu().numpy()
        beat()
        counted_BT = target_BT != IGNORE_INDEX
        documents, loss_BT = document_BT[counted_BT], losses_BT[counted_BT]
        if len(documents):  # which follow each other
            first = int(documents.min())
            batch_losses = np.bincount(documents - first, weights=loss_BT.astype(np.float64))
            loss_D[first : first + len(batch_losses)] += batch_losses
    return added(loss_D)


def summarize_losses(held_out: ValidationSet, loss_D: Floats) -> Metrics:
    """Return loss per token (nats) and bits per byte with intervals, of all documents, each language and source.

    `DOCUMENTS` is the table of single documents.
    """
    line: dict[str, Any] = {DOCUMENTS: tabulate_document_losses(held_out, loss_D)}

    def add_subset_loss(name: str, of_D: NDArray[Any] | slice) -> None:
        nats_D, bytes_D = loss_D[of_D], held_out.bytes_D[of_D]
        line_of = {"loss": ratio_interval(nats_D, held_out.tokens_D[of_D])}
        if bytes_D.sum():
            line_of["bits_per_byte"] = ratio_interval(nats_D / math.log(2), bytes_D)
        for kind, interval in line_of.items():
            line[f"validation_{kind}{name}"] = interval.value
            line[f"validation_{kind}_low{name}"], line[f"validation_{kind}_high{name}"] = interval.low, interval.high

    add_subset_loss("", slice(None))
    for part, of_D in held_out.document_subsets.items():
        add_subset_loss(f"/{part}", of_D)
    return line
