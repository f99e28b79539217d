"""Documents by their numbers, as a model is told of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def limits_of(document_BT: Tensor) -> Tensor:
    """Return where in the joined rows each of these documents begins and the last one ends."""
    begins_BT = torch.ones_like(document_BT, dtype=torch.bool)
    begins_BT[:, 1:] = document_BT[:, 1:] != document_BT[:, :-1]
    return F.pad(begins_BT.flatten().nonzero().flatten(), (0, 1), value=document_BT.numel()).to(torch.int32)
