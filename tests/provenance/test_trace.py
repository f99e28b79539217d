"""A file's lineage reaches its raw data, their licenses, and the commands and joules in between."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import layout
from pipeline.cli.application import main
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.provenance.trace import SHOWN_PATHS, RunTracer
from tests.provenance.conftest import ENVIRONMENT


def test_milestone_is_traced_to_sources_and_licenses(finished: Path) -> None:
    lines = RunTracer(finished).trace_file("models/base/milestones/10/model.safetensors")
    text = "\n".join(lines)
    stages = ["pretrain.segment", "tokens.shard", "corpus.filter (corpus=main, source=laws", "sources.manifest"]
    places = [text.index(f"made by {stage}") for stage in stages]
    assert places == sorted(places)
    assert "read data:wiki/0.jsonl" in text
    assert "license CC-BY-SA-4.0" in text
    assert "command: python -m pipeline tokens shard" in text
    code = hashlib.sha256(b"tokens.shard").hexdigest()[:16]
    assert f"code: {code}, environment: {ENVIRONMENT}\n" in text
    assert "energy: 100 J (90.5 to 110; 80 % measured, 20 % estimated)" in text
    assert "behind it: 6 jobs, energy: 603 J (543 to 663; 80 % measured, 20 % estimated)" in text
    assert lines[-2:] == [
        "source laws: CC0-1.0, basis: public-domain, holder: Staat",
        "source wiki: CC-BY-SA-4.0, basis: license, holder: Staat",
    ]


def test_long_command_lines_are_complete_on_request(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = "models/base/milestones/10/model.safetensors"
    (record,) = finished.glob("provenance/records/pretrain.segment.base.10.json")
    content = json.loads(record.read_text())
    words = ["python", "-m", "pipeline", "pretrain", "segment", "--code", "c" * 80]
    record.write_text(json.dumps({**content, "command": words}))
    assert main(["trace", str(finished), file]) == 0
    assert f"command: {' '.join(words)[:60]} …\n" in capsys.readouterr().out
    assert main(["trace", str(finished), file, "--commands"]) == 0
    assert f"command: {' '.join(words)}\n" in capsys.readouterr().out
    words[-1] = "c" * (60 - len(" ".join(words[:-1])) - 1)
    record.write_text(json.dumps({**content, "command": words}))
    assert main(["trace", str(finished), file]) == 0
    assert f"command: {' '.join(words)}\n" in capsys.readouterr().out


def test_trace_shows_pretrained_weights_with_their_license(finished: Path) -> None:
    """The last milestone is presented as one initialized from another model's weights."""
    (path,) = finished.glob("provenance/records/pretrain.segment.base.10.json")
    record = json.loads(path.read_text())
    outside = {"name": "model", "path": "data:config.json", "sha256": "ab" * 32, "bytes": 7}
    path.write_text(json.dumps({**record, "step": "pretrain.adopt", "inputs": [outside]}))
    file = "models/base/milestones/10/model.safetensors"
    assert "license" not in "\n".join(RunTracer(finished).trace_file(file)), "nothing in the run states its owner"
    (page,) = finished.glob("provenance/records/report.page*.json")
    taken = {"folder": "{data}/large", "license": "Apache-2.0"}
    content = json.loads(page.read_text())
    page.write_text(json.dumps({**content, "settings": {**content["settings"], "pretrained": {"base": taken}}}))
    lines = RunTracer(finished).trace_file(file)
    assert any(line.endswith("7 bytes), model large, license Apache-2.0") for line in lines)
    assert lines[-1] == "model large: Apache-2.0"


