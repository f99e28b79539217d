"""The section `experiments`: its cells are ordinary models named by their settings; invalid ones are refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemake.utils import update_config

from pipeline.config.configuration import Config, parse_configuration
from pipeline.config.configuration_file import load_configuration
from pipeline.core.errors import InputError
from pipeline.experiment.cells import cell_name
from pipeline.model.size_and_cost import parameter_count
from pipeline.plan.estimate import estimate
from pipeline.plan.sharding_strategy_definitions import STRATEGIES
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import step_settings
from tests.conftest import ROOT

RATES = {"base": "base", "vary": {"training.learning_rate": ["3e-3", 0.01]}, "seeds": [7, 8]}


def config(changes: dict[str, Any] | None = None, /, **experiments: dict[str, Any]) -> Config:
    content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
    return parse_configuration(content | (changes or {}) | {"experiments": experiments})


def cells(config: Config, name: str = "x") -> list[Any]:
    return config.experiment_page_settings()[name].cells


def test_two_by_two_grid_makes_four_models_and_keeps_the_base() -> None:
    result = config(rates=RATES)
    names = [f"rates-learning_rate-0_0{rate}-seed-{seed}" for rate in ("03", "1") for seed in (7, 8)]
    assert [*result.models] == ["base", *names]
    rates = [(model.training.learning_rate, model.seed) for model in result.models.values()]
    assert rates == [(0.003, None), (0.003, 7), (0.003, 8), (0.01, 7), (0.01, 8)]
    segment = step_settings(result, "pretrain.segment", {"model": names[0], "step": "4"})
    ordinary = step_settings(result, "pretrain.segment", {"model": "base", "step": "4"})
    assert segment.result_settings() == ordinary.result_settings(), "so that one reuses the other's results"
    assert segment.non_result_settings()["records_outcome"] and not ordinary.non_result_settings()["records_outcome"]
    without = step_settings(config(), "pretrain.segment", {"model": "base", "step": "4"})
    assert without == ordinary and "records_outcome" not in without.result_settings()
    assert result.experiment_page_settings()["rates"].to == {"training.learning_rate": 0.003}, "as in the base"
    instances = [record for record in Dag(result).non_batch_record_paths() if "pretrain.export.rates" in record]
    assert len(instances) == 4


def test_cells_write_samples_only_if_their_experiment_requests_it() -> None:
    result = config(x=RATES, y={**RATES, "seeds": [9], "samples": True})
    written = [record for record in Dag(result).non_batch_record_paths() if "evaluate.samples" in record]
    assert result.sampled_models() == ["base", *(cell.name for cell in cells(result, "y"))] and len(written) == 3
    unsearchable = config({"tokens": {"main": {"suffixes": False}}}, y={**RATES, "samples": True})
    assert unsearchable.sampled_models() == []


def test_models_without_a_suite_are_not_evaluated() -> None:
    for evaluation, evaluated in (({"suites": []}, 0), ({"suites": ["dutch"]}, 5)):
        result = config({"evaluation": {"checkpoints": "final", "untrained": True, **evaluation}}, x=RATES)
        steps = [Path(record).name for record in Dag(result).non_batch_record_paths() if "records/evaluate." in record]
        assert len([step for step in steps if step.startswith("evaluate.suites")]) == evaluated
        assert bool(result.baselines()) == bool(evaluated) == any("differences" in step for step in steps)


def test_added_value_or_seed_changes_no_existing_cell() -> None:
    before = config(x=RATES)
    more = {"training.learning_rate": [0.02, "3e-3", 0.01]}
    after = config(x={**RATES, "vary": more, "seeds": [9, 7, 8]})
    assert len(after.models) == 10 and len(before.models) == 5
    assert after.experiment_page_settings()["x"].to == {"training.learning_rate": 0.003}, (
        "as in the base, not the first"
    )
    for name, model in before.models.items():
        assert after.models[name] == model
        for step in ("4", "8"):
            settings = [
                step_settings(one, "pretrain.segment", {"model": name, "step": step}) for one in (before, after)
            ]
            assert settings[0] == settings[1]
    differences = [step_settings(one, "evaluate.differences", {}) for one in (before, after)]
    assert differences[0] == differences[1], "the run compares only its other models"
    assert config(x={"base": "base", "seeds": [7]}).models["x-seed-7"].seed == 7
    assert [*config(x={**RATES, "seeds": []}).models][1:] == [*before.models][1::2], "the base's seed is the run's"


def test_dumped_configuration_recreates_the_same_cells() -> None:
    result = config(x={**RATES, "equal": "tokens"})
    written = result.dump_explicit_settings()
    assert [*written["models"]] == ["base"] and parse_configuration(written).models == result.models


def test_experiments_vary_tokens_whole_sections_and_partial_defaults() -> None:
    sets = {"tokens": {"main": {"shards": 2, "validation_fraction": 0.1}, "other": {"shards": 1}}}
    result = config(sets, x={"base": "base", "vary": {"tokens": ["main", "other"], "training.mesh.tensor": [1, 2]}})
    assert [(model.tokens, model.training.mesh.tensor) for model in result.models.values()][1:] == [
        *(("main", 1), ("main", 2), ("other", 1), ("other", 2))
    ]
    shapes = [{"layers": 1, "width": 32, "heads": 2}, {"layers": 2, "width": 64, "heads": 4}]
    result = config(
        x={"base": "base", "vary": {"architecture": shapes}, "compare": {"to": {"architecture": shapes[1]}}}
    )
    assert [model.architecture.width for model in result.models.values()] == [32, 32, 64]
    assert result.experiment_page_settings()["x"].to == {"architecture": shapes[1]}
    assert all(len(name.removeprefix("x-architecture-")) < 16 for name in result.models), "a hash of the section"


def test_one_line_varies_a_corpus_with_a_shared_tokenizer() -> None:
    without = {"corpus.exclude_sources": [[], ["nl_gids"]], "training.learning_rate": [0.003, 0.01]}
    result = config(x={"base": "base", "vary": without, "seeds": [7, 8]})
    (name,) = result.corpus.keys() - {"main"}
    (tokens,) = result.tokens.keys() - {"main"}
    assert result.corpus_sources(name) == ["en_guide", "nl_brieven"] and [*result.tokenizer] == ["main"]
    assert result.corpus[name].decontamination == result.corpus["main"].decontamination
    assert result.tokens[tokens] == result.tokens["main"].model_copy(update={"corpus": name})
    assert [model.tokens for model in result.models.values()] == [*["main"] * 5, *[tokens] * 4]
    assert result.experiment_page_settings()["x"].to == {"corpus.exclude_sources": [], "training.learning_rate": 0.003}
    last = config(x={"base": "base", "vary": {"corpus.exclude_sources": [["nl_gids"], []]}})
    assert last.experiment_page_settings()["x"].to == {"corpus.exclude_sources": []}, "as in the base's corpus"
    written = result.dump_explicit_settings()
    assert [*written["corpus"]] == [*written["tokens"]] == ["main"]
    again = parse_configuration(written)
    assert (again.corpus, again.tokens, again.models) == (result.corpus, result.tokens, result.models)
    two = {"x": {"base": "base", "vary": without}, "y": {"base": "base", "vary": without, "seeds": [9]}}
    assert config(**two).corpus == result.corpus, "two experiments share it"
    rule = {"corpus.deduplication.minimum_jaccard": [0.5, 0.9], "corpus.keep_removed": [True]}
    result = config(x={"base": "base", "vary": rule})
    assert {(one.deduplication.minimum_jaccard, one.keep_removed) for one in result.corpus.values()} == {
        *((0.5, True), (0.9, True), (result.corpus["main"].deduplication.minimum_jaccard, False))
    }
    assert result.experiment_page_settings()["x"].to["corpus.keep_removed"] is True, "the base has none of these values"


def test_excluded_combinations_create_no_cells_and_need_no_model() -> None:
    vary = {"training.backend": ["fsdp", "deepspeed"], "training.strategy": ["full_shard", "zero2"]}
    wrong = [
        {"training.backend": "fsdp", "training.strategy": "zero2"},
        {"training.backend": "deepspeed", "training.strategy": "full_shard"},
    ]
    result = config(x={"base": "base", "vary": vary, "exclude": wrong, "limit": 2})
    assert [model.training.strategy for model in result.models.values()] == ["full_shard", "full_shard", "zero2"]
    with pytest.raises(InputError, match=r"experiments\.x\.vary: training: strategy zero2 is not available"):
        config(x={"base": "base", "vary": vary})


@pytest.mark.parametrize(
    ("equal", "values", "steps"),
    [("steps", [4, 8], [8, 8]), ("tokens", [4, 8, 16], [8, 4, 2]), ("flops", [4, 8, 16], [8, 4, 2])],
)
def test_cell_steps_follow_the_quantity_that_is_kept_equal(equal: str, values: list[int], steps: list[int]) -> None:
    result = config(x={"base": "base", "vary": {"training.batch_size": values}, "equal": equal})
    assert [model.training.steps for model in result.models.values()][1:] == steps
    assert [cell.steps for cell in cells(result)] == steps


@pytest.mark.parametrize("equal", ["tokens", "flops"])
def test_cell_steps_account_for_the_batch_ramp(equal: str) -> None:
    content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
    training = content["models"]["base"]["training"] | {"steps": 8, "batch_size": 8}
    content["models"]["base"]["training"] = training | {"ramp": [{"to_step": 2, "batch_size": 4}]}
    vary = {"training.ramp": [[{"to_step": 4, "batch_size": 4}], []]}
    content["experiments"] = {"x": {"base": "base", "vary": vary, "equal": equal}}
    steps = [model.training.steps for name, model in parse_configuration(content).models.items() if name != "base"]
    assert steps == [4 + (56 - 16) // 8, 56 // 8]


def test_equal_flops_cells_match_the_plan_and_report_rounding() -> None:
    content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
    content["models"]["base"]["training"]["steps"] = 400
    content["platform"] = "snellius"
    content["experiments"] = {"x": {"base": "base", "vary": {"architecture.width": [32, 64]}, "equal": "flops"}}
    content["experiments"]["x"]["vary"]["training.batch_size"] = [8, 16]
    configuration = parse_configuration(content)
    plan = estimate(step_settings(configuration, "plan.estimate", {}))["models"]  # type: ignore[arg-type]
    base = plan["base"]["model_flops"]
    for cell in cells(configuration):
        assert plan[cell.name]["model_flops"] / base - 1 == pytest.approx(cell.rounded) and abs(cell.rounded) < 0.01
    assert any(cell.rounded for cell in cells(configuration))
    content["experiments"]["x"]["equal"] = "joules"
    assert [cell.steps for cell in cells(parse_configuration(content))] == [cell.steps for cell in cells(configuration)]
    joules = [plan[name]["energy_joules"] for name in ("base", *(cell.name for cell in cells(configuration)))]
    assert max(joules) / min(joules) < 1.01


def test_infeasible_cell_is_planned_as_not_run() -> None:
    vary = {"training.mesh.tensor": [1, 2, 4]}
    result = config(x={"base": "base", "vary": vary})
    assert [name for name in result.models if "tensor-4" in name] == []
    (cell,) = [cell for cell in cells(result) if cell.refused]
    assert cell.name == "x-tensor-4-seed-7" and "2 processes" in cell.refused
    plan = estimate(step_settings(result, "plan.estimate", {}))  # type: ignore[arg-type]
    assert plan["not_run"] == {cell.name: cell.refused} and cell.name not in plan["models"]
    large = {"layers": 80, "width": 16384, "heads": 128}
    content = {"platform": "snellius"}
    content["models"] = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))["models"]
    content["models"]["base"]["training"]["batch_size"] = 8  # type: ignore[index]
    shapes = [large, {"layers": 2, "width": 32, "heads": 4}]
    result = config(content, x={"base": "base", "vary": {"architecture": shapes}})
    assert [cell.refused is None for cell in cells(result)] == [False, True]
    assert "GiB of a device by the plan's formulas, and snellius has" in str(cells(result)[0].refused)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vary": {"architecture.width": list(range(1000))}}, ["1,000 cells", "limit 64", "raise limit"]),
        (
            {"vary": {f"training.{key}": [*range(1000)] for key in "abcdef"}, "seeds": [1, 2]},
            ["2,000,000,000,000,000,000 cells"],
        ),
        ({"seeds": [*range(65)]}, ["65 cells", "limit 64"]),
        ({"base": "other", "seeds": [1]}, ["experiments.x.base", "'other'", "one of base"]),
        ({}, ["nothing is varied"]),
        ({"vary": {"training.learning_rat": [1]}}, ["experiments.x.vary", "did you mean 'learning_rate'"]),
        ({"vary": {"training.learning_rate": [-1]}}, ["experiments.x.vary: training.learning_rate", "more than 0"]),
        ({"vary": {"training.schedule.x": [1]}}, ["experiments.x.vary: training.schedule"]),
        ({"vary": {"training.steps": []}}, ["experiments.x.vary.training.steps"]),
        ({"vary": {"training.steps": [1, 2, 1]}}, ["training.steps", "1 occurs twice"]),
        ({"vary": {"tokens": ["none"]}}, ["'none'", "choose one of main"]),
        ({"vary": {"seed": [1]}}, ["write seeds"]),
        ({"vary": {"architecture.preset": ["llama3"]}}, ["vary architecture as a whole"]),
        ({"vary": {"corpus.preset": ["gptnl"]}}, ["write corpora, and vary tokens"]),
        ({"vary": {"corpus.exclude_source": [["nl_gids"]]}}, ["vary: corpus", "did you mean 'exclude_sources'"]),
        ({"vary": {"corpus.exclude_sources": [["gids"]]}}, ["corpus.main-exclude_sources-", "no source 'gids'"]),
        ({"vary": {"corpus.keep_removed": [True], "tokens": ["none"]}}, ["'none'", "choose one of main"]),
        ({"vary": {"training": [{}], "training.steps": [1]}}, ["training.steps is a part of training"]),
        ({"vary": {"training.steps": [1]}, "equal": "tokens"}, ["leave training.steps out"]),
        ({"vary": {"training.batch_size": [4, 6]}, "equal": "tokens"}, ["5.333 steps", "6.2% off"]),
        ({"vary": {"training.batch_size": [4, 8]}, "equal": "joules"}, ["local does not", "equal flops"]),
        ({"vary": {"training.steps": [8, 9]}, "exclude": [{"steps": 8}]}, ["exclude: steps is not varied"]),
        ({"vary": {"training.steps": [8, 9]}, "exclude": [{"training.steps": 7}]}, ["never 7", "[8, 9]"]),
        ({"vary": {"training.steps": [8]}, "exclude": [{"training.steps": 8}]}, ["exclude leaves no cell"]),
        (
            {"vary": {"training.steps": [8, 9]}, "exclude": [{"training.steps": 8}]},
            ["compare.to: no cell has {'training.steps': 8}"],
        ),
        ({"seeds": [1], "compare": {"metrics": ["acc"]}}, ["compare.metrics"]),
        ({"vary": {"training.precision": ["fp32", "FP32"]}}, ["training.precision"]),
    ],
)
def test_invalid_experiment_error_is_one_sentence(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        config(x={"base": "base", **changes})
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value), caught.value


def test_cell_name_that_collides_with_a_model_is_refused() -> None:
    content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
    models = {"models": content["models"] | {"x-seed-1": content["models"]["base"]}}
    with pytest.raises(InputError, match=r"experiments\.x: there is another model x-seed-1"):
        config(models, x={"base": "base", "seeds": [1]})
    both = {"x": {"vary": {"training.compile": [False]}}, "x-compile-false": {}}
    with pytest.raises(
        InputError, match=r"experiments\.x-compile-false: there is another model x-compile-false-seed-1"
    ):
        config(**{name: {"base": "base", "seeds": [1], **more} for name, more in both.items()})


def test_cell_names_contain_only_allowed_characters() -> None:
    values = {"a.b": 1e-05, "c": "UPPER case", "d": {"x": 1}, "e": True, "f": None, "g": -0.5}
    name = cell_name("x", values, 1)
    assert name.startswith("x-b-1e-05-c-") and name.endswith("-e-true-f-null-g--0_5-seed-1")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
    assert cell_name("x", {"a.b": 1e30}, 1) == "x-b-1e30-seed-1"
    long = [cell_name("x", {f"key_{n}": word for n in range(9)}, 1) for word in ("some_value_more", "some_value_else")]
    assert len(set(long)) == 2 and all(len(one) < 30 for one in long)


def test_duplicate_experiment_names_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("run: {name: a}\nexperiments:\n  x: {seeds: [1]}\n  y: {}\n  x: {seeds: [2]}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"twice\.yaml, line 5: the key x occurs twice"):
        load_configuration(file)
    file.write_text('{\n\t"run": {"name": "a"},\n\t"run": {"name": "b"}\n}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"twice\.yaml, line 3: the key run occurs twice"):
        load_configuration(file)
    file.write_text("run: {name: no}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"run\.name: .*put it in quotes \(given: 'False'\)"):
        load_configuration(file)
    merged = "a: &a {k: 1}\nb: &b {k: 1}\nc: {<<: *a, k: 2}\nd: [{k: 1}, {k: 1}]\ne: &e {f: *e}\n"
    file.write_text(merged, encoding="utf-8")
    with pytest.raises(InputError, match="unknown key"):
        load_configuration(file)


def merged(*files: str) -> dict[str, Any]:
    """Return the merged configuration files as by Snakemake: sections are merged, lists are replaced."""
    content: dict[str, Any] = {}
    for file in files:
        update_config(content, yaml.safe_load((ROOT / "config" / file).read_text(encoding="utf-8")))
    return content


IN_MEMORY = [
    name for name, strategy in STRATEGIES.items() if not strategy.optimizer_on_disk
]  # not every node has a disk


def test_grid_has_every_strategy_size_and_attention_kernel_once() -> None:
    grid = parse_configuration(merged("grid.yaml"))
    cells = [model.training for name, model in grid.models.items() if name in grid.cell_model_names()]
    assert len(cells) == 13 * 5 * 2
    results = {(one.strategy, one.micro_batch_size, one.flash_attention) for one in cells}
    assert results == {*product(IN_MEMORY, (4, 8, 10, 16, 24), (True, False))}
    assert {one.batch_size for one in cells} == {960} and all(960 // 4 % one.micro_batch_size == 0 for one in cells)


def test_toy_grid_has_the_same_cells_at_smaller_sizes() -> None:
    tiny = parse_configuration(merged("grid.yaml", "grid-tiny.yaml"))
    cells = [model for name, model in tiny.models.items() if name in tiny.cell_model_names()]
    results = {(one.training.strategy, one.training.micro_batch_size, one.training.flash_attention) for one in cells}
    assert results == {*product(IN_MEMORY, (1, 2, 4), (True, False))} and tiny.infeasible_cells() == {}
    assert {parameter_count(one.architecture, 4096) < 1e6 for one in cells} == {True}


def test_varied_corpus_name_that_collides_is_refused() -> None:
    content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
    other = {"corpus": {**content["corpus"], "main-keep_removed-true": {"broken_share": 0.5}}}
    with pytest.raises(InputError, match=r"experiments\.x: there is another corpus main-keep_removed-true"):
        config(other, x={"base": "base", "vary": {"corpus.keep_removed": [True]}})
    same = {
        "corpus": {**content["corpus"], "main-keep_removed-true": {**content["corpus"]["main"], "keep_removed": True}}
    }
    result = config(same, x={"base": "base", "vary": {"corpus.keep_removed": [True]}})
    assert [*result.corpus] == ["main", "main-keep_removed-true"]


def test_translated_text_ablation_evaluates_text_outside_its_sources() -> None:
    configuration = parse_configuration(merged("ablation.yaml"))
    assert len(configuration.corpus) == 2 and len(configuration.tokenizer) == 1
    models = [configuration.models[cell.name] for cell in cells(configuration, "translated")]
    assert {(model.training.steps, model.seed) for model in models} == {(600, 42), (600, 43), (600, 44)}
    assert len(models) == 6 and len({model.tokens for model in models}) == 2
    read = {source.path for source in configuration.sources}
    assert not read & {str(text.path) for text in configuration.evaluation.texts.values()}
