"""A configuration error is one sentence with the key and the remedy."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.evaluate.differences import detectable_share_difference
from pipeline.model.huggingface import save_pretrained
from pipeline.model.networks import initial_state
from pipeline.model.settings import Architecture
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import step_settings
from pipeline.workflow.steps.evaluate import STEPS, baseline_model_files

MICRO = yaml.safe_load(Path("config/micro.yaml").read_text())


def changed(path: str, value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(MICRO)
    *parents, last = path.split(".")
    node: Any = raw
    for key in parents:
        node = node[int(key)] if key.isdigit() else node.setdefault(key, {})
    if value is KeyError:
        del node[last]
    else:
        node[last] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("models.base.training.learning_rate", True, "learning_rate: true, false, yes, no, on and off are no numbers"),
        ("models.base.training.learning_rate", float("inf"), "learning_rate: Input should be a finite number"),
        ("models.base.training.learning_rate", "1e400", "learning_rate: Input should be a finite number"),
        ("run.seed", False, "run.seed: true, false, yes, no, on and off are no numbers: write a number"),
        ("energy", {"pue": float("inf")}, "energy.pue: Input should be a finite number"),
        ("tokeniser", {}, ["tokeniser", "tokenizer"]),
        ("models.base.training.learning_rat", 1.0, ["models.base.training.learning_rat", "learning_rate"]),
        ("sources.0.licence", "MIT", ["sources.nl_brieven.licence", "'license'"]),
        ("sources.0.license", KeyError, ["sources.nl_brieven.license", "missing"]),
        ("run.seed", "many", ["run.seed", "many"]),
        ("tokenizer.main.vocabulary_size", 200, ["vocabulary_size", "256", "259"]),
        ("tokenizer.main.vocabulary_size", 265, ["tokenizer.main", "markers", "at least 269"]),
        ("tokenizer.main.sweep", {"vocabulary_size": [700, 200]}, ["main.sweep", "200", "259"]),
        ("tokenizer.main.sweep", {"algoritm": ["bpe"]}, ["algoritm", "did you mean 'algorithm'"]),
        ("tokenizer", {"main": {"sweep": {"digits": ["right"]}}, "main-right": {}}, ["main.sweep", "main-right"]),
        ("tokenizer.main.sample_weights", {"de": 1}, ["sample_weights", "'de'", "one of en, nl"]),
        ("tokenizer.main.sample_weights", {"nl": 0}, ["all sample_weights are 0"]),
        ("tokenizer.main.parallel", {"nl": "nl.txt"}, ["parallel", "one language"]),
        ("models.base.architecture.heads", 5, ["width 32", "heads 5"]),
        ("models.base.training.strategy", "zero3", ["zero3", "fsdp", "full_shard"]),
        ("models.base.tokens", "other", ["models.base.tokens", "other", "main"]),
        (
            "models.base.training.sampling",
            {"weights": {"nl_brieven": 1}, "phases": [{"from_step": 2, "by": "language", "epochs": {"fr": 2}}]},
            ["models.base.training.sampling", "language 'fr'", "one of en, nl"],
        ),
        ("models.base.training.sampling", {"weights": {"brieven": 1}}, ["no source 'brieven'", "nl_brieven"]),
        ("corpus.main.exclude_sources", ["nothere"], ["exclude_sources", "nothere"]),
        ("corpus.main.deduplication", {"prefer": ["nothere"]}, ["deduplication.prefer", "nothere"]),
        ("sources.1.name", "nl_brieven", ["sources.nl_brieven.name", "two sources"]),
        ("run.name", "../elsewhere", ["run.name", "../elsewhere"]),
        ("run.results", "$(touch x)", ["run.results", "letters, digits"]),
        ("run.results", "", ["run.results", "letters, digits"]),
        ("corpus.The Corpus", {}, ["corpus.The Corpus", "lower case"]),
        (
            "corpus.main.exclude_sources",
            ["nl_brieven", "nl_gids", "en_guide"],
            ["exclude_sources", "no source is left"],
        ),
        ("evaluation", {"suites": ["klingon"]}, ["evaluation.suites.0", "klingon"]),
        ("platform", "atlantis", ["atlantis", "local"]),
    ],
)
def test_error_is_one_sentence_with_key_and_remedy(path: str, value: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_configuration(changed(path, value))
    sentence = str(caught.value)
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence


BRANCH = {
    "architecture": MICRO["models"]["base"]["architecture"],
    "training": {**MICRO["models"]["base"]["training"], "start": {"model": "base", "step": 4}, "steps": 6},
}


def test_branch_may_increase_its_batch_size() -> None:
    raw = changed("models.branch", copy.deepcopy(BRANCH))
    before = raw["models"]["branch"]["training"]["batch_size"]
    larger = {"batch_size": 2 * before, "ramp": [{"to_step": 4, "batch_size": before}]}
    raw["models"]["branch"]["training"] |= larger
    assert parse_configuration(raw).models["branch"].training.batch_schedule.count_sequences(6) == 8 * before


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("training.start.model", "bas", ["no other model 'bas'", "did you mean 'base'"]),
        ("training.start.model", "branch", ["no other model 'branch'"]),
        ("training.start.step", 3, ["models.base keeps no milestone of step 3", "one of 4, 8"]),
        ("training.steps", 4, ["models.branch.training", "steps 4 must exceed start.step 4"]),
        ("training.batch_size", 8, ["needs training.batch_size and ramp up to there of models.base"]),
        ("training.ramp", [{"to_step": 3, "batch_size": 2}], ["needs training.batch_size and ramp up to there"]),
        ("training.sequence_length", 32, ["needs training.sequence_length of models.base"]),
        ("architecture.layers", 1, ["needs architecture of models.base"]),
        ("training.optimizer", "muon", ["needs training.optimizer of models.base"]),
        ("seed", 8, ["needs seed of models.base"]),
        ("tokens", "other", ["needs the tokenizer of its tokens of models.base"]),
    ],
)
def test_branch_must_match_its_parent(path: str, value: Any, words: list[str]) -> None:
    raw = changed("models.branch", copy.deepcopy(BRANCH))
    raw["tokenizer"]["other"], raw["tokens"]["other"] = {"vocabulary_size": 700}, {"tokenizer": "other"}
    parse_configuration(raw)
    *parents, last = path.split(".")
    node = raw["models"]["branch"]
    for key in parents:
        node = node[key]
    node[last] = value
    with pytest.raises(InputError) as caught:
        parse_configuration(raw)
    assert all(word in str(caught.value) for word in words), str(caught.value)


TAKEN = {"folder": "models/large", "license": "Apache-2.0"}


@pytest.mark.parametrize(
    ("model", "pretrained", "words"),
    [
        ("base", {**TAKEN, "license": "Large"}, ["'Large' is no SPDX license"]),
        ("base", {**TAKEN, "license": "CC-BY-4.0"}, ["models/large has the license CC-BY-4.0", "allow its license"]),
        ("branch", TAKEN, ["models.branch has training.start and pretrained", "remove the other"]),
    ],
)
def test_pretrained_weights_need_an_allowed_license(model: str, pretrained: dict[str, str], words: list[str]) -> None:
    raw = changed("models.branch", copy.deepcopy(BRANCH))
    raw["allowed_licenses"] = ["CC0-1.0", "Apache-2.0"]
    raw["models"]["base"]["pretrained"] = dict(TAKEN)
    parse_configuration(raw)
    raw["models"][model]["pretrained"] = pretrained
    with pytest.raises(InputError) as caught:
        parse_configuration(raw)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_pretrained_files_must_exist_and_match_the_architecture(tmp_path: Path) -> None:
    raw = changed("models.base.pretrained", {**TAKEN, "folder": "{data}/large"})
    config = parse_configuration({**raw, "data": str(tmp_path)})
    with pytest.raises(InputError, match=r"models\.base\.pretrained: .*large needs config\.json"):
        config.pretrained_files("base")
    tokens = {"tokenizer": tmp_path / "t.json", "tokenizer_configuration": tmp_path / "c.json"}
    vocabulary = {"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}, "added_tokens": []}
    tokens["tokenizer"].write_text(json.dumps(vocabulary))
    tokens["tokenizer_configuration"].write_text("{}")
    shape = config.models["base"].architecture
    folder = tmp_path / "large"

    def exported(shape: Architecture) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        save_pretrained(initial_state(shape, 600, 1), shape, 600, 64, **tokens, folder=folder)

    exported(shape)
    assert str(folder / "model.safetensors") in config.pretrained_files("base")
    assert config.list_rope_changes("base") == []
    exported(shape.model_copy(update={"rope_theta": 10_000.0}))
    assert config.list_rope_changes("base") == ["rope_theta 500000, was 10000"]
    exported(shape.model_copy(update={"layers": 3}))
    with pytest.raises(InputError, match="of another shape than architecture: write layers: 3"):
        config.pretrained_files("base")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json is no tokenizer\.json that can be read"):
        config.pretrained_files("base")
    for key, value, message in (("quantization_config", {"bits": 4}, "quantized"), ("vocab_size", "many", "whole")):
        written = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**written, key: value}))
        with pytest.raises(InputError, match=message):
            config.pretrained_files("base")
        (folder / "config.json").write_text(json.dumps(written))
    (folder / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(InputError, match="give a folder with all files"):
        config.pretrained_files("base")


def test_branch_of_an_imported_model_has_that_model_as_baseline() -> None:
    raw = changed("models.branch", copy.deepcopy(BRANCH))
    raw["evaluation"] = {}
    raw["models"]["base"]["pretrained"] = dict(TAKEN)
    raw["models"]["drawn"] = {**copy.deepcopy(raw["models"]["base"]), "seed": 9}
    del raw["models"]["drawn"]["pretrained"]
    config = parse_configuration(raw)
    assert set(config.baselines()) == {"adopted-base", "adopted-branch", "untrained-drawn"}
    wildcards = {"baseline": "adopted-branch"}
    with pytest.raises(InputError, match=r"models\.base\.pretrained: models/large"):
        baseline_model_files(Dag(config), wildcards)
    step_configuration = step_settings(config, "evaluate.baselines", {"baseline": "adopted-branch"})
    assert step_configuration.model_dump()["untrained_seed"] is None
    assert step_settings(config, "evaluate.differences", {}).model_dump()["seeds"] == [], "they differ in other keys"
    step = next(step for step in STEPS if step.name == "evaluate.differences")
    (files,) = [one.files for one in step.inputs if one.name == "imported"]
    names = [f"{config.run_directory}/baselines/adopted-{model}/items.parquet" for model in ("base", "branch")]
    assert callable(files) and sorted(files(Dag(config), {})) == names


def test_misspelt_required_key_error_suggests_the_correct_key() -> None:
    raw = changed("models.base.training.learning_rate", KeyError)
    raw["models"]["base"]["training"]["learning_rte"] = 0.004
    with pytest.raises(
        InputError, match=r"unknown key models\.base\.training\.learning_rte: did you mean 'learning_rate'"
    ):
        parse_configuration(raw)


@pytest.mark.parametrize("name", ["config", "micro"])
def test_shipped_configurations_are_valid(name: str) -> None:
    config = parse_configuration(yaml.safe_load(Path(f"config/{name}.yaml").read_text()))
    assert all(config.raw_files(source.name) for source in config.sources)


def test_open_text_evaluation_needs_its_folder() -> None:
    config = parse_configuration(yaml.safe_load(Path("config/open-text.yaml").read_text()))
    with pytest.raises(InputError, match="--config data=FOLDER"):
        config.raw_files("nl_laws")


def test_open_text_limits_can_detect_two_points() -> None:
    """Models that differ in one item of ten; the suite files have 1,004 to 67,000 items."""
    config = parse_configuration(yaml.safe_load(Path("config/open-text.yaml").read_text()) | {"data": "folder"})
    limits = {suite.name: suite.limit or 2099 for suite in config.suites()}
    for name in ("dutch_open", "english_open"):
        assert detectable_share_difference(limits[name] // 20, limits[name] // 20, limits[name]) < 0.02


def test_step_settings_contain_only_what_the_step_reads() -> None:
    config = parse_configuration(MICRO)
    instance = {"corpus": "main", "source": "nl_gids", "unit": "0"}
    before = step_settings(config, "corpus.filter", instance)
    other = parse_configuration(changed("models.base.training.learning_rate", 0.5))
    assert step_settings(other, "corpus.filter", instance) == before
    for label, value in (("license", "MIT"), ("rights", {"basis": "statute", "holder": "others"}), ("language", "en")):
        assert (
            step_settings(parse_configuration(changed(f"sources.1.{label}", value)), "corpus.filter", instance)
            == before
        )
    other = parse_configuration(changed("sources.1.license_key", "license"))
    assert step_settings(other, "corpus.filter", instance) != before


def test_unit_of_a_file_does_not_depend_on_other_files() -> None:
    config = parse_configuration(changed("sources.0.units", 4))
    units = {name: unit for unit, files in config.unit_files("nl_brieven").items() for name in files}
    assert len(set(units.values())) > 1
    raw = changed("sources.0.units", 4)
    raw["sources"][0]["path"] = "config/corpus/nl_brieven/*e*.txt"
    fewer = {name: unit for unit, files in parse_configuration(raw).unit_files("nl_brieven").items() for name in files}
    assert fewer and all(units[name] == unit for name, unit in fewer.items())


@pytest.mark.parametrize("name", ["config", "micro"])
def test_dumped_configuration_parses_to_the_same_run(name: str) -> None:
    config = parse_configuration(yaml.safe_load(Path(f"config/{name}.yaml").read_text()))
    assert parse_configuration(json.loads(json.dumps(config.dump_explicit_settings()))) == config


def test_platform_does_not_change_training_settings() -> None:
    results = [
        step_settings(
            parse_configuration(changed("platform", name)), "pretrain.segment", {"model": "base", "step": "8"}
        )
        for name in ("local", "lumi", "snellius", "juwels-booster")
    ]
    assert all(settings == results[0] for settings in results)


def test_sweep_expands_to_ordinary_tokenizers() -> None:
    swept = {
        "vocabulary_size": 600,
        "sample_bytes": 5000,
        "sweep": {"vocabulary_size": [600, 700], "algorithm": ["bpe", "unigram"]},
    }
    config = parse_configuration(changed("tokenizer.main", swept))
    assert list(config.tokenizer) == ["main", "main-bpe-700", "main-unigram-600", "main-unigram-700"]
    results = {name: (t.algorithm, t.vocabulary_size, t.sample_bytes) for name, t in config.tokenizer.items()}
    assert results["main"] == ("bpe", 600, 5000) and results["main-unigram-700"] == ("unigram", 700, 5000)
    assert parse_configuration({**config.dump_explicit_settings(), "platform": "local"}).tokenizer == config.tokenizer
    assert config.tokens["main"].tokenizer == "main"
    step_configuration = step_settings(config, "tokenizer.train", {"tokenizer": "main"})
    alone = parse_configuration(changed("tokenizer.main", {"vocabulary_size": 600, "sample_bytes": 5000}))
    assert step_configuration == step_settings(alone, "tokenizer.train", {"tokenizer": "main"}), (
        "a sweep changes no other tokenizer"
    )


def test_all_tokenizers_of_a_corpus_hold_out_the_same_documents() -> None:
    raw = changed("tokenizer", {"main": {}, "other": {}})
    raw["tokens"]["main"]["validation_fraction"] = 0.2
    for tokenizer in ("main", "other"):
        for step in ("tokenizer.train", "tokenizer.fertility"):
            step_configuration = step_settings(parse_configuration(raw), step, {"tokenizer": tokenizer})
            assert step_configuration.model_dump()["validation_fraction"] == 0.2


def test_tokenizer_markers_come_from_its_corpora() -> None:
    kinds = {kind: False for kind in ("ip", "iban", "telephone", "address", "kvk", "number_plate", "credit_card")}
    raw = changed("corpus.main", {"personal_data": {**kinds, "passport": False, "names": "models/names"}})
    assert parse_configuration(raw).personal_data_markers("main") == ["<BSN>", "<EMAIL>", "<NAME>"]
    raw["corpus"]["main"]["personal_data"]["replacement"] = "synthetic"
    assert parse_configuration(raw).personal_data_markers("main") == []
    raw["corpus"]["web"] = {}
    raw["tokens"]["web"] = {"corpus": "web", "tokenizer": "main"}
    assert "<IBAN>" in parse_configuration(raw).personal_data_markers("main") and "<NAME>" not in parse_configuration(
        raw
    ).personal_data_markers("main")


def test_number_that_yaml_reads_as_text_is_parsed_as_a_number(tmp_path: Path) -> None:
    raw = yaml.safe_load(yaml.safe_dump(MICRO).replace("learning_rate: 0.003", "learning_rate: 3e-3"))
    assert raw["models"]["base"]["training"]["learning_rate"] == "3e-3", "YAML 1.1 reads it so"
    assert parse_configuration(raw).models["base"].training.learning_rate == 0.003