def test_trace_shows_a_classifier_with_its_own_license(finished: Path) -> None:
    path = sorted(finished.glob("provenance/records/corpus.filter.*.json"))[0]
    record = json.loads(path.read_text())
    outside = {"name": "classifier", "path": "data:hq.bin", "sha256": "ab" * 32, "bytes": 7}
    instance = {**record["instance"], "classifier": "hq"}
    path.write_text(json.dumps({**record, "step": "corpus.classify", "instance": instance, "inputs": [outside]}))
    file = record["outputs"][0]["path"]
    (line,) = [line for line in RunTracer(finished).trace_file(file) if "hq.bin" in line]
    assert line.endswith("7 bytes)"), "without a crate nothing states its license, and it has not that of the source"
    (crate,) = finished.glob("provenance/records/provenance.crate*.json")
    content = json.loads(crate.read_text())
    named = {f"{instance['corpus']}/hq": {"folder": "{data}/hq.bin", "license": "CC-BY-4.0"}}
    crate.write_text(json.dumps({**content, "settings": {**content["settings"], "classifiers": named}}))
    lines = RunTracer(finished).trace_file(file)
    (line,) = [line for line in lines if "hq.bin (" in line]
    assert line.endswith("7 bytes), classifier hq.bin, license CC-BY-4.0")
    assert "classifier hq.bin: CC-BY-4.0" in lines


def test_trace_without_the_report_or_readings_shows_energy_as_not_measured(finished: Path) -> None:
    path = finished / "report/energy.json"
    accounting = json.loads(path.read_text())
    del accounting["jobs"]["tokens.shard.main.0.20260105T1000.1"]
    path.write_text(json.dumps(accounting))
    text = "\n".join(RunTracer(finished).trace_file("tokens/main/train/0.arrow"))
    assert "energy: not measured" in text and "behind it: 5 jobs, energy: 402 J" in text
    assert "; 1 of the jobs without a reading" in text
    path.write_text("{}")
    with pytest.raises(InputError, match=r"report/energy\.json is no energy accounting: the field total"):
        RunTracer(finished).trace_file("tokens/main/train/0.arrow")
    path.unlink()
    text = "\n".join(RunTracer(finished).trace_file("tokens/main/train/0.arrow"))
    assert "energy: not known before the report is written" in text and " J" not in text


def test_reused_job_counts_once(build_run: Callable[..., Any]) -> None:
    """Two names of one computation: its joules count once for the file."""
    taken = {"record": "tokens.shard.main.0.json", "attempt": "tokens.shard.main.0.20260105T1000.1.json"}
    run = build_run("run", taken_over_from=taken).folder
    assert "behind it: 6 jobs, energy: 502 J" in "\n".join(RunTracer(run).trace_file("models/base/milestones/10"))


def test_each_ancestor_is_indented_further_and_each_job_listed_once(finished: Path) -> None:
    lines = RunTracer(finished).trace_file("evaluation/base/10/results.json")
    depth = {line.split()[2]: len(line) - len(line.lstrip()) for line in lines if "made by" in line}
    assert depth["evaluate.suites"] < depth["pretrain.segment"] < depth["tokens.shard"] < depth["corpus.filter"]
    assert len([line for line in lines if line.strip().startswith("record:")]) == 7


def test_only_sources_of_the_file_are_listed(finished: Path) -> None:
    text = "\n".join(RunTracer(finished).trace_file("corpus/main/filtered/laws.0.parquet"))
    assert "source laws" in text
    assert "wiki" not in text


def test_relative_path_and_directory_are_traced(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished.parent)
    assert main(["trace", "run", "run/tokens/main/train/0.arrow"]) == 0
    assert capsys.readouterr().out.startswith("tokens/main/train/0.arrow (sha256")
    assert "made by pretrain.segment (model=base, step=10)" in "\n".join(
        RunTracer(Path("run")).trace_file("models/base/milestones/10")
    )


def test_file_without_a_producer_is_refused(finished: Path) -> None:
    with pytest.raises(InputError, match=r"has tokens/other\.arrow: give a file of the run"):
        RunTracer(finished).trace_file("tokens/other.arrow")


