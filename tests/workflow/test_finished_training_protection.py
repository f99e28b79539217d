"""An edit and a finished training: what is kept, what is refused, and the suggested remedies."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.configuration import Config, parse_configuration
from pipeline.workflow.finished_training_protection import FinishedTraining
from pipeline.workflow.job_parameters import Dag
from tests.record_content import attempt_content, entries, record_content

TRAINING = {
    "sequence_length": 64,
    "batch_size": 8,
    "micro_batch_size": 2,
    "steps": 100,
    "milestone_every": 20,
    "learning_rate": 0.003,
    "warmup_steps": 10,
    "schedule": "wsd",
}
ARCHITECTURE = {"layers": 2, "width": 32, "heads": 4}


# A run with a model of three milestones, each with a record and files, made by older code.
PLANNED = ("{}", "code-of-today", "environment-of-today")


def configured(
    folder: Path,
    run: Mapping[str, Any] | None = None,
    vary: Sequence[float] = (),
    pretrained: str | None = None,
    **training: Any,
) -> Config:
    begins = {"pretrained": {"folder": pretrained, "license": "Apache-2.0"}} if pretrained else {}
    experiments = {"rates": {"base": "base", "vary": {"training.learning_rate": [*vary]}}} if vary else {}
    return parse_configuration(
        {
            "experiments": experiments,
            "run": {"name": "small", "results": folder.relative_to(Path.cwd()).as_posix(), **(run or {})},
            "sources": [
                {
                    "name": "laws",
                    "path": "config/corpus/nl_gids.jsonl",
                    "language": "nl",
                    "license": "CC0-1.0",
                    "rights": {"basis": "public-domain", "holder": "somebody"},
                }
            ],
            "models": {
                "base": {"architecture": ARCHITECTURE, "training": {**TRAINING, "steps": 60, **training}} | begins
            },
        }
    )


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the results folder of a run whose three segments took half an hour on two devices each."""
    (tmp_path / "config").symlink_to(Path("config").absolute())
    (tmp_path / "workflow").symlink_to(Path("workflow").absolute())
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    config = configured(results)
    run = results / "small"
    for number, name in enumerate(("tokens/main/index.json", "tokenizer/main/tokenizer.json")):
        (run / name).parent.mkdir(parents=True)
        (run / name).write_text(str(number))
    (run / "tokenizer/main/tokenizer_config.json").write_text("2")
    (run / "provenance/records").mkdir(parents=True)
    for step in (20, 40, 60):
        weights = run / f"models/base/milestones/{step}/model.safetensors"
        weights.parent.mkdir(parents=True)
        weights.write_bytes(b"weights")
        settings = config.segment_settings("base", step)
        record = record_content(
            "pretrain.segment",
            instance={"model": "base", "step": str(step)},
            settings=settings.result_settings(),
            operation=settings.non_result_settings(),
            code_version="code-of-then",
            environment_version="environment-of-then",
            wall_seconds=1800.0,
            counts={"world_size": 2},
            inputs=[
                # The `sha256sum` of 0, 1 and 2.
                {"name": "index", "path": "tokens/main/index.json", "sha256": SHA256["0"]},
                {"name": "tokenizer", "path": "tokenizer/main/tokenizer.json", "sha256": SHA256["1"]},
                {"name": "configuration", "path": "tokenizer/main/tokenizer_config.json", "sha256": SHA256["2"]},
            ],
            outputs=[{"path": f"models/base/milestones/{step}/model.safetensors", "bytes": 7}],
        )
        (run / f"provenance/records/pretrain.segment.base.{step}.json").write_text(json.dumps(record))
    return results


SHA256 = {
    "0": "5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9",
    "1": "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b",
    "2": "d4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35",
}


def finished(results: Path, run: Mapping[str, Any] | None = None, **training: Any) -> FinishedTraining:
    return FinishedTraining(configured(results, run, **training), lambda step, instance: PLANNED)


def test_training_made_by_other_code_is_kept_and_reported(made: Path) -> None:
    result = finished(made, micro_batch_size=4)
    assert result.find_refusal("base") is None
    settings, code, environment = result.kept_versions("base", 20) or PLANNED
    assert (code, environment) == ("code-of-then", "environment-of-then")
    assert json.loads(settings)["training"]["micro_batch_size"] == 2  # unchanged
    (sentence,) = result.describe_kept_models()
    assert sentence.startswith("models.base: what is done up to step 60 stays") and "retrain: [base]" in sentence


def test_unchanged_training_is_not_reported(made: Path) -> None:
    config = configured(made)
    versions = {
        str(step): FinishedTraining(config, lambda *_: PLANNED).kept_versions("base", step) or PLANNED
        for step in (20, 40, 60)
    }
    assert FinishedTraining(config, lambda _, instance: versions[instance["step"]]).describe_kept_models() == []


