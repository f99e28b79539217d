"""Languages are identified by the model of py3langid, or by a fastText model from a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from datatrove.data import Document
from hypothesis import given, settings
from hypothesis import strategies as st
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from pipeline.core.errors import InputError
from pipeline.corpus.filter import _verify_identification_model
from pipeline.corpus.settings import Corpus, FilterSettings
from pipeline.corpus.text.language_identification import (
    NEIGHBORS,
    BayesIdentifier,
    FastTextIdentifier,
    LanguageFilter,
    language_from_label,
    lowercase_all_caps,
    split_segments,
)

DEMONSTRATION = Path(__file__).parents[3] / "config" / "corpus"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, classifier: Callable[..., Path]) -> Path:
    """Return a small model of Dutch and English, with labels as GlotLID writes them."""
    folder = tmp_path_factory.mktemp("model")
    lines = []
    for label, name in (("nld_Latn", "nl_encyclopedie"), ("eng_Latn", "en_encyclopedia")):
        for line in (DEMONSTRATION / f"{name}.jsonl").read_bytes().splitlines():
            try:
                text = json.loads(line)["text"]
            except (ValueError, KeyError, TypeError):
                continue
            if isinstance(text, str):
                lines += [f"__label__{label} {part}" for part in text.splitlines() if part.strip()]
    return classifier(folder / "model.bin", lines, epoch=25, lr=1.0, dim=16, minn=2, maxn=4)


@pytest.fixture(scope="module")
def theirs() -> LanguageIdentifier:
    """Return py3langid itself with the same languages."""
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(sorted({"nl", "en"} | NEIGHBORS))
    return identifier


OURS = BayesIdentifier.cached_identifier(frozenset({"nl", "en"}))
MODEL = LanguageIdentifier.from_model_file(MODEL_FILE)


def test_language_and_score_equal_py3langid(theirs: LanguageIdentifier, texts: dict[str, str]) -> None:
    long = "\n".join(texts.values()) * 3
    for text in [*texts.values(), long, "A", "", "ÉÉN TWEE", "日本語の文章"]:
        language, score = theirs.classify(text)
        assert OURS.identify(text)[:2] == (language, pytest.approx(score, abs=1e-4)), text


class Said:
    """Return fixed answers for any text."""

    def __init__(self, score: float, stretches: list[tuple[str, int]]) -> None:
        self.said = ("nl", score, stretches)

    def identify(self, text: str, stretches: bool = False) -> tuple[str, float, list[tuple[str, int]]]:
        return self.said


@pytest.mark.parametrize(
    ("score", "others", "expected"),
    [
        (0.5, 250, True),  # at both bounds
        (0.4999, 250, (False, "language")),
        (0.5, 251, (False, "mixed_language")),
        (0.5001, 249, True),
    ],
)
def test_score_bounds_are_inclusive(score: float, others: int, expected: object) -> None:
    block = LanguageFilter({"nl": 0.5}, mixed_language={"nl": 0.25})
    block._identifier = Said(score, [("nl", 1000 - others), ("en", others)])
    assert block.filter(Document(text="tekst", id="1")) == expected


@pytest.mark.parametrize("name", ["nl_water", "en_garden"])
@pytest.mark.parametrize("small", ["", " km", " e-mail aan info@voorbeeld.example"])
def test_mostly_uppercase_text_is_lowercased(name: str, small: str, texts: dict[str, str], model: Path) -> None:
    text = texts[name].upper() + small
    for identifier in (OURS, FastTextIdentifier(model, ["nl", "en"])):
        language, score, _ = identifier.identify(text)
        assert (language, score) == (name[:2], pytest.approx(identifier.identify(text.lower())[1]))


def test_mixed_case_text_keeps_its_capitals() -> None:
    half = "AbCd ÉÉN twee"
    assert lowercase_all_caps("ABC d") == "abc d" and lowercase_all_caps("ÉÉ") == "éé"
    for text in ("Ab", "aB", half, "12 {}[]@`", "", "\udc80 a"):
        assert lowercase_all_caps(text) == text


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["de ", "the ", "é", "z", "\n", "ß", "huis", "日", "12 "]), max_size=90).map("".join))
def test_ngram_matches_equal_a_byte_by_byte_search(text: str) -> None:
    state, expected = 0, []
    for byte in text.encode():
        state = int(MODEL.tk_nextmove[(int(MODEL.tk_row[state]) << 8) + byte])
        expected.append(int(MODEL.tk_output[state]))
    assert OURS.match_ngrams(text.encode()).tolist() == expected


def test_fasttext_model_identifies_languages(model: Path, texts: dict[str, str]) -> None:
    identifier = FastTextIdentifier(model, ["nl", "en"])
    for name in ("nl_water", "nl_bakker", "nl_fiets", "en_lighthouse", "en_garden"):
        language, score, _ = identifier.identify(texts[name])
        assert language == name[:2] and 0.6 < score <= 1
    assert identifier.identify("")[0] in ("nl", "en", "und")
    block = LanguageFilter({"nl": 0.6}, model=model)
    assert block.filter(Document(text=texts["nl_water"], id="1")) is True
    assert block.filter(Document(text=texts["en_garden"], id="2")) == (False, "language")
    with pytest.raises(InputError, match=r"fy cannot be identified by model\.bin"):
        FastTextIdentifier(model, ["nl", "fy"])


def test_fasttext_labels_are_parsed() -> None:
    labels = [
        "__label__nl",
        "__label__nld",
        "__label__nld_Latn",
        "__label__eng_Latn",
        "__label__fry_Latn",
        "__label__gos_Latn",
    ]
    assert [language_from_label(label) for label in labels] == ["nl", "nl", "nl", "en", "fy", "gos"]


def test_file_that_is_not_a_fasttext_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"no model")
    with pytest.raises(InputError, match=r"model\.bin is no model of fastText"):
        FastTextIdentifier(path, ["nl"])


def test_model_with_another_hash_is_refused(model: Path, tmp_path: Path) -> None:
    corpus = Corpus()
    sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
    unit = FilterSettings(
        source="s",
        languages=corpus.languages,
        personal_data=corpus.personal_data,
        broken_share=0.05,
    )
    assert _verify_identification_model(unit, []) is None
    meant = unit.model_copy(update={"language_model_sha256": sha256})
    assert _verify_identification_model(meant, [model]) == model
    other = tmp_path / "other.bin"
    other.write_bytes(model.read_bytes() + b"\0")
    with pytest.raises(InputError, match=r"the sha256 of other\.bin is [0-9a-f]{64}: write that"):
        _verify_identification_model(meant, [other])


def test_mixed_language_spans_are_whole_lines() -> None:
    data = b"\n".join([b"x" * 600] * 7)
    assert [data[start:end] for start, end in split_segments(data)] == [b"x" * 600 + b"\n" + b"x" * 600] * 3
    assert list(split_segments(b"x" * 1999)) == []


@pytest.mark.parametrize("with_fasttext", [False, True])
def test_mixed_languages_are_detected(with_fasttext: bool, model: Path, texts: dict[str, str]) -> None:
    dutch = "\n".join(texts[name] for name in ("nl_water", "nl_bakker", "nl_fiets"))
    english = "\n".join([texts["en_lighthouse"], texts["en_garden"]] * 2)
    document = Document(text=f"{dutch}\n{dutch}\n{dutch}\n{english}", id="1")
    results = {}
    for largest in (0.6, 0.2):
        block = LanguageFilter(
            {"nl": 0.1, "en": 0.1}, mixed_language={"nl": largest}, model=model if with_fasttext else None
        )
        results[largest] = block.filter(document)
        assert block.filter(Document(text=f"{dutch}\n{dutch}", id="2")) is True
    assert results == {0.6: True, 0.2: (False, "mixed_language")}
    other, share = document.metadata["filter_value"].split()
    assert other == "en" and 0.2 < float(share) < 0.5
