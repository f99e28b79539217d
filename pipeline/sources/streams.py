"""Raw bytes in pieces: decompression whose memory and time are bounded, whatever an archive claims to hold."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.ground.errors import InputError

COMPRESSIONS = ("gz", "zst", "bz2", "xz")
PIECE_BYTES = 1 << 16
LARGEST_EXPANSION = 250  # times the size on disk; prose is compressed to a third or a tenth
ALWAYS_ALLOWED_BYTES = 1 << 27

# A decompressed piece, and how many bytes of the file had been read before it.
Piece = tuple[bytes, int]


class Expansion:
    """Adds up what a file expands to.

    Raises:
        InputError: it is more than any text expands to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._allowed = max(ALWAYS_ALLOWED_BYTES, LARGEST_EXPANSION * path.stat().st_size)
        self._given = 0

    def add(self, size: int) -> None:
        """Count `size` bytes of content."""
        self._given += size
        if self._given > self._allowed:
            raise InputError(
                f"{self._path} expands to more than {self._allowed} bytes, over {LARGEST_EXPANSION} times its size: "
                "it looks like a decompression bomb; remove it, or decompress it yourself if you trust it"
            )


def pieces(path: Path, compression: str) -> Iterator[Piece]:
    """Yield the decompressed content of a file in pieces of at most PIECE_BYTES.

    Args:
        compression: one of COMPRESSIONS, or an empty string.

    Raises:
        InputError: the archive is truncated or damaged, or expands like a decompression bomb.
    """
    expansion = Expansion(path)
    if compression and not path.stat().st_size:
        raise InputError(f"{path} is empty, which no archive is: fetch the file again")
    with path.open("rb") as raw:
        try:
            stream = _opened(raw, compression)
            while True:
                position = raw.tell()
                piece = stream.read(PIECE_BYTES)
                if not piece:
                    break
                expansion.add(len(piece) if compression else 0)
                yield piece, position
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, pa.ArrowException, OSError) as error:
            raise InputError(f"{path} is truncated or damaged ({error}): fetch the file again") from None


def _opened(raw: Any, compression: str) -> Any:
    """Return a readable stream of the decompressed bytes; all of them read several archives in a row as one."""
    if compression == "gz":
        return gzip.GzipFile(fileobj=raw)
    if compression == "bz2":
        return bz2.BZ2File(raw)
    if compression == "xz":
        return lzma.LZMAFile(raw)
    if compression == "zst":  # unlike zstandard's own reader, this one notices that the last frame has no end
        return pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
    return raw


class PieceReader:
    """The pieces as a file-like object that is only read forwards; `position` is that of the last piece read."""

    def __init__(self, source: Iterator[Piece]) -> None:
        self._source = source
        self._held = b""
        self.position = 0

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, none at the end."""
        if not self._held:
            self._held, self.position = next(self._source, (b"", self.position))
        given, self._held = self._held[:size], self._held[size:]
        return given


def lines(source: Iterator[Piece], limit: int) -> Iterator[tuple[int, bytes | None, int, int]]:
    """Yield (number from 1, line, size in bytes, position of its last piece) of every line that is not empty.

    Of a line of more than `limit` bytes only the size is known, its content is None and was not held.
    """
    held: list[bytes] = []
    number = size = position = 0
    for piece, position in source:
        if not size and not piece.strip(b"\n"):  # millions of blank lines take no time
            number += len(piece)
            continue
        *ends, rest = piece.split(b"\n")
        for end in ends:
            number += 1
            if end or size:
                size += len(end)
                yield number, (b"".join([*held, end]) if size <= limit else None), size, position
                held, size = [], 0
        size += len(rest)
        held = [*held, rest] if size <= limit else []
    if size:
        yield number + 1, (b"".join(held) if size <= limit else None), size, position


def whole(source: Iterator[Piece], limit: int) -> tuple[bytes | None, int]:
    """Return the content of a stream and its size in bytes; of more than `limit` bytes only the size."""
    held: list[bytes] = []
    size = 0
    for piece, _ in source:
        size += len(piece)
        if size <= limit:
            held.append(piece)
        else:
            held.clear()
    return (b"".join(held) if size <= limit else None), size