def test_changed_learning_rate_is_refused_with_hours_and_three_remedies(made: Path) -> None:
    result = finished(made, learning_rate=0.002)
    assert result.find_refusal("base") == (
        "models.base was trained for 3 device hours; this would throw away its steps up to 20: "
        "training.learning_rate 0.003, now 0.002; undo the change, or give the other training a model of its own, or "
        "have this one trained again: run: {retrain: [base]}"
    )
    assert result.kept_versions("base", 20) is None and result.describe_kept_models() == []


def test_change_of_the_last_steps_suggests_a_branch(made: Path) -> None:
    sentence = finished(made, decay_fraction=0.3).find_refusal("base") or ""
    assert "its steps up to 60: training.decay_fraction 0.2, now 0.3" in sentence
    assert "a model of its own from there on (start: {model: base, step: 40})" in sentence


@pytest.mark.parametrize("run", [{"retrain": ["base"]}, {"protected_device_hours": 3.1}])
def test_retrained_and_short_trainings_are_not_protected(made: Path, run: dict[str, Any]) -> None:
    result = finished(made, run, learning_rate=0.002)
    assert (result.find_refusal("base"), result.kept_versions("base", 20), result.describe_kept_models()) == (
        None,
        None,
        [],
    )


def test_training_with_exactly_the_protected_hours_is_kept(made: Path) -> None:
    assert finished(made, {"protected_device_hours": 3.0}).kept_versions("base", 20)


def attempt(results: Path, name: str, wall_seconds: float, settings: str) -> None:
    folder = results / "small/provenance/attempts"
    folder.mkdir(exist_ok=True)
    command = ["pretrain", "segment", "--settings", settings]
    content = attempt_content("pretrain.segment", wall_seconds=wall_seconds, command=command)
    (folder / f"{name}.json").write_text(json.dumps(content))


def change_record(results: Path, step: int, **changes: Any) -> None:
    path = results / f"small/provenance/records/pretrain.segment.base.{step}.json"
    files = {kind: entries(changes[kind]) for kind in ("inputs", "outputs") if kind in changes}
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes, **files}))


def test_lost_attempts_count_unless_their_settings_differ(made: Path) -> None:
    change_record(made, 20, command=["pretrain", "segment", "--settings", "{}"])
    attempt(made, "pretrain.segment.base.20.20260301T0700.1", 3600.0, "{}")
    attempt(made, "pretrain.segment.base.20.20260301T0800.2", 1800.0, "{}")
    attempt(made, "pretrain.segment.base.20.20260201T0800.3", 9000.0, '{"seed": 2}')
    assert "for 5 device hours;" in (
        finished(made, learning_rate=0.002).find_refusal("base") or ""
    )  # 2 x (1.5 + 0.5 + 0.5)


def test_reused_training_counts_the_hours_of_the_original(made: Path) -> None:
    taken = {"record": "pretrain.segment.other.20.json", "attempt": "pretrain.segment.other.20.20260301T0700.1.json"}
    settings = ["pretrain", "segment", "--settings", "{}"]
    change_record(made, 20, wall_seconds=1.0, taken_over_from=taken, command=settings)
    attempt(made, "pretrain.segment.other.20.20260301T0700.1", 5400.0, "{}")
    assert "for 5 device hours;" in (finished(made, learning_rate=0.002).find_refusal("base") or "")


@pytest.mark.parametrize("changes", [{"inputs": []}, {"counts": None, "wall_seconds": None}, {"settings": None}])
def test_unusual_record_does_not_crash(made: Path, changes: dict[str, Any]) -> None:
    change_record(made, 20, **changes)
    result = finished(made, {"protected_device_hours": 0.1}, learning_rate=0.002)
    assert (
        result.find_refusal("base")
        and result.kept_training_tokens_hash("base", 20) is None
        and result.describe_changed_tokens("base", 20) is None
    )


def test_milestone_that_differs_from_its_record_is_not_kept(made: Path) -> None:
    (made / "small/models/base/milestones/60/model.safetensors").write_bytes(b"less")
    result = finished(made, {"protected_device_hours": 0.5})
    assert (
        result.kept_versions("base", 20)
        and result.kept_versions("base", 60) is None
        and result.find_refusal("base") is None
    )  # the last is rebuilt
    (made / "small/provenance/records/pretrain.segment.base.20.json").write_text('{"outputs": 3')
    result = finished(made, {"protected_device_hours": 0.5})
    assert result.kept_versions("base", 20) is None
    sentence = "the milestone of step 20 is not there as its record says, and to make it again would throw away"
    assert sentence in (result.find_refusal("base") or "") and "up to step 40: put it back" in (
        result.find_refusal("base") or ""
    )


