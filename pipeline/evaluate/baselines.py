"""The step `evaluate baselines`: another model answers the same items, for comparison.

The baseline is a folder in the layout of Hugging Face, such as the pretrained model that a training began with, or a
model of the run with its initial random weights.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.full_disk_errors import remove_path
from pipeline.core.output_lease import Lease
from pipeline.evaluate.item_results import write_items
from pipeline.evaluate.settings import BaselineSettings
from pipeline.evaluate.suites import (
    answer_suites,
    open_finished_tasks,
    prepare_process,
    write_failed_cell_results,
    write_results,
)
from pipeline.model.huggingface import read_architecture, read_end_token_ids, save_pretrained
from pipeline.model.networks import initial_state
from pipeline.pretrain import failed_training_milestone


def run(
    settings: BaselineSettings,
    *,
    model: list[Path],
    tasks: list[Path],
    results: Path,
    answers: Path,
    scratch: Path | None = None,
    versions: list[str] | None = None,
    owner: Lease | None = None,
    platform: str | None = None,
) -> dict[str, Any]:
    """Write the answers of the baseline; return the number of tasks and of examples.

    Args:
        settings: the suites of the models that are compared with it.
        model: the files of a model's folder; for an untrained model a milestone with its shape and tokenizer.
        tasks: every file that the suites read.
        results: the file of its scores.
        answers: the file of its answers.
        scratch, versions, owner: as in `evaluate suites`.
        platform: the name of a file of workflow/platforms, whose variables are set.

    Raises:
        InputError: as in `evaluate suites`.
    """
    if settings.untrained_seed is not None and (ended := failed_training_milestone.read_failure(model[0])):
        return write_failed_cell_results(settings.name, None, ended, results, answers)
    prepare_process(platform, settings.seed, deterministic=settings.deterministic)
    from pipeline.evaluate.lm_eval_model import load_model
    from pipeline.model.compilation_and_precision import is_deterministic

    if owner and scratch:
        owner.afterwards = partial(remove_path, scratch)
    with tempfile.TemporaryDirectory() as temporary:
        folder = next((file.parent for file in model if file.name == "config.json"), model[0] / layout.CHECKPOINT_MODEL)
        if settings.untrained_seed is not None:
            folder = Path(temporary) / "untrained"
            _write_untrained(model[0] / layout.CHECKPOINT_MODEL, settings.untrained_seed, folder)
        scorer = load_model(folder, settings.batch_size)
        collected = answer_suites(
            settings, scorer, tasks, open_finished_tasks(settings, scorer, folder, scratch, versions)
        )
    write_items(answers, collected.measured)
    return {**write_results(results, settings.name, None, collected), "deterministic": is_deterministic()}


def _write_untrained(trained: Path, seed: int, folder: Path) -> None:
    """Write a model with the shape of a trained one and initial weights from a seed."""
    architecture, vocabulary_size, sequence_length = read_architecture(trained)
    names = ("tokenizer.json", "tokenizer_config.json")
    if missing := [name for name in names if not (trained / name).is_file()]:
        raise InputError(f"{trained} has no {missing[0]}: remove the milestone, so that it is trained again")
    save_pretrained(
        initial_state(architecture, vocabulary_size, seed),
        architecture,
        vocabulary_size,
        sequence_length,
        tokenizer=trained / names[0],
        tokenizer_configuration=trained / names[1],
        folder=folder,
        ends=read_end_token_ids(trained),
    )
