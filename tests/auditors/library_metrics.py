"""The metrics that EuroEval loads from a hub by name, without a network.

scikit-learn and seqeval compute all but two: SQuAD's are written here from their definition, and SARI is Polder's own,
whose values in `tests/evaluate/test_text_metrics.py` are those of the library `evaluate`.
"""

from __future__ import annotations

import re
import string
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

Scores = dict[str, float]
_LEFT_OUT = re.compile(rf"[{re.escape(string.punctuation)}]")


def accuracy(predictions: Sequence[Any], references: Sequence[Any]) -> Scores:
    from sklearn.metrics import accuracy_score

    return {"accuracy": float(accuracy_score(references, predictions))}


def matthews_correlation(predictions: Sequence[Any], references: Sequence[Any]) -> Scores:
    from sklearn.metrics import matthews_corrcoef

    return {"matthews_correlation": float(matthews_corrcoef(references, predictions))}


def seqeval(predictions: list[list[str]], references: list[list[str]]) -> Scores:
    from seqeval.metrics import f1_score

    return {"overall_f1": float(f1_score(references, predictions))}


def _split_answer(text: str) -> list[str]:
    """Return the words of an answer in small letters, without punctuation and articles."""
    return [word for word in _LEFT_OUT.sub("", text.lower()).split() if word not in ("a", "an", "the")]


def _overlap(words: list[str], right: list[str]) -> float:
    common = (Counter(words) & Counter(right)).total()
    return 2 * common / (len(words) + len(right)) if words and right else float(words == right)


def squad_v2(predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]) -> Scores:
    """Return exact match and F1 of words in percent; an answer of which nothing remains counts if there is no other."""
    right = {one["id"]: [*map(_split_answer, one["answers"]["text"])] for one in references}
    exact, shared = [], []
    for one in predictions:
        words, answers = (
            _split_answer(one["prediction_text"]),
            [answer for answer in right[one["id"]] if answer] or [[]],
        )
        exact.append(float(words in answers))
        shared.append(max(_overlap(words, answer) for answer in answers))
    return {"exact": 100 * mean(exact), "f1": 100 * mean(shared)}


def sari(sources: Sequence[str], predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    from pipeline.evaluate.simplification_metrics import sari_13a

    return {"sari": mean(map(sari_13a, sources, predictions, references))}


METRICS: dict[str, Callable[..., Scores]] = {
    one.__name__: one for one in (accuracy, matthews_correlation, seqeval, squad_v2, sari)
}


def load(path: str, **settings: Any) -> Any:
    """Return a metric in the form of `evaluate.load`."""
    return types.SimpleNamespace(compute=METRICS.get(path, _refuse(path)))


def _refuse(path: str) -> Callable[..., Scores]:
    def compute(**content: Any) -> Scores:
        raise NotImplementedError(f"no metric {path} here")

    return compute
