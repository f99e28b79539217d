"""Jobs that an edit reruns; test_planned_edits.py has those of a dry run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import layout
from pipeline.config.configuration import parse_configuration
from pipeline.core.hashing import hash_file
from pipeline.core.yaml_files import load_yaml
from pipeline.provenance.verify_run import verify_run
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import STEPS
from tests.conftest import Project, rewrite
from tests.stored import read_records

MICRO = "config/micro.yaml"


def _readers_of_final_documents(corpus: str) -> dict[str, int]:
    """Return one job of each step of the micro run that declares all final documents of a corpus as input."""
    dag = Dag(parse_configuration(load_yaml(Path(MICRO))))
    final = {*dag.corpus_files(layout.FINAL_DOCUMENTS, corpus)}
    results = {}
    for step in STEPS.values():
        if step.instances.wildcards == ("corpus",) and (corpus,) in step.instances.jobs(dag.config):
            files = [read.files(dag, {"corpus": corpus}) for read in step.inputs if callable(read.files)]
            results |= {step.rule_name: 1} if any(final <= {*each} for each in files) else {}
    return results


# The number of rules: 3 sources in 4 units, 1 corpus, 2 shards, 1 model in 2 segments, 1 evaluation.
REPORT = {"report_page": 1, "provenance_crate": 1}
SUITES = {"evaluate_suites": 1, "evaluate_differences": 1, **REPORT}
EVALUATION = {"evaluate_samples": 1, **SUITES}
TRAINING = {"pretrain_segment": 2, "pretrain_export": 1, **EVALUATION}
TOKENS = {"tokens_shard": 2, "tokens_suffixes": 2, "tokens_index": 1}
TOKENIZER = {"tokenizer_train": 1, "tokenizer_fertility": 1, **TOKENS}
DESCRIPTION = {
    **dict.fromkeys(("corpus_find_items", "corpus_statistics", "corpus_publish"), 1),
    **_readers_of_final_documents("main"),
}
AFTER_DECONTAMINATION = {**DESCRIPTION, **TOKENIZER}
OF_A_CORPUS = {
    **dict.fromkeys(("corpus_filter", "corpus_signatures", "corpus_deduplicate", "corpus_matches"), 4),
    **dict.fromkeys(("corpus_find_duplicates", "corpus_ngrams"), 1),
    **DESCRIPTION,
    "corpus_decontaminate": 4,
}
# If one unit has other documents, and no copies in other units.
ONE_UNIT = {
    "sources_manifest": 1,
    "corpus_filter": 1,
    "corpus_signatures": 1,
    "corpus_find_duplicates": 1,
    "corpus_deduplicate": 1,
    "corpus_matches": 1,
    "corpus_decontaminate": 1,
    **AFTER_DECONTAMINATION,
}
GUIDE = "path: config/corpus/nl_gids.jsonl, language: nl, license: CC0-1.0"


def touch(path: Path) -> None:
    os.utime(path)


def append(path: Path, line: str) -> None:
    path.write_text(path.read_text() + line)


def rewrite_in(project: Project, name: str, function: str = "run") -> None:
    rewrite(project.path(name), function)


def _another_name(project: Project) -> None:
    project.edit(MICRO, "models:\n  base:", "models:\n  renamed:")


def _second_corpus(project: Project) -> None:
    main = "  main: {preset: standard, decontamination: {suites: [dutch, english]}, "
    main += "personal_data: {function_mailboxes: false}}\n"
    project.edit(MICRO, main, main + main.replace("main", "alike"))


def new_letter(project: Project) -> None:
    text = (
        "Beste buren, vanochtend liep ik over de oude dijk en zag ik dat het water weer hoger staat dan vorige week. "
        "De molenaar vertelde mij dat hij morgen de pomp laat nakijken, omdat de motor vreemd klinkt. "
        "Wie een uurtje tijd heeft, kan hem helpen met het schoonmaken van het rooster, want daar hangt veel riet in. "
        "Mijn dochter brengt koffie en een appeltaart mee, zodat niemand met een lege maag naar huis hoeft te gaan. "
        "Laat even weten of je komt, dan zorg ik dat er voor iedereen een paar laarzen en handschoenen klaarligt."
    )
    project.path("config/corpus/nl_brieven/zz-nieuw.txt").write_text(text)


@pytest.mark.slow
def test_new_or_changed_grid_table_reruns_only_the_report(project: Project) -> None:
    columns = "{path: grid.csv, grams_per_kwh: grams, place: Utopia, source: a table}"
    append(project.path(MICRO), f"energy: {{carbon_intensity_series: {columns}}}\n")
    assert dict(project.planned()) == REPORT, "the table may come later"
    project.run()
    page = project.results / "report" / "index.html"
    assert "there is no file grid.csv yet" in page.read_text()
    table = project.path("grid.csv")
    for grams in ("100", "200"):
        table.write_text(f"time,grams\n2020-01-01T00:00Z,{grams}\n2200-01-01T00:00Z,{grams}\n")
        printed = project.run()
        assert "stage report is complete; micro: " in printed and " jobs done, 2 of them in " in printed
        assert f"at {grams}.0 g/kWh, the mean over time weighted by electricity: Utopia" in page.read_text()
        record = json.loads((project.results / "provenance/records/report.page.json").read_text())
        (read,) = [entry for entry in record["inputs"] if entry["name"] == "carbon_intensity"]
        assert (read["path"], read["sha256"]) == ("data:grid.csv", hash_file(table))
    accounting = json.loads((project.results / "report/energy.json").read_text())
    of_rows = sum(stretch["joules"] for stretch in accounting["intensity"]["stretches"])
    assert of_rows == pytest.approx(accounting["total"]["joules"]) and of_rows > 0
    assert dict(project.planned()) == {} and verify_run(project.results).problems == []
    table.write_text("time,grams\n2020-01-01 00:00,100\n")
    printed = project.run(check=False)
    assert project.returncode and "grid.csv, line 2: time is '2020-01-01 00:00', without a time zone: write" in printed


# Edits before a checkpoint: the later jobs are known only after it has run, so these run for real.
RUN: dict[str, tuple[Callable[[Project], object], str, dict[str, int]]] = {
    "one evaluation item": (
        lambda p: append(
            p.path("config/tasks/english/polder_en_grammar.jsonl"),
            json.dumps({"good": "She reads a book.", "bad": "She read a books."}) + "\n",
        ),
        "all",
        {"corpus_ngrams": 1, "corpus_matches": 4, **AFTER_DECONTAMINATION, **SUITES},
    ),
    "a filter rewritten to the same effect": (
        lambda p: rewrite_in(p, "pipeline/corpus/filter.py"),
        "all",
        {"corpus_filter": 4, "corpus_find_duplicates": 1, **AFTER_DECONTAMINATION, **REPORT},
    ),
    "one raw file added": (
        new_letter,
        "tokens",
        {"sources_listing": 1, "sources_fingerprint": 1, **ONE_UNIT},
    ),
    "the license of a source, which is a label": (
        lambda p: p.edit(MICRO, GUIDE, GUIDE.replace("CC0-1.0", "CC-BY-4.0")),
        "all",
        {"sources_manifest": 1, "corpus_statistics": 1, "corpus_publish": 1, **REPORT},
    ),
    "that documents of a source have their own license, which decides what is allowed in": (
        lambda p: p.edit(MICRO, GUIDE, f"{GUIDE}, license_key: license, license_names: {{'': CC0-1.0}}"),
        "tokens",
        ONE_UNIT,
    ),
    "how many units a job has": (
        lambda p: p.edit(
            MICRO,
            "units_per_job: 1",
            "units_per_job: 2",
        ),
        "all",
        {"sources_manifest": 1, "corpus_find_duplicates": 1, **AFTER_DECONTAMINATION, **REPORT},
    ),
    "the tokenizer's code": (
        lambda p: rewrite_in(p, "pipeline/tokenizer/train.py"),
        "all",
        {**TOKENIZER, **REPORT},
    ),
}


# In the gate, test_planned_edits.py plans the first two, and the filter's code shows what the last one does.
THOROUGH = {
    "that documents of a source have their own license, which decides what is allowed in",
    "the license of a source, which is a label",
    "the tokenizer's code",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit",
    [pytest.param(edit, marks=[pytest.mark.thorough] * (edit in THOROUGH), id=edit.replace(" ", "-")) for edit in RUN],
)
def test_run_executes_exactly_the_affected_jobs(project: Project, edit: str) -> None:
    change, target, expected = RUN[edit]
    project.train_alone()
    change(project)
    assert dict(project.ran(target)) == expected
    assert dict(project.planned(target)) == {}


@pytest.mark.slow
def test_repeated_unit_with_an_equal_result_updates_only_report_and_crate(
    project: Project,
) -> None:
    (project.results / "sources/en_guide/fingerprints/0.json").unlink()
    batch = layout.BATCH.path(project.results, job="sources.fingerprint.en_guide.0")
    ran = project.ran(batch.relative_to(project.folder).as_posix())
    assert ran["sources_fingerprint"] == 1 and not {"sources_manifest", "report_page"} & ran.keys()
    assert dict(project.ran()) == {"report_page": 1, "provenance_crate": 1}
    assert verify_run(project.results).problems == []


@pytest.mark.slow
def test_batch_with_a_lost_output_is_rerun(project: Project) -> None:
    lost = project.results / "corpus/main/matches/nl_gids.0.parquet"
    before = lost.read_bytes()
    lost.unlink()
    assert project.ran("corpus")["corpus_matches"] == 1
    assert lost.read_bytes() == before


@pytest.mark.slow
def test_identical_jobs_under_another_name_are_reused(project: Project) -> None:
    _another_name(project)
    _second_corpus(project)
    assert dict(project.ran()) == {**OF_A_CORPUS, **TRAINING, "plan_estimate": 1}
    assert dict(project.planned()) == {}
    records = read_records(project.results)
    results = {(r["step"], *r["instance"].values()): r["taken_over_from"] for r in records}
    done_again = {name[0] for name, of in results.items() if {"alike", "renamed"} & {*name} and of is None}
    evaluated_again = {"evaluate.suites", "evaluate.samples"}
    assert done_again == {"corpus.statistics", "corpus.publish", *evaluated_again}
    assert results["pretrain.segment", "renamed", "8"]["record"] == "pretrain.segment.base.8.json"
    one, two = (project.results / f"corpus/{name}/filtered/nl_gids.0.parquet" for name in ("main", "alike"))
    assert one.samefile(two)
    assert verify_run(project.results).problems == []
