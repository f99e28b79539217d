"""Step declarations match the parameters of their modules."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import get_type_hints

import pytest
import yaml

from pipeline import layout
from pipeline.config.configuration import Config, parse_configuration
from pipeline.forecast.workload import WORKLOADS
from pipeline.report.run_reader import RunReader
from pipeline.workflow.expected_run_files import RunFiles
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import STAGE_DONE, STAGES, STEPS, step_settings
from pipeline.workflow.steps.corpus_preparation import equal_keys_files
from pipeline.workflow.steps.declaration import Output, Step
from pipeline.workflow.steps.pretrain import previous_milestone
from pipeline.workflow.steps.report_and_provenance import ARTEFACTS

# Parameters of a step besides its files.
GIVEN = {"raw", "private", "scratch", "recovery_folder", "launch", "platform", "staging", "owner", "versions"}


def test_steps_are_listed_in_the_order_of_their_stages() -> None:
    stages = [step.stage for step in STEPS.values()]
    assert stages == sorted(stages, key=STAGES.index) and set(STAGES) == {*STAGE_DONE}
    names = [*STEPS]
    for name, before in (("entries", "sources.fingerprint"), ("forgotten", "corpus.publish")):
        assert names[names.index(f"opt_out.{name}") - 1] == before


@pytest.mark.parametrize("step", STEPS.values(), ids=lambda step: step.name)
def test_step_function_takes_exactly_the_declared_parameters(step: Step) -> None:
    keywords = {*inspect.signature(importlib.import_module(f"pipeline.{step.name}").run).parameters} - {"settings"}
    declared = [one.name for one in (*step.inputs, *step.outputs) if isinstance(one, Output) or one.is_read]
    assert len(declared) == len({*declared}), "each name once"
    assert keywords - GIVEN == {*declared}
    assert ("private" in keywords) == (step.private is not None)
    assert ("scratch" in keywords) == (step.scratch is not None)
    assert keywords & {"launch", "platform", "staging"} == {*step.options} & {"launch", "platform", "staging"}
    assert step.reads_raw or "raw" not in keywords


def test_report_reads_exactly_the_artifacts_declared_as_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
    dag = Dag(parse_configuration(content | {"experiments": {"again": {"base": "base", "seeds": [7, 8]}}}))
    given: set[layout.PathTemplate] = set()
    read: set[layout.PathTemplate] = set()
    monkeypatch.setattr(
        "pipeline.workflow.steps.report_and_provenance.list_count_only_item_files", lambda config, corpus: True
    )
    monkeypatch.setattr(Config, "sources_with_opt_out_list", lambda config: True)
    monkeypatch.setattr(RunFiles, "file", lambda run, place, **values: given.add(place))
    for files in ARTEFACTS:
        files(dag, {})
    monkeypatch.setattr(layout.PathTemplate, "parse", lambda place, name: read.add(place))
    RunReader(tmp_path, [tmp_path / "README.md"])
    assert given == read - {layout.RECORD, layout.UNIT_RECORDS} and len(given) > 12


def test_branch_is_identified_by_its_start_and_not_by_its_name() -> None:
    content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
    base = content["models"]["base"]
    start = {"model": "base", "step": 4}
    content["models"]["branch"] = {**base, "training": {**base["training"], "milestone_every": 3, "start": start}}
    config = parse_configuration(content)
    dag = Dag(config)
    assert dag.milestones("branch") == [f"results/micro/models/branch/milestones/{step}" for step in (6, 8)]
    before = [previous_milestone(dag, {"model": "branch", "step": step}) for step in ("6", "8")]
    assert before == [["results/micro/models/base/milestones/4"], ["results/micro/models/branch/milestones/6"]]
    assert previous_milestone(dag, {"model": "base", "step": "4"}) == []
    settings = step_settings(config, "pretrain.segment", {"model": "branch", "step": "6"})
    assert (settings.first_step, settings.last_step, settings.training.start) == (4, 6, None)  # type: ignore[attr-defined]
    assert step_settings(config, "pretrain.export", {"model": "branch"}).result_settings()["first_step"] == 4
    assert "first_step" not in step_settings(config, "pretrain.export", {"model": "base"}).result_settings()
    planned = step_settings(config, "plan.estimate", {})
    assert planned.models["branch"].training.own_steps == 4  # type: ignore[attr-defined]
    alone = parse_configuration({**content, "models": {"base": base}})
    both, one = (WORKLOADS["pretrain.segment"].amount(each, {}) for each in (config, alone))
    assert both == pytest.approx(1.5 * one)


def test_key_sharing_jobs_do_not_change_settings_of_other_steps() -> None:
    def of_a_corpus(deduplication: dict[str, object]) -> Config:
        content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
        content["corpus"]["main"]["deduplication"] = deduplication
        return parse_configuration(content)

    one, three = of_a_corpus({"prefer": ["nl_gids"]}), of_a_corpus({"prefer": ["nl_gids"], "jobs": 3})
    assert [STEPS["corpus.equal_keys"].instances.jobs(config) for config in (one, three)] == [
        [],
        [("main", "0"), ("main", "1"), ("main", "2")],
    ]
    files = [equal_keys_files(Dag(config), {"corpus": "main"}) for config in (one, three)]
    assert files == [[], [f"results/micro/corpus/main/equal_keys/{share}.parquet" for share in range(3)]]
    for step in ("corpus.signatures", "corpus.find_duplicates", "corpus.publish"):
        settings = [step_settings(config, step, {"corpus": "main"}).result_settings() for config in (one, three)]
        assert settings[0] == settings[1] and "jobs" not in json.dumps(settings[0])
    share = step_settings(three, "corpus.equal_keys", {"corpus": "main", "share": "2"}).result_settings()
    assert (share["share"], share["shares"], share["exact"], share["bands"]) == (2, 3, True, 14)
    assert not {"prefer", "minimum_jaccard", "jobs"} & share.keys()


PARTS = {"corpus.signatures", "corpus.find_duplicates", "corpus.publish"}


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({}, {"passage_words": None, "line_characters": None, "line_documents": 10}, set()),
        ({}, {"passage_words": 50}, PARTS),
        ({}, {"line_characters": 20}, PARTS),
        ({"line_characters": 20}, {"line_characters": 20, "line_documents": 5}, PARTS - {"corpus.signatures"}),
    ],
)
def test_keys_of_passages_and_lines_change_only_what_reads_them(
    before: dict[str, object], after: dict[str, object], changed: set[str]
) -> None:
    settings = []
    for deduplication in (before, after):
        content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
        content["corpus"]["main"]["deduplication"] = deduplication
        config = parse_configuration(content)
        instances = {
            name: [dict(zip(step.instances.wildcards, job, strict=True)) for job in step.instances.jobs(config)]
            for name, step in STEPS.items()
            if step.stage == "corpus"
        }
        settings.append(
            {
                name: [step_settings(config, name, job).result_settings() for job in jobs]
                for name, jobs in instances.items()
            }
        )
    one, other = settings
    assert {name for name in one if one[name] != other[name]} == changed
    assert bool(changed) or "passage" not in json.dumps(one)


@pytest.mark.parametrize(("launch", "nodes"), [("srun --ntasks-per-node=4", 16), ("torchrun --nproc-per-node=4", 1)])
def test_plan_uses_the_nodes_on_which_processes_run(launch: str, nodes: int) -> None:
    config = parse_configuration(yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8")))
    platform = config.platform.model_copy(update={"devices": 4, "launch": launch})
    update = {"platform": platform, "slurm": config.slurm.model_copy(update={"nodes": 16})}
    planned = step_settings(config.model_copy(update=update), "plan.estimate", {}).model_dump()["platform"]
    assert (planned["devices"], planned["nodes"]) == (4, nodes)


def test_models_with_other_seeds_are_evaluated_equally() -> None:
    results = []
    for run_seed, seed in ((1, {}), (2, {}), (2, {"seed": 7})):
        content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
        content["run"]["seed"], content["evaluation"] = run_seed, seed
        config = parse_configuration(content)
        results.append(STEPS["evaluate.suites"].settings(config, {"model": "base", "step": "8"}).model_dump()["seed"])
    assert results == [42, 42, 7]


def test_hyperparameters_are_the_settings_that_determine_the_model() -> None:
    def plan_settings(**training: object) -> dict[str, object]:
        content = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
        content["models"]["base"]["training"] |= training
        settings = STEPS["pretrain.export"].settings(parse_configuration(content), {"model": "base"})
        return dict(settings.model_dump()["hyperparameters"])

    result = plan_settings()
    names = {"seed", "parameters", "training.learning_rate", "training.batch_size", "architecture.layers"}
    assert names <= result.keys() and result["seed"] == 7 and isinstance(result["parameters"], int)
    assert plan_settings(keep_checkpoints=9, validation_every=1) == result, "monitoring settings are not among them"
    assert plan_settings(learning_rate=0.5) == {**result, "training.learning_rate": 0.5}


def test_job_of_a_finished_training_is_planned_as_it_was_made() -> None:
    dag = Dag(parse_configuration(yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))))
    segment, made = {"model": "base", "step": "4"}, ("{}", "code of then", "environment of then")
    today = dag.job_settings_and_versions("pretrain.segment", segment)
    kept = SimpleNamespace(
        kept_versions=lambda model, step: made if (model, step) == ("base", 4) else None,
        kept_import_settings_and_versions=lambda model: made if model == "base" else None,
        previous_segment_tokens_hash=lambda model, step: {"index_sha256": f"of {model} before {step}"},
    )
    dag.finished = kept  # type: ignore[assignment]
    assert dag.job_settings_and_versions("pretrain.segment", segment) == made != today
    assert dag.job_settings_and_versions("pretrain.adopt", {"model": "base"}) == made
    assert dag.job_settings_and_versions("pretrain.segment", {**segment, "step": "8"})[1:] == today[1:]
    assert json.loads(dag.non_result_settings("pretrain.segment")(segment))["index_sha256"] == "of base before 4"


def test_shard_and_unit_files_are_in_order() -> None:
    dag = Dag(parse_configuration(yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))))
    assert dag.shard_files(layout.SUFFIXES, "main") == [f"results/micro/tokens/main/suffixes/{n}.arrow" for n in (0, 1)]
    units = [Path(file).name for file in dag.corpus_files(layout.FILTERED, "main")]
    assert units == ["en_guide.0.parquet", "nl_brieven.0.parquet", "nl_brieven.1.parquet", "nl_gids.0.parquet"]
    assert dag.unit_files(layout.FINGERPRINT, ["nl_gids"]) == ["results/micro/sources/nl_gids/fingerprints/0.json"]


@pytest.mark.parametrize("step", STEPS.values(), ids=lambda step: step.name)
def test_step_settings_match_the_parameter_of_its_function(step: Step, everything: Config) -> None:
    run = importlib.import_module(f"pipeline.{step.name}").run
    taken = get_type_hints(run)[next(iter(inspect.signature(run).parameters))]
    jobs = step.instances.jobs(everything)
    assert jobs
    for job in jobs:
        assert type(step.settings(everything, dict(zip(step.instances.wildcards, job, strict=True)))) is taken


@pytest.mark.parametrize("step", STEPS.values(), ids=lambda step: step.name)
def test_settings_that_change_no_result_reach_the_jobs(step: Step, everything: Config) -> None:
    """Without the option a job gets the defaults of these settings, or lacks a required one."""
    instances = (dict(zip(step.instances.wildcards, job, strict=True)) for job in step.instances.jobs(everything))
    if any(step_settings(everything, step.name, instance).non_result_settings() for instance in instances):
        assert "operation" in step.options
