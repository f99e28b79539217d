from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from pipeline.core.errors import InputError
from pipeline.evaluate.settings import KNOWN_SUITES, Evaluation, KnownSuite, Suite, SuitesSettings


def test_suite_has_either_a_folder_or_shipped_tasks():
    Suite(name="a", language="nl", folder="x")
    Suite(name="a", language="nl", tasks=["belebele_nld_Latn"], data="mirror")
    for wrong in ({}, {"folder": "x", "tasks": ["y"], "data": "z"}, {"tasks": ["y"]}):
        with pytest.raises(ValidationError, match="the suite 'a'"):
            Suite(name="a", language="nl", **wrong)


def test_names_resolve_to_suites_with_the_data_folder():
    own = Suite(name="own", language="nl", folder="mine")
    evaluation = Evaluation(suites=["dutch", "english_open", own])
    dutch, english, mine = evaluation.resolve_suites("/somewhere")
    assert (dutch.name, dutch.language, dutch.folder, dutch.data) == ("dutch", "nl", "config/tasks/dutch", None)
    assert english.data == "/somewhere/eval"
    assert mine == own
    with pytest.raises(InputError, match="--config data=FOLDER"):
        evaluation.resolve_suites(None)


def test_known_suites_are_registered_under_their_names() -> None:
    assert {name: suite.name for name, suite in KNOWN_SUITES.items()} == {name: name for name in get_args(KnownSuite)}


def test_duplicate_suite_names_are_refused():
    with pytest.raises(ValidationError, match="'dutch' occurs twice"):
        Evaluation(suites=["dutch", Suite(name="dutch", language="nl", folder="x")])


def test_data_folder_is_not_part_of_the_step_settings():
    suites = Evaluation(suites=["dutch_open"]).resolve_suites("/home/someone")
    settings = SuitesSettings(model="base", step=3, suites=suites, batch_size=4, seed=1)
    assert "/home" not in settings.model_dump_json()
    assert SuitesSettings.model_validate_json(settings.model_dump_json()) == settings
