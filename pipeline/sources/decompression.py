"""Reads raw files as decompressed chunks, and classifies damaged files.

Memory and time of the decompression are bounded, whatever an archive claims to contain.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import zstandard

from pipeline.core.errors import InputError

Damage = Literal["truncated", "damaged", "decompression_bomb", "broken_records"]


class DamagedFile(InputError):
    """A raw file is truncated or damaged; the message names the file and what to do."""

    def __init__(self, sentence: str, damage: Damage, value: str | None = None) -> None:
        super().__init__(sentence)
        self.damage = damage
        self.value = value


@dataclass(frozen=True)
class QuarantinedFile:
    """A raw file, or a part of a large one, that is skipped because of damage.

    `bytes` is the size on disk; `value` describes the damage, or is None.
    """

    file: str
    bytes: int
    damage: Damage
    value: str | None = None


CHUNK_BYTES = 1 << 16
MAXIMUM_EXPANSION = 250  # times the size on disk; prose compresses to a third or a tenth
ALWAYS_ALLOWED_BYTES = 1 << 27
MAXIMUM_WINDOW_BYTES = 1 << 31  # of zstd: what `zstd --long=31` writes; only the part that has content takes memory
MAXIMUM_DICTIONARY_BYTES = 1 << 27  # of xz: more than `xz -9` needs
ZSTD_INPUT_BYTES = 1 << 9  # of one call, whose output zstd does not limit: at most 128 KiB per 4 bytes
MAXIMUM_TRAILING_BYTES = 1 << 12  # ignored after an archive; more may be an archive with a damaged header

# A decompressed chunk, and the bytes of the file that were read before it.
Chunk = tuple[bytes, int]


def raise_disk_error(path: Path, error: Exception) -> None:
    """Raise InputError for an I/O error of the disk, which may be temporary and does not mean a damaged file."""
    if isinstance(error, OSError) and error.errno is not None:
        raise InputError(f"{path} cannot be read ({error.strerror}): restore the file or its permissions") from None


class ExpansionLimit:
    """Counts the decompressed bytes of a file.

    Raises:
        DamagedFile: the file expands like a decompression bomb.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._allowed = max(ALWAYS_ALLOWED_BYTES, MAXIMUM_EXPANSION * path.stat().st_size)
        self._given = 0

    def add(self, size: int) -> None:
        """Count `size` bytes of content.

        Raises:
            DamagedFile: the file expands like a decompression bomb.
        """
        self._given += size
        if self._given > self._allowed:
            raise DamagedFile(
                f"{self._path} expands to more than {self._allowed} bytes, over {MAXIMUM_EXPANSION} times its size: "
                "it looks like a decompression bomb; remove it, or decompress it yourself if you trust it",
                "decompression_bomb",
            )


