"""The requirements of the corpus and what does not fit are reported before the first job."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cli.application import main
from pipeline.config.configuration import Config, parse_configuration
from pipeline.forecast.corpus_size_and_time import BENCHMARK_RATES, JOIN_SHARES, CpuRate
from pipeline.slurm import corpus_estimate
from pipeline.slurm.corpus_estimate import CorpusPlan
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import STEPS
from tests.conftest import Project


def micro(**changes: Any) -> Config:
    return parse_configuration({**yaml.safe_load(Path("config/micro.yaml").read_text()), **changes})


def planned(config: Config, rates: dict[str, CpuRate] | None = None) -> dict[str, Any]:
    plan = CorpusPlan(config)
    plan.rates = rates or {}
    return plan.plan()


@pytest.mark.parametrize("name", ["micro", "config"])
def test_estimated_jobs_equal_those_of_the_dag(name: str) -> None:
    raw: dict[str, Any] = yaml.safe_load(Path(f"config/{name}.yaml").read_text())
    config = parse_configuration(
        {**raw, "corpus": {"main": {}, "small": {"exclude_sources": [raw["sources"][0]["name"]]}}}
    )
    dag, estimate = Dag(config), planned(config)
    known = [*dag.all_batch_record_paths(), *dag.non_batch_record_paths(["sources", "corpus"])]
    jobs = Counter(".".join(Path(path).name.split(".")[:2]) for path in known)
    counted = Counter({step: one["jobs"] for step, one in estimate["sources"]["steps"].items()})
    for corpus in estimate["corpora"].values():
        counted.update({step: one["jobs"] for step, one in corpus["steps"].items()})
    of_text = {step: number for step, number in jobs.items() if STEPS[step].stage in ("sources", "corpus")}
    assert counted == Counter(of_text)
    assert counted["corpus.filter"] > estimate["corpora"]["small"]["steps"]["corpus.filter"]["jobs"]


def test_file_count_is_estimated_before_the_run(finished: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = planned(micro())
    made = [path for path in finished.results.rglob("*") if path.is_file() and "scratch" not in path.parts]
    assert 0.7 * len(made) < estimate["files"] <= len(made)
    more = planned(micro(tokens={"main": {}, "other": {}}))["files"]
    assert more - estimate["files"] >= 5 * 4, (
        "two shards, two suffixes and an index: attempt, readings, record and output"
    )
    assert isinstance(estimate["free_files"], int) and not estimate["problems"]
    monkeypatch.setattr(corpus_estimate, "count_free_files", lambda folder: estimate["files"] - 1)
    (problem,) = planned(micro())["problems"]
    assert problem.startswith(
        f"the results are at least {estimate['files']:,} files and {estimate['files'] - 1:,} can be made"
    )
    monkeypatch.setattr(corpus_estimate, "count_free_files", lambda folder: None)
    assert planned(micro())["free_files"] is None and not planned(micro())["problems"]


def test_text_size_is_reported_for_each_corpus() -> None:
    estimate = planned(micro())["corpora"]["main"]
    files = [
        path for name in ("nl_brieven/*", "nl_gids.jsonl", "en_guide*") for path in Path("config/corpus").glob(name)
    ]
    assert estimate["files"] == len(files) and estimate["raw_bytes"] == sum(path.stat().st_size for path in files)
    assert estimate["documents"] == estimate["sampled_documents"] == 169 and estimate["documents_allowed"] == 83_333_333
    assert estimate["disk_bytes"].keys() == {
        "filtered",
        "signatures",
        "deduplicated",
        "final",
    }  # of 600 entries: not known
    larger = planned(micro(tokenizer={"main": {"vocabulary_size": 8192}}))["corpora"]["main"]
    assert 2 * estimate["text_bytes"] / 3.68 < larger["disk_bytes"]["tokens main"] < 2 * estimate["text_bytes"]


def test_too_many_documents_for_memory_are_reported_before_the_first_job() -> None:
    config = micro(corpus={"main": {"deduplication": {"memory_bytes": 8111}}})
    assert planned(config)["problems"] == [
        "corpus main: deduplication.memory_bytes allows 168 documents and about 169 are expected: set "
        "corpus.main.deduplication.memory_bytes to 16224"
    ]
    assert planned(micro(corpus={"main": {"deduplication": {"memory_bytes": 8112}}}))["problems"] == []


def test_requests_above_node_or_disk_size_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1000))
    memory = {"main": {"deduplication": {"memory_bytes": 400_000_000_000}}}
    problems = planned(micro(platform="snellius", corpus=memory), {"corpus.filter": CpuRate(500_000, 1, 1)})["problems"]
    assert "corpus.find_duplicates main needs 401,500 MB and a node of genoa has 344,064" in problems[-2]
    assert problems[-2].endswith("lower corpus.main.deduplication.memory_bytes")
    assert "corpus.filter main en_guide 0 may take 139 h and genoa allows 120 h: give the source a lower" in problems[0]
    assert "MB" not in problems[-1] and "GB are free in" in problems[-1] and "set run.results to" in problems[-1]
    assert len(problems) == 6  # four units, memory, disk


def test_oversized_key_shares_are_reported_with_their_own_remedy() -> None:
    """A source without data has no time, in particular not that of another one."""
    source = {"name": "hub", "dataset": {"name": "someone/something", "revision": "0" * 40}, "language": "nl"}
    source |= {"license": "CC0-1.0", "units": 3, "rights": {"basis": "public-domain", "holder": "nobody"}}
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    corpus = {"main": {"deduplication": {"memory_bytes": 400_000_000_000, "jobs": 2}, "exclude_sources": ["hub"]}}
    config = parse_configuration(
        {**raw, "platform": "snellius", "corpus": corpus, "sources": [*raw["sources"], source]}
    )
    slow = CpuRate(500_000, 1, 1)
    rates = {name: slow for name in ("sources.fingerprint", "corpus.equal_keys", JOIN_SHARES)}
    problems = planned(config, rates)["problems"]
    for job in ("corpus.equal_keys main 0", "corpus.equal_keys main 1", "corpus.find_duplicates main"):
        memory, time = (line for line in problems if line.startswith(job))
        assert memory.endswith(": lower corpus.main.deduplication.memory_bytes")
        assert time.endswith("may take 139 h and genoa allows 120 h: raise corpus.main.deduplication.jobs")
    slow_sources = [line.split()[1] for line in problems if line.startswith("sources.fingerprint")]
    assert slow_sources and "hub" not in slow_sources


def test_more_key_shares_give_shorter_jobs() -> None:
    """By hand, of 169 documents: 2.3 s for a million of them among the shares, and 1.0 or 1.8 s for the last step."""
    results = {}
    for shares in (1, 2, 8):
        config = micro(platform="snellius", corpus={"main": {"deduplication": {"jobs": shares}}})
        rates = {name: rate._replace(start_seconds=0.0) for name, rate in BENCHMARK_RATES.items()}
        results[shares] = planned(config, rates)["corpora"]["main"]["steps"]
    assert "corpus.equal_keys" not in results[1]
    for shares in (2, 8):
        assert results[shares]["corpus.equal_keys"]["low_core_seconds"] == pytest.approx(169 * 2.3e-6)
        assert results[shares]["corpus.equal_keys"]["low_seconds"] == pytest.approx(169 * 2.3e-6 / shares)
        assert results[shares]["corpus.find_duplicates"]["low_core_seconds"] == pytest.approx(169 * 1.0e-6)
    assert results[1]["corpus.find_duplicates"]["low_core_seconds"] == pytest.approx(169 * 1.8e-6)


def test_time_is_the_longest_job_or_total_core_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {
        "corpus.filter": CpuRate(2.0, 1e6, 2e6),
        "corpus.find_duplicates": CpuRate(0.0, 1e6, 1e6, of_documents=True),
    }
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    for platform in ("local", "snellius"):
        estimate = planned(micro(platform=platform), rates)["corpora"]["main"]
        step = estimate["steps"]["corpus.filter"]
        assert step["low_core_seconds"] == pytest.approx(4 * 2 + estimate["text_bytes"], rel=1e-3)
        assert step["high_core_seconds"] == pytest.approx(4 * 2 + 2 * estimate["text_bytes"], rel=1e-3)
        longest = 2 + 72_000  # nl_gids, the largest of the four units, is half of the text
        expected = max(longest, step["low_core_seconds"] / 3) if platform == "local" else longest
        assert step["low_seconds"] == pytest.approx(expected, rel=0.05)
        assert estimate["steps"]["corpus.find_duplicates"]["low_core_seconds"] == pytest.approx(169)
        assert "low_core_seconds" not in estimate["steps"]["corpus.statistics"]  # unmeasured


def test_batch_units_share_its_cores(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number}.txt").write_text("woord " * 1000)
    source = {"name": "s", "path": f"{tmp_path}/*.txt", "language": "nl", "license": "CC0-1.0", "units": 400}
    source["rights"] = {"basis": "public-domain", "holder": "nobody"}
    estimate = planned(micro(platform="snellius", sources=[source]), {"corpus.filter": CpuRate(1.0, 1e3, 1e3)})
    step = estimate["corpora"]["main"]["steps"]["corpus.filter"]
    assert step["jobs"] == 2 and step["submissions"] == 2 and step["cores"] == 24
    assert step["low_core_seconds"] == pytest.approx(2 + 200 * 6, rel=0.01)
    assert 1 + 100 * 6 / 24 < step["low_seconds"] < 1 + 140 * 6 / 24 < step["low_core_seconds"] / 24 + 20


def test_at_most_three_files_are_made_for_each_of_many_units(tmp_path: Path) -> None:
    counted = []
    for number in (100, 600):
        for file in range(number):
            (tmp_path / f"{file}.txt").write_text("woord " * 1000)
        source = {"name": "s", "path": f"{tmp_path}/*.txt", "language": "nl", "license": "CC0-1.0", "units": 100_000}
        source |= {"rights": {"basis": "public-domain", "holder": "nobody"}, "units_per_job": 100_000}
        counted.append(planned(micro(sources=[source]))["files"])
    assert counted[1] - counted[0] == pytest.approx(2 * 500, abs=20), "filtered and final documents; few share a unit"


def test_small_jobs_are_packed_on_machines_with_a_minimum_bill() -> None:
    steps = planned(micro(platform="snellius"))
    assert steps["sources"]["steps"]["sources.listing"]["submissions"] == 0
    assert steps["corpora"]["main"]["steps"]["corpus.filter"] | {"memory_bytes": 0} == {
        **{"jobs": 4, "submissions": 1, "cores": 1, "memory_bytes": 0, "time_limit_seconds": 3600},
    }
    assert planned(micro())["corpora"]["main"]["steps"]["corpus.filter"]["submissions"] is None


def test_missing_sources_are_named_and_the_rest_is_estimated(tmp_path: Path) -> None:
    source = {"name": "hub", "dataset": {"name": "someone/something", "revision": "0" * 40}, "language": "nl"}
    source |= {"license": "CC0-1.0", "units": 3, "rights": {"basis": "public-domain", "holder": "nobody"}}
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    estimate = planned(
        parse_configuration({**raw, "sources": [*raw["sources"], source]}), {"corpus.filter": CpuRate(1, 1, 1)}
    )
    corpus = estimate["corpora"]["main"]
    assert corpus["unknown_sources"] == ["hub"] and corpus["documents"] == 169
    assert "low_core_seconds" not in corpus["steps"]["corpus.filter"]


def test_json_plan_has_the_models_without_the_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    raw["sources"][1]["path"] = "{data}/text/nl_laws"
    (tmp_path / "micro.yaml").write_text(yaml.safe_dump(raw))
    assert main(["plan", str(tmp_path / "micro.yaml"), "--json"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert printed["models"]["base"]["parameters"] == 69280
    assert (
        printed["corpus"].startswith("source nl_gids: its path {data}/text/nl_laws") and len(printed["problems"]) == 1
    )


def test_every_source_and_corpus_step_declares_its_needs() -> None:
    assert all(step.need is not None for step in STEPS.values() if step.stage in ("sources", "corpus"))
