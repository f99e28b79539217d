"""Speed of pretrained classifiers on one thread, and their difference from the library of the model.

    python benchmarks/classifiers.py DATA [--every 1] [--encoded 100] [--layers 12] [--width 768] [--window 512]

DATA is a folder of *.jsonl.gz with `text`; every N-th document is read, and about `--encoded` of these by the encoder.
The fastText model (100 dimensions, word pairs) is trained on half of the texts; the encoder, a BERT of the given size
with random weights, is exported to ONNX: their scores mean nothing, and both take the time of published ones of
their size. The other side is `predict` of fasttext, and ONNX Runtime with its default options, on the same texts cut by
Transformers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import fasttext  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from transformers import BertConfig, BertForSequenceClassification  # noqa: E402

from benchmarks.comparison import peak_bytes, texts  # noqa: E402
from pipeline.corpus.classifier.pretrained_classifiers import load_classifier  # noqa: E402
from tests.corpus.classifier import test_pretrained_classifiers as helpers  # noqa: E402


def report_speed(name: str, score: Callable[[str], Any], read: list[str]) -> list[Any]:
    """Print documents and megabytes per CPU second; return the scores."""
    score(read[0])
    began = time.process_time()
    scores = [score(text) for text in read]
    seconds = time.process_time() - began
    size = sum(len(text.encode()) for text in read)
    print(f"{name}: {len(read)} documents, {size / 1e6:.2f} MB: {len(read) / seconds:.1f} documents and "
          f"{size / 1e6 / seconds:.3f} MB per CPU second; peak {peak_bytes() / 1e6:.0f} MB", flush=True)  # fmt: skip
    return scores


def report_difference(name: str, ours: Iterable[Any], others: Iterable[Any]) -> None:
    """Print how far scores differ from those of the library."""
    differences = np.abs(np.array([*ours], float) - np.array([*others], float))
    print(f"{name}: {(differences == 0).sum()} of {len(differences)} equal, at most {differences.max():.1e} apart")


def compare_fasttext(folder: Path, read: list[str]) -> None:
    """Score all texts by a model that separates whole texts from their words in reverse."""
    lines = [text.replace("\n", " ") for text in read[::2]]
    rows = [f"__label__hq {one}\n__label__lq {' '.join(one.split()[::-1])}\n" for one in lines]
    (folder / "train.txt").write_text("".join(rows), encoding="utf-8")
    options = {"dim": 100, "wordNgrams": 2, "epoch": 1, "bucket": 200_000, "thread": 1, "verbose": 0, "seed": 1}
    fasttext.train_supervised(str(folder / "train.txt"), **options).save_model(str(folder / "hq.bin"))
    files = [folder / "hq.bin"]
    ours = load_classifier(helpers.settings_for(files, label="__label__hq"), files)
    library = fasttext.load_model(str(files[0]))

    def predict(text: str) -> float:
        labels, probabilities = library.predict(text.replace("\n", " "), k=2)
        return float(probabilities[labels.index("__label__hq")])

    scores = report_speed("fastText", ours, read)
    report_difference("fastText", scores, report_speed("fasttext alone", predict, read))


def compare_encoder(folder: Path, read: list[str], layers: int, width: int, window: int) -> None:
    """Score all texts by an encoder with one output, by the first window and by the mean of all."""
    torch.manual_seed(1)
    shape = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, intermediate_size=4 * width,
        vocab_size=30_000, max_position_embeddings=window, num_labels=1,
    )  # fmt: skip
    helpers.TEXTS[:] = read[::20]
    cut = helpers.tokenizer(folder, vocabulary=30_000)
    network = BertForSequenceClassification(shape)
    helpers.export(network, folder / "model.onnx")
    print(f"encoder: {network.num_parameters() / 1e6:.0f} million parameters")
    files = [folder / "model.onnx", folder / "tokenizer.json"]
    for rule in ("first", "mean"):
        score = load_classifier(helpers.settings_for(files, window_tokens=window, long_texts=rule), files)
        scores = report_speed(f"encoder, {rule}", score, read)
        if rule == "first":
            session = onnxruntime.InferenceSession(str(files[0]), providers=["CPUExecutionProvider"])

            def run(text: str, session: Any = session) -> float:
                ids = cut(text, truncation=True, max_length=window, padding=False)["input_ids"]
                given = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": [0] * len(ids)}
                return float(session.run(None, {name: np.array([value]) for name, value in given.items()})[0][0, 0])

            report_difference("encoder", scores, map(run, read))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    for name, default in (("every", 1), ("layers", 12), ("width", 768), ("window", 512), ("encoded", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    read = texts(arguments.data, arguments.every)
    with tempfile.TemporaryDirectory() as folder:
        compare_fasttext(Path(folder), read)
        some = read[:: max(1, len(read) // arguments.encoded)]
        compare_encoder(Path(folder), some, arguments.layers, arguments.width, arguments.window)


if __name__ == "__main__":
    main()
