"""Time that a training on many processes spends before its first step, at a milestone and at a resume.

    PYTHONPATH=. python benchmarks/training_startup.py weights [--preset gptnl-30b] [--processes 64 256]
    PYTHONPATH=. python benchmarks/training_startup.py milestone [--preset gptnl-30b] [--processes 64] [--folder FOLDER]
    PYTHONPATH=. python benchmarks/training_startup.py hashing [--folder FOLDER]
    PYTHONPATH=. python benchmarks/training_startup.py tokens [--tokens 1e12] [--shards 1000] [--folder FOLDER]

Each command measures the work of one process, without the others and without a device, against a run on one process.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist

from pipeline.core.hashing import hash_each_file, hash_file
from pipeline.model import huggingface
from pipeline.model.networks import initial_weight, parameter_shapes
from pipeline.model.settings import Architecture
from pipeline.pretrain.parallel.process_groups import distribute_tasks
from pipeline.tokens import shard
from pipeline.tokens.memory_mapped_shards import BatchPlace, encode_batch_places
from pipeline.tokens.sampler import Sampler
from pipeline.tokens.settings import Sampling, ShardSettings
from pipeline.tokens.token_reader import TokenReader

VOCABULARY = 128_256


def drawing(options: argparse.Namespace) -> None:
    """Print the seconds to draw the whole model, and the chunk of rows that FSDP gives to a process in the middle."""
    architecture = Architecture(preset=options.preset)
    for processes in (1, *options.processes):
        began, held = time.process_time(), 0
        for name, shape in parameter_shapes(architecture, VOCABULARY).items():
            rows = -(-shape[0] // processes)
            first = min(processes // 2 * rows, shape[0])
            part = [slice(first, min(first + rows, shape[0])), *(slice(0, size) for size in shape[1:])]
            held += initial_weight(name, shape, architecture, 1, part).numel()
        print(f"{processes} processes: {held:,} elements in {time.process_time() - began:.2f} s", flush=True)


def _turns(options: argparse.Namespace, rank: int, size: int, folder: Path) -> None:
    """Be one of the processes that write a model of zeros; the first prints the seconds until all have written."""
    store = dist.FileStore(str(folder / f"store-{size}"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    shapes = parameter_shapes(Architecture(preset=options.preset, layers=options.layers), VOCABULARY)
    out = folder / f"of-{size}"
    out.mkdir(exist_ok=True)
    began = time.perf_counter()
    run_tasks = partial(distribute_tasks, places=[out], beat=lambda: None)
    files = options.largest_file_bytes
    huggingface.write_weights(
        out, shapes, lambda name: torch.zeros(shapes[name]), rename=str, largest_file_bytes=files, run_tasks=run_tasks
    )
    if rank == 0:
        seconds, count = time.perf_counter() - began, len(huggingface.assign_files(shapes, files))
        print(f"{size} processes: {count} files in {seconds:.2f} s", flush=True)
    dist.destroy_process_group()


def milestone(options: argparse.Namespace) -> None:
    """Print what the fullest process writes of the preset's model, and how long few processes take for some layers."""
    shapes = parameter_shapes(Architecture(preset=options.preset), VOCABULARY)
    for largest in (5 * 10**9, 10**9):
        files = huggingface.assign_files(shapes, largest)
        sizes = sorted((sum(4 * shapes[name].numel() for name in names) for names in files.values()), reverse=True)
        for processes in options.processes:
            rounds = [sizes[first] for first in range(0, len(sizes), processes)]
            print(f"{len(files)} files, {processes} processes: {sum(rounds) / 1e9:.1f} of {sum(sizes) / 1e9:.1f} GB")
    for size in (1, 2):
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            spawn = multiprocessing.get_context("spawn")
            started = [spawn.Process(target=_turns, args=(options, rank, size, Path(name))) for rank in range(size)]
            for process in started:
                process.start()
            for process in started:
                process.join()


