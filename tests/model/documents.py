"""Document numbers in the form of model inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def limits_of(document_BT: Tensor) -> Tensor:
    """Return the document starts in the joined rows and the end of the last one."""
    begins_BT = torch.ones_like(document_BT, dtype=torch.bool)
    begins_BT[:, 1:] = document_BT[:, 1:] != document_BT[:, :-1]
    return F.pad(begins_BT.flatten().nonzero().flatten(), (0, 1), value=document_BT.numel()).to(torch.int32)
