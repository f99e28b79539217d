"""Run the step `pretrain segment`: train a model from one milestone to the next on the processes of the launch command.

An interrupted segment continues from its newest recovery checkpoint. With the same number of processes, it gives the
same bytes as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core.errors import Diverged, InputError, OutOfMemory
from pipeline.core.output_lease import Lease
from pipeline.layout import CHECKPOINT_STATE, METRICS_FILE
from pipeline.model.size_and_cost import active_parameter_count, parameter_count
from pipeline.plan.sharding_strategy_definitions import STRATEGIES
from pipeline.pretrain import failed_training_milestone
from pipeline.pretrain.checkpoints import recovery
from pipeline.pretrain.monitors import metrics
from pipeline.pretrain.parallel import process_layout
from pipeline.pretrain.processes import supervisor
from pipeline.pretrain.processes.launch_command import (
    count_processes,
    count_processes_per_node,
    launcher_name,
    set_platform_variables,
)
from pipeline.pretrain.settings import SegmentSettings, Training
from pipeline.tokens.memory_mapped_shards import copy_to_node
from pipeline.tokens.ngram_models import NgramModels
from pipeline.tokens.sampler import Sampler, count_total_tokens_seen
from pipeline.tokens.token_reader import TokenReader, check_altered_shards
from pipeline.tokens.validation_reader import ValidationSet

# Modules that monitor a training, clean up after it, or keep it alive, and do not affect the model.
WATCHING = (
    "pipeline.energy",
    "pipeline.pretrain.monitors",
    "pipeline.pretrain.validation",
    "pipeline.tokens.validation_reader",
    "pipeline.tokens.ngram_models",
    "pipeline.pretrain.checkpoints.recovery.prune",
    "pipeline.pretrain.checkpoints.recovery.remove_recovery_checkpoints",
    "pipeline.core.output_lease",
    "pipeline.core.lock_owner",
    "pipeline.core.full_disk_errors",
)


def run(
    settings: SegmentSettings,
    *,
    index: Path,
    tokenizer: Path,
    configuration: Path,
    previous: list[Path],
    milestone: Path,
    scratch: Path,
    launch: str | None,
    recovery_folder: Path | None = None,
    owner: Lease | None = None,
    staging: Path | None = None,
    platform: str | None = None,
) -> dict[str, Any]:
    """Train from `first_step` to `last_step` and write the milestone; return steps, tokens, loss, speed and so on.

    Where the settings record outcomes, a training that runs out of memory or diverges has that as its result: the
    milestone holds the outcome instead of weights, and later segments copy it.

    Args:
        recovery_folder: the folder of recovery checkpoints of a segment without any; default: below `scratch`.
        owner: the lease of the scratch, claimed here and checked before the outputs get their names.
        staging: a folder on each node for a copy of the tokens, and for an optimizer state on disk.
        platform: a file of workflow/platforms with environment variables for the training.

    Raises:
        InputError: the settings do not fit the tokens, the processes or the previous milestone; nothing was trained.
        Superseded: a later start of this segment owns the scratch.
        DiskFull: a disk is full; the segment continues when there is space.
        OutOfMemory: the training does not fit into memory.
        Diverged: there were too many bad batches, or rewinds.
        RuntimeError: the training failed.
        Stopped: a signal stopped it after a recovery checkpoint.
    """
    if ended := failed_training_milestone.read_failure(previous[0]) if previous else None:
        print(f"not trained: {ended.status} after step {ended.reached_step}", flush=True)
        return _write_failed_milestone(settings, milestone, ended, [])
    processes = count_processes(launch)
    per_node = count_processes_per_node(launch)
    set_platform_variables(platform)
    vocabulary_size = _check_inputs(settings, index, tokenizer, previous)
    process_layout.check_mesh_divides_model(
        settings.training, settings.architecture, vocabulary_size, processes, per_node
    )
    if not staging and STRATEGIES[settings.training.strategy].optimizer_on_disk:
        raise InputError(f"strategy {settings.training.strategy} {process_layout.NO_NODE_DISK}")
    if staging:
        copy_to_node(index, staging)  # refuses what does not fit before anything starts
    elif not scratch.exists():  # a segment that continues has checked it before
        check_altered_shards(index)
    owner = owner or Lease(scratch)
    owner.claim()
    owner.afterwards = partial(recovery.remove_recovery_checkpoints, scratch, settings.training.keep_every)
    identity = recovery.training_identity(settings, index, previous[0] if previous else None)
    paths = {"index": index, "tokenizer": tokenizer, "configuration": configuration, "milestone": milestone}
    paths |= {"scratch": scratch, "recovery": recovery.choose_recovery_folder(scratch, recovery_folder)}
    paths |= {"previous": previous[0]} if previous else {}
    paths |= {"staging": staging} if staging else {}
    arguments = supervisor.WorkerArguments(
        settings=settings,
        paths={name: path.absolute() for name, path in paths.items()},
        identity=identity,
        launcher=launcher_name(launch),
        platform=platform,
        world_size=processes,
    )
    try:
        result = supervisor.supervise_training(arguments, owner, launch)
    except (OutOfMemory, Diverged) as error:
        if not settings.records_outcome:
            raise
        reached = metrics.find_last_step(scratch / METRICS_FILE, settings.first_step)
        lines = metrics.read_metrics(scratch / METRICS_FILE)
        ended = failed_training_milestone.TrainingFailure(
            failed_training_milestone.OUTCOME_STATUS[type(error)], str(error), reached, settings.last_step
        )
        print(f"{ended.status} after step {reached}: {error}", flush=True)
        return {**_write_failed_milestone(settings, milestone, ended, lines), "world_size": processes}
    return {
        **_summarize_training(settings, milestone, processes, vocabulary_size, result),
        "validation": _describe_validation_set(settings.training, index),
        **result.machine,
    }


def _write_failed_milestone(
    settings: SegmentSettings,
    milestone: Path,
    ended: failed_training_milestone.TrainingFailure,
    lines: list[dict[str, Any]],
) -> dict[str, Any]:
    done = [line for line in lines if "loss" in line]
    before = settings.training.batch_schedule.count_tokens(0, settings.first_step if done else ended.reached_step)
    seen = done[-1]["tokens_seen"] if done else before
    ended = ended._replace(step=settings.last_step)
    return {
        "outcome": failed_training_milestone.write_failure(milestone, ended, lines),
        "steps": len(done),
        "first_step": settings.first_step,
        "last_step": settings.last_step,
        "tokens": seen - before,
        "tokens_seen": seen,
    }


def _check_inputs(settings: SegmentSettings, index: Path, tokenizer: Path, previous: list[Path]) -> int:
    """Check tokens, tokenizer and previous milestone before anything starts; return the vocabulary size."""
    training = settings.training
    reader = TokenReader(index, "train")
    shape = (training.sequence_length, training.batch_size, settings.seed, training.sampling, training.steps)
    Sampler(reader, *shape, ramp=training.ramp)
    _print_validation_cost(training, index)
    if hashlib.sha256(tokenizer.read_bytes()).hexdigest() != reader.tokenizer_sha256:
        raise InputError(f"{index} was built with another tokenizer than {tokenizer}: build the tokens again")
    if settings.index_sha256 not in (None, hashlib.sha256(index.read_bytes()).hexdigest()):
        raise InputError(
            f"{index} differs from the tokens that this model was trained on up to step {settings.first_step}: undo "
            "the change, give the new tokens their own name and continue in a branch (start), or train the model again "
            "(run: {retrain: [MODEL]})"
        )
    if settings.first_step >= settings.last_step:
        raise InputError(f"last_step {settings.last_step} is not after first_step {settings.first_step}")
    if (settings.first_step and not previous) or len(previous) > 1:
        raise InputError(f"first_step {settings.first_step} needs one milestone as previous, not {len(previous)}")
    for folder in previous:
        try:
            state = json.loads((folder / CHECKPOINT_STATE).read_text(encoding="utf-8"))
            step, _ = state["step"], state["tensors"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder} is no milestone ({error!r}): remove it, and the run trains it again") from None
        if step != settings.first_step:
            raise InputError(f"{folder} is of step {step}, not {settings.first_step}: give the previous milestone")
    return reader.vocabulary_size


def _describe_validation_set(training: Training, index: Path) -> dict[str, Any] | None:
    """Return the size of a validation, and the losses of a unigram and a bigram model on it; None without validation.

    These baselines are counted in `counted_tokens` of the `of_training_tokens`.
    """
    if not training.validation_every:
        return None
    held_out, models = ValidationSet(index, training.validation_tokens), NgramModels(index)
    losses = models.compute_mean_losses(held_out.iterate_predicted_pairs())
    return {
        **held_out.summarize_counts(),
        "unigram_loss": losses.unigram,
        "bigram_loss": losses.bigram,
        "counted_tokens": models.tokens,
        "of_training_tokens": models.training_tokens,
    }


def _print_validation_cost(training: Training, index: Path) -> None:
    """Print the size and the cost of a validation; a forward pass is a third of a training step's arithmetic."""
    if training.validation_every:
        seen = ValidationSet(index, training.validation_tokens).summarize_counts()
        trained = training.validation_every * training.batch_size * training.sequence_length
        print(
            f"a validation every {training.validation_every} steps sees {seen['tokens']:,} of {seen['of_tokens']:,} "
            f"held-out tokens and adds {seen['tokens'] / (3 * trained):.1%} to their arithmetic; "
            "training.validation_tokens reduces it",
            flush=True,
        )