def test_training_on_changed_tokens_is_kept_and_reported(made: Path) -> None:
    result = finished(made)
    assert result.describe_changed_tokens("base", 20) is None
    (made / "small/tokenizer/main/tokenizer.json").write_text("another")
    sentence = result.describe_changed_tokens("base", 20) or ""
    assert sentence.startswith(
        "models.base was trained for 3 device hours on another tokenizer/main/tokenizer.json than"
    )
    assert "stays as it was made" in sentence and "retrain: [base]" in sentence
    assert finished(made, {"retrain": ["base"]}).describe_changed_tokens("base", 20) is None
    assert result.describe_changed_tokens("base", 80) is None  # still to be trained


def test_kept_job_has_the_hash_of_its_original_tokens(
    made: Path,
) -> None:
    today = Dag(configured(made)).hash_training_tokens("base")
    assert today and finished(made).kept_training_tokens_hash("base", 20) == today
    (made / "small/tokens/main/index.json").write_text("another")
    assert (
        finished(made).kept_training_tokens_hash("base", 20)
        == today
        != Dag(configured(made)).hash_training_tokens("base")
    )
    assert finished(made).kept_training_tokens_hash("base", 80) is None


def test_segment_gets_the_token_hash_of_earlier_segments(made: Path) -> None:
    result = finished(made, steps=80)
    hashes = {"index_sha256": SHA256["0"]}
    assert [result.previous_segment_tokens_hash("base", step) for step in (20, 40, 80)] == [{}, hashes, hashes]
    assert finished(made, {"retrain": ["base"]}, steps=80).previous_segment_tokens_hash("base", 80) == {}


def test_settings_of_another_version_are_reported_as_unknown(made: Path) -> None:
    path = made / "small/provenance/records/pretrain.segment.base.20.json"
    record = json.loads(path.read_text())
    record["settings"]["training"]["momentum"] = 0.9
    path.write_text(json.dumps(record))
    assert "training.momentum, which this version of Polder does not take" in (
        finished(made).find_refusal("base") or ""
    )


def test_milestone_of_another_schedule_is_not_repeated(made: Path) -> None:
    # Longer, with only the last milestone: the content of the three milestones would be repeated.
    sentence = finished(made, steps=100, milestone_every=None).find_refusal("base") or ""
    assert "the milestone of step 20, of 1 device hours, is none of today's" in sentence and "up to 100" in sentence
    assert finished(made, {"retrain": ["base"]}, steps=100, milestone_every=None).find_refusal("base") is None
    # If the planned milestones exist, nothing is repeated.
    assert finished(made, milestone_every=40, steps=40).find_refusal("base") is not None  # its last steps decay
    assert finished(made, milestone_every=60).find_refusal("base") is not None  # from another milestone than before


def test_renamed_input_is_reported(made: Path) -> None:
    record = made / "small/provenance/records/pretrain.segment.base.20.json"
    record.write_text(record.read_text().replace("tokens/main/index.json", "tokens/text/index.json"))
    sentence = finished(made).find_refusal("base") or ""
    assert "tokens/text/index.json, which it read, is called tokens/main/index.json now" in sentence


def test_rebuilt_milestone_is_reported_for_its_continuations(made: Path) -> None:
    state = "models/base/milestones/20/state.json"
    (made / f"small/{state}").write_text("new")
    weights = {"path": "models/base/milestones/20/model.safetensors", "bytes": 7, "sha256": "weights"}
    outputs = [weights, {"path": state, "bytes": 3, "sha256": "new"}]
    change_record(made, 20, outputs=outputs)
    inputs = json.loads((made / "small/provenance/records/pretrain.segment.base.40.json").read_text())["inputs"]
    change_record(made, 40, inputs=[*inputs, {"name": "previous", "path": state, "sha256": "new"}])
    assert finished(made).find_refusal("base") is None
    change_record(made, 40, inputs=[*inputs, {"name": "previous", "path": state, "sha256": "old"}])
    assert "the milestone of step 20, which it continues, was made again" in (finished(made).find_refusal("base") or "")


def test_unfinished_training_is_not_protected(made: Path) -> None:
    outcome = {"status": "out of memory", "reason": "too much"}
    change_record(made, 60, counts={"world_size": 2, "outcome": outcome})
    assert finished(made, {"protected_device_hours": 1}).kept_versions("base", 60) is None


def test_experiment_name_includes_its_cells(made: Path) -> None:
    config = configured(made, {"retrain": ["rates"]}, vary=[0.001, 0.003])
    assert FinishedTraining(config, lambda *_: PLANNED)._retrained_models() > {*config.cell_model_names()}


