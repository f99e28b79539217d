"""A step repeated from its record writes the same bytes; later changes are found and named."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from pipeline import layout
from pipeline.audit import reproduce as again_module
from pipeline.audit.reproduce import RerunVerdict, sample_records
from pipeline.audit.rerun_inputs import RerunInputs
from pipeline.cli.application import main
from pipeline.core.errors import InputError
from pipeline.core.job_records import load_records
from tests.conftest import Project, rewrite
from tests.stored import edit_record, read_record

pytestmark = pytest.mark.usefixtures("warm_commands")
PYTHON = sys.executable  # no fork: it runs the code of a project
Again = Callable[..., tuple[int, str]]
FILTER = "corpus.filter.main.nl_gids.0"


@pytest.fixture
def again(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Again:
    def reproduce(project: Project, *arguments: str) -> tuple[int, str]:
        monkeypatch.chdir(project.folder)
        code = main(["reproduce", "results/micro", *arguments])
        return code, capsys.readouterr().out

    return reproduce


def state(folder: Path) -> dict[str, Any]:
    """Return bytes and times of all files below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), os.stat(path).st_mtime_ns) for path in files}


def project_run(project: Project, *words: str) -> tuple[int, bool]:
    """Return the exit code of a command that runs the project's own code, and whether it warned of other code."""
    done = subprocess.run(
        [PYTHON, *words], cwd=project.folder, env=project.environment(), text=True, capture_output=True
    )
    return done.returncode, "warning: the code is" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_reproducing_each_step_is_identical_and_leaves_the_run_unchanged(
    finished: Project, again: Again, every: bool
) -> None:
    """One job of each step, or all jobs."""
    before, records = state(finished.results), load_records(finished.results)
    jobs = {record.step: Path(record.file).stem for record in records}
    number = len(records) if every else len(jobs)
    asked = [["--sample", str(number)]] if every else [[name] for name in jobs.values()]
    codes, texts = zip(*(again(finished, *words) for words in asked), strict=True)
    printed = "".join(texts)
    assert {*codes} == {0}, printed
    assert printed.count(": identical\n") == number
    assert printed.endswith("not drawn: none\n") is every
    assert "models/base/milestones/8/metrics.jsonl: the same but for clock times and speeds" in printed
    assert "report.page: identical" in printed and "warning" not in printed
    assert state(finished.results) == before


