"""Speed of the suffix sort of a training shard and of text search in it, against infini-gram on the same tokens.

    PYTHONPATH=. python benchmarks/text_search.py 'DATA/*.jsonl.gz' --infini PYTHON [--tokens 100e6]

PYTHON is the interpreter of a separate environment with infini-gram. The tokens are real text, repeated with one token
in twenty replaced by a draw from Zipf's law. A query is 50 consecutive tokens: half of the queries verbatim from the
shard, half with every tenth word replaced. Polder returns all spans of at least 40 characters with their documents,
whatever the token boundaries; infini-gram's `attribute` returns all spans of at least ten tokens with one document
each. Both sort and search on one core, after one warm-up query. Writes `benchmarks/results/text_search.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.comparison import texts
from pipeline.core.settings import Settings
from pipeline.corpus.documents import DocumentCollector
from pipeline.tokenizer import train
from pipeline.tokenizer.encoder import load_encoder
from pipeline.tokenizer.settings import TrainSettings
from pipeline.tokens import index, shard, suffixes
from pipeline.tokens.settings import MINIMUM_CHARACTERS, IndexSettings, ShardSettings
from pipeline.tokens.text_search import TextSearch

QUERY_TOKENS = 50
CHANGED = 0.05  # of the tokens of a repetition
THEIRS = """
import argparse, json, os, resource, sys, time
from infini_gram.engine import InfiniGramEngine
from infini_gram.indexing import build_sa
folder, vocabulary = sys.argv[1], int(sys.argv[2])
def clock():
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
started = clock()
one_core = dict(worker_id=0, shards=1, workers=1, mem=4, cpus=1)
build_sa(argparse.Namespace(save_dir=folder, temp_dir=folder, token_width=2, **one_core))
built = clock() - started
queries = json.load(open(os.path.join(folder, "queries.json")))
kind = dict(eos_token_id=vocabulary, vocab_size=vocabulary + 1, version=4, token_dtype="u16")
engine = InfiniGramEngine(index_dir=folder, **kind)
taken, seconds, whole = [], [], 0
for number, ids in enumerate([queries[0], *queries]):
    started, began = time.process_time(), time.perf_counter()
    found = engine.attribute(input_ids=ids, delim_ids=[], min_len=10, max_cnt=1000000, enforce_bow=False)
    for span in found["spans"]:
        for document in span["docs"][:1]:
            engine.get_doc_by_ptr(s=document["s"], ptr=document["ptr"], max_disp_len=1)
    if number:
        taken.append(time.process_time() - started)
        seconds.append(time.perf_counter() - began)
        whole += any(span["length"] == len(ids) for span in found["spans"])
