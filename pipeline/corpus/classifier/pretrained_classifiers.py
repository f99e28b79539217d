"""Loads pretrained classifiers: fastText models, and Transformers encoders that were exported to ONNX.

Neither format holds Python objects. A text is scored alone, without padding, on one thread, so a score does not depend
on other texts or on the number of cores. Processors with other vector instructions may round the last bits differently.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.corpus.classifier.settings import ClassifySettings

ScoreText = Callable[[str], float | None]
Logits = npt.NDArray[np.float64]
INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


def load_classifier(settings: ClassifySettings, files: list[Path]) -> ScoreText:
    """Return the function from a text to its score, None where the model knows nothing of the text.

    Args:
        files: a .bin or .ftz of fastText; or model.onnx, tokenizer.json and perhaps config.json.

    Raises:
        InputError: a file has another sha256 or is no such model, or the model lacks the label.
    """
    for file, expected in zip(files, settings.files, strict=True):
        if (sha256 := hash_file(file)) != expected.sha256:
            raise InputError(
                f"the classifier {file} has the sha256 {sha256}: write that as its sha256, or give the file with "
                f"{expected.sha256}"
            )
    return OnnxClassifier(settings, *files) if files[0].suffix == ".onnx" else _load_fasttext(files[0], settings.label)


def _load_fasttext(path: Path, label: str | None) -> ScoreText:
    import fasttext

    try:
        model = fasttext.load_model(str(path))
        model.predict("")
    except Exception as error:  # the library raises ValueError, RuntimeError and MemoryError
        raise InputError(f"the classifier {path} is no supervised model of fastText ({error}): name another") from None
    _check_label(path, label, model.get_labels())

    def score_text(text: str) -> float | None:
        """Return the probability of the label; the library may exceed 1 by rounding."""
        names, probabilities = model.predict(text.replace("\n", " "), k=-1)
        return float(dict(zip(names, probabilities, strict=True))[label]) if names else None

    return score_text


def _check_label(path: Path, label: str | None, labels: list[str]) -> None:
    if label not in labels:
        shown = ", ".join(sorted(labels)[:10])
        raise InputError(f"the classifier {path} has no label {label!r}: choose one of {shown}")


class OnnxClassifier:
    """An encoder with a sequence classification head, by ONNX Runtime on one thread of the CPU.

    The score is the output itself of a model with one; else the probability of a label: by a sigmoid if config.json
    says `multi_label_classification`, else by a softmax. The labels are those of config.json, or numbers from 0.

    Raises:
        InputError: a file cannot be read, or the model has other inputs, outputs, labels or lengths.
    """

    def __init__(self, settings: ClassifySettings, model: Path, tokenizer: Path, config: Path | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._path, self._is_mean = model, settings.long_texts == "mean"
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(tokenizer))
            described: dict[str, Any] = dict(json.loads(config.read_bytes())) if config else {}
            names = dict(described.get("id2label") or {})
            # From bytes, so that it reads no other file, whose hash is no setting.
            self._session = onnxruntime.InferenceSession(
                model.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the libraries raise many kinds, and a bare Exception for a broken tokenizer
            raise self._refuse(f"does not load ({error})") from None
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(settings.window_tokens or 0)
        self._kinds = {one.name: INTEGERS.get(one.type) for one in self._session.get_inputs()}
        given = {"input_ids", "attention_mask", "token_type_ids"}
        if "input_ids" not in self._kinds or self._kinds.keys() - given or None in self._kinds.values():
            raise self._refuse(f"has the inputs {', '.join(self._kinds)}, not integers {', '.join(sorted(given))}")
        outputs = [one.name for one in self._session.get_outputs()]
        if len(outputs) > 1 and "logits" not in outputs:
            raise self._refuse(f"has the outputs {', '.join(outputs)}, none of which is logits")
        self._output = "logits" if "logits" in outputs else outputs[0]
        for length in (2, settings.window_tokens or 2):
            logits = self._compute_logits(dict.fromkeys(given, [1] * length))
        self._is_multi_label = described.get("problem_type") == "multi_label_classification"
        self._label = 0
        if len(logits) > 1 or settings.label is not None:
            labels = [str(names.get(str(number), number)) for number in range(len(logits))]
            _check_label(model, settings.label, labels)
            self._label = labels.index(str(settings.label))

    def _refuse(self, problem: str) -> InputError:
        return InputError(f"the classifier {self._path} {problem}: export it again, with variable lengths")

    def _compute_logits(self, given: dict[str, list[int]]) -> Logits:
        """Return the outputs of the model, shape (labels,), for the tokens of one window."""
        inputs = {name: np.array([given[name]], kind) for name, kind in self._kinds.items()}
        try:
            (logits,) = self._session.run([self._output], inputs)
        except Exception as error:  # those of the library have no base class of their own
            raise self._refuse(f"cannot read {len(given['input_ids'])} tokens ({error})") from None
        if logits.shape != (1,) and (logits.ndim != 2 or len(logits) != 1):
            raise self._refuse(f"gives {'×'.join(map(str, logits.shape))} numbers for a text, not 1×labels")
        result: Logits = logits.reshape(-1).astype(np.float64)
        return result

    def _score_window(self, window: Encoding) -> float:
        given = {"input_ids": window.ids, "attention_mask": window.attention_mask, "token_type_ids": window.type_ids}
        logits = self._compute_logits(given)
        if len(logits) == 1:
            return float(logits[0])
        shares = 1 / (1 + np.exp(-logits)) if self._is_multi_label else np.exp(logits - logits.max())
        return float(shares[self._label] / (1 if self._is_multi_label else shares.sum()))

    def __call__(self, text: str) -> float | None:
        """Return the score of a text, None for one without tokens."""
        encoding = self._tokenizer.encode(text)
        windows = [encoding, *encoding.overflowing] if self._is_mean else [encoding]
        if not encoding.ids:
            return None
        scores = [self._score_window(window) for window in windows]
        return float(np.average(scores, weights=[len(window.ids) for window in windows]))
