"""What an edit does to training that is finished: what stays, what is refused, and which way out is told."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.configuration import Config, parse_configuration
from pipeline.workflow.dag import Dag
from pipeline.workflow.finished_training_protection import FinishedTraining
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


# A run with a model of three milestones, each with a record and files, made by other code than today's.
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
    """Return the folder of the results of a run whose three segments took half an hour on two devices each."""
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
                # What `sha256sum` says of 0, 1 and 2.
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


def test_what_was_made_by_other_code_stays_and_is_told(made: Path) -> None:
    found = finished(made, micro_batch_size=4)
    assert found.find_refusal("base") is None
    settings, code, environment = found.kept_versions("base", 20) or PLANNED
    assert (code, environment) == ("code-of-then", "environment-of-then")
    assert json.loads(settings)["training"]["micro_batch_size"] == 2  # as it was made
    (sentence,) = found.describe_kept_models()
    assert sentence.startswith("models.base: what is done up to step 60 stays") and "retrain: [base]" in sentence


def test_what_is_as_today_is_not_told(made: Path) -> None:
    config = configured(made)
    versions = {
        str(step): FinishedTraining(config, lambda *_: PLANNED).kept_versions("base", step) or PLANNED
        for step in (20, 40, 60)
    }
    assert FinishedTraining(config, lambda _, instance: versions[instance["step"]]).describe_kept_models() == []


def test_another_rate_of_steps_that_are_done_is_refused_with_the_hours_and_three_ways_out(made: Path) -> None:
    found = finished(made, learning_rate=0.002)
    assert found.find_refusal("base") == (
        "models.base was trained for 3 device hours; this would throw away its steps up to 20: "
        "training.learning_rate 0.003, now 0.002; undo the change, or give the other training a model of its own, or "
        "have this one trained again: run: {retrain: [base]}"
    )
    assert found.kept_versions("base", 20) is None and found.describe_kept_models() == []


def test_of_a_change_of_the_last_steps_a_branch_from_the_milestone_before_is_the_way_out(made: Path) -> None:
    sentence = finished(made, decay_fraction=0.3).find_refusal("base") or ""
    assert "its steps up to 60: training.decay_fraction 0.2, now 0.3" in sentence
    assert "a model of its own from there on (start: {model: base, step: 40})" in sentence


@pytest.mark.parametrize("run", [{"retrain": ["base"]}, {"protected_device_hours": 3.1}])
def test_what_may_be_trained_again_and_what_took_less_is_not_kept(made: Path, run: dict[str, Any]) -> None:
    found = finished(made, run, learning_rate=0.002)
    assert (found.find_refusal("base"), found.kept_versions("base", 20), found.describe_kept_models()) == (
        None,
        None,
        [],
    )


def test_what_took_as_many_hours_as_are_protected_is_kept(made: Path) -> None:
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


def test_attempts_that_were_lost_count_and_those_with_other_settings_do_not(made: Path) -> None:
    change_record(made, 20, command=["pretrain", "segment", "--settings", "{}"])
    attempt(made, "pretrain.segment.base.20.20260301T0700.1", 3600.0, "{}")
    attempt(made, "pretrain.segment.base.20.20260301T0800.2", 1800.0, "{}")
    attempt(made, "pretrain.segment.base.20.20260201T0800.3", 9000.0, '{"seed": 2}')
    assert "for 5 device hours;" in (
        finished(made, learning_rate=0.002).find_refusal("base") or ""
    )  # 2 x (1.5 + 0.5 + 0.5)


def test_what_was_taken_over_took_what_the_other_took(made: Path) -> None:
    taken = {"record": "pretrain.segment.other.20.json", "attempt": "pretrain.segment.other.20.20260301T0700.1.json"}
    settings = ["pretrain", "segment", "--settings", "{}"]
    change_record(made, 20, wall_seconds=1.0, taken_over_from=taken, command=settings)
    attempt(made, "pretrain.segment.other.20.20260301T0700.1", 5400.0, "{}")
    assert "for 5 device hours;" in (finished(made, learning_rate=0.002).find_refusal("base") or "")


@pytest.mark.parametrize("changes", [{"inputs": []}, {"counts": None, "wall_seconds": None}, {"settings": None}])
def test_an_odd_record_is_no_crash(made: Path, changes: dict[str, Any]) -> None:
    change_record(made, 20, **changes)
    found = finished(made, {"protected_device_hours": 0.1}, learning_rate=0.002)
    assert (
        found.find_refusal("base")
        and found.kept_tokens_hash("base", 20) is None
        and found.describe_changed_tokens("base", 20) is None
    )


def test_a_milestone_that_is_not_there_as_its_record_says_is_none(made: Path) -> None:
    (made / "small/models/base/milestones/60/model.safetensors").write_bytes(b"less")
    found = finished(made, {"protected_device_hours": 0.5})
    assert (
        found.kept_versions("base", 20)
        and found.kept_versions("base", 60) is None
        and found.find_refusal("base") is None
    )  # the last is made anew
    (made / "small/provenance/records/pretrain.segment.base.20.json").write_text('{"outputs": 3')
    found = finished(made, {"protected_device_hours": 0.5})
    assert found.kept_versions("base", 20) is None
    sentence = "the milestone of step 20 is not there as its record says, and to make it anew would throw away what was"
    assert sentence in (found.find_refusal("base") or "") and "up to step 40: put it back" in (
        found.find_refusal("base") or ""
    )


def test_on_other_tokens_it_stays_and_is_told_what_was_read(made: Path) -> None:
    found = finished(made)
    assert found.describe_changed_tokens("base", 20) is None
    (made / "small/tokenizer/main/tokenizer.json").write_text("another")
    sentence = found.describe_changed_tokens("base", 20) or ""
    assert sentence.startswith(
        "models.base was trained for 3 device hours on another tokenizer/main/tokenizer.json than"
    )
    assert "stays as it was made" in sentence and "retrain: [base]" in sentence
    assert finished(made, {"retrain": ["base"]}).describe_changed_tokens("base", 20) is None
    assert found.describe_changed_tokens("base", 80) is None  # which is still to be done


def test_a_job_of_what_stays_has_the_hash_of_the_tokens_that_it_read(
    made: Path,
) -> None:
    today = Dag(configured(made)).tokens_hash("base")
    assert today and finished(made).kept_tokens_hash("base", 20) == today
    (made / "small/tokens/main/index.json").write_text("another")
    assert finished(made).kept_tokens_hash("base", 20) == today != Dag(configured(made)).tokens_hash("base")
    assert finished(made).kept_tokens_hash("base", 80) is None


def test_the_job_of_a_segment_is_told_on_what_those_before_it_were_trained(made: Path) -> None:
    found = finished(made, steps=80)
    told = {"index_sha256": SHA256["0"]}
    assert [found.earlier_tokens_hash("base", step) for step in (20, 40, 80)] == [{}, told, told]
    assert finished(made, {"retrain": ["base"]}, steps=80).earlier_tokens_hash("base", 80) == {}


def test_settings_of_another_version_are_not_guessed(made: Path) -> None:
    path = made / "small/provenance/records/pretrain.segment.base.20.json"
    record = json.loads(path.read_text())
    record["settings"]["training"]["momentum"] = 0.9
    path.write_text(json.dumps(record))
    assert "training.momentum, which this version of Polder does not take" in (
        finished(made).find_refusal("base") or ""
    )


def test_a_milestone_that_is_none_of_todays_is_not_done_again(made: Path) -> None:
    # Longer, with the last milestone alone: what the three milestones hold would be done again.
    sentence = finished(made, steps=100, milestone_every=None).find_refusal("base") or ""
    assert "the milestone of step 20, of 1 device hours, is none of today's" in sentence and "up to 100" in sentence
    assert finished(made, {"retrain": ["base"]}, steps=100, milestone_every=None).find_refusal("base") is None
    # Where what is planned is there, nothing is done again.
    assert finished(made, milestone_every=40, steps=40).find_refusal("base") is not None  # its last steps decay
    assert (
        finished(made, milestone_every=60).find_refusal("base") is not None
    )  # from another milestone than it was made


def test_another_name_of_what_was_read_is_told(made: Path) -> None:
    record = made / "small/provenance/records/pretrain.segment.base.20.json"
    record.write_text(record.read_text().replace("tokens/main/index.json", "tokens/text/index.json"))
    sentence = finished(made).find_refusal("base") or ""
    assert "tokens/text/index.json, which it read, is called tokens/main/index.json now" in sentence


def test_a_milestone_made_anew_is_told_of_those_that_went_on_from_the_old_one(made: Path) -> None:
    state = "models/base/milestones/20/state.json"
    (made / f"small/{state}").write_text("new")
    weights = {"path": "models/base/milestones/20/model.safetensors", "bytes": 7, "sha256": "weights"}
    outputs = [weights, {"path": state, "bytes": 3, "sha256": "new"}]
    change_record(made, 20, outputs=outputs)
    inputs = json.loads((made / "small/provenance/records/pretrain.segment.base.40.json").read_text())["inputs"]
    change_record(made, 40, inputs=[*inputs, {"name": "previous", "path": state, "sha256": "new"}])
    assert finished(made).find_refusal("base") is None
    change_record(made, 40, inputs=[*inputs, {"name": "previous", "path": state, "sha256": "old"}])
    assert "the milestone of step 20, which it goes on from, was made anew" in (
        finished(made).find_refusal("base") or ""
    )


def test_what_did_not_reach_its_end_is_not_finished(made: Path) -> None:
    outcome = {"status": "out of memory", "reason": "too much"}
    change_record(made, 60, counts={"world_size": 2, "outcome": outcome})
    assert finished(made, {"protected_device_hours": 1}).kept_versions("base", 60) is None


def test_the_name_of_an_experiment_stands_for_its_cells(made: Path) -> None:
    config = configured(made, {"retrain": ["rates"]}, vary=[0.001, 0.003])
    assert FinishedTraining(config, lambda *_: PLANNED)._retrained_models() > {*config.cell_model_names()}


def test_a_record_that_is_protected_is_not_forgotten(made: Path) -> None:
    found = finished(made, learning_rate=0.002)
    assert found.is_protected("pretrain.segment.base.20.json") and not found.is_protected(
        "pretrain.segment.base.80.json"
    )


def test_only_models_of_the_run_can_be_trained_again(made: Path) -> None:
    with pytest.raises(Exception, match=r"run.retrain: there is no model 'bas'; choose of base"):
        configured(made, {"retrain": ["bas"]})


def import_model(results: Path, folder: str) -> None:
    """Have the first segment begun with another model's weights, which is milestone 0."""
    run = results / "small"
    weights = run / "models/base/milestones/0/state.json"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    first = json.loads((run / "provenance/records/pretrain.segment.base.20.json").read_text())
    described = {"path": "models/base/milestones/0/state.json", "sha256": "0" * 64}
    record = {**first, "settings": {"folder": folder}, "outputs": entries([{**described, "bytes": 7}])}
    (run / "provenance/records/pretrain.adopt.base.json").write_text(json.dumps(record))
    change_record(results, 20, inputs=[*first["inputs"], {**described, "name": "previous"}])


