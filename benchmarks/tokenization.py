"""Speed of tokenizing and writing a shard, against the tokenizer alone on the same texts.

    PYTHONPATH=. python benchmarks/tokenization.py 'DATA/*.jsonl.gz' [--megabytes 20] [--threads 1] [--repeat 3]

Polder (`step`) also reads Parquet, groups, packs and writes Arrow; `step with tokenizers` is the same step without
tiktoken, and has to write the same bytes. The others encode texts in memory: `tiktoken` as the step does, into arrays;
`encode_batch`, which datatrove uses, and `encode_batch_fast`, which transformers uses, without reading the token ids.
The lowest of the repeats of each counts, taken in turns, in CPU seconds of all threads and in seconds. `--sides step
tiktoken` leaves the slow ones out.
"""

from __future__ import annotations

import argparse
import glob
import gzip
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def documents(pattern: str, bytes_wanted: int, folder: Path) -> tuple[list[Path], list[str]]:
    """Write the texts of JSON lines files, the same share of each, as documents; return the files and the texts."""
    from pipeline.corpus.documents import FINAL_SCHEMA, ROWS_PER_GROUP, id_hash

    names = sorted(glob.glob(pattern))
    sizes = {name: os.path.getsize(name) for name in names}
    paths, texts = [], []
    for name in names:
        source = Path(name).name.partition(".")[0]
        rows: list[dict[str, Any]] = []
        size = 0
        with gzip.open(name, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if size > bytes_wanted * sizes[name] / sum(sizes.values()):
                    break
                document = f"{source}/{source}.jsonl/{number}"
                row = {"id": document, "text": json.loads(line)["text"], "language": source[:2], "source": source}
                known = {"flags": [], "cluster": document, "cluster_size": 1, "id_hash": id_hash(document)}
                rows.append({**row, "language_score": 1.0, "license": "x", **known})
                size += len(row["text"].encode())
        rows.sort(key=lambda row: (row["id_hash"], row["id"]))
        paths.append(folder / f"{source}.0.parquet")
        pq.write_table(pa.Table.from_pylist(rows, FINAL_SCHEMA), paths[-1], row_group_size=ROWS_PER_GROUP)
        texts += [row["text"] for row in rows]
    return paths, texts


def main() -> None:
    """Print MB/s and tokens/s of each side and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", help="JSON lines with `text`, gzipped")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--sides", nargs="*", default=[], help="only these; default: all")
    parser.add_argument("--pretokenizer", choices=("dutch", "llama3"), default="dutch")
    options = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(options.threads)
    from pipeline.tokenizer import batch_encoder, train
    from pipeline.tokenizer.encoder import load_encoder
    from pipeline.tokenizer.settings import TrainSettings
    from pipeline.tokens import shard
    from pipeline.tokens.settings import ShardSettings

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths, texts = documents(options.pattern, int(options.megabytes * 1e6), folder)
        tokenizer = folder / "tokenizer.json"
        settings = TrainSettings(
            vocabulary_size=options.vocabulary, validation_fraction=0.05, pretokenizer=options.pretokenizer
        )
        train.run(settings, documents=paths, tokenizer=tokenizer, configuration=folder / "tokenizer_config.json")
        encoder = load_encoder(tokenizer)
        groups: list[list[str]] = [[]]
        characters = 0
        for text in texts:
            groups[-1].append(text)
            characters += len(text)
            if characters >= shard.CHARACTERS_PER_ENCODING:
                groups.append([])
                characters = 0

        def alone(encode: Callable[..., Any], **options: Any) -> Callable[[], None]:
            def encode_all() -> None:
                for group in groups:
                    encode(group, **options)

            return encode_all

        def step(library: str) -> Callable[[], None]:
            def write() -> None:
                splits = {split: folder / f"{split}.{library}.arrow" for split in ("train", "validation")}
                chosen = ShardSettings(shard=0, shards=1, validation_fraction=0.05)
                explain = batch_encoder.explain_tiktoken_mismatch
                if library == "tokenizers":
                    batch_encoder.explain_tiktoken_mismatch = lambda *_: "it is a benchmark"
                try:
                    counts = shard.run(chosen, tokenizer=tokenizer, documents=paths, **splits)
                finally:
                    batch_encoder.explain_tiktoken_mismatch = explain
                assert counts.pop("encoding")["library"] == library
                counted.update(counts)
                written[library] = [path.read_bytes() for path in splits.values()]

            return write

        counted: dict[str, Any] = {}
        written: dict[str, list[bytes]] = {}
        fast = batch_encoder.BatchEncoder(encoder)
        without_special = {"add_special_tokens": False}
        sides = {
            "step": step("tiktoken"),
            "step with tokenizers": step("tokenizers"),
            "tiktoken": alone(fast.encode),
            "encode_batch": alone(encoder.tokenizer.encode_batch, **without_special),
            "encode_batch_fast": alone(encoder.tokenizer.encode_batch_fast, **without_special),
        }
        sides = {side: work for side, work in sides.items() if side in {"step", *(options.sides or sides)}}
        least = dict.fromkeys(sides, (float("inf"), float("inf")))
        for _ in range(options.repeat):
            for side, work in sides.items():
                wall, cpu = time.perf_counter(), time.process_time()
                work()
                taken = (time.process_time() - cpu, time.perf_counter() - wall)
                least[side] = (min(least[side][0], taken[0]), min(least[side][1], taken[1]))
    assert all(content == written["tiktoken"] for content in written.values())
    tokens = sum(split["tokens"] for split in counted.values())
    megabytes = sum(split["bytes"] for split in counted.values()) / 1e6
    print(
        f"{len(texts)} texts, {megabytes:.1f} MB, {tokens} tokens, {options.threads} threads, load {os.getloadavg()[0]}"
    )
    for side, (cpu, wall) in least.items():
        ratio = [least[side][n] / least["step"][n] for n in (0, 1)]
        print(
            f"{side}: {cpu:.2f} CPU seconds ({megabytes / cpu:.2f} MB per CPU second), {wall:.2f} seconds; "
            f"the step is {ratio[0]:.2f} times as fast in CPU time and {ratio[1]:.2f} times in seconds"
        )


if __name__ == "__main__":
    main()
