"""Language settings are completed with the defaults of that language."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pipeline.corpus.rules.presets import DUTCH, ENGLISH, GENRES
from pipeline.corpus.settings import SAMPLE_LICENSES, Corpus
from pipeline.sources.spdx_license_parser import canonicalize_spdx_expression


def test_default_languages_are_dutch_and_english() -> None:
    assert Corpus().languages == GENRES["prose"]
    for languages in ({}, {"languages": {"nl": None, "en": {}}}):
        written = {"preset": "standard", **languages}
        assert Corpus.model_validate(written).languages == {"nl": DUTCH, "en": ENGLISH}


def test_one_key_changes_only_one_value() -> None:
    changes = {"quality": {"minimum_words": 10}, "repetition": {"top_n_grams": {2: 0.5}}}
    rules = Corpus.model_validate({"preset": "standard", "languages": {"nl": changes}}).languages["nl"]
    assert rules.quality == DUTCH.quality.model_copy(update={"minimum_words": 10})
    assert rules.repetition == DUTCH.repetition.model_copy(update={"top_n_grams": {2: 0.5}})


@pytest.mark.parametrize("name", SAMPLE_LICENSES)
def test_licenses_for_samples_use_the_spdx_spelling(name: str) -> None:
    assert canonicalize_spdx_expression(name) == name and not {"NC", "ND"} & {*name.split("-")}


def test_settings_round_trip_through_json() -> None:
    stated = Corpus.model_validate({"preset": "genre"})
    assert Corpus.model_validate_json(stated.model_dump_json()) == stated
    assert (Corpus().languages, Corpus().rules_by_genre) == (stated.languages, stated.rules_by_genre)


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ({"nl": {"qualty": {}}}, "Extra inputs"),
        ({"fy": {"quality": {"stop_words": ["it"]}}}, "minimum_stop_words is 2 of 1 stop_words"),
        ({"nl": {"repetition": {"top_n_grams": {1: 0.5}}}}, "2 to 20 words"),
        ({}, "at least 1 item"),
        (["nl"], "valid dictionary"),
    ],
)
def test_invalid_settings_are_reported(languages: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Corpus.model_validate({"languages": languages})


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_similarity_is_between_zero_and_one(share: float) -> None:
    with pytest.raises(ValidationError, match=r"minimum_jaccard\n  Input should be (less|greater) than or equal to"):
        Corpus.model_validate({"deduplication": {"minimum_jaccard": share}})