def test_a_training_goes_on_with_what_it_began_with(made: Path) -> None:
    import_model(made, "models/large")
    found = finished(made, pretrained="models/large")
    assert found.find_refusal("base") is None and found.kept_versions("base", 20)
    assert (found.kept_import_versions("base") or PLANNED)[1:] == ("code-of-then", "environment-of-then")
    assert json.loads((found.kept_import_versions("base") or PLANNED)[0]) == {"folder": "models/large"}
    again = finished(made, {"retrain": ["base"]}, pretrained="models/large")
    assert again.kept_import_versions("base") is None, "with the training what it began with is made anew"


@pytest.mark.parametrize(
    ("before", "today", "told"),
    [
        ("models/large", "models/other", "it began with models/large, and pretrained is models/other now"),
        ("models/large", None, "it began with models/large, and pretrained is nothing now"),
        (None, "models/large", "it began with weights that were drawn, and pretrained is models/large now"),
    ],
)
def test_another_beginning_throws_the_training_away(
    before: str | None, today: str | None, told: str, made: Path
) -> None:
    if before:
        import_model(made, before)
    refused = finished(made, pretrained=today).find_refusal("base")
    assert refused and told in refused


def test_a_model_that_was_changed_after_a_training_began_with_it_is_told(
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

    def told() -> list[str]:
        return [
            sentence
            for sentence in finished(made, pretrained="models/large").describe_kept_models()
            if "though" in sentence
        ]

    assert told() == []
    os.utime(weights, (soon.timestamp() + 1, soon.timestamp() + 1))
    assert told() == [
        f"models.base stays as it was made, though {weights}, which it began with, was changed since; "
        "run: {retrain: [base]} trains it again"
    ]
    os.utime(weights, (1, 1))
    weights.write_bytes(b"other weights")
    os.utime(weights, (1, 1))
    assert len(told()) == 1, "of another size, though it is old"


def test_a_beginning_that_is_lost_is_not_made_anew_unasked(made: Path) -> None:
    import_model(made, "models/large")
    (made / "small/models/base/milestones/0/state.json").unlink()
    refused = finished(made, pretrained="models/large").find_refusal("base")
    assert refused and "the milestone of step 0 is not there as its record says" in refused
    assert finished(made, {"retrain": ["base"]}, pretrained="models/large").find_refusal("base") is None


def test_a_beginning_that_was_made_anew_is_told(made: Path) -> None:
    import_model(made, "models/large")
    path = made / "small/provenance/records/pretrain.adopt.base.json"
    record = json.loads(path.read_text())
    record["outputs"][0]["sha256"] = "1" * 64
    path.write_text(json.dumps(record))
    refused = finished(made, pretrained="models/large").find_refusal("base")
    assert refused and "the milestone of step 0, which it goes on from, was made anew since" in refused
