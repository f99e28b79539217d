"""Metrics and TensorBoard: their content, without duplicates."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS, ListSessionGroupsRequest
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler as ListHandler

from pipeline.core.errors import InputError
from pipeline.pretrain import export
from pipeline.pretrain.monitors.held_out_document_losses import read_document_losses
from pipeline.pretrain.monitors.metrics import read_metrics, truncate_metrics
from pipeline.pretrain.settings import ExportSettings


def milestone(folder: Path, first: int, last: int) -> Path:
    (folder / "huggingface").mkdir(parents=True)
    (folder / "huggingface/config.json").write_text(json.dumps({"step": last}))
    (folder / "state.json").write_text(json.dumps({"step": last}))
    steps = [{"step": s, "loss": 5.0 - s / 10, "seconds": 0.5, "other": None} for s in range(first, last + 1)]
    lines = [*steps, {"step": last, "validation_loss": 4.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def run(
    folder: Path, milestones: list[Path], first_step: int = 0, **hyperparameters: bool | float | str
) -> dict[str, object]:
    folder.mkdir(parents=True)
    outputs = {name: folder / name for name in ("final", "metrics", "document_losses", "tensorboard")}
    settings = ExportSettings(hyperparameters=hyperparameters, first_step=first_step)
    return export.run(settings, milestones=milestones, **outputs)


def test_segments_are_joined_in_order_and_plotted(tmp_path: Path) -> None:
    milestones = [milestone(tmp_path / "10", 6, 10), milestone(tmp_path / "5", 1, 5)]
    counts = run(tmp_path / "out", milestones)
    assert counts == {"steps": 10, "milestones": 2, "loss": 4.0}
    assert json.loads((tmp_path / "out/final/config.json").read_text()) == {"step": 10}
    lines = read_metrics(tmp_path / "out/metrics")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10]
    board = EventAccumulator(str(tmp_path / "out/tensorboard"))
    board.Reload()
    assert [(e.step, e.wall_time) for e in board.Scalars("loss")] == [(s, s / 2) for s in range(1, 11)]
    assert [e.value for e in board.Scalars("validation_loss")] == [4.0, 4.0]


def test_document_losses_are_those_of_the_last_milestone_and_not_metrics(tmp_path: Path) -> None:
    milestones = [milestone(tmp_path / "10", 6, 10), milestone(tmp_path / "5", 1, 5)]
    table = {"id_hash": [2**64 - 1], "source": ["laws"], "bytes": [30], "tokens": [10], "nats": [12.5]}
    for step, nats in ((5, 20.0), (10, 12.5)):
        run(tmp_path / f"before-{step}", milestones)
        assert len(read_document_losses(tmp_path / f"before-{step}/document_losses")) == 0, "of no other validation"
        with (tmp_path / f"{step}/metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "document_losses": table | {"nats": [nats]}}) + "\n")
    run(tmp_path / "out", milestones)
    assert read_document_losses(tmp_path / "out/document_losses").to_pydict() == table
    assert (tmp_path / "out/metrics").read_bytes() == (tmp_path / "before-5/metrics").read_bytes()


def test_plots_are_reproducible(tmp_path: Path) -> None:
    milestones = [milestone(tmp_path / "5", 1, 5)]
    for name, order in (("a", range(50)), ("b", reversed(range(50)))):
        run(tmp_path / name, milestones, **{f"layer{number}": number for number in order})
    (first,), (second,) = (list((tmp_path / name / "tensorboard").iterdir()) for name in ("a", "b"))
    assert (first.name, first.read_bytes()) == (second.name, second.read_bytes())


def test_gap_between_segments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not hold every step exactly once"):
        run(tmp_path / "out", [milestone(tmp_path / "a", 1, 4), milestone(tmp_path / "b", 6, 10)])


def test_branch_has_the_steps_after_its_start(tmp_path: Path) -> None:
    milestones = [milestone(tmp_path / "6", 5, 6), milestone(tmp_path / "8", 7, 8)]
    assert run(tmp_path / "out", milestones, first_step=4)["steps"] == 4
    with pytest.raises(InputError, match="does not hold every step exactly once"):
        run(tmp_path / "other", milestones)


def test_truncation_drops_later_steps_and_a_partial_line(tmp_path: Path) -> None:
    path = milestone(tmp_path / "m", 1, 9) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 10, "lo')
    truncate_metrics(path, 9)
    assert [line["step"] for line in read_metrics(path)] == [*range(1, 10), 9]
    truncate_metrics(path, 4)
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4]
    truncate_metrics(tmp_path / "m/none.jsonl", 0)
    assert read_metrics(tmp_path / "m/none.jsonl") == []


def test_tensorboard_compares_models_by_hyperparameters(tmp_path: Path) -> None:
    """As in TensorBoard's own tab: a trial each, also for models that differ only in their tokens."""
    one, other = (milestone(tmp_path / name, 1, 5) for name in ("m1", "m2"))
    path = other / "metrics.jsonl"
    path.write_text(path.read_text().replace('"loss": 4.5', '"loss": 3.5'))
    shared = {"training.batch_size": 8, "architecture.tie_embeddings": True}
    run(tmp_path / "models/a", [one], **shared, **{"training.learning_rate": 0.01, "training.schedule": "wsd"})
    run(tmp_path / "models/b", [one], **shared, **{"training.learning_rate": 0.02, "training.schedule": "wsd"})
    run(tmp_path / "models/c", [other], **shared, **{"training.learning_rate": 0.02, "training.schedule": "cosine"})
    run(tmp_path / "models/d", [other], **shared, **{"training.learning_rate": 0.02, "training.schedule": "wsd"})
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "models"))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(tmp_path / "models"))
    board = Context(TBContext(data_provider=provider, logdir=str(tmp_path / "models")))
    read = board.hparams_metadata(RequestContext(), "")
    experiment = board.experiment_from_metadata(RequestContext(), "", True, read, [])
    assert {result.name for result in experiment.hparam_infos} >= {"training.learning_rate", "training.schedule"}
    assert "loss" in {result.name.tag for result in experiment.metric_infos}
    request = ListSessionGroupsRequest(start_index=0, slice_size=10, allowed_statuses=[STATUS_SUCCESS])
    groups = ListHandler(RequestContext(), board, "", request).run().session_groups
    assert len(groups) == 4
    hyperparameters = {
        (group.hparams["training.learning_rate"].number_value, group.hparams["training.schedule"].string_value)
        for group in groups
    }
    assert hyperparameters == {(0.01, "wsd"), (0.02, "wsd"), (0.02, "cosine")}
    assert all(group.hparams["architecture.tie_embeddings"].bool_value for group in groups)
