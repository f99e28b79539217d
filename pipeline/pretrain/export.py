"""Run the step `pretrain export`: the last weights of a model, its losses by document, and the joined metrics."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.pretrain import failed_training_milestone
from pipeline.pretrain.monitors.held_out_document_losses import DOCUMENTS, write_document_losses
from pipeline.pretrain.monitors.metrics import TensorBoardWriter, read_metrics
from pipeline.pretrain.settings import ExportSettings


def run(
    settings: ExportSettings,
    *,
    milestones: list[Path],
    final: Path,
    metrics: Path,
    document_losses: Path,
    tensorboard: Path,
) -> dict[str, Any]:
    """Copy the last milestone's model, join the milestones' metrics and chart them; return steps and last losses.

    The losses by document are those of the validation at the last milestone; there are none without such a validation,
    and in a milestone of an earlier version. The charts hold the hyperparameters for TensorBoard's tab HPARAMS. A cell
    that did not reach its last step has no model: `final` holds its outcome.
    """
    ordered = []
    for folder in milestones:
        if outcome := failed_training_milestone.read_failure(folder):
            ordered.append((outcome.step, folder))
            continue
        try:
            state = json.loads((folder / layout.CHECKPOINT_STATE).read_text(encoding="utf-8"))
            ordered.append((int(state["step"]), folder))
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{folder} is no milestone ({error!r}): remove it, and the run trains it again") from None
    ordered.sort()
    lines = [line for _, folder in ordered for line in read_metrics(folder / layout.METRICS_FILE)]
    steps = [line for line in lines if "loss" in line]
    ended = failed_training_milestone.read_failure(ordered[-1][1])
    last_step = ended.reached_step if ended else ordered[-1][0]
    if [line["step"] for line in steps] != list(range(settings.first_step + 1, last_step + 1)):
        folder = milestones[0].parent
        raise InputError(f"{folder} does not hold every step exactly once: remove it, and the run trains them again")
    tables = {line["step"]: line[DOCUMENTS] for line in lines if DOCUMENTS in line}
    lines = [line for line in lines if DOCUMENTS not in line]
    write_document_losses(document_losses, tables.get(last_step))
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    writer = TensorBoardWriter(tensorboard)
    writer.add_summary(_make_hparams_summary(settings, [line["loss"] for line in steps]))
    writer.add(lines)
    end = HParamsPluginData(session_end_info=SessionEndInfo(status=STATUS_FAILURE if ended else STATUS_SUCCESS))
    writer.add_summary(_make_plugin_summary(hparams.SESSION_END_INFO_TAG, end))
    writer.close()
    if ended:
        final.mkdir()
        shutil.copyfile(
            ordered[-1][1] / failed_training_milestone.OUTCOME_FILE, final / failed_training_milestone.OUTCOME_FILE
        )
        print(f"{ended.status} after {len(steps)} steps", flush=True)
    else:
        shutil.copytree(ordered[-1][1] / layout.CHECKPOINT_MODEL, final)
        print(f"{len(steps)} steps, loss {steps[-1]['loss']:.4f}", flush=True)
    counts = {"steps": len(steps), "milestones": len(ordered), "loss": steps[-1]["loss"] if steps else None}
    return counts | ({"outcome": ended._asdict()} if ended else {})


def _make_hparams_summary(settings: ExportSettings, losses: list[float]) -> Summary:
    """Return the hyperparameters for TensorBoard; the group name also depends on the losses, so that models differ."""
    trial = json.dumps([settings.hyperparameters, losses], sort_keys=True)
    start = SessionStartInfo(group_name=hashlib.sha256(trial.encode()).hexdigest()[:16])
    for name, value in settings.hyperparameters.items():
        kind = "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
        setattr(start.hparams[name], f"{kind}_value", value)
    return _make_plugin_summary(hparams.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start))


def _make_plugin_summary(tag: str, content: HParamsPluginData) -> Summary:
    content.version = hparams.PLUGIN_DATA_VERSION
    serialized = content.SerializeToString(deterministic=True)  # otherwise the order of names varies
    data = SummaryMetadata.PluginData(plugin_name=hparams.PLUGIN_NAME, content=serialized)
    value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=data), tensor=hparams.NULL_TENSOR)
    return Summary(value=[value])
