"""Scores in the formats of lm-eval and of model cards keep values, errors and intervals, and add nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.entry_point import main
from pipeline.core.job_records import FileEntry, FileReference, Record
from pipeline.evaluate.every_eval_ever import format_euroeval, format_every_eval_ever
from pipeline.evaluate.score_export_formats import CheckpointScores, format_lm_eval, format_model_index, read_scores
from tests.conftest import Project

PROTOCOL = {
    "version": 2.0,
    "sha256": "ab" * 32,
    "num_fewshot": 5,
    "output_type": "multiple_choice",
    "data_set": "allenai/ai2_arc",
    "configuration": "ARC-Easy",
    "split": "test",
    "examples_available": 2376,
}
ROW = {
    "task": "arc",
    "suite": "public",
    "language": "en",
    "metric": "acc",
    "value": 0.25,
    "low": 0.2,
    "high": 0.31,
    "standard_error": 0.027,
    "higher_is_better": True,
    "signature": None,
    "examples": 250,
    "examples_truncated": 3,
    "examples_too_long": 4,
    "verdict": "better",
    "chance_level": 0.25,
    "protocol": PROTOCOL,
}
BITS = ROW | {"metric": "bits_per_byte", "value": 1.5, "standard_error": None, "higher_is_better": False}
STRICT = ROW | {"metric": "exact_match,strict-match", "low": None, "high": None}
AIMED = ROW | {"task": "bias", "higher_is_better": None, "protocol": None}
OWN = PROTOCOL | {"data_set": None}
SARI = ROW | {"task": "simple", "metric": "sari", "value": 33.0, "low": 30.0, "high": 36.0, "protocol": OWN}
UNKNOWN = ROW | {"task": "simple", "metric": "acc_norm", "value": None}


def checkpoint(*rows: dict[str, Any], provider: str | None = None, from_scratch: bool = True) -> CheckpointScores:
    record = Record(
        step="evaluate.suites",
        instance={"model": "base", "step": "8"},
        settings={"batch_size": 16, "seed": 42},
        command=[],
        inputs=(),
        outputs=(),
        code_version="c0de",
        environment_version="cpu",
        started="2026-11-29T23:36:13.466+00:00",
        ended="2026-11-29T23:36:22.266+00:00",
        wall_seconds=8.8,
        cpu_seconds=8.8,
        peak_memory_bytes=1,
    )
    content = {"tasks": [*rows], "lm_eval_version": "0.4.13", "data_sets": {"allenai/ai2_arc": "c0ffee"}}
    packages = {"transformers": "5.23.0"}
    return CheckpointScores("me/base", content, record, packages, {"vocab_size": 600}, 69280, provider, from_scratch)


def test_lm_eval_prints_the_score_table() -> None:
    from lm_eval.utils import make_table

    table = make_table(format_lm_eval(checkpoint(ROW, BITS, STRICT, AIMED, SARI, UNKNOWN)))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    results = {line[4]: line for line in cells}
    assert [line[0] for line in cells] == ["arc", "", "", "bias", "simple"]
    assert cells[0] == ["arc", "2", "none", "5", "acc", "↑", "0.25", "±", "0.027"]
    assert results["bits_per_byte"][5:] == ["↓", "1.50", "±", "N/A"]
    assert results["exact_match"][2] == "strict-match"
    assert results["polder_sari"][6] == "33.00"
    assert "acc_norm" not in table


def test_lm_eval_file_separates_counts_protocol_and_intervals() -> None:
    text = format_lm_eval(checkpoint(ROW, BITS, STRICT, AIMED))
    assert text["n-samples"] == {"arc": {"original": 2376, "effective": 250}}
    assert text["n-shot"] == {"arc": 5}
    assert text["configs"]["arc"] == {
        "task": "arc",
        "dataset_path": "allenai/ai2_arc",
        "dataset_name": "ARC-Easy",
        "test_split": "test",
        "output_type": "multiple_choice",
        "num_fewshot": 5,
        "metadata": {
            "version": 2.0,
            "protocol_sha256": "ab" * 32,
            "dataset_revision": "c0ffee",
            "intervals_95": {"acc": (0.2, 0.31), "bits_per_byte": (0.2, 0.31)},
        },
    }
    assert text["configs"]["bias"] == {"task": "bias", "metadata": {"intervals_95": {"acc": (0.2, 0.31)}}}
    assert text["higher_is_better"]["bias"] == {"acc": None}
    assert text["date"] == 1795995373.466
    assert text["model_name_sanitized"] == "me__base"
    assert (text["config"]["batch_size"], text["config"]["fewshot_seed"]) == ("16", 42), "as lm-eval does"


def test_huggingface_hub_round_trips_a_card_with_scores() -> None:
    import yaml
    from huggingface_hub import ModelCard
    from huggingface_hub.repocard_data import eval_results_to_model_index

    index = format_model_index("me/base", checkpoint(ROW, BITS, SARI, UNKNOWN).content)
    card = ModelCard(f"---\n{yaml.safe_dump({'model-index': index})}---\n# Card\n")
    assert card.data.model_name == "me/base"
    (acc, bits, simple) = card.data.eval_results
    assert (acc.dataset_type, acc.dataset_config, acc.dataset_split) == ("allenai/ai2_arc", "ARC-Easy", "test")
    assert (acc.dataset_revision, acc.dataset_args["num_fewshot"]) == ("c0ffee", 5)
    assert (acc.metric_type, acc.metric_value) == ("acc", 0.25)
    assert acc.metric_name == "arc: acc (95 % interval 0.2 to 0.31, 250 examples)"
    assert (bits.metric_value, simple.metric_type) == (1.5, "polder_sari")
    assert eval_results_to_model_index("me/base", card.data.eval_results) == index


def test_card_without_scores_has_no_model_index() -> None:
    assert format_model_index("me/base", checkpoint(UNKNOWN).content) == []


def test_score_without_a_direction_is_skipped_and_named() -> None:
    document, left_out = format_every_eval_ever(checkpoint(ROW, AIMED, provider="Stichting Voorbeeld"))
    assert left_out == ["bias acc"]
    (result,) = document["evaluation_results"]
    assert result["source_data"] == {
        "dataset_name": "arc",
        "source_type": "hf_dataset",
        "hf_repo": "allenai/ai2_arc",
        "hf_split": "test",
        "samples_number": 2376,
        "additional_details": {"revision": "c0ffee"},
    }
    assert result["generation_config"]["additional_details"]["protocol_sha256"] == "ab" * 32
    assert result["score_details"]["uncertainty"]["confidence_interval"]["upper"] == 0.31
    assert document["source_metadata"]["source_organization_name"] == "Stichting Voorbeeld"
    assert format_euroeval(checkpoint(AIMED)) == ([], ["bias acc"])


def test_units_and_bounds_follow_the_metric() -> None:
    document, _ = format_every_eval_ever(checkpoint(ROW, BITS, SARI))
    configs = [result["metric_config"] for result in document["evaluation_results"]]
    assert [(one["metric_unit"], one["max_score"], one["lower_is_better"]) for one in configs] == [
        ("proportion", 1.0, False),
        ("bits per byte", "Infinity", True),
        ("points", 100.0, False),
    ]
    lines, _ = format_euroeval(checkpoint(ROW, BITS, SARI))
    assert (document["schema_version"], lines[0]["schema_version"]) == ("0.3.0", "0.2.1"), "of both tools: see auditors"
    results = [result for line in lines for result in line["evaluation_results"]]
    assert [(one["evaluation_name"], one["score_details"]["score"]) for one in results] == [
        ("test_accuracy", 25.0),
        ("test_bits_per_byte", 1.5),
        ("test_polder_sari", 33.0),
    ]
    assert [one["metric_config"]["max_score"] for one in results] == [100.0, "Infinity", 100.0]
    assert results[0]["score_details"]["uncertainty"]["standard_error"]["value"] == pytest.approx(2.7)
    assert lines[0]["eval_library"]["additional_details"]["few_shot"] == "true"


def test_score_outside_its_metric_bounds_has_no_unit_and_is_unchanged() -> None:
    """Another task's function named acc or f1 may count in points."""
    points = ROW | {"metric": "f1", "value": 25.0, "low": 20.0, "high": 31.0}
    for row in (points, ROW | {"value": 1.1, "high": 1.2}, ROW | {"value": -0.1, "low": -0.2}):
        (result,) = format_every_eval_ever(checkpoint(row))[0]["evaluation_results"]
        (line,) = format_euroeval(checkpoint(row))[0]
        for results in (result, line["evaluation_results"][0]):
            assert results["metric_config"].keys() == {"metric_name", "lower_is_better"}
            assert results["score_details"]["score"] == row["value"]
            assert results["score_details"]["uncertainty"]["confidence_interval"]["upper"] == row["high"]
    for row in (
        ROW | {"value": 1 + 1e-12},
        ROW | {"value": 0.02, "low": -0.003},
    ):  # a rounded sum, a mean of few values
        (result,) = format_every_eval_ever(checkpoint(row))[0]["evaluation_results"]
        assert result["metric_config"]["metric_unit"] == "proportion"
        (line,) = format_euroeval(checkpoint(row))[0]
        assert line["evaluation_results"][0]["score_details"]["score"] == 100 * row["value"]