def _summarize_training(
    settings: SegmentSettings,
    milestone: Path,
    processes: int,
    vocabulary_size: int,
    result: supervisor.SupervisedTraining,
) -> dict[str, Any]:
    lines = metrics.read_metrics(milestone / METRICS_FILE)
    steps = [line for line in lines if "loss" in line]
    validations = [line["validation_loss"] for line in lines if "validation_loss" in line]
    skips = [line for line in lines if "skipped_data_steps" in line]
    seconds = sum(line["seconds"] or 0.0 for line in steps)
    training = settings.training
    skipped = json.loads((milestone / CHECKPOINT_STATE).read_text(encoding="utf-8"))["skips"]
    before, seen = (
        count_total_tokens_seen(training.batch_schedule, step, skipped)
        for step in (settings.first_step, settings.last_step)
    )
    known = [line for line in steps if line["model_flops_utilization"] is not None]
    utilization = [line["model_flops_utilization"] * (line["seconds"] or 0.0) for line in known]
    experts = settings.architecture.experts
    return {
        "steps": len(steps),
        "first_step": settings.first_step,
        "last_step": settings.last_step,
        "resumed_from": result.resumed_from,
        "resumed_layout": result.resumed_layout,
        "restarts": len(result.restarts),
        "restart_reasons": result.restarts,
        "failed_checkpoints": result.failed_checkpoints,
        "skipped_data_steps": [number for line in skips for number in line["skipped_data_steps"]],
        "skip_reasons": [line["reason"] for line in skips],
        "tokens": seen - before,
        "tokens_seen": seen,
        "parameters": parameter_count(settings.architecture, vocabulary_size),
        **({"active_parameters": active_parameter_count(settings.architecture, vocabulary_size)} if experts else {}),
        "loss": steps[-1]["loss"],
        "validation_loss": validations[-1] if validations else None,
        "world_size": processes,
        "tokens_per_second": (seen - before) / seconds,
        "model_flops_utilization": sum(utilization) / seconds if utilization else None,
    }
