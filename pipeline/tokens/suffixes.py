"""Writes the suffix array of a training shard: token positions, sorted by the text from there on.

The order is by bytes, not by token ids. So binary search finds a text wherever a token begins, however its last token
is split; `pipeline.tokens.text_search` checks the bytes before. All suffixes of the shard's text are sorted (Mori,
libdivsufsort), and those at the start of a token are kept. The file is an Arrow stream of one column and one record
batch, which is memory-mapped without a copy.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydivsufsort import divsufsort

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.settings import Settings
from pipeline.corpus.text.cached_numba_compilation import cached_njit
from pipeline.tokenizer.encoder import SPECIAL_TOKEN_BYTE, build_vocabulary_byte_table, load_encoder
from pipeline.tokens.memory_mapped_shards import map_record_batches

BLOCK_SIZE = 64  # bytes of text per count of tokens


def run(settings: Settings, *, train: Path, tokenizer: Path, suffixes: Path) -> dict[str, Any]:
    """Write the suffix array of a shard; return the numbers of tokens, suffixes and bytes of text.

    Memory: six bytes per byte of the shard's text, eleven from 2 GiB on.

    Raises:
        InputError: the shard was made with another tokenizer.
    """
    encoder = load_encoder(tokenizer)
    metadata, batches = map_record_batches(train)
    if metadata["tokenizer_sha256"] != encoder.sha256:
        raise InputError(f"{train} was made with another tokenizer than {tokenizer}: build it again with tokens.shard")
    letters, starts = build_vocabulary_byte_table(encoder)
    values = [batch.column("tokens").flatten().to_numpy(zero_copy_only=True) for batch in batches]
    tokens = sum(map(len, values))
    sizes = np.diff(starts)
    text = np.empty(sum(int(sizes[view].sum()) for view in values), dtype=np.uint8)
    begins = np.zeros(len(text), dtype=np.bool_)
    at = 0
    for view in values:
        at = _write_spellings(view, letters, starts, text, begins, at)
    kind = np.int32 if tokens < 2**31 else np.int64
    order = divsufsort(text) if len(text) else np.empty(0, np.int32)
    blocks = np.append(0, np.cumsum(np.add.reduceat(begins, np.arange(0, len(text), BLOCK_SIZE), dtype=np.int64)))
    positions = _keep_token_starts(order, text, begins, blocks, np.empty(tokens, dtype=kind))
    described = {"shard": metadata["shard"], "shard_sha256": hash_file(train), "tokens": str(tokens)}
    schema = pa.schema([("position", pa.from_numpy_dtype(kind))], metadata=described)
    with pa.ipc.new_stream(os.fspath(suffixes), schema) as stream:
        stream.write_batch(pa.record_batch([pa.array(positions)], schema=schema))
    print(f"suffixes of shard {metadata['shard']}: {len(positions)} of {tokens} tokens", flush=True)
    return {"tokens": tokens, "suffixes": len(positions), "bytes": len(text)}


def open_suffix_array(path: Path, shard_sha256: str, tokens: int) -> npt.NDArray[np.signedinteger[Any]]:
    """Memory-map a suffix array: token positions, sorted by text.

    Raises:
        InputError: it is missing, damaged, or belongs to another shard.
    """
    if not path.is_file():
        record = layout.RECORD.relative_path(job=f"tokens.suffixes.{path.parents[1].name}.{path.stem}")
        raise InputError(
            f"{path} is missing, and text search needs it: remove `suffixes: false` from its token set, or delete "
            f"{record}, and run again"
        )
    try:
        reader = pa.ipc.open_stream(pa.memory_map(os.fspath(path)))
        described = {name.decode(): value.decode() for name, value in (reader.schema.metadata or {}).items()}
        (batch,) = list(reader)
        positions: npt.NDArray[np.signedinteger[Any]] = batch.column("position").to_numpy(zero_copy_only=True)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise InputError(f"{path} is no suffix array: build it again with tokens.suffixes ({error})") from error
    if (described.get("shard_sha256"), described.get("tokens")) != (shard_sha256, str(tokens)):
        raise InputError(f"{path} is of another shard than the one in the index: build it again with tokens.suffixes")
    return positions


@cached_njit
def _write_spellings(
    tokens: npt.NDArray[np.uint16],
    letters: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    text: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.bool_],
    at: int,
) -> int:
    """Write the bytes of tokens into `text` from `at`, mark the start of each in `begins`, and return the end."""
    for token in tokens:
        begins[at] = True
        for letter in range(starts[token], starts[token + 1]):
            text[at] = letters[letter]
            at += 1
    return at


@cached_njit
def _keep_token_starts(
    order: npt.NDArray[np.int32],
    text: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.bool_],
    blocks: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int32],
) -> npt.NDArray[np.int32]:
    """Return the token positions of the suffixes at the start of a token that is not special, in suffix order."""
    size = 0
    for place in order:
        if begins[place] and text[place] != SPECIAL_TOKEN_BYTE:
            token = blocks[place // BLOCK_SIZE]
            for before in range(place // BLOCK_SIZE * BLOCK_SIZE, place):
                token += begins[before]
            positions[size] = token
            size += 1
    return positions[:size]