def test_equal_task_names_of_two_suites_are_distinguished() -> None:
    other = ROW | {"suite": "own", "value": 0.75, "protocol": PROTOCOL | {"num_fewshot": 0}}
    scores = checkpoint(ROW, other, SARI)
    lm_eval = format_lm_eval(scores)
    assert {task: result.get("acc,none") for task, result in lm_eval["results"].items()} == {
        "arc@public": 0.25,
        "arc@own": 0.75,
        "simple": None,
    }
    assert lm_eval["n-shot"] == {"arc@public": 5, "arc@own": 0, "simple": 5}
    assert (lm_eval["configs"]["arc@own"]["task"], lm_eval["configs"]["arc@own"]["num_fewshot"]) == ("arc@own", 0)
    (index,) = format_model_index("me/base", scores.content)
    assert [result["metrics"][0]["name"].partition(":")[0] for result in index["results"]] == [
        "arc@public",
        "arc@own",
        "simple",
    ]
    lines, _ = format_euroeval(scores)
    assert [line["eval_library"]["additional_details"]["dataset"] for line in lines][:2] == ["arc@public", "arc@own"]


@pytest.mark.parametrize(
    ("provider", "from_scratch", "relationship"),
    [("Stichting Voorbeeld", True, "first_party"), (None, True, "other"), ("Stichting Voorbeeld", False, "other")],
)
def test_evaluator_is_the_developer_only_for_its_own_model(
    provider: str | None, from_scratch: bool, relationship: str
) -> None:
    scores = checkpoint(ROW, provider=provider, from_scratch=from_scratch)
    for document in (format_every_eval_ever(scores)[0], format_euroeval(scores)[0][0]):
        assert document["source_metadata"]["evaluator_relationship"] == relationship


