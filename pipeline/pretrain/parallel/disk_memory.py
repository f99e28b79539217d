"""Memory that lies in files on a disk of the node, for state that main memory has no room for.

The system reads a page when it is touched and writes a changed one behind; meanwhile it keeps what memory is free for.
The files have no names, so nothing is left of them when the process ends, however it ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from pipeline.core.errors import InputError


class Disk:
    """Tensors of one process on a disk, in files of a folder that is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mapped: list[mmap.mmap] = []

    def zeros(self, elements: int) -> Tensor:
        """Return a row of float32 zeros; an InputError says at once, not at a later write, where there is no room."""
        size = elements * torch.float32.itemsize
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                self._mapped.append(mmap.mmap(file.fileno(), size))
        except OSError as error:
            more = sum(map(len, self._mapped)) + size
            raise InputError(
                f"{self.folder} does not hold the optimizer's state ({error.strerror}, at {more / 1e9:.3g} GB of one "
                "process): name a folder on a larger disk of the node, train on more nodes, or choose another strategy"
            ) from error
        return torch.frombuffer(self._mapped[-1], dtype=torch.float32)

    def holding(self, tensor: Tensor) -> Tensor:
        """Return a copy of a row of float32."""
        return self.zeros(tensor.numel()).copy_(tensor)

    def let_go(self) -> None:
        """Tell the system that this process needs none of the pages in memory now; their content stays."""
        for mapped in self._mapped:
            mapped.madvise(mmap.MADV_DONTNEED)