def test_lost_attempts_are_shown_with_their_joules(finished: Path) -> None:
    name = "tokens.shard.main.0.20260105T0900.1"
    attempt = {
        "step": "tokens.shard",
        "instance": {"tokens": "main", "shard": "0"},
        "command": [],
        "started": "2026-01-05T09:00:00.000+00:00",
        "last_seen": "",
        "status": "failed",
        "error": "OSError: the disk is gone",
        "wall_seconds": 12.0,
        "cpu_seconds": 1.0,
    }
    folder = finished / "provenance/attempts"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(attempt))
    path = finished / "report/energy.json"
    accounting = json.loads(path.read_text())
    finished_job = accounting["jobs"]["tokens.shard.main.0.20260105T1000.1"]
    accounting["jobs"][name] = {**finished_job, "joules": 40.0, "low_joules": 40.0, "high_joules": 40.0, "fate": "lost"}
    path.write_text(json.dumps(accounting))
    text = "\n".join(RunTracer(finished).trace_file("tokens/main/train/0.arrow"))
    failed = f"lost attempt provenance/attempts/{name}.json: failed after 12 s: OSError: the disk is gone"
    assert f"{failed}; energy: 40.0 J" in text
    assert "lost on the way: 1 attempt, energy: 40.0 J" in text and "behind it: 5 jobs, energy: 502 J" in text
    assert "lost" not in "\n".join(RunTracer(finished).trace_file("corpus/main/filtered/laws.0.parquet"))


