"""What a process reads of a step, cut into micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.pretrain.parallel.backend import Batch
from pipeline.pretrain.training_settings import Training
from pipeline.tokens.data_order import Integers
from pipeline.tokens.sampler import document_limits


def documents_of(input_BT: Integers, training: Training, begin_of_text_id: int, length: int) -> list[NDArray[np.int32]]:
    """Return the documents of each micro-batch of these tokens, see `Decoder.forward`; none where all of a row is read.

    Rows are cut into parts of a length. The host counts documents: a device that does is waited for.
    """
    if not training.sampling.mask_documents:
        return []
    firsts = range(0, len(input_BT), size := training.micro_batch_size)
    parts = [input_BT[first : first + size].reshape(-1, length) for first in firsts]
    return [document_limits(part_BT, begin_of_text_id) for part_BT in parts]


def split(
    input_BT: Tensor, target_BT: Tensor, documents: Sequence[Tensor], training: Training, length: int
) -> list[Batch]:
    """Return micro-batches of input and target tokens, (B, T), and what `documents_of` returned, on the device.

    Rows are cut into parts of a length; a micro-batch has as many tokens whatever that is.
    """
    cut = [x_BT.reshape(-1, length) for x_BT in (input_BT, target_BT)]
    rows = training.micro_batch_size * len(cut[0]) // len(input_BT)
    inputs, targets = (torch.split(x_BT, rows) for x_BT in cut)
    limits: Sequence[Tensor | None] = documents or [None] * len(inputs)
    return [Batch(*one) for one in zip(inputs, targets, limits, strict=True)]


def micro_batches(
    input_BT: Integers, target_BT: Integers, training: Training, begin_of_text_id: int, device: torch.device
) -> list[Batch]:
    """Return micro-batches of whole rows on a device, which is waited for."""
    documents = documents_of(input_BT, training, begin_of_text_id, training.sequence_length)
    inputs, targets, *limits = (torch.from_numpy(array).to(device) for array in (input_BT, target_BT, *documents))
    return split(inputs, targets, limits, training, training.sequence_length)