def write_run(run: Path, providers: dict[int, str | None], imported: bool) -> None:
    """Write the records of two segments and an evaluation, planned with configuration 1, and a report with 2."""
    for number, provider in providers.items():
        file = run / f"provenance/frozen/{number}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        stated = {"name": "run"} | ({"provider": provider} if provider else {})
        file.write_text(json.dumps({"configuration": {"run": stated}}))
    (run / "evaluation/base/8").mkdir(parents=True)
    (run / "evaluation/base/8/results.json").write_text(json.dumps(checkpoint(ROW).content))

    def milestone(name: str, step: int) -> FileEntry:
        return FileEntry(name, f"models/base/milestones/{step}/state.json", "ab" * 32, 1)

    first = (milestone("previous", 0),) if imported else ()
    plans: list[tuple[str, int | None, int, tuple[FileEntry, ...], tuple[FileEntry, ...]]] = [
        ("pretrain.segment", 4, 1, first, (milestone("milestone", 4),)),
        ("pretrain.segment", 8, 1, (milestone("previous", 4),), (milestone("milestone", 8),)),
        ("evaluate.suites", 8, 1, (), ()),
        ("report.page", None, 2, (), ()),
    ]
    for name, step, number, inputs, outputs in plans:
        instance = {"model": "base", "step": str(step)} if step else {}
        frozen = FileReference(f"provenance/frozen/{number}.json", "ab" * 32)
        made = {"step": name, "instance": instance, "frozen": frozen, "inputs": inputs, "outputs": outputs}
        path = run / f"provenance/records/{'.'.join([name, *instance.values()])}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(checkpoint().record, **made).write(path)


@pytest.mark.parametrize(
    ("providers", "provider"),
    [
        ({1: "Stichting Een", 2: "Stichting Twee"}, "Stichting Een"),
        ({1: None, 2: "Stichting Twee"}, "Stichting Twee"),
        ({1: None}, None),
    ],
)
def test_provider_comes_from_the_evaluation_or_the_report(
    providers: dict[int, str | None], provider: str | None, tmp_path: Path
) -> None:
    write_run(tmp_path, providers, imported=False)
    assert read_scores(tmp_path, "base", 8).provider == provider


@pytest.mark.parametrize("imported", [False, True])
def test_model_with_imported_weights_is_not_trained_from_scratch(imported: bool, tmp_path: Path) -> None:
    write_run(tmp_path, {1: None}, imported)
    assert read_scores(tmp_path, "base", 8).trained_from_scratch is not imported


@pytest.mark.slow
def test_command_writes_files_that_lm_eval_and_huggingface_hub_read(
    finished: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import ModelCard
    from lm_eval.utils import get_file_datetime, get_results_filenames, make_table

    monkeypatch.chdir(tmp_path)
    asked = ["scores", str(finished.results), "base", "8", "--format", "lm-eval", "--name", "me/base"]
    assert main(asked) == 0
    (file,) = get_results_filenames([f"me__base/{line}" for line in capsys.readouterr().out.split()])
    content = json.loads((tmp_path / Path(file).name).read_text(encoding="utf-8"))
    rows = json.loads((finished.results / "evaluation/base/8/results.json").read_text(encoding="utf-8"))["tasks"]
    assert make_table(content).count("\n") == len(rows) + 2
    assert content["date"] == pytest.approx(float(content["date"])) and get_file_datetime(file)[:4].isdigit()
    assert content["n-samples"]["polder_nl_kennis"] == {"original": 40, "effective": 40}
    assert main(asked) == 2
    assert "exists: name another file with --output" in capsys.readouterr().err
    assert main(["scores", str(finished.results), "base", "9", "--format", "lm-eval"]) == 2
    assert "has no evaluation of base 9: base 8" in capsys.readouterr().err

    card = ModelCard.load(finished.results / "report/model-card.md")
    assert {
        (one.dataset_name, one.metric_type.removeprefix("polder_"), one.metric_value) for one in card.data.eval_results
    } == {(row["task"], row["metric"], row["value"]) for row in rows}
    assert card.data.model_name == "micro/base-8"
    assert read_scores(finished.results, "base", 8).trained_from_scratch
