"""The crate describes the workflow with its steps, each invocation with its jobs, and failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.provenance.inventory import list_artifacts
from tests.provenance.conftest import FROZEN, ROOT, RunBuilder, describe, entry

START = "snakemake.20260105T095900.41..test"
ENDED = {"ended": "2026-01-05T09:59:21.000+00:00"}


def graph_of(folder: Path) -> dict[str, dict[str, Any]]:
    return {entity["@id"]: entity for entity in json.loads((folder / layout.CRATE).read_text())["@graph"]}


def of_type(graph: dict[str, dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [entity for entity in graph.values() if kind in entity["@type"]]


def ids(value: Any) -> set[str]:
    return {reference["@id"] for reference in (value if isinstance(value, list) else [value])}


def test_workflow_is_the_snakefile_with_each_step_of_the_run(finished: Path) -> None:
    graph = graph_of(finished)
    main = graph[graph["./"]["mainEntity"]["@id"]]
    assert {"File", "ComputationalWorkflow", "HowTo"} <= set(main["@type"])
    assert (finished / main["@id"]).read_bytes() == (ROOT / "Snakefile").read_bytes()
    assert (finished / "provenance/workflow/pipeline/workflow/steps/corpus_preparation.py").is_file()
    recorded = {json.loads(file.read_text())["step"] for file in (finished / layout.RECORDS).glob("*.json")}
    steps = {graph[step]["name"]: graph[step] for step in ids(main["step"])}
    assert set(steps) == recorded - {"provenance.crate"}
    for name, step in steps.items():
        assert graph[step["workExample"]["@id"]]["name"] == f"polder {name}"
        assert ids(step["workExample"]) <= ids(main["hasPart"])


def test_steps_are_in_dependency_order(finished: Path) -> None:
    place = {step["name"]: int(step["position"]) for step in of_type(graph_of(finished), "HowToStep")}
    assert sorted(place.values()) == list(range(1, len(place) + 1))
    chain = ["corpus.filter", "tokens.shard", "pretrain.segment", "pretrain.export"]
    assert sorted(chain, key=lambda name: place[name]) == chain
    assert place["corpus.filter"] < place["corpus.statistics"] < place["report.page"]


def test_records_with_cyclic_inputs_are_named(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    (run.folder / "tokens/b.txt").write_text("x")
    run.job("tokens.a", {}, ["tokens/b.txt"], {"tokens/a.txt": b"x"})
    run.job("tokens.b", {}, ["tokens/a.txt"], {"tokens/b.txt": b"x"})
    with pytest.raises(InputError, match=r"tokens\.a\.json and provenance/records/tokens\.b\.json read what the other"):
        run.crate()


def test_every_job_is_organized_by_a_snakemake_invocation(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    record = json.loads((run.folder / layout.RECORDS / "tokens.shard.main.0.json").read_text())
    written = run.attempt("tokens.shard", {"tokens": "main", "shard": "0"}, "finished", snakemake=START)
    attempts = run.folder / "provenance/attempts"
    (attempts / f"{written}.json").rename(attempts / record["attempt"])
    run.crate()
    graph = graph_of(run.folder)
    organized = {action["@id"]: ids(action["object"]) for action in of_type(graph, "OrganizeAction")}
    start = graph["#start/20260105T095900.41"]
    assert organized[start["@id"]] == {"#control/tokens.shard.main.0"}
    assert start["startTime"] == "2026-01-05T09:59:00+00:00"
    assert graph[start["instrument"]["@id"]]["name"] == "Snakemake"
    controls = of_type(graph, "ControlAction")
    assert set().union(*organized.values()) == {control["@id"] for control in controls}
    jobs = {entity["@id"] for entity in of_type(graph, "CreateAction")} - {"#run"}
    failed = {"#attempt/corpus.filter.failed", "#attempt/corpus.filter.killed"}
    assert {control["object"]["@id"] for control in controls} == jobs | failed


def test_invocation_whose_name_holds_no_time_has_no_start_time(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    unit = {"corpus": "main", "source": "laws", "unit": "0"}
    run.attempt("corpus.filter", unit, "failed", **ENDED, snakemake="snakemake.yesterday.41..test")
    run.crate()
    start = graph_of(run.folder)["#start/yesterday.41"]
    assert "startTime" not in start and start["endTime"] == ENDED["ended"]


@pytest.mark.parametrize(
    ("status", "changes", "expected", "error"),
    [
        ("failed", {**ENDED, "error": "the disk <is> full"}, "Failed", "the disk <is> full"),
        ("running", {}, "Failed", "it was running when it was last seen, and has left no end"),
        ("finished", ENDED, "Completed", None),
    ],
)
def test_attempt_with_missing_outputs_has_a_failed_status(
    build_run: Callable[..., Any], status: str, changes: dict[str, str], expected: str, error: str | None
) -> None:
    run = build_run("run")
    name = run.attempt("corpus.filter", {"corpus": "main", "source": "laws", "unit": "0"}, status, **changes)
    run.crate()
    graph = graph_of(run.folder)
    action = graph[f"#attempt/{name}"]
    assert action["@type"] == "ActivateAction"
    assert action["actionStatus"] == f"http://schema.org/{expected}ActionStatus"
    assert action.get("error") == error
    assert graph[action["instrument"]["@id"]]["softwareVersion"] == "c0de"
    assert {"@id": action["@id"]} in graph["./"]["mentions"]


def test_settings_are_parameter_values_of_their_step(finished: Path) -> None:
    graph = graph_of(finished)
    jobs = [graph[f"#job/corpus.filter.main.{source}.0"] for source in ("laws", "wiki")]
    ((seed,),) = {frozenset(i for i in ids(job["object"]) if i.startswith("#setting/")) for job in jobs}
    assert (graph[seed]["name"], graph[seed]["value"]) == ("seed", 42)
    parameter = graph[graph[seed]["exampleOfWork"]["@id"]]
    assert (parameter["@type"], parameter["additionalType"]) == ("FormalParameter", "Integer")
    tool = graph[jobs[0]["instrument"]["@id"]]
    assert parameter["@id"] in ids(tool["input"])
    assert "pyarrow-26.0.1" in " ".join(ids(tool["softwareRequirements"]))


def test_agent_is_the_configured_provider(finished: Path) -> None:
    describe(finished, [], provider="Instituut <X>", provider_url="https://example.org/", contact="info@example.org")
    graph = graph_of(finished)
    agent = graph["https://example.org/"]
    assert (agent["name"], graph[agent["contactPoint"]["@id"]]["name"]) == ("Instituut <X>", "info@example.org")
    assert graph["./"]["publisher"] == graph["#run"]["agent"] == {"@id": "https://example.org/"}


@pytest.fixture
def varied(build_run: Callable[..., RunBuilder]) -> Path:
    """A run with an entity of each kind: settings of each type, a configuration, a base model, a classifier, losses."""
    run = build_run("run")
    run.write(FROZEN, "{}")
    unit = {"corpus": "main", "source": "laws", "unit": "0", "classifier": "hq"}
    settings = {"list": [*range(30)], "empty": "", "limit": 0.5, "on": True}
    frozen = {"path": FROZEN, "sha256": "f" * 64}
    read, scores = ["corpus/main/filtered/laws.0.parquet"], "corpus/main/scores/laws.0.parquet"
    scored = run.job("corpus.classify", unit, read, {scores: b"1"}, settings=settings, frozen=frozen)
    adopted = run.job("pretrain.adopt", {"model": "base"}, [], {"models/base/milestones/0/model.safetensors": b"w"})
    for record, name in ((scored, "classifier"), (adopted, "model")):
        content = json.loads((run.folder / record).read_text())
        content["inputs"].append(entry(name, f"data:{name}.bin", b"weights"))
        (run.folder / record).write_text(json.dumps(content))
    shard, tokenizer = {"tokens": "main", "shard": "1"}, {"tokenizer": "main"}
    run.attempt("tokens.shard", shard, "failed", **ENDED, error="the disk is full", snakemake=START)
    run.attempt("tokenizer.train", tokenizer, "finished", **ENDED)
    taken = {"folder": "{data}/x", "name": "Large", "license": "Apache-2.0", "url": "https://example.org/large"}
    provider = {"provider": "Instituut", "provider_url": "https://example.org/", "contact": "info@example.org"}
    run.crate(**provider, classifiers={"main/hq": taken}, pretrained={"base": taken})
    return run.folder


def test_entity_of_each_kind_is_complete(varied: Path) -> None:
    text = Path(__file__).with_name("crate_entities.yaml").read_text(encoding="utf-8")
    expected = yaml.safe_load(text.replace("SNAKEMAKE", version("snakemake")))
    graph = graph_of(varied)
    for key in ("sha256", "contentSize"):  # of the workflow, which changes
        del graph["provenance/workflow/Snakefile"][key]
    files = {path for path in list_artifacts(varied) if not path.startswith(("sources/", "models/"))}
    assert ids(graph["./"].pop("hasPart")) == files | {"sources/laws/", "sources/wiki/", "models/base/"}
    actions = {"#run", "#log-checkpoint", *(i for i in graph if i.startswith(("#job/", "#attempt/")))}
    assert ids(graph["./"].pop("mentions")) == actions
    assert {identifier: graph[identifier] for identifier in expected} == {
        identifier: {"@id": identifier, **entity} for identifier, entity in expected.items()
    }
    assert [*graph] == [*[*graph][:2], *sorted([*graph][2:])], "the metadata and the run come first"
    kinds = ({str(entity["@type"]) for entity in entities.values()} for entities in (graph, expected))
    assert len({*map(frozenset, kinds)}) == 1, "of each kind"