size = os.path.getsize(folder + "/table.0")
print(json.dumps({"built": built, "taken": taken, "seconds": seconds, "whole": whole, "bytes": size}))
"""


def write_tokens(folder: Path, results: list[str], tokens: int) -> Path:
    """Write a shard of so many tokens and its index; return the tokenizer that it was made with."""
    collector = DocumentCollector()
    for number, text in enumerate(results[::12]):
        row = {"id": f"s/{number}", "text": text, "language": "nl", "language_score": 1.0, "source": "s"}
        collector.add({**row, "license": "CC0-1.0", "url": None, "title": None})
    collector.write(folder / "s.0.parquet", {})
    table = pq.read_table(folder / "s.0.parquet")
    pq.write_table(table.add_column(0, "cluster", table["id"]), folder / "s.0.parquet")
    assert pq.read_metadata(folder / "s.0.parquet").num_rows == len(results[::12])
    paths = {"tokenizer": folder / "tokenizer.json", "configuration": folder / "tokenizer_config.json"}
    train.run(
        TrainSettings(vocabulary_size=32_000, validation_fraction=0.0), documents=[folder / "s.0.parquet"], **paths
    )
    encoder = load_encoder(paths["tokenizer"])
    encoded = [np.array(ids, dtype=np.uint16) for ids in encoder.encode(results)]
    draw = np.random.default_rng(1)
    chosen = ShardSettings(shard=0, shards=1, validation_fraction=0.0)
    splits = {split: folder / f"{split}.arrow" for split in ("train", "validation")}
    with (
        shard._ShardWriter(splits["train"], "train", encoder, chosen) as writer,
        shard._ShardWriter(splits["validation"], "validation", encoder, chosen),
    ):
        writer.start_document_group({"source": "s", "language": "nl"})
        while writer.counts["tokens"] < tokens:
            number = writer.counts["documents"]
            ids = encoded[number % len(encoded)].copy()
            other = np.minimum(draw.zipf(1.2, len(ids)), 31_000) + 300
            ids = np.where(draw.random(len(ids)) < CHANGED * (number >= len(encoded)), other, ids)
            writer.add((number, f"s/f/{number}", "", "CC0-1.0"), ids.tolist())
    lists = {name: [path] for name, path in splits.items()}
    index.run(IndexSettings(shards=1), **lists, index=folder / "index.json")
    return paths["tokenizer"]


def questions(search: TextSearch, count: int, decode: Callable[[list[int]], str]) -> list[list[int]]:
    """Return the tokens of the questions: every second one has another token in every tenth place.

    Replaced tokens may decode to bytes that are not valid text, which no user can enter as a query.
    """
    draw, row = np.random.default_rng(2), search.rows[0]
    results = []
    while len(results) < count:
        start = int(draw.integers(0, row.tokens - QUERY_TOKENS))
        ids = row.read(start, QUERY_TOKENS)
        if len(row.documents_in(start, QUERY_TOKENS)) > 1 or ids.min() < 10:
            continue
        if len(results) % 2:
            ids[::10] = draw.integers(300, 30_000, len(ids[::10]))
        elif "\ufffd" in decode(ids.tolist()).strip("\ufffd"):
            continue
        results.append(ids.tolist())
    return results


def ours(folder: Path, tokenizer: Path) -> dict[str, Any]:
    """Sort and search with this package; also writes the tokens and questions that the others are given."""
    small = folder / "small.arrow"  # compiles what is compiled once for a machine
    with shard._ShardWriter(
        small, "train", load_encoder(tokenizer), ShardSettings(shard=0, shards=1, validation_fraction=0)
    ) as w:
        w.start_document_group({"source": "s", "language": "nl"})
        w.add((0, "s", "", ""), [300, 301])
    suffixes.run(Settings(), train=small, tokenizer=tokenizer, suffixes=folder / "small.suffixes.arrow")
    (folder / "suffixes").mkdir()
    started = time.process_time()
    array = folder / "suffixes/0.arrow"
    suffixes.run(Settings(), train=folder / "train.arrow", tokenizer=tokenizer, suffixes=array)
    built = time.process_time() - started
    started = time.perf_counter()
    search = TextSearch(folder / "index.json", tokenizer)
    opened = time.perf_counter() - started
    decode = load_encoder(tokenizer).tokenizer.decode
    asked = questions(search, int(os.environ["QUERIES"]), decode)
    (folder / "queries.json").write_text(json.dumps(asked))
    taken, seconds, whole = [], [], 0
    for number, ids in enumerate([asked[0], *asked]):
        text = decode(ids).strip("\ufffd")
        started, began = time.process_time(), time.perf_counter()
        parts = search.find_parts(text, MINIMUM_CHARACTERS)
        named = [next(search.documents(part)) for part in parts]
        if number:
            taken.append(time.process_time() - started)
            seconds.append(time.perf_counter() - began)
            whole += any(part.end - part.start == len(text) for part in parts) and len(named) > 0
    others = {"tokens": search.rows[0].tokens, "bytes": array.stat().st_size, "opened": opened}
    return {"built": built, "taken": taken, "seconds": seconds, "whole": whole, **others}


def main() -> None:
    """Print and write both sides and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", help="a pattern of files of JSON lines with `text`, compressed by gzip")
    parser.add_argument("--infini", required=True, help="the Python of an environment that has infini-gram")
    parser.add_argument("--tokens", type=float, default=100e6)
    parser.add_argument("--queries", type=int, default=2000)
    options = parser.parse_args()
    os.environ |= {"QUERIES": str(options.queries)}
    files = sorted(glob(options.texts))
    result = texts(Path(files[0]).parent, 1, Path(options.texts).name)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = write_tokens(folder, result, int(options.tokens))
        del result
        mine = ours(folder, tokenizer)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        vocabulary = load_encoder(tokenizer).vocabulary_size
        give_others(folder)
        command = [options.infini, "-c", THEIRS, name, str(vocabulary)]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        theirs = json.loads(ran.stdout.splitlines()[-1])
    write(mine, theirs, peak, options.queries)


def give_others(folder: Path) -> None:
    """Write the same tokens as infini-gram reads them: 0xFFFF before each document, and where each begins."""
    row = TextSearch(folder / "index.json", folder / "tokenizer.json").rows[0]
    borders = row.document_starts
    with (folder / "tokenized.0").open("wb") as file:
        for start, view in row.batch_views:
            ids = view.copy()
            begins = borders[(borders >= start) & (borders < start + len(ids))] - start
            ids[begins] = 0xFFFF
            file.write(ids.tobytes())
    (borders * 2).astype(np.uint64).tofile(folder / "offset.0")


def write(mine: dict[str, Any], theirs: dict[str, Any], peak: int, queries: int) -> None:
    """Print the table and keep it."""

    def milliseconds(side: dict[str, Any], share: float, of: str = "taken") -> float:
        return 1000 * float(np.quantile(side[of], share))

    rows = [
        ("CPU seconds to sort", mine["built"], theirs["built"]),
        ("bytes on disk per token", mine["bytes"] / mine["tokens"], theirs["bytes"] / mine["tokens"]),
        ("CPU milliseconds of a question, median", milliseconds(mine, 0.5), milliseconds(theirs, 0.5)),
        ("95 % of the questions", milliseconds(mine, 0.95), milliseconds(theirs, 0.95)),
        ("the longest", milliseconds(mine, 1), milliseconds(theirs, 1)),
        ("as the clock goes, median", milliseconds(mine, 0.5, "seconds"), milliseconds(theirs, 0.5, "seconds")),
        ("as the clock goes, 95 %", milliseconds(mine, 0.95, "seconds"), milliseconds(theirs, 0.95, "seconds")),
        ("mean, CPU", 1000 * statistics.fmean(mine["taken"]), 1000 * statistics.fmean(theirs["taken"])),
    ]
    lines = [
        f"{mine['tokens']:,} tokens in one shard, {queries} questions of {QUERY_TOKENS} tokens, one core, load "
        f"{os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}",
        "",
        "| | ours | infini-gram | ours ÷ infini-gram |",
        "| --- | --- | --- | --- |",
        *(f"| {what} | {one:.3g} | {other:.3g} | {one / other:.2f} |" for what, one, other in rows),
        "",
        f"Found whole: ours {mine['whole']}, infini-gram {theirs['whole']} of {queries // 2} that are in the tokens. "
        f"Peak memory of ours, with the making of the tokens: {peak / 1e9:.2f} GB. Opening the index: "
        f"{1000 * mine['opened']:.0f} ms.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    Path(__file__).with_name("results").joinpath("quote.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