class _GzipDecompressor:
    """One member of a gzip file, with the interface of the decompressors of bz2 and lzma."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._member.decompress(self._member.unconsumed_tail + data, max_length)

    @property
    def needs_input(self) -> bool:
        return not self._member.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data


class _ZstdDecompressor:
    """One frame of a zstd file, with the interface of the decompressors of bz2 and lzma."""

    def __init__(self) -> None:
        self._frame = zstandard.ZstdDecompressor(max_window_size=MAXIMUM_WINDOW_BYTES).decompressobj()
        self._input = memoryview(b"")
        self._output = bytearray()

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data:
            self._input = memoryview(data)
        while self._input and len(self._output) < max_length and not self._frame.eof:
            self._output += self._frame.decompress(self._input[:ZSTD_INPUT_BYTES])
            self._input = self._input[ZSTD_INPUT_BYTES:]
        piece = bytes(self._output[:max_length])
        del self._output[:max_length]
        return piece

    @property
    def needs_input(self) -> bool:
        return not self._input

    @property
    def eof(self) -> bool:
        return self._frame.eof and not self._output

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data + bytes(self._input)


# The decompressor of one member of an archive, and the magic numbers of a member; a frame of zstd may be skippable.
_MEMBERS: dict[str, tuple[Callable[[], Any], tuple[bytes, ...]]] = {
    "zst": (
        _ZstdDecompressor,
        (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + number]) + b"\x2a\x4d\x18" for number in range(16))),
    ),
    "gz": (_GzipDecompressor, (b"\x1f\x8b\x08",)),
    "bz2": (bz2.BZ2Decompressor, (b"BZh",)),
    "xz": (partial(lzma.LZMADecompressor, memlimit=MAXIMUM_DICTIONARY_BYTES + (1 << 24)), (b"\xfd7zXZ\x00",)),
}
COMPRESSIONS = (*_MEMBERS,)
# Magic numbers of files by extension.
_MAGICS = {
    **{ending: magics for ending, (_, magics) in _MEMBERS.items()},
    "xz": (*_MEMBERS["xz"][1], b"\x5d\x00\x00"),  # also as LZMA alone
    "zip": (b"PK\x03\x04",),
    "7z": (b"7z\xbc\xaf\x27\x1c",),
    "lz4": (b"\x04\x22\x4d\x18",),
    "parquet": (b"PAR1",),
}
# Messages by error text of decompressors for undamaged files.
_NOT_SUPPORTED = {
    "requires too much memory": f"has a window of more than {MAXIMUM_WINDOW_BYTES >> 30} GiB, more than zstd writes: "
    "compress it again, with `zstd --long=31` or less",
    "Memory usage limit": f"has a dictionary of more than {MAXIMUM_DICTIONARY_BYTES >> 20} MiB, which is more than is "
    "held in memory: compress it again, with `xz -dc OLD | xz -9 > NEW`",
    "Dictionary mismatch": "needs a dictionary to decompress: compress it again without one, with "
    "`zstd -d -D DICTIONARY -c OLD | zstd -o NEW`",
    "Unsupported integrity check": "has a checksum of an unknown kind: compress it again, with `xz -dc OLD | xz > NEW`",
}


def _raise_unsupported(path: Path, compression: str, error: Exception) -> None:
    """Raise an error if a file has the wrong extension, an unsupported compression, or no known magic number.

    Raises:
        InputError: the file is undamaged, but has the wrong extension or an unsupported compression.
        DamagedFile: its first bytes are no known magic number.
    """
    for words, sentence in _NOT_SUPPORTED.items():
        if words in str(error):
            raise InputError(f"{path} {sentence}") from None
    with path.open("rb") as stream:
        head = stream.read(8)
    is_cut = any(magic.startswith(head) for magic in _MAGICS[compression])
    if not is_cut and not head.startswith(_MAGICS[compression]):
        for ending, magics in _MAGICS.items():
            if head.startswith(magics):
                raise InputError(f"{path} is a .{ending} file: correct its extension, or compress it again")
        raise DamagedFile(f"{path} is no .{compression} file: fetch it again, or correct its extension", "damaged")


def _foreign_bytes_error(path: Path) -> DamagedFile:
    sentence = f"{path} is damaged (there are other bytes between or after its archives): fetch the file again"
    return DamagedFile(sentence, "damaged")


class DecompressedChunks:
    """The decompressed content of a file in chunks of at most CHUNK_BYTES; concatenated archives are read as one.

    Zeros at the end are padding. Up to MAXIMUM_TRAILING_BYTES other bytes at the end are ignored, as in gzip(1), and
    counted in `trailing`.

    Args:
        compression: one of COMPRESSIONS, or an empty string.

    Raises:
        DamagedFile: the archive is truncated or damaged, or expands like a decompression bomb.
        InputError: the file cannot be read.
    """

    def __init__(self, path: Path, compression: str) -> None:
        self.trailing = 0
        self._path = path
        self._compression = compression

    def __iter__(self) -> Iterator[Chunk]:
        path, expansion = self._path, ExpansionLimit(self._path)
        if self._compression and not path.stat().st_size:
            raise DamagedFile(f"{path} is empty, so it is no archive: fetch the file again", "truncated")
        with path.open("rb") as raw:
            try:
                for piece, position in self._read_members(raw) if self._compression else self._read_stream(raw):
                    expansion.add(len(piece) if self._compression else 0)
                    yield piece, position
            except (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError) as error:
                raise_disk_error(path, error)
                _raise_unsupported(path, self._compression, error)
                damage: Damage = "truncated" if isinstance(error, EOFError) else "damaged"
                sentence = f"{path} is truncated or damaged ({error}): fetch the file again"
                raise DamagedFile(sentence, damage) from None

    def _read_stream(self, raw: Any) -> Iterator[Chunk]:
        while True:
            position = raw.tell()
            piece = raw.read(CHUNK_BYTES)
            if not piece:
                return
            yield piece, position

    def _read_members(self, raw: Any) -> Iterator[Chunk]:
        """Yield the content of concatenated archives; the checksum of each is verified at its end."""
        new, magics = _MEMBERS[self._compression]
        position = 0

        def read_compressed_chunk() -> bytes:
            nonlocal position
            position = raw.tell()
            return bytes(raw.read(CHUNK_BYTES))

        data = read_compressed_chunk()
        while data:
            member = new()
            while not member.eof:
                piece = member.decompress(data, CHUNK_BYTES)
                data = b""
                if piece:
                    yield piece, position
                elif not member.eof and member.needs_input:
                    data = read_compressed_chunk()
                    if not data:
                        raise EOFError("it ends in the middle")
            data = member.unused_data or read_compressed_chunk()
            while data and not (data := data.lstrip(b"\0")):
                data = read_compressed_chunk()
            if data and len(data) < len(magics[0]):
                data += raw.read(len(magics[0]))
            if data and not data.startswith(magics):
                self._check_trailing_bytes(data + raw.read(MAXIMUM_TRAILING_BYTES), magics)
                return

    def _check_trailing_bytes(self, data: bytes, magics: tuple[bytes, ...]) -> None:
        """Count the bytes after the last archive.

        Raises:
            DamagedFile: they may be an archive without its header, or another archive follows.
            EOFError: they are the start of another archive.
        """
        if any(magic.startswith(data) for magic in magics):
            raise EOFError("it ends in the middle")
        if len(data) > MAXIMUM_TRAILING_BYTES or any(magic in data for magic in magics):
            raise _foreign_bytes_error(self._path)
        self.trailing = len(data)


class ChunkReader:
    """Chunks as a file-like object for forward reading; `position` is that of the last chunk read."""

    def __init__(self, source: Iterator[Chunk]) -> None:
        self._source = source
        self._held = b""
        self.position = 0

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end."""
        if not self._held:
            self._held, self.position = next(self._source, (b"", self.position))
        given, self._held = self._held[:size], self._held[size:]
        return given


def read_lines(source: Iterator[Chunk], limit: int) -> Iterator[tuple[int, bytes | None, int, int]]:
    """Yield (number from 1, line, size in bytes, position of its last chunk) of every line that is not empty.

    The content of a line of more than `limit` bytes is None and is not kept in memory.
    """
    pieces: list[bytes] = []
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
                yield number, (b"".join([*pieces, end]) if size <= limit else None), size, position
                pieces, size = [], 0
        size += len(rest)
        pieces = [*pieces, rest] if size <= limit else []
    if size:
        yield number + 1, (b"".join(pieces) if size <= limit else None), size, position


def read_whole(source: Iterator[Chunk], limit: int) -> tuple[bytes | None, int]:
    """Return the content of a stream and its size in bytes; the content is None beyond `limit` bytes."""
    pieces: list[bytes] = []
    size = 0
    for piece, _ in source:
        size += len(piece)
        if size <= limit:
            pieces.append(piece)
        else:
            pieces.clear()
    return (b"".join(pieces) if size <= limit else None), size