@pytest.mark.slow
def test_verification_repeats_all_conclusions(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(project.folder)
    before = state(project.results)
    assert main(["verify", "--recompute", "results/micro"]) == 0
    printed = capsys.readouterr().out
    assert {line.split(":")[0] for line in printed.splitlines() if line.endswith(": identical")} == {
        *("corpus.statistics.main", "corpus.publish.main", "tokenizer.fertility.main", "tokens.index.main"),
        *("plan.estimate", "report.page", "provenance.crate"),
    }
    assert state(project.results) == before
    page = project.results / "report/index.html"
    page.write_bytes(page.read_bytes().replace(b"</h1>", b"!</h1>", 1))
    assert main(["verify", "--recompute", "results/micro"]) == 1
    assert "report.page: differs" in capsys.readouterr().out


def test_sampled_jobs_are_reproducible_from_the_seed(finished: Project) -> None:
    records = load_records(finished.results)
    drawn = [Path(record.file).stem for record in sample_records(records, 5, "2026")]
    names = [Path(record.file).stem for record in records]
    assert drawn == sorted(names, key=lambda name: hashlib.sha256(f"2026 {name}".encode()).hexdigest())[:5]
    seeds = [frozenset(record.file for record in sample_records(records, 5, str(seed))) for seed in range(200)]
    often = [sum(record.file in drawn for drawn in seeds) for record in records]
    expected = 200 * 5 / len(records)
    assert 0.4 * expected < min(often) and max(often) < 1.9 * expected, "all with equal probability"


@pytest.mark.slow
def test_changed_output_is_reported_with_its_rows(project: Project, again: Again) -> None:
    path = project.results / "corpus/main/filtered/nl_gids.0.parquet"
    table = pq.read_table(path)
    scores = table["language_score"].to_pylist()
    scores[3] = 0.5
    pq.write_table(table.set_column(3, table.schema.field(3), [scores]), path)
    code, printed = again(project, FILTER)
    assert code == 1
    assert "nl_gids.0.parquet: the file in the run is not what the record says" in printed
    assert "which the step writes again" in printed
    assert "column language_score: 1 of 72 rows differ, from 0: 3" in printed

    entries = read_record(project.results, FILTER)["outputs"]
    for entry in entries:
        entry["sha256"] = hashlib.sha256((project.results / entry["path"]).read_bytes()).hexdigest()
    edit_record(project.results, FILTER, outputs=entries)
    code, printed = again(project, FILTER)
    assert code == 1, "even if the record was changed too"
    assert "nl_gids.0.parquet: other bytes, sha256" in printed and "1 of 72 rows differ" in printed


@pytest.mark.slow
def test_changed_setting_or_count_in_a_record_is_detected(project: Project, again: Again) -> None:
    record = read_record(project.results, FILTER)
    record["settings"]["languages"]["nl"]["quality"]["minimum_words"] = 400
    record["counts"]["documents_out"] += 1
    edit_record(project.results, FILTER, **record)
    code, printed = again(project, FILTER)
    assert code == 1
    assert "settings languages.nl.quality.minimum_words: 50 → 400" in printed
    assert "counts documents_out: 73 → " in printed
    assert "corpus/main/filtered/nl_gids.0.parquet: other bytes" in printed


def test_missing_or_changed_input_is_refused_by_name(project: Project, again: Again) -> None:
    raw = project.path("config/corpus/nl_gids.jsonl")
    raw.write_bytes(raw.read_bytes() + b"\n")
    code, printed = again(project, FILTER)
    assert code == 2 and "its input config/corpus/nl_gids.jsonl has other bytes than it read" in printed
    (project.results / "corpus/main/final/en_guide.0.parquet").unlink()
    code, printed = again(project, "tokens.shard.main.0")
    assert code == 2 and "its input corpus/main/final/en_guide.0.parquet is missing" in printed
    shard = project.results / "tokens/main/train/0.arrow"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    code, printed = again(project, "pretrain.segment.base.4")
    assert code == 2 and "its input tokens/main/train/0.arrow has other bytes" in printed, "the index names it"


@pytest.mark.slow
def test_raw_file_outside_the_project_is_found_below_the_given_folder(
    project: Project, again: Again, tmp_path: Path
) -> None:
    name, raw = "sources.fingerprint.nl_gids.0", project.path("config/corpus/nl_gids.jsonl")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    assert again(project, name, "--raw", str(elsewhere))[0] == 0, "its raw file is in the project"
    record = read_record(project.results, name)
    record["command"] = [word.replace("--raw=config/corpus", "--raw=/gone") for word in record["command"]]
    record["inputs"][-1]["path"] = f"data:{raw.name}"  # as of a file outside the project
    edit_record(project.results, name, **record)
    raw.rename(elsewhere / raw.name)
    code, printed = again(project, name)
    assert code == 2 and "nl_gids.jsonl is missing" in printed
    code, printed = again(project, name, "--raw", str(elsewhere))
    assert code == 0 and ": identical" in printed
    (elsewhere / raw.name).write_bytes((elsewhere / raw.name).read_bytes() + b"\n")
    code, printed = again(project, name, "--raw", str(elsewhere))
    assert code == 2 and "nl_gids.jsonl has other bytes than it read" in printed


def test_changed_code_warns_and_missing_launcher_is_refused(project: Project, again: Again) -> None:
    edit_record(project.results, "sources.listing.nl_gids", code_version="0123456789abcdef")
    code, printed = again(project, "sources.listing.nl_gids")
    assert code == 0 and "warning: the code is" in printed and "0123456789abcdef in the record, of a commit" in printed
    edit_record(project.results, "sources.listing.nl_gids", settings={"source": 1})
    assert again(project, "sources.listing.nl_gids")[0] == 2
    edit_record(project.results, "pretrain.segment.base.8", launch="launcher-of-a-cluster --tasks 2")
    code, printed = again(project, "pretrain.segment.base.8")
    assert code == 2 and "`launcher-of-a-cluster --tasks 2`, which this machine does not have" in printed


@pytest.mark.slow
def test_code_with_other_results_is_reported_as_different(project: Project, again: Again) -> None:
    rewrite(project.path("pipeline/tokens/index.py"))
    command = ["-m", "pipeline", "reproduce", "results/micro", "tokens.index.main"]
    assert project_run(project, *command) == (0, True), "same effect"
    project.edit("pipeline/tokens/index.py", '["tokens"] += length', '["tokens"] += 2 * length')
    assert project_run(project, *command)[0] == 1


def test_truncated_or_invalid_meter_line_does_not_prevent_reproduction(tmp_path: Path) -> None:
    readings, lines = tmp_path / "run/a@node.jsonl", ['{"ended": 5.0}\n', "{}\n", "none\n", '{"ended": 15.0}\n']
    readings.parent.mkdir()
    readings.write_text("".join([*lines, '{"ended": 6']))  # as after a power failure of the node
    record = cast(Any, SimpleNamespace(ended_seconds=10.0))
    RerunInputs(readings.parent, record, tmp_path / "again").copy_readings(readings.name)
    assert (tmp_path / "again" / readings.name).read_text() == "".join(lines[:3])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('step 4')\nraise SystemExit('no such column')", "exit code 1: no such column$"),
        ("print('a', 'b', '', 'c', 'd', sep='\\n')\nraise SystemExit(3)", "exit code 3: b / c / d$"),
        ("raise SystemExit(2)", "exit code 2: it says nothing$"),
    ],
)
def test_failing_step_is_reported_with_its_last_output(code: str, message: str) -> None:
    step = object.__new__(again_module.StepRerun)
    with pytest.raises(InputError, match=message):
        step.execute([PYTHON, "-c", code])


def test_nonempty_reproduction_folder_is_refused(finished: Project, again: Again, tmp_path: Path) -> None:
    (tmp_path / FILTER).mkdir()
    code, printed = again(finished, FILTER, "--folder", str(tmp_path))
    assert code == 2 and f"{FILTER} is there already: name another --folder" in printed


def test_unknown_step_name_is_refused_with_a_suggestion(finished: Project) -> None:
    with pytest.raises(InputError, match=r"no record corpus\.filter\.main\.gids: did you mean corpus\.filter\.main"):
        main(["reproduce", str(finished.results), "corpus.filter.main.gids"])
    with pytest.raises(InputError, match="--sample 1000: the run has"):
        main(["reproduce", str(finished.results), "--sample", "1000"])


@pytest.mark.slow
def test_clock_of_another_node_does_not_change_the_report_inputs(project: Project, again: Again) -> None:
    for archive in layout.BATCH_ARCHIVE.glob(project.results):
        archive.rename(archive.with_name(f"2999{archive.name[4:]}"))
    code, printed = again(project, "report.page")
    assert code != RerunVerdict.COULD_NOT, printed
    assert "report/energy.json" not in printed and "report/figures.json" not in printed
