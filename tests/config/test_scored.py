"""Which corpora are scored, by which scores, and which configurations are refused at startup."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.configuration import Config, parse_configuration
from pipeline.core.errors import InputError
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import STEPS, step_settings
from pipeline.workflow.steps.corpus_decontamination_and_publication import (
    quality_evaluation_files,
    required_score_batches,
    unit_score_files,
)
from pipeline.workflow.steps.corpus_preparation import perplexity_model_folder, perplexity_model_token_index

MICRO = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
SET = {"path": "no/seeds.jsonl", "license": "CC0-1.0"}
HELD_OUT = {**SET, "held_out": True}
SEEDS = {"good": [SET], "bad": [SET]}
SCORING = ("corpus.quality", "corpus.scores", "corpus.classify", "corpus.perplexity")
MODEL = {"path": "no/hq.bin", "sha256": "0" * 64, "license": "MIT", "label": "__label__hq"}
ENCODER = {key: MODEL[key] for key in ("sha256", "license")} | {"path": "no/edu"}


def run(second: dict[str, Any], **sections: Any) -> Config:
    """Return the micro run with a second corpus that no model is trained on."""
    raw = copy.deepcopy(MICRO)
    raw["corpus"]["second"] = second
    return parse_configuration({**raw, **sections})


def test_corpus_without_scores_has_no_scoring_jobs() -> None:
    config = run({})
    assert [config.corpora_with_score("quality"), config.corpora_with_score("perplexity")] == [[], []]
    assert [STEPS[step].instances.jobs(config) for step in SCORING] == [[], [], [], []]
    wildcards = {"corpus": "second", "source": "nl_gids", "batch": "0"}
    dag = Dag(config)
    assert (
        required_score_batches(dag, wildcards)
        == unit_score_files(dag, wildcards)
        == quality_evaluation_files(dag, wildcards)
        == []
    )


def test_final_documents_depend_on_the_jobs_of_each_score(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl")]
    for number, file in enumerate(files):
        file.write_text(f"{number}\n")
    good, other, bad, english = ({**SET, "path": f"{{data}}/{file.name}"} for file in files)
    config = run(
        {
            "quality": {"nl": {"good": [good, other], "bad": [bad]}, "en": {"good": [english], "bad": [bad]}},
            "perplexity": {"model": "base", "tokens": 64},
        },
        data=str(tmp_path),
    )
    assert STEPS["corpus.quality"].instances.jobs(config) == [("second",)]
    for step in ("corpus.scores", "corpus.perplexity"):
        assert {job[0] for job in STEPS[step].instances.jobs(config)} == {"second"}
        assert [job[1] for job in STEPS[step].instances.jobs(config)] == [
            "en_guide",
            "nl_brieven",
            "nl_brieven",
            "nl_gids",
        ]
    assert config.quality_training_files("second") == [files[3], files[2], files[0], files[1], files[2]]
    quality_settings = step_settings(config, "corpus.quality", {"corpus": "second"}).result_settings()
    assert [[one["name"], one["label"]] for code in ("en", "nl") for one in quality_settings["languages"][code]] == [
        ["d.jsonl", "good"],
        ["c.jsonl", "bad"],
        ["a.jsonl", "good"],
        ["b.jsonl", "good"],
        ["c.jsonl", "bad"],
    ]
    assert len({one["sha256"] for one in quality_settings["languages"]["nl"]}) == 3
    files[0].write_text("other content")
    assert step_settings(config, "corpus.quality", {"corpus": "second"}).result_settings() != quality_settings
    assert step_settings(config, "corpus.perplexity", {"corpus": "second"}).result_settings() == {"tokens": 64}
    dag, asked = Dag(config), {"corpus": "second", "source": "nl_gids", "batch": "0"}
    assert [path.rpartition("/")[2] for path in required_score_batches(dag, asked)] == [
        "corpus.scores.second.nl_gids.0.json",
        "corpus.perplexity.second.nl_gids.0.json",
    ]
    assert [path.partition("/second/")[2] for path in unit_score_files(dag, asked)] == [
        "scores/nl_gids.%unit.parquet",
        "perplexity/nl_gids.%unit.parquet",
    ]
    assert perplexity_model_folder(dag, asked).endswith("models/base/final")
    assert perplexity_model_token_index(dag, asked).endswith("tokens/main/index.json")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"quality": {"fr": SEEDS}}, "quality: the corpus has no language 'fr'"),
        ({"quality": {"nl": {"good": [SET], "bad": []}}}, "corpus.second.quality.nl.bad"),
        ({"quality": {"nl": {"good": [HELD_OUT], "bad": [SET]}}}, "each need a file without held_out"),
        ({"quality": {"nl": {"good": [SET, HELD_OUT], "bad": [SET]}}}, "held_out needs good and bad files"),
        ({"quality": {"nl": {"good": [{"path": "a.jsonl"}], "bad": [SET]}}}, "license"),
        ({"quality": {"nl": {"good": [{**SET, "license": "free"}], "bad": [SET]}}}, "no SPDX license"),
        (
            {"quality": {"nl": {"good": [SET], "bad": [{**SET, "license": "MIT"}]}}},
            "has the license MIT, which allowed",
        ),
        ({"classifiers": {"hq": MODEL}}, "no/hq.bin has the license MIT, which allowed"),
        ({"classifiers": {"hq": {**MODEL, "license": "free"}}}, "no SPDX license"),
        ({"classifiers": {"hq": {**MODEL, "license": "CC0-1.0", "label": None}}}, "a fastText model needs a label"),
        ({"classifiers": {"hq": {**MODEL, "window_tokens": 64}}}, "reads whole texts: remove window_tokens"),
        ({"classifiers": {"hq": {**MODEL, "languages": ["fr"]}}}, "classifiers.hq: the corpus has no language 'fr'"),
        ({"classifiers": {"text": {**MODEL, "license": "CC0-1.0"}}}, "classifiers.text: documents have a column"),
        ({"classifiers": {"a b": MODEL}}, "classifiers"),
        ({"classifiers": {"edu": {**ENCODER, "long_texts": "last"}}}, "long_texts"),
        ({"perplexity": {"model": "none"}}, "there is no model 'none': choose one of base"),
        ({"perplexity": {"model": "base", "tokens": 65}}, "the sequence_length of models.base is 64"),
    ],
)
def test_impossible_scoring_configuration_is_one_sentence(second: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refused:
        run(second, allowed_licenses=["CC0-1.0"])
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_training_does_not_depend_on_the_corpus_scored_by_its_model() -> None:
    read = {"perplexity": {"model": "base", "tokens": 8}}
    assert run(read).corpora_with_score("perplexity") == ["second"]
    tokenizers = {"main": {"vocabulary_size": 600, "corpus": "second"}}
    token_sets = {"main": {**MICRO["tokens"]["main"], "corpus": "second"}}
    for sections in ({"tokenizer": tokenizers}, {"tokens": token_sets}, {"corpus": {"main": {**read}, "second": read}}):
        with pytest.raises(InputError, match=r"perplexity\.model: base is trained on what corpus \w+ is made for"):
            parse_configuration({**copy.deepcopy(MICRO), "corpus": {"main": {}, "second": read}, **sections})


def test_missing_seed_files_are_named() -> None:
    with pytest.raises(InputError, match=r"corpus\.second\.quality\.nl: there is no file no/seeds\.jsonl"):
        run({"quality": {"nl": SEEDS}}).quality_training_files("second")


def classified(folder: Path, **classifiers: Any) -> Config:
    """Return the micro run with a corpus that pretrained classifiers score; the files are in a folder."""
    (folder / "edu").mkdir(exist_ok=True)
    for name in ("hq.bin", "edu/model.onnx", "edu/tokenizer.json"):
        (folder / name).write_text(name)
    known = {"hq": {**MODEL, "path": "{data}/hq.bin"}, "edu": {**ENCODER, "path": "{data}/edu"}}
    return run(
        {"classifiers": {name: known[name] | changes for name, changes in classifiers.items()}}, data=str(folder)
    )


def test_each_classifier_has_its_own_jobs_and_settings(tmp_path: Path) -> None:
    config = classified(tmp_path, hq={}, edu={"long_texts": "mean", "window_tokens": 64})
    jobs = STEPS["corpus.classify"].instances.jobs(config)
    assert {job[:2] for job in jobs} == {("second", "hq"), ("second", "edu")} and len(jobs) == 8
    dag, asked = Dag(config), {"corpus": "second", "source": "nl_gids", "batch": "0"}
    assert [path.rpartition("/")[2] for path in required_score_batches(dag, asked)] == [
        "corpus.classify.second.edu.nl_gids.0.json",
        "corpus.classify.second.hq.nl_gids.0.json",
    ]
    assert [path.partition("/second/")[2] for path in unit_score_files(dag, asked)] == [
        "classifiers/edu/nl_gids.%unit.parquet",
        "classifiers/hq/nl_gids.%unit.parquet",
    ]
    settings = {name: step_settings(config, "corpus.classify", {**asked, "classifier": name}) for name in ("hq", "edu")}
    assert settings["hq"].result_settings() == {
        "files": [{"name": "hq.bin", "sha256": "0" * 64}],
        "label": "__label__hq",
        "languages": [],
        "window_tokens": None,
        "long_texts": None,
    }
    assert settings["hq"].non_result_settings() == {"license": "MIT", "url": None}
    encoder = settings["edu"].result_settings()
    assert [file["name"] for file in encoder["files"]] == ["model.onnx", "tokenizer.json"]
    assert [encoder["window_tokens"], encoder["long_texts"]] == [64, "mean"]
    assert step_settings(config, "corpus.decontaminate", asked).result_settings() == {"classifiers": ["edu", "hq"]}
    for step in ("corpus.statistics", "corpus.publish"):
        assert list(step_settings(config, step, asked).result_settings()["classifiers"]) == ["edu", "hq"]
    (tmp_path / "edu" / "config.json").write_text("{}")
    assert len(config.classifier_files("second", "edu")) == 3


def test_other_classifiers_change_no_settings_of_steps_that_do_not_read_them(tmp_path: Path) -> None:
    (tmp_path / "hq.bin").write_text("")
    before, after = run({}, data=str(tmp_path)), classified(tmp_path, hq={})
    asked = {"corpus": "second", "source": "nl_gids", "batch": "0"}
    for step in ("corpus.filter", "corpus.signatures", "corpus.matches", "corpus.deduplicate"):
        assert step_settings(before, step, asked) == step_settings(after, step, asked)
    assert step_settings(before, "corpus.decontaminate", asked).result_settings() == {}
    assert "classifiers" not in step_settings(before, "corpus.statistics", asked).result_settings()
    assert "classifiers" not in step_settings(before, "corpus.publish", asked).result_settings()
    assert "classifiers" not in step_settings(before, "provenance.crate", {}).result_settings()
    relabeled = classified(tmp_path, hq={"license": "Apache-2.0", "url": "https://example.com"})
    asked |= {"classifier": "hq"}
    one, other = (step_settings(config, "corpus.classify", asked) for config in (after, relabeled))
    assert one.result_settings() == other.result_settings() and one != other
    named = step_settings(relabeled, "provenance.crate", {}).result_settings()["classifiers"]["second/hq"]
    assert [named["name"], named["license"], named["url"]] == ["hq.bin", "Apache-2.0", "https://example.com"]


@pytest.mark.parametrize(
    ("classifier", "words"),
    [
        (MODEL, r"classifiers\.one: there is no file no/hq\.bin in .*: correct its path, or add it"),
        (ENCODER, r"classifiers\.one: no/edu in .* is no folder: name a \.bin or \.ftz of fastText, or a folder"),
        ({**ENCODER, "path": "config"}, r"there is no file config/model\.onnx in "),
    ],
)
def test_missing_files_of_a_classifier_are_named(classifier: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run({"classifiers": {"one": classifier}}).classifier_files("second", "one")
