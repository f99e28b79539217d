"""What a training on many processes spends before its first step, at a milestone and when it goes on.

    PYTHONPATH=. python benchmarks/start.py weights [--preset gptnl-30b] [--processes 64 256]
    PYTHONPATH=. python benchmarks/start.py milestone [--preset gptnl-30b] [--processes 64 256] [--folder FOLDER]
    PYTHONPATH=. python benchmarks/start.py hashing [--folder FOLDER]

Each is what one process does, without the others and without a device, beside what it would do alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.ground.hashing import sha256_of, sha256_of_each
from pipeline.model import weights
from pipeline.model.networks import initial_weight, parameter_shapes
from pipeline.model.settings import Architecture
from pipeline.pretrain.processes.turns import by_turns

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
    do = partial(by_turns, places=[out], beat=lambda: None)
    files = options.largest_file_bytes
    weights.write(out, shapes, lambda name: torch.zeros(shapes[name]), rename=str, largest_file_bytes=files, do=do)
    if rank == 0:
        seconds, count = time.perf_counter() - began, len(weights.divided(shapes, files))
        print(f"{size} processes: {count} files in {seconds:.2f} s", flush=True)
    dist.destroy_process_group()


def milestone(options: argparse.Namespace) -> None:
    """Print what the fullest process writes of the preset's model, and how long few processes take for some layers."""
    shapes = parameter_shapes(Architecture(preset=options.preset), VOCABULARY)
    for largest in (5 * 10**9, 10**9):
        files = weights.divided(shapes, largest)
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
            for hashes in (lambda found: [sha256_of(path) for path in found], sha256_of_each):
                began = time.perf_counter()
                hashes(paths)
                seconds.append(time.perf_counter() - began)
            alone, at_once = seconds
            print(f"one by one {alone:.2f} s, at once {at_once:.2f} s, {alone / at_once:.2f} times as fast", flush=True)


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
    options = parser.parse_args()
    options.measure(options)


if __name__ == "__main__":
    main()