def test_protected_record_is_not_deleted(made: Path) -> None:
    result = finished(made, learning_rate=0.002)
    assert result.is_protected("pretrain.segment.base.20.json") and not result.is_protected(
        "pretrain.segment.base.80.json"
    )


def test_only_models_of_the_run_can_be_retrained(made: Path) -> None:
    with pytest.raises(Exception, match=r"run.retrain: there is no model 'bas': did you mean 'base'"):
        configured(made, {"retrain": ["bas"]})


def import_model(results: Path, folder: str) -> None:
    """Let the first segment begin with another model's weights, which is milestone 0."""
    run = results / "small"
    weights = run / "models/base/milestones/0/state.json"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    first = json.loads((run / "provenance/records/pretrain.segment.base.20.json").read_text())
    described = {"path": "models/base/milestones/0/state.json", "sha256": "0" * 64}
    record = {**first, "settings": {"folder": folder}, "outputs": entries([{**described, "bytes": 7}])}
    (run / "provenance/records/pretrain.adopt.base.json").write_text(json.dumps(record))
    change_record(results, 20, inputs=[*first["inputs"], {**described, "name": "previous"}])


def test_training_continues_with_its_original_pretrained_weights(made: Path) -> None:
    import_model(made, "models/large")
    result = finished(made, pretrained="models/large")
    assert result.find_refusal("base") is None and result.kept_versions("base", 20)
    assert (result.kept_import_settings_and_versions("base") or PLANNED)[1:] == ("code-of-then", "environment-of-then")
    assert json.loads((result.kept_import_settings_and_versions("base") or PLANNED)[0]) == {"folder": "models/large"}
    again = finished(made, {"retrain": ["base"]}, pretrained="models/large")
    assert again.kept_import_settings_and_versions("base") is None, "the initial weights are rebuilt with the training"


@pytest.mark.parametrize(
    ("before", "today", "message"),
    [
        ("models/large", "models/other", "it began with models/large, and pretrained is models/other now"),
        ("models/large", None, "it began with models/large, and pretrained is nothing now"),
        (None, "models/large", "it began with weights that were drawn, and pretrained is models/large now"),
    ],
)
def test_changed_initial_weights_would_discard_the_training(
    before: str | None, today: str | None, message: str, made: Path
) -> None:
    if before:
        import_model(made, before)
    refused = finished(made, pretrained=today).find_refusal("base")
    assert refused and message in refused


def test_pretrained_model_changed_after_training_is_reported(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_model(made, "models/large")
    path = made / "small/provenance/records/pretrain.adopt.base.json"
    record = json.loads(path.read_text())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    entry = {"name": "model", "path": "data:model.safetensors", "bytes": 7, "sha256": "0" * 64}
    soon = datetime.now(UTC) + timedelta(minutes=1)
    path.write_text(json.dumps({**record, "inputs": [*record["inputs"], entry], "ended": soon.isoformat()}))
    monkeypatch.setattr(Config, "pretrained_files", lambda self, model: [str(weights)])

    def describe_kept() -> list[str]:
        return [
            sentence
            for sentence in finished(made, pretrained="models/large").describe_kept_models()
            if "though" in sentence
        ]

    assert describe_kept() == []
    os.utime(weights, (soon.timestamp() + 1, soon.timestamp() + 1))
    assert describe_kept() == [
        f"models.base stays as it was made, though {weights}, which it began with, was changed since; "
        "run: {retrain: [base]} trains it again"
    ]
    os.utime(weights, (1, 1))
    weights.write_bytes(b"other weights")
    os.utime(weights, (1, 1))
    assert len(describe_kept()) == 1, "of another size, despite its age"


def test_lost_initial_milestone_is_not_rebuilt_without_request(made: Path) -> None:
    import_model(made, "models/large")
    (made / "small/models/base/milestones/0/state.json").unlink()
    refused = finished(made, pretrained="models/large").find_refusal("base")
    assert refused and "the milestone of step 0 is not there as its record says" in refused
    assert finished(made, {"retrain": ["base"]}, pretrained="models/large").find_refusal("base") is None


def test_rebuilt_initial_milestone_is_reported(made: Path) -> None:
    import_model(made, "models/large")
    path = made / "small/provenance/records/pretrain.adopt.base.json"
    record = json.loads(path.read_text())
    record["outputs"][0]["sha256"] = "1" * 64
    path.write_text(json.dumps(record))
    refused = finished(made, pretrained="models/large").find_refusal("base")
    assert refused and "the milestone of step 0, which it continues, was made again since" in refused
