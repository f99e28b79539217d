"""Speed of choosing and reading a shuffled batch, against Megatron's indexed data set and Hugging Face `datasets`.

    PYTHONPATH=. python benchmarks/sampler.py [--megatron CHECKOUT] [--tokens 40e6] [--batch 1024] [--seconds 5]

All sides map the same tokens from files and return the same thing: inputs and targets of a shuffled batch as int64,
(B, T) each, with each token read once. Polder computes the order and packs documents while reading; the others get
packed rows and an order drawn beforehand by numpy, less work than their users have. The sides take turns of two
batches, the second of which is timed; the fastest of each side counts, in tokens per CPU second of one process.
CHECKOUT is a folder that holds `megatron/core`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.tokens import index, shard
from pipeline.tokens.sampler import Sampler
from pipeline.tokens.settings import IndexSettings, Sampling, ShardSettings
from pipeline.tokens.token_reader import TokenReader

T = 2048
GROUPS = 4
Batch = Callable[[int], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]


def write_tokens(folder: Path, tokens: int) -> TokenReader:
    """Write random documents of about a thousand tokens in four sources and return their reader."""
    draw = np.random.default_rng(1)
    encoder = SimpleNamespace(vocabulary_size=2**15, sha256="0" * 64, begin_of_text_id=0, end_of_text_id=1)
    chosen = ShardSettings(shard=0, shards=1, validation_fraction=0.0)
    paths = {split: folder / f"{split}.arrow" for split in ("train", "validation")}
    with (
        shard._ShardWriter(paths["train"], "train", encoder, chosen) as writer,  # type: ignore[arg-type]
        shard._ShardWriter(paths["validation"], "validation", encoder, chosen),  # type: ignore[arg-type]
    ):
        for group in range(GROUPS):
            writer.start_document_group({"source": f"source_{group}", "language": "nl"})
            while writer.counts["tokens"] < tokens * (group + 1) / GROUPS:
                number = writer.counts["documents"]
                ids = draw.integers(2, 2**15, draw.integers(100, 2000)).tolist()
                writer.add((number, f"s/f/{number}", "", "CC0-1.0", ""), ids)
    lists = {name: [path] for name, path in paths.items()}
    index.run(IndexSettings(shards=1), **lists, index=folder / "index.json")
    return TokenReader(folder / "index.json", "train")


def ours(reader: TokenReader, batch: int, sampling: Sampling | None) -> Batch:
    """Return our batches."""
    sampler = Sampler(reader, T, batch, 1, sampling, 10**9)
    return sampler.read_batch


def megatron(rows: npt.NDArray[np.uint16], batch: int, folder: Path) -> Batch:
    """Return the batches of Megatron's data set, memory-mapped, in which each row is a sequence of its own."""
    import megatron.core.parallel_state  # noqa: F401  before its utilities, which import it in a circle
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

    prefix = str(folder / "megatron")
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for row in rows:
        builder.add_document(torch.from_numpy(row.astype(np.int32)), [len(row)])
    builder.finalize(f"{prefix}.idx")
    data = IndexedDataset(prefix, mmap=True)
    order = np.random.default_rng(2).permutation(len(rows))

    def give(step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        tokens_BT = np.empty((batch, T + 1), dtype=np.int64)
        for row, place in zip(tokens_BT, np.arange(step * batch, (step + 1) * batch) % len(order), strict=True):
            row[:] = data.get(int(order[place]))
        return tokens_BT[:, :-1], tokens_BT[:, 1:]

    return give


def hugging_face(rows: npt.NDArray[np.uint16], batch: int, folder: Path) -> Batch:
    """Return the batches of `datasets`, mapped from one Arrow file of rows of one length, in its numpy format."""
    from datasets import Dataset

    tokens = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), T + 1)
    table = pa.table({"tokens": tokens})
    with pa.ipc.new_stream(str(folder / "rows.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    data = Dataset.from_file(str(folder / "rows.arrow")).with_format("numpy")
    order = np.random.default_rng(2).permutation(len(rows))

    def give(step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        places = np.arange(step * batch, (step + 1) * batch) % len(order)
        tokens_BT = np.asarray(data[order[places]]["tokens"]).astype(np.int64)
        return tokens_BT[:, :-1], tokens_BT[:, 1:]

    return give


def main() -> None:
    """Print tokens per CPU second of every side, and ours against the better of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megatron", type=Path, help="a folder that holds megatron/core; without it: not compared")
    parser.add_argument("--tokens", type=float, default=40e6)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reader = write_tokens(folder, int(options.tokens))
        count = (reader.tokens - 1) // T
        rows = np.stack([reader.read(number * T, T + 1).astype(np.uint16) for number in range(count)])
        weights = {f"source_{group}": group + 1.0 for group in range(GROUPS)}
        sides = {
            "ours": ours(reader, options.batch, None),
            "ours, four sources weighted": ours(reader, options.batch, Sampling(weights=weights)),
            "Hugging Face datasets": hugging_face(rows, options.batch, folder),
        }
        if options.megatron:
            # The package's own start imports every part of it, GPU libraries included; the data set needs few.
            package = ModuleType("megatron.core")
            package.__path__ = [str(options.megatron / "megatron/core")]
            sys.modules["megatron.core"] = package
            sys.path.append(str(options.megatron))
            sides["Megatron indexed data set"] = megatron(rows, options.batch, folder)
        taken: dict[str, list[float]] = {side: [] for side in sides}
        for side in sides.values():
            side(0)  # pages and caches
        while min(map(sum, taken.values())) < options.seconds:
            for name_of, side in sides.items():
                step = 2 * len(taken[name_of])
                inputs, targets = side(step)  # after the others, whose pages and caches it finds
                started = time.process_time()
                inputs, targets = side(step + 1)
                taken[name_of].append(time.process_time() - started)
                assert inputs.shape == targets.shape == (options.batch, T)
        speeds = {side: options.batch * T / min(seconds) for side, seconds in taken.items()}
    best = max(speed for side, speed in speeds.items() if not side.startswith("ours"))
    print(f"{count} sequences of {T}, batches of {options.batch}, load {os.getloadavg()[0]:.1f}")
    for side, speed in speeds.items():
        print(f"{side}: {speed / 1e6:.1f}M tokens per CPU second, {speed / best:.2f} of the best of the others")


if __name__ == "__main__":
    main()
