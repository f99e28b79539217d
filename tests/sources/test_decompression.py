"""Archives are read completely: consecutive members, padding, and trailing bytes as such."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.sources import decompression
from pipeline.sources.decompression import DamagedFile, DecompressedChunks, raise_disk_error
from pipeline.sources.raw_documents import FieldNames
from pipeline.sources.record_formats import read_records

COMPRESS: dict[str, Any] = {
    "gz": lambda content: gzip.compress(content, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def content(raw: bytes, compression: str) -> tuple[bytes, int]:
    """Return the content of a file of these bytes, and the number of trailing bytes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(raw)
        pieces = DecompressedChunks(path, compression)
        return b"".join(piece for piece, _ in pieces), pieces.trailing


@pytest.mark.parametrize("compression", COMPRESS)
@given(
    st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 40)), min_size=1, max_size=5),
    st.binary(max_size=60),
    st.sampled_from([1, 7, 64, 1 << 16]),
)
def test_concatenated_members_with_padding_are_one_content(
    compression: str, members: list[tuple[bytes, int]], garbage: bytes, size: int
) -> None:
    raw = b"".join(COMPRESS[compression](part) + bytes(zeros) for part, zeros in members)
    whole = b"".join(part for part, _ in members)
    garbage = b"#" + garbage.translate(None, b"\x1fB\xfd\x28" + bytes(range(0x50, 0x60)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decompression, "CHUNK_BYTES", size)
        assert content(raw, compression) == (whole, 0)
        assert content(raw + garbage, compression) == (whole, len(garbage))


@pytest.mark.parametrize("compression", COMPRESS)
def test_possible_archive_member_with_a_bad_header_is_damage(compression: str) -> None:
    one, two = COMPRESS[compression](b"een" * 99), COMPRESS[compression](b"twee" * 99)
    for raw in (one + b"#" + two, one + two[1:] + two, one + b"#" * 5000, b"#" + one):
        with pytest.raises(DamagedFile, match=r"is truncated or damaged|is damaged|is no") as caught:
            content(raw, compression)
        assert caught.value.damage == "damaged"
    assert (
        content(one + b"#" * decompression.MAXIMUM_TRAILING_BYTES, compression)[1]
        == decompression.MAXIMUM_TRAILING_BYTES
    )


@pytest.mark.parametrize("compression", COMPRESS)
def test_truncated_file_is_never_complete(compression: str) -> None:
    one, two = COMPRESS[compression](b"een" * 99), COMPRESS[compression](b"twee" * 99)
    for raw in (one[:-1], one[:5], b"", one + two[:-3], one + two[:1], one + two[:2]):
        with pytest.raises(DamagedFile) as caught:
            content(raw, compression)
        assert caught.value.damage == "truncated"


@pytest.mark.parametrize("compression", COMPRESS)
def test_changed_byte_is_damage_or_has_no_effect(compression: str) -> None:
    whole = bytes(range(256)) * 4
    raw = COMPRESS[compression](whole)
    result = 0
    for place in range(0, len(raw), 3):
        other = raw[:place] + bytes([raw[place] ^ 0x55]) + raw[place + 1 :]
        try:
            assert content(other, compression)[0] == whole
        except DamagedFile:
            result += 1
    assert result > len(raw) // 6


def with_window(log: int, text: bytes = b"een" * 99) -> bytes:
    """Return a frame of zstd (RFC 8878) with a window of 2^log bytes and one raw block."""
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([log - 10 << 3]) + (len(text) << 3 | 1).to_bytes(3, "little") + text
    assert log > 31 or zstandard.get_frame_parameters(frame).window_size == 1 << log
    return frame


def with_dictionary() -> bytes:
    dictionary = zstandard.train_dictionary(1024, [f"regel {n} van de tekst {n * n}".encode() for n in range(999)])
    return zstandard.ZstdCompressor(dict_data=dictionary).compress(b"een" * 99)


def with_large_dictionary() -> bytes:
    return lzma.compress(b"een", filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 28}])


@pytest.mark.parametrize(
    ("compression", "raw", "words"),
    [
        ("zst", with_window(32), "x has a window of more than 2 GiB, .*: compress it again, with `zstd --long=31`"),
        ("zst", zstandard.compress(b"een") + with_window(33), "x has a window of more than 2 GiB"),
        ("xz", with_large_dictionary(), r"x has a dictionary of more than 128 MiB, .*`xz -dc OLD \| xz -9 > NEW`"),
        ("zst", with_dictionary(), "x needs a dictionary to decompress: .*`zstd -d -D DICTIONARY"),
        ("zst", gzip.compress(b"een"), r"x is a \.gz file: correct its extension"),
        ("gz", zstandard.compress(b"een"), r"x is a \.zst file: correct its extension"),
        ("bz2", lzma.compress(b"een"), r"x is a \.xz file: correct its extension"),
        ("xz", bz2.compress(b"een"), r"x is a \.bz2 file: correct its extension"),
        ("gz", b"PK\x03\x04" + bytes(99), r"x is a \.zip file: correct its extension"),
    ],
    # The bytes differ from one process to the next.
    ids=["window", "second window", "large dictionary", "dictionary", "gz", "zst", "xz", "bz2", "zip"],
)
def test_complete_file_is_not_called_damaged(compression: str, raw: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        content(raw, compression)
    assert not isinstance(caught.value, DamagedFile) and "etch" not in str(caught.value)


@pytest.mark.parametrize("compression", COMPRESS)
def test_error_page_is_not_an_archive(compression: str) -> None:
    with pytest.raises(DamagedFile, match=rf"x is no \.{compression} file: fetch it again, or correct its extension"):
        content(b"<html>404 Not Found</html>", compression)


SKIPPED = b"\x5e\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"index"  # as of a seekable archive


def test_concatenated_zstd_frames_are_one_content() -> None:
    one, two = zstandard.compress(b"een"), with_window(27)
    for raw in (one + two, SKIPPED + one + SKIPPED + two, one + zstandard.compress(b"") + two + SKIPPED):
        assert content(raw, "zst") == (b"een" * 100, 0)
    assert content(one + with_window(31) + bytes(512), "zst") == (b"een" * 100, 0)
    long = bytes(range(256)) * 4000  # a chunk of input expands to many chunks
    assert content(zstandard.compress(long) + two, "zst") == (long + b"een" * 99, 0)
    with pytest.raises(DamagedFile, match="is truncated") as caught:
        content(one + SKIPPED[:-1], "zst")
    assert caught.value.damage == "truncated"


def test_disk_error_is_not_damage() -> None:
    with pytest.raises(InputError, match=r"x cannot be read \(Input/output error\)") as caught:
        raise_disk_error(Path("x"), OSError(5, "Input/output error"))
    assert not isinstance(caught.value, DamagedFile)
    raise_disk_error(Path("x"), OSError("Invalid data stream"))
    raise_disk_error(Path("x"), EOFError())


def test_trailing_bytes_are_a_separate_record(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b'{"text": "een"}\n') + bytes(9) + b"rommel")
    result = list(read_records(tmp_path / "x.jsonl.gz", "x.jsonl.gz", FieldNames(), 99))
    assert [(record.number, record.size, record.reason) for record in result] == [
        (1, 15, None),
        (2, 6, "trailing_bytes"),
    ]
