"""Waiting jobs: a run does the remaining work once, and a job refuses inputs changed while it waited."""

from __future__ import annotations

import json
import shutil

import pytest

from pipeline.core.job_records import Record
from pipeline.provenance.verify_run import verify_run
from tests.conftest import Project
from tests.rules.test_reruns import MICRO, REPORT, TOKENIZER, TRAINING, rewrite_in, touch
from tests.stored import forget_record, read_record

LETTER = "config/corpus/nl_brieven/brief_aan_de_bibliotheek.txt"


@pytest.mark.slow
def test_dag_is_reevaluated_once_for_all_sources_and_once_for_the_tokens(finished: Project) -> None:
    first = min(finished.path(".snakemake/log").iterdir())  # named by its start
    assert first.read_text().count("DAG of jobs will be updated after completion") == 2


@pytest.mark.slow
def test_raw_file_edited_while_its_jobs_wait_is_not_filtered(project: Project) -> None:
    name = "corpus.filter.main.nl_gids.0"
    record = Record.parse(json.dumps(read_record(project.results, name)))
    forget_record(project.results, name)
    before = (project.results / "corpus/main/filtered/nl_gids.0.parquet").read_bytes()
    raw = project.path("config/corpus/nl_gids.jsonl")
    raw.write_bytes(raw.read_bytes().replace(b" de ", b" DE ", 1))
    done = project.call(*record.full_command[3:])
    assert done.returncode == 2
    assert "config/corpus/nl_gids.jsonl" in done.stderr and "Traceback" not in done.stderr
    assert (project.results / "corpus/main/filtered/nl_gids.0.parquet").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (LETTER, "Ik besef dat dit wat laat is", "Ik weet dat het te laat is", {**TOKENIZER, **TRAINING}),
        pytest.param(
            *(MICRO, "vocabulary_size: 600", "vocabulary_size: 640"),
            {**TOKENIZER, **TRAINING, "plan_estimate": 1},
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["text", "vocabulary"],
)
def test_remaining_jobs_run_once_after_an_edit(
    project: Project, file: str, old: str, new: str, expected: dict[str, int]
) -> None:
    project.train_alone()
    for path in ("evaluation/base/8/results.json", "models/base/final", "tokenizer/main/fertility.json"):
        left = project.results / path
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    project.edit(file, old, new)
    output = project.run("--dry-run").splitlines()[-1]
    assert "These jobs may run after it (about " in output and "pretrain.segment (2)" in output
    assert expected.items() <= project.ran().items()
    assert dict(project.planned()) == {}


@pytest.mark.slow
def test_touched_large_file_is_rehashed_without_changing_its_unit(project: Project) -> None:
    touch(project.path("config/corpus/nl_gids.jsonl"))
    everything_is_large = ("--max-checksum-file-size", "1")
    assert dict(project.ran(*everything_is_large)) == {"sources_manifest": 1, **REPORT}


@pytest.mark.slow
def test_removed_units_leave_no_files(project: Project) -> None:
    final = project.results / "corpus" / "main" / "final"
    project.edit(MICRO, "license: CC0-1.0, units: 2", "license: CC0-1.0, units: 1")
    assert "nl_brieven.1" in project.run("--dry-run") and (final / "nl_brieven.1.parquet").is_file()
    project.run()
    assert sorted(path.name for path in final.iterdir()) == [
        "en_guide.0.parquet",
        "nl_brieven.0.parquet",
        "nl_gids.0.parquet",
    ]
    left = [
        path
        for path in project.results.rglob("*nl_brieven.1.*")
        if not {"attempts", "readings", "archives", "logs"} & set(path.parts)
    ]
    assert left == []
    assert verify_run(project.results).problems == []


@pytest.mark.slow
def test_damaged_suffix_array_is_rebuilt_and_absent_ones_are_not_mentioned(project: Project) -> None:
    array = project.results / "tokens/main/suffixes/0.arrow"
    before, page = array.read_bytes(), project.results / "report/index.html"
    array.unlink()
    done = project.call("provenance", "quote", "results/micro", "base", "Beste buren")
    assert done.returncode == 2
    assert "delete provenance/records/tokens.suffixes.main.0.json, and run again" in done.stderr
    (project.results / "provenance/records/tokens.suffixes.main.0.json").unlink()
    assert dict(project.ran()) == {"tokens_suffixes": 1, "tokens_index": 1, **REPORT}
    assert (
        array.read_bytes() == before
        and "the most probable text. Copied text is <mark>marked</mark>" in page.read_text()
    )
    project.edit(MICRO, "{shards: 2, ", "{shards: 2, suffixes: false, ")
    assert dict(project.ran()) == {"tokens_index": 1, **REPORT}
    assert (
        dict(project.planned()) == {}
        and "the most probable text. Copied text is <mark>marked</mark>" not in page.read_text()
    )
    assert verify_run(project.results).problems == []


@pytest.mark.slow
@pytest.mark.parametrize("target", ["corpus", "report"])
def test_single_stage_detects_changes_forgotten_by_snakemake(project: Project, target: str) -> None:
    shutil.rmtree(project.path(".snakemake"))
    rewrite_in(project, "pipeline/corpus/statistics.py")
    assert project.ran(target)["corpus_statistics"] == 1


@pytest.mark.slow
def test_job_refuses_code_edited_while_it_waited(project: Project) -> None:
    record = Record.load(project.results / "provenance/records/tokenizer.train.main.json")
    rewrite_in(project, "pipeline/tokenizer/train.py")
    done = project.call(*record.full_command[3:])
    assert done.returncode == 2
    assert "changed while the job waited" in done.stderr and "Traceback" not in done.stderr
