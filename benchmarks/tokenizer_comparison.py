"""Tokenizers compared on real text: fertility, parity, Rényi efficiency, whole words, seconds, peak memory.

    PYTHONPATH=. python benchmarks/tokenizer_comparison.py DATA [--megabytes 20] [--sample-bytes N]
        [--algorithms bpe unigram] [--sizes 8192 16384 32768] [--digits left] [--pretokenizers dutch]

DATA holds text/*.jsonl.gz, of which Dutch and English files are read, and eval/sib200_{nl,en}.jsonl.gz with the same
sentences in both languages, for parity. Each training is a separate process. Prints Markdown.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import resource
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.tokenization import documents

LANGUAGES = ("en", "nl")
VALIDATION_FRACTION = 0.05


def trained(settings: dict[str, Any], paths: list[Path], folder: Path) -> tuple[float, float, int, dict[str, Any]]:
    """Train in this process; return seconds, CPU seconds, peak memory in bytes and what the step counts."""
    from pipeline.tokenizer.settings import TrainSettings
    from pipeline.tokenizer.train import run

    began, used = time.monotonic(), time.process_time()
    files = {"tokenizer": folder / "tokenizer.json", "configuration": folder / "tokenizer_config.json"}
    counts = run(TrainSettings(**settings), documents=paths, **files)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return time.monotonic() - began, time.process_time() - used, peak, counts


def sentences(data: Path, folder: Path) -> list[Path]:
    """Write the sentences that both languages have, a line each; return a file for each language."""
    texts: dict[str, dict[str, str]] = {}
    for language in LANGUAGES:
        with gzip.open(data / "eval" / f"sib200_{language}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = map(json.loads, lines)
            texts[language] = {str(row["id"]): " ".join(row["text"].split()) for row in rows}
    shared = sorted(set.intersection(*(set(result) for result in texts.values())))
    for language, result in texts.items():
        (folder / f"{language}.txt").write_text("".join(f"{result[name]}\n" for name in shared), encoding="utf-8")
    return [folder / f"{language}.txt" for language in LANGUAGES]


def main() -> None:
    """Train and measure each combination, and print a row for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--sample-bytes", type=int, default=1_000_000_000)
    parser.add_argument("--algorithms", nargs="+", default=["bpe", "unigram"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[8192, 16384, 32768])
    parser.add_argument("--digits", nargs="+", default=["left"])
    parser.add_argument("--pretokenizers", nargs="+", default=["dutch"])
    asked = parser.parse_args()

    from pipeline.tokenizer.fertility import run
    from pipeline.tokenizer.settings import FertilitySettings

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pattern = str(asked.data / "text" / "[en][ln]_*.jsonl.gz")
        paths, texts = documents(pattern, int(asked.megabytes * 1e6), folder)
        print(f"{sum(len(text.encode()) for text in texts) / 1e6:.1f} MB of text, {os.cpu_count()} cores")
        del texts
        parallel = sentences(asked.data, folder)
        print(
            "| algorithm | digits | pre-tokenizer | entries | tokens per word | bytes per token | whole words |", end=""
        )
        print(" Rényi efficiency | parity | seconds (CPU) | peak memory |\n|" + "---|" * 11)
        for algorithm, size, digits, pretokenizer in product(
            asked.algorithms, asked.sizes, asked.digits, asked.pretokenizers
        ):
            settings = {
                "algorithm": algorithm,
                "vocabulary_size": size,
                "digits": digits,
                "pretokenizer": pretokenizer,
                "sample_bytes": asked.sample_bytes,
                "validation_fraction": VALIDATION_FRACTION,
            }
            with multiprocessing.get_context("spawn").Pool(1) as process:
                seconds, cpu, peak, _ = process.apply(trained, (settings, paths, folder))
            run(
                FertilitySettings(validation_fraction=VALIDATION_FRACTION, parallel=list(LANGUAGES)),
                tokenizer=folder / "tokenizer.json",
                documents=paths,
                parallel=parallel,
                fertility=folder / "fertility.json",
            )
            result = json.loads((folder / "fertility.json").read_text(encoding="utf-8"))
            measured = result["languages"]
            keys = {
                "tokens_per_word": ".3f",
                "bytes_per_token": ".2f",
                "whole_word_share": ".1%",
                "renyi_efficiency": ".3f",
            }
            cells = [
                ", ".join(f"{language} {measured[language][key]:{form}}" for language in LANGUAGES)
                for key, form in keys.items()
            ]
            premium = ", ".join(f"{language} {result['parallel']['premium'][language]:.3f}" for language in LANGUAGES)
            costs = [premium, f"{seconds:.0f} ({cpu:.0f})", f"{peak / 1e6:.0f} MB"]
            print("|", " | ".join([algorithm, digits, pretokenizer, f"{size:,}", *cells, *costs]), "|", flush=True)


if __name__ == "__main__":
    main()