def test_figure_is_traced_to_its_evidence(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"report/figures\.json is missing, which lists the figures"):
        main(["trace", str(finished), "corpus.documents"])
    figures = [
        {
            "figure": "corpus.documents",
            "label": "Documents",
            "value": 15,
            "unit": "documents",
            "how": "counted",
            "from": ["corpus/main/statistics.json"],
            "command": "python -m pipeline corpus statistics",
        }
    ]
    (finished / layout.KEY_FIGURES).write_text(json.dumps(figures))
    assert main(["trace", str(finished), "corpus.documents"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        "corpus.documents: Documents",
        "  15 documents, counted",
        "  command: python -m pipeline corpus statistics",
        "  from corpus/main/statistics.json, unaltered by its record",
        "  recomputed: corpus/main/statistics.json has it under totals.documents_in, totals.stages.0.in",
    ]
    assert any("made by corpus.statistics" in line for line in lines) and "wiki: CC-BY-SA-4.0" in lines[-1]
    with pytest.raises(InputError, match=r"no figure and no source of .*: did you mean corpus\.documents"):
        main(["trace", str(finished), "corpus.document"])
    statistics = finished / "corpus/main/statistics.json"
    statistics.write_text(statistics.read_text().replace("15", "16"))
    main(["trace", str(finished), "corpus.documents"])
    text = capsys.readouterr().out
    assert "ALTERED: its record says" in text and "no key of these files has this very number" in text


def test_evidence_of_a_figure_may_be_a_folder_or_a_line(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (finished / "lines.jsonl").write_text('{"step": 1}\n{"step": 2, "joules": 7200}\n')
    key_figure = {"figure": "energy", "label": "electricity", "value": 7200, "unit": "J", "how": "measured"}
    (finished / layout.KEY_FIGURES).write_text(
        json.dumps([{**key_figure, "from": ["lines.jsonl", "provenance/records/"]}])
    )
    main(["trace", str(finished), "energy"])
    text = capsys.readouterr().out
    assert "7200 J (2.00 Wh), measured" in text
    assert "lines.jsonl has it under line 2: joules" in text
    assert "from provenance/records/, a folder of" in text and "missing" not in text


def test_evidence_that_is_no_json_is_named_and_the_rest_is_read(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished / "cut.json").write_text('{"joules": 72')
    (finished / "lines.jsonl").write_text('{"joules": 7200}\n')
    key_figure = {"figure": "energy", "label": "electricity", "value": 7200, "unit": "J", "how": "measured"}
    (finished / layout.KEY_FIGURES).write_text(json.dumps([{**key_figure, "from": ["cut.json", "lines.jsonl"]}]))
    main(["trace", str(finished), "energy"])
    text = capsys.readouterr().out
    assert "recomputed: cut.json is not valid JSON" in text and "lines.jsonl has it under line 1: joules" in text


@pytest.mark.parametrize("figure", ["energy.total", "energy.facility"])
def test_run_energy_is_the_sum_of_its_parts(finished: Path, figure: str, capsys: pytest.CaptureFixture[str]) -> None:
    accounting = json.loads((finished / "report/energy.json").read_text())
    parts = [accounting[name]["joules"] for name in ("finished", "lost", "idle", "snakemake")]
    value = sum(parts) * (1.2 if figure == "energy.facility" else 1)
    key_figure = {"figure": figure, "label": "electricity", "value": value, "unit": "J", "how": "estimated"}
    (finished / layout.KEY_FIGURES).write_text(json.dumps([{**key_figure, "from": ["report/energy.json"]}]))
    main(["trace", str(finished), figure])
    text = capsys.readouterr().out
    assert f"{parts[3]:.3f} J snakemake = {sum(parts):.3f} J" in text
    assert (f"times the PUE in the settings of report.page = {value:.3f} J" in text) == (figure == "energy.facility")


def test_source_is_traced_to_all_results_that_contain_it(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(finished), "laws"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = [line for line in lines if not line.startswith(" ")]
    for title in (
        "corpus.filter (corpus=main, source=laws, unit=0)",
        "tokens.shard (shard=0, tokens=main)",
        "pretrain.segment (model=base, step=10)",
        "evaluate.suites (model=base, step=10)",
    ):
        assert any(sorted(result) == sorted(title) for result in titles), title
    assert not any("wiki" in line for line in lines), "a unit of another source does not contain it"
    assert lines[:2] == ["source laws", "  license CC0-1.0, language nl"]
    assert lines[2:5] == ["  basis: public-domain", "  holder: Staat", "  url: not stated"]
    assert lines[5].startswith("  raw file data:") and "laws" in lines[5]


FINGERPRINT = "sources/laws/fingerprints/1.json"


def fingerprint(run: Any, files: int) -> None:
    """Add a job that reads so many raw files."""
    raw = {f"laws/{number:02}.jsonl": b"text" for number in range(files)}
    run.job("sources.fingerprint", {"source": "laws", "unit": "1"}, [], {FINGERPRINT: b"{}"}, raw)


def test_further_raw_files_of_a_source_are_counted(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    fingerprint(run, files=25)
    lines = RunTracer(run.folder).trace("laws")
    listed = [line for line in lines if line.startswith("  raw file ")]
    assert len(listed) == SHOWN_PATHS and f"  and {26 - SHOWN_PATHS} more raw files" in lines, "one more by its filter"


def test_job_behind_two_files_is_described_once(build_run: Callable[..., Any]) -> None:
    run, filtered = build_run("run"), "corpus/main/filtered/laws.0.parquet"
    run.job("corpus.ngrams", {"corpus": "main"}, [filtered], {"corpus/main/ngrams.json": b"{}"})
    both = ["corpus/main/ngrams.json", filtered]
    run.job("tokens.shard", {"tokens": "main", "shard": "1"}, both, {"tokens/main/train/1.arrow": b"1"})
    lines = RunTracer(run.folder).trace_file("tokens/main/train/1.arrow")
    of_filter = [line.strip() for line in lines if "made by corpus.filter" in line]
    assert of_filter == [
        "made by corpus.filter (corpus=main, source=laws, unit=0)",
        "made by corpus.filter (corpus=main, source=laws, unit=0), see above",
    ]


def test_many_inputs_are_counted(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    fingerprint(run, files=8)
    lines = RunTracer(run.folder).trace_file(FINGERPRINT)
    read = [line for line in lines if line.startswith("    read ")]
    assert len(read) == 7 and read[-1] == "    read 2 more files with them"


def test_lineage_of_an_archived_job_names_its_archive_and_what_cannot_be_read(finished: Path) -> None:
    (finished / "provenance/attempts/broken.json").write_text("{")
    lines = RunTracer(finished).trace_file("corpus/main/filtered/wiki.0.parquet")
    archive = "provenance/archives/20260105T105900000000.1.corpus.filter.main.wiki.0.zip"
    assert f"    record: provenance/records/corpus.filter.main.wiki.0.json, in {archive}" in lines
    (problem,) = [line for line in lines if line.startswith("not counted: ")]
    assert problem.startswith("not counted: provenance/attempts/broken.json is not a valid attempt")


def test_state_of_each_file_of_a_figure_is_shown(finished: Path) -> None:
    read = "tasks/list.json"
    (finished / "tasks").mkdir()
    (finished / read).write_text("{}")
    record = finished / layout.RECORDS / "evaluate.suites.base.10.json"
    content = json.loads(record.read_text())
    content["inputs"].append({"name": "tasks", "path": read, "sha256": hash_file(finished / read), "bytes": 2})
    record.write_text(json.dumps(content))
    (finished / "unknown.json").write_text("[]")
    places = ["gone.json", read, "unknown.json", "provenance/attempts", "tokens/main/train/0.arrow"]
    figure = {"figure": "model", "label": "the model", "value": "base", "how": "stated", "from": places}
    (finished / layout.KEY_FIGURES).write_text(json.dumps([figure]))
    number = len([*(finished / "provenance/attempts").iterdir()])
    assert RunTracer(finished).trace_figure("model")[:7] == [
        "model: the model",
        "  base, stated",
        "  from gone.json, missing: nothing can be recomputed from it",
        f"  from {read}, unaltered by the record of the job that read it",
        "  from unknown.json, in no record",
        f"  from provenance/attempts, a folder of {number} files",
        "  from tokens/main/train/0.arrow, unaltered by its record",
    ]
    (finished / read).write_text("{ }")
    lines = RunTracer(finished).trace_figure("model")
    assert f"  from {read}, ALTERED: the job that read it says {hashlib.sha256(b'{}').hexdigest()}" in lines
    assert not any(line.startswith("  recomputed: ") for line in lines), "a name is not computed"
    with pytest.raises(InputError, match=r"no source of .*: report/figures\.json lists the figures"):
        RunTracer(finished).trace_figure("xyz")
    for field, value in (("how", "guessed"), ("from", [1])):
        (finished / layout.KEY_FIGURES).write_text(json.dumps([{**figure, field: value}]))
        with pytest.raises(InputError, match=rf"figures\.json is no list of figures: the field 0\.{field}\b.*make the"):
            RunTracer(finished).trace_figure("model")


def test_value_under_many_keys_is_shown_with_three(finished: Path) -> None:
    (finished / "many.json").write_text(json.dumps({"a": 1.0, "b": [1, True, "1", 1.5, "x"]}))
    figure = {"figure": "one", "label": "one", "value": 1, "how": "counted", "from": ["many.json", "many.txt"]}
    (finished / layout.KEY_FIGURES).write_text(json.dumps([figure]))
    assert RunTracer(finished).trace_figure("one")[-1] == "  recomputed: many.json has it under a, b.0"
    (finished / "many.json").write_text(json.dumps({"a": 1, "b": [1, 1, 1 + 1e-12]}))
    lines = RunTracer(finished).trace_figure("one")
    assert lines[-1] == "  recomputed: many.json has it under a, b.0, b.1 and others"
    (finished / "many.json").write_text(json.dumps({"a": 1 + 0.9e-9, "b": 1 + 1.1e-9}))
    assert RunTracer(finished).trace_figure("one")[-1] == "  recomputed: many.json has it under a"


def test_source_shows_documents_kept_and_many_outputs(build_run: Callable[..., Any]) -> None:
    run = build_run("run")
    instance = {"corpus": "main", "source": "laws", "unit": "1"}
    outputs = {f"corpus/main/filtered/{name}.parquet": b"1" for name in "abcdef"}
    counts = {"documents_in": 9, "documents_out": 0}
    run.job("corpus.filter", instance, [], outputs, counts=counts)
    lines = RunTracer(run.folder).trace_source("laws")
    place = lines.index("corpus.filter (corpus=main, source=laws, unit=1): 0 of 9 documents kept")
    assert lines[place + 1 : place + 6] == [
        *(f"  corpus/main/filtered/{name}.parquet" for name in "abcd"),
        "  and 2 more",
    ]
    stages = [line.split(".")[0] for line in lines[6:-2] if not line.startswith(" ")]
    assert stages == sorted(stages, key=["sources", "corpus", "tokens", "pretrain", "evaluate", "report"].index)
    assert lines[-2] == "18 files of 9 jobs derive from laws (provenance/records)"
