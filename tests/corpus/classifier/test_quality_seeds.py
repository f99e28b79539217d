"""Seeds are read like documents, and split so that no near duplicate of a held-out text is trained on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import InputError
from pipeline.corpus.classifier.classifier_training import MINIMUM_TEXTS, read_labeled_training_texts, split_texts
from pipeline.corpus.settings import Normalization
from tests.corpus.classifier.conftest import WORDS, menus, sentences

Write = Callable[..., Any]


def texts_of(*written: Any, language: str = "nl") -> Any:
    return read_labeled_training_texts(
        language, [seeds for seeds, _ in written], [path for _, path in written], Normalization()
    )


def test_near_duplicates_count_once_and_texts_are_normalized(seeds: Write) -> None:
    long = " ".join(WORDS[n % len(WORDS)] + "abc"[n % 3] for n in range(200))
    copies = [long, long + " einde", long + "  einde", " \u00ad" + long + "\r\n"]
    result = texts_of(seeds("a", "good", [*sentences(60, 1), *copies]), seeds("b", "bad", menus(60, 2)))
    assert result.good_N.sum() == 61 and (~result.good_N).sum() == 60
    assert result.sets_N.tolist() == (~result.good_N).astype(int).tolist()
    stop_words = sum(word in {"de", "bij", "een", "en", "het", "naar", "is"} for word in WORDS) / len(WORDS)
    assert 0.7 * stop_words < result.stop_words_N[result.good_N].mean() < 1.3 * stop_words
    written = (seeds("a", "good", sentences(60, 1)), seeds("b", "bad", menus(60, 2)))
    assert texts_of(*written, language="fy").stop_words_N.sum() == 0


def test_ids_of_any_type_are_ignored(seeds: Write) -> None:
    good, bad = seeds("a", "good", sentences(60, 1)), seeds("b", "bad", menus(60, 2))
    lines = [{"text": text, "id": [number], "url": True} for number, text in enumerate(sentences(60, 1))]
    good[1].write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert texts_of(good, bad).good_N.sum() == 60


def test_order_of_files_and_texts_does_not_matter(seeds: Write) -> None:
    good, bad = sentences(60, 1), menus(60, 2)
    one = texts_of(seeds("a", "good", good), seeds("b", "bad", bad))
    other = texts_of(
        seeds("c", "bad", bad[::-1]), seeds("d", "good", good[:9:-1]), seeds("e", "good", [*good[:10], good[20]])
    )
    for ours, theirs in zip(one.shares, other.shares, strict=True):
        assert ours.tolist() == theirs.tolist()
    assert one.good_N.tolist() == other.good_N.tolist()


def test_splits_are_disjoint_and_contain_both_classes(seeds: Write) -> None:
    result = texts_of(
        seeds("a", "good", sentences(200, 1)),
        seeds("b", "bad", menus(60, 2)),
        seeds("c", "good", sentences(9, 3), held_out=True),
        seeds("d", "bad", menus(7, 4), held_out=True),
    )
    parts = split_texts(result)
    counted = [(int(result.good_N[part].sum()), int((~result.good_N[part]).sum())) for part in parts]
    assert counted == [(140, 42), (20, 6), (40, 12), (9, 7)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(result.good_N)))
    assert not result.held_out_N[np.concatenate(parts[:3])].any()


def test_near_duplicates_of_held_out_texts_are_not_trained_on(seeds: Write) -> None:
    long = " ".join(f"{WORDS[n % 17]}{'abcdefghijk'[n % 11]}" for n in range(300))
    for copies in ([long], [f"{long} {n} keer" for n in range(9)]):
        result = texts_of(
            seeds("a", "good", [*sentences(60, 1), *copies]),
            seeds("b", "bad", menus(60, 2)),
            seeds("c", "good", [long], held_out=True),
            seeds("d", "bad", menus(7, 4), held_out=True),
        )
        assert (result.sets_N == 0).sum() == 60 and (result.sets_N == 2).sum() == 1


@pytest.mark.parametrize(
    ("good", "bad", "sentence"),
    [
        (sentences(60, 1), [*menus(60, 2), sentences(1, 1)[0] + "\n"], "b.jsonl calls a text bad that"),
        ([*sentences(MINIMUM_TEXTS - 1, 1), sentences(1, 1)[0]], menus(60, 2), "49 different good texts"),
        (sentences(60, 1), menus(1, 2) * 80, "1 different bad texts"),
        (sentences(60, 1), ["", 3], "b.jsonl has no text in the field 'text'"),
    ],
)
def test_unusable_seed_texts_are_refused(seeds: Write, good: list[str], bad: list[Any], sentence: str) -> None:
    with pytest.raises(InputError, match=r"quality\.nl") as refused:
        texts_of(seeds("a", "good", good), seeds("b", "bad", bad))
    assert sentence in str(refused.value)


def test_minimum_number_of_seed_texts_suffices(seeds: Write) -> None:
    result = texts_of(seeds("a", "good", sentences(MINIMUM_TEXTS, 1)), seeds("b", "bad", menus(MINIMUM_TEXTS, 2)))
    assert len(result.good_N) == 2 * MINIMUM_TEXTS