def hashing(options: argparse.Namespace) -> None:
    """Print the seconds to hash the same files, in memory, one after another and as many at once as may be."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        paths = [Path(name, str(number)) for number in range(8)]
        for path in paths:
            path.write_bytes(bytes(2**28))
        for _ in range(3):
            seconds = []
            for hashes in (lambda result: [hash_file(path) for path in result], hash_each_file):
                began = time.perf_counter()
                hashes(paths)
                seconds.append(time.perf_counter() - began)
            alone, at_once = seconds
            print(f"one by one {alone:.2f} s, at once {at_once:.2f} s, {alone / at_once:.2f} times as fast", flush=True)


def _write_sparse(folder: Path, tokens: int, shards: int) -> Path:
    """Write the index of so many tokens in shards of four sources, whose files have a schema and a size and no more."""
    encoder = SimpleNamespace(vocabulary_size=2**15, sha256="0" * 64, begin_of_text_id=0, end_of_text_id=1)
    metadata = {"tokenizer_sha256": encoder.sha256, "vocabulary_size": encoder.vocabulary_size, "dtype": "uint16"}
    metadata |= {"begin_of_text_id": 0, "end_of_text_id": 1, "shards": shards, "grouped_by": ["source", "language"]}
    each = shard.TOKENS_PER_BATCH
    batches = -(-tokens // shards // each)
    body = 2 * each + 2**16  # its identifiers and licenses
    described = []
    for number in range(shards):
        path = folder / f"{number}.arrow"
        chosen = ShardSettings(shard=number, shards=shards, validation_fraction=0.0)
        with shard._ShardWriter(path, "train", encoder, chosen):  # type: ignore[arg-type]
            pass
        first = path.stat().st_size
        os.truncate(path, first + batches * body)
        of = [len(part) for part in np.array_split(range(batches), 4)]
        groups = [{"source": f"source_{n}", "language": "nl", "tokens": count * each} for n, count in enumerate(of)]
        places = [BatchPlace(first + n * body, first + n * body + 2**15, each) for n in range(batches)]
        entry = {
            "path": path.name,
            "bytes_on_disk": path.stat().st_size,
            "groups": groups,
            "batches": encode_batch_places(places),
        }
        described.append(entry)
    index = folder / "index.json"
    split = {"documents": 0, "bytes": 0, "shards": described}
    index.write_text(json.dumps({**metadata, "train": split}), encoding="utf-8")
    return index


def tokens(options: argparse.Namespace) -> None:
    """Print seconds and memory of opening the tokens of a training and of its first two batches, in a process alone."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        index = _write_sparse(Path(name), int(options.tokens), options.shards)
        process = multiprocessing.get_context("spawn").Process(target=_open, args=(index,))
        process.start()
        process.join()


def _resident_mb(kind: str) -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split(f"{kind}:")[1].split()[0]) / 1e3


def _open(index: Path) -> None:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak so far is forgotten
    before, began, cpu = _resident_mb("VmRSS"), time.perf_counter(), time.process_time()
    reader = TokenReader(index, "train")
    mixed = Sampling(weights={f"source_{number}": number + 1.0 for number in range(4)})
    sampler = Sampler(reader, 4096, 1024, 1, mixed, 10**6)
    sampler.read_batch(0, 0, 64)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(
        f"{reader.tokens:,} tokens, an index of {index.stat().st_size / 1e6:.0f} MB: reader, sampler and first batch in"
        f" {seconds:.2f} s, {cpu:.2f} of them of a CPU, {_resident_mb('VmRSS') - before:.0f} MB more, at most "
        f"{_resident_mb('VmHWM') - before:.0f} MB",
        flush=True,
    )


def main() -> None:
    """Measure what the first argument names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    for name, measure in (("weights", drawing), ("hashing", hashing), ("milestone", milestone)):
        part = parts.add_parser(name)
        part.add_argument("--folder", type=Path, help="on the file system to write to")
        part.add_argument("--preset", default="gptnl-30b")
        part.add_argument("--processes", type=int, nargs="*", default=[64, 256])
        part.set_defaults(measure=measure)
    part.add_argument("--layers", type=int, default=1, help="of the model that is written")
    part.add_argument("--largest-file-bytes", type=int, default=10**9)
    part = parts.add_parser("tokens")
    part.add_argument("--tokens", type=float, default=1e12)
    part.add_argument("--shards", type=int, default=1000)
    part.add_argument("--folder", type=Path, help="on a file system with sparse files")
    part.set_defaults(measure=tokens)
    options = parser.parse_args()
    options.measure(options)


if __name__ == "__main__":
    main()
