"""Pretrained classifiers: scores equal those of the model's own library, and wrong files are one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.corpus import classify
from pipeline.corpus.classifier.pretrained_classifiers import load_classifier
from pipeline.corpus.classifier.settings import ClassifySettings, ModelFile
from pipeline.corpus.documents import DocumentCollector, read_documents

DEMONSTRATION = Path(__file__).parents[3] / "config" / "corpus"
WINDOW = 32


def real_texts() -> list[str]:
    """Return 40 texts of the demonstration, some of whose lines are broken on purpose."""
    texts = []
    for line in (DEMONSTRATION / "nl_gids.jsonl").read_bytes().splitlines():
        with suppress(ValueError, KeyError, TypeError):
            texts.append(json.loads(line)["text"])
    return [text for text in texts if isinstance(text, str) and len(text) > 200][:40]


TEXTS = real_texts()


def settings_for(files: list[Path], **changes: Any) -> ClassifySettings:
    named = [ModelFile(name=file.name, sha256=hash_file(file)) for file in files]
    return ClassifySettings(files=named, license="MIT", **changes)


@pytest.fixture(scope="module")
def fasttext_model(tmp_path_factory: pytest.TempPathFactory, classifier: Callable[..., Path]) -> Path:
    lines = [f"__label__hq {text.replace(chr(10), ' ')}" for text in TEXTS]
    lines += [f"__label__lq {text.replace(chr(10), ' ')[::-1]}" for text in TEXTS]
    return classifier(tmp_path_factory.mktemp("fasttext") / "quality.bin", lines, epoch=50, lr=1.0, dim=8)


def test_fasttext_scores_equal_the_library(fasttext_model: Path) -> None:
    library = fasttext.load_model(str(fasttext_model))
    score = load_classifier(settings_for([fasttext_model], label="__label__hq"), [fasttext_model])
    expected, texts = [], [text[: 60 * place] + text[::-1] for place, text in enumerate(TEXTS[:20])] + TEXTS
    for text in texts:
        labels, probabilities = library.predict(" ".join(text.split("\n")), k=2)
        expected.append(dict(zip(labels, probabilities, strict=True))["__label__hq"])
    assert [score(text) for text in texts] == expected
    assert min(expected) < 0.5 < max(expected) and any("\n" in text for text in texts)


def test_text_without_a_known_word_has_no_score(tmp_path: Path) -> None:
    class Empty:
        def predict(self, text: str, k: int = 1) -> tuple[tuple[str, ...], list[float]]:
            return (), []

        def get_labels(self) -> list[str]:
            return ["__label__hq"]

    path = tmp_path / "model.bin"
    path.write_bytes(b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fasttext, "load_model", lambda path: Empty())
        assert load_classifier(settings_for([path], label="__label__hq"), [path])("woord") is None


@pytest.mark.parametrize(
    ("label", "content", "words"),
    [
        ("__label__good", None, "quality.bin has no label '__label__good': choose one of __label__hq, __label__lq"),
        ("__label__hq", b"no model", "is no supervised model of fastText"),
        ("__label__hq", "words", "is no supervised model of fastText"),
    ],
)
def test_wrong_fasttext_model_is_one_sentence(
    fasttext_model: Path, tmp_path: Path, label: str, content: bytes | str | None, words: str
) -> None:
    path = fasttext_model
    if content == "words":
        (tmp_path / "text").write_text("\n".join(TEXTS))
        path = tmp_path / "vectors.bin"
        # Each thread of fastText initializes a tenth of its table: with fewer than ten it may meet NaN in the rest.
        fasttext.train_unsupervised(str(tmp_path / "text"), dim=2, epoch=1, thread=10, verbose=0).save_model(str(path))
    elif isinstance(content, bytes):
        path = tmp_path / "quality.bin"
        path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        load_classifier(settings_for([path], label=label), [path])
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_another_file_than_stated_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "cut.bin"
    path.write_bytes(b"\xba\x16\x4f\x2f")  # fastText would read on for ever
    stated = settings_for([path]).model_copy(update={"files": [ModelFile(name="cut.bin", sha256="0" * 64)]})
    with pytest.raises(InputError, match=r"cut\.bin has the sha256 [0-9a-f]{64}: write that .* file with 0{64}"):
        load_classifier(stated, [path])


# ONNX


def tokenizer(folder: Path, vocabulary: int = 400) -> PreTrainedTokenizerFast:
    """Write a tokenizer that cuts and pads, as published ones do; return it as Transformers reads it."""
    one = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    one.normalizer, one.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    one.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=special))
    one.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    one.enable_truncation(5)
    one.enable_padding(length=50)
    one.save(str(folder / "tokenizer.json"))
    known = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **known)


INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def export(model: torch.nn.Module, path: Path, *, inputs: tuple[str, ...] = INPUTS, dynamic: bool = True) -> None:
    """Export a model to ONNX without the package onnx, which torch needs for custom operators alone."""
    from torch.onnx._internal.torchscript_exporter import onnx_proto_utils

    example = torch.ones((1, 4), dtype=torch.long)
    axes = {name: {1: "tokens"} for name in inputs} if dynamic else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_proto_utils, "_add_onnxscript_fn", lambda content, operators: content)
        torch.onnx.export(
            model.eval(), (example,) * len(inputs), str(path), input_names=list(inputs), output_names=["logits"],
            dynamic_axes=axes, dynamo=False,
        )  # fmt: skip


class Encoder:
    """An exported encoder, and the same model and tokenizer in torch and Transformers."""

    def __init__(self, folder: Path, labels: int) -> None:
        torch.manual_seed(labels)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        shape = BertConfig(vocab_size=400, max_position_embeddings=WINDOW, initializer_range=0.5, **sizes)
        shape.num_labels = labels
        self.network = BertForSequenceClassification(shape).eval()
        self.tokenizer = tokenizer(folder)
        export(self.network, folder / "model.onnx")
        shape.id2label = {0: "low", 1: "middle", 2: "high"} if labels == 3 else {0: "LABEL_0"}
        shape.save_pretrained(folder)
        self.files = [folder / name for name in ("model.onnx", "tokenizer.json", "config.json")]

    def logits(self, text: str, start: int = 0) -> tuple[torch.Tensor, int]:
        """Return the logits of a window of a text by torch, and its tokens; a window is cut by hand."""
        ids = self.tokenizer(text, add_special_tokens=False, truncation=False, padding=False)["input_ids"]
        window = torch.tensor([[2, *ids[start : start + WINDOW - 2], 3]])
        with torch.inference_mode():
            return self.network(window).logits[0].double(), window.shape[1]


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    pytest.importorskip("onnxruntime")
    return Encoder(tmp_path_factory.mktemp("regression"), 1)


@pytest.fixture(scope="module")
def three_labels(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    pytest.importorskip("onnxruntime")
    return Encoder(tmp_path_factory.mktemp("labels"), 3)


def test_encoder_scores_equal_torch_on_the_first_window(regression: Encoder) -> None:
    score = load_classifier(settings_for(regression.files, window_tokens=WINDOW, long_texts="first"), regression.files)
    values = [score(text) for text in TEXTS]
    assert values == pytest.approx([float(regression.logits(text)[0]) for text in TEXTS], abs=1e-4)
    assert len({round(value, 3) for value in values if value is not None}) > 20
    assert [score(text) for text in reversed(TEXTS)] == values[::-1], "a score depends on its text alone"


def test_mean_of_windows_is_weighted_by_their_tokens(regression: Encoder) -> None:
    score = load_classifier(settings_for(regression.files, window_tokens=WINDOW, long_texts="mean"), regression.files)
    for text in ("kort", TEXTS[0], " ".join(TEXTS[:3])):
        tokens = len(regression.tokenizer(text, add_special_tokens=False, truncation=False, padding=False)["input_ids"])
        windows = [regression.logits(text, start) for start in range(0, tokens, WINDOW - 2)]
        expected = sum(float(logits[0]) * length for logits, length in windows) / sum(length for _, length in windows)
        assert score(text) == pytest.approx(expected, abs=1e-4), len(windows)


def test_plain_onnxruntime_with_many_threads_gives_the_same(regression: Encoder) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 4
    session = onnxruntime.InferenceSession(str(regression.files[0]), options, providers=["CPUExecutionProvider"])
    score = load_classifier(settings_for(regression.files, window_tokens=WINDOW, long_texts="first"), regression.files)
    for text in TEXTS:
        encoded = regression.tokenizer(text, truncation=True, max_length=WINDOW, padding=False, return_tensors="np")
        types = np.zeros_like(encoded["input_ids"])  # a text is one part
        (logits,) = session.run(None, {**dict(zip(INPUTS, encoded.values(), strict=False)), "token_type_ids": types})
        assert score(text) == float(logits[0, 0])


@pytest.mark.parametrize("kind", [None, "multi_label_classification"])
@pytest.mark.parametrize("named", [True, False])
def test_label_gives_its_probability(three_labels: Encoder, tmp_path: Path, kind: str | None, named: bool) -> None:
    config = json.loads(three_labels.files[2].read_text()) | {"problem_type": kind}
    (tmp_path / "config.json").write_text(json.dumps(config if named else {"problem_type": kind}))
    files = [*three_labels.files[:2], tmp_path / "config.json"]
    label = "high" if named else "2"
    score = load_classifier(settings_for(files, label=label, window_tokens=WINDOW, long_texts="first"), files)
    for text in TEXTS[:9]:
        logits = three_labels.logits(text)[0]
        shares = torch.sigmoid(logits) if kind else torch.softmax(logits, 0)
        assert score(text) == pytest.approx(float(shares[2]), abs=1e-4)


def test_config_is_not_needed_for_a_single_output(regression: Encoder) -> None:
    files = regression.files[:2]
    score = load_classifier(settings_for(files, window_tokens=WINDOW, long_texts="first"), files)
    assert score(TEXTS[0]) == pytest.approx(float(regression.logits(TEXTS[0])[0]), abs=1e-4)


class Small(torch.nn.Module):
    """Numbers of a text from an embedding, of a wrong kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.table, self.kind = torch.nn.Embedding(400, 2), kind

    def forward(self, ids: torch.Tensor, *others: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        tokens = self.table(ids)
        for other in others:
            tokens = tokens + 0 * other[..., None]
        if self.kind == "tokens":
            return tokens
        if self.kind == "nan":
            return torch.log(-tokens.abs()).mean(1)[:, :1]
        if self.kind == "scalar":
            return tokens.mean(1)[:, 0]
        return tokens.mean(1)


@pytest.mark.parametrize(
    ("kind", "inputs", "dynamic", "settings", "words"),
    [
        ("pixels", ("pixel_values",), True, {}, "has the inputs pixel_values, not integers attention_mask, input_ids"),
        ("more", ("input_ids", "bbox"), True, {}, "has the inputs input_ids, bbox, not integers"),
        ("tokens", ("input_ids",), True, {}, "gives 1×2×2 numbers for a text, not 1×labels"),
        ("labels", ("input_ids",), False, {"label": "0"}, "cannot read 2 tokens"),
        ("labels", ("input_ids",), True, {}, "has no label None: choose one of 0, 1"),
        ("labels", ("input_ids",), True, {"label": "high"}, "has no label 'high': choose one of 0, 1"),
    ],
)
def test_other_inputs_and_outputs_are_one_sentence(
    tmp_path: Path, kind: str, inputs: tuple[str, ...], dynamic: bool, settings: dict[str, Any], words: str
) -> None:
    pytest.importorskip("onnxruntime")
    tokenizer(tmp_path)
    export(Small(kind), tmp_path / "model.onnx", inputs=inputs, dynamic=dynamic)
    files = [tmp_path / "model.onnx", tmp_path / "tokenizer.json"]
    with pytest.raises(InputError) as refused:
        load_classifier(settings_for(files, window_tokens=WINDOW, long_texts="first", **settings), files)
    assert f"{files[0]} {words}" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(("broken", "content"), [(0, b"no graph"), (1, b"{}"), (2, b"[1]"), (2, b"{")])
def test_damaged_file_of_an_encoder_is_one_sentence(
    regression: Encoder, tmp_path: Path, broken: int, content: bytes
) -> None:
    files = [tmp_path / file.name for file in regression.files]
    for file, original in zip(files, regression.files, strict=True):
        file.write_bytes(original.read_bytes())
    files[broken].write_bytes(content)
    with pytest.raises(InputError, match=r"model\.onnx does not load \(.+\): export it again") as refused:
        load_classifier(settings_for(files, window_tokens=WINDOW, long_texts="first"), files)
    assert "\n" not in str(refused.value)


def test_window_longer_than_the_positions_is_refused_before_any_text(regression: Encoder) -> None:
    with pytest.raises(InputError, match="cannot read 33 tokens"):
        load_classifier(settings_for(regression.files, window_tokens=33, long_texts="first"), regression.files)


def test_model_without_a_batch_of_labels_gives_its_number(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    encoded = tokenizer(tmp_path)
    small = Small("scalar")
    export(small, tmp_path / "model.onnx", inputs=("input_ids",))
    files = [tmp_path / "model.onnx", tmp_path / "tokenizer.json"]
    score = load_classifier(settings_for(files, window_tokens=WINDOW, long_texts="first"), files)
    ids = torch.tensor([encoded("een tekst", padding=False, truncation=False)["input_ids"]])
    assert score("een tekst") == pytest.approx(float(small(ids).detach()[0]), abs=1e-6)


# The step


def documents(folder: Path, texts: list[str]) -> Path:
    collector = DocumentCollector()
    for number, text in enumerate(texts):
        known = {"language": ("nl", "en")[number % 2], "language_score": 1.0, "source": "s", "license": "CC0-1.0"}
        collector.add({"id": f"s/{number}", "text": text, **known, "url": None, "title": None, "date": None})
    collector.write(folder / "documents", {"source": "s", "unit": 0})
    return folder / "documents"


def test_step_scores_the_languages_of_the_settings(fasttext_model: Path, tmp_path: Path) -> None:
    settings = settings_for([fasttext_model], label="__label__hq", languages=["nl"])
    files = {"documents": documents(tmp_path, TEXTS), "classifier": [fasttext_model], "scores": tmp_path / "scores"}
    assert classify.run(settings, **files) == {"documents": 40, "scored": 20}
    score = load_classifier(settings, [fasttext_model])
    rows = [*read_documents([tmp_path / "documents"])]
    table = pq.read_table(tmp_path / "scores")
    assert table["id"].to_pylist() == [row["id"] for row in rows]
    expected = [score(row["text"]) if row["language"] == "nl" else None for row in rows]
    assert table["quality"].to_pylist() == expected
    first = (tmp_path / "scores").read_bytes()
    assert classify.run(settings, **files) and (tmp_path / "scores").read_bytes() == first


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_model_that_gives_no_number_is_refused_with_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    monkeypatch.setattr(classify, "load_classifier", lambda settings, files: lambda text: value)
    files = {"documents": documents(tmp_path, ["een tekst"]), "classifier": [tmp_path / "model.onnx"]}
    with pytest.raises(InputError, match=rf"model\.onnx gives {value} for the document s/0: use another model"):
        classify.run(ClassifySettings(files=[], license="MIT"), **files, scores=tmp_path / "scores")


def test_nan_of_a_real_graph_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    tokenizer(tmp_path)
    export(Small("nan"), tmp_path / "model.onnx")
    files = [tmp_path / "model.onnx", tmp_path / "tokenizer.json"]
    path = documents(tmp_path, ["een tekst"])
    with pytest.raises(InputError, match="gives nan for the document s/0"):
        classify.run(
            settings_for(files, window_tokens=WINDOW, long_texts="first"),
            documents=path, classifier=files, scores=tmp_path / "scores",
        )  # fmt: skip
