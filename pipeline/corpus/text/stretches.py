"""Stretches of a text that are long enough to tell their language."""

from __future__ import annotations

from collections.abc import Iterator

STRETCH_BYTES = 1000


def cut(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of stretches of whole lines that are long enough to judge; none where there is only one."""
    start = 0
    while len(data) - start >= STRETCH_BYTES and (start or len(data) >= 2 * STRETCH_BYTES):
        end = data.find(b"\n", start + STRETCH_BYTES - 1)
        end = len(data) if end < 0 else end
        yield start, end
        start = end + 1
