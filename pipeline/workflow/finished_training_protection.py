"""Protect finished training from edits: decide which segments stay, and which changes concern finished steps.

The record of a milestone says what made it. If a model took many device hours, a change of the code, or of how steps
are computed, applies to later steps only. A change of finished steps (order of the data, shape, learning rate) is
refused until the configuration asks to train the model again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.batch_schedule import StepRange
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_command_lines import command_settings_digest
from pipeline.core.job_records import Attempt, FileEntry, Record, Versions, outputs_exist, read_job_files
from pipeline.core.settings import flatten_settings
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import learning_rate_factor
from pipeline.pretrain.learning_rate import learning_rate_at
from pipeline.pretrain.settings import EXECUTION_KEYS, SegmentSettings, Training

KEYS_OF_LATER_STEPS = EXECUTION_KEYS | {
    "precision",
    "gradient_reduction",
    "float8",
    "milestone_every",
    "stability",
}
"""Keys that may change at a milestone: they change steps by rounding only, or not at all."""
BATCH_SIZE_KEYS = ("batch_size", "ramp")
"""Keys that concern a step only by the number and the length of its sequences."""
SCHEDULE_KEYS = (
    "learning_rate",
    "minimum_learning_rate_fraction",
    "warmup_steps",
    "schedule",
    "decay_fraction",
    "steps",
)
"""Keys that concern a step only by its learning rate."""


def _learning_rates(training: Training, first: int, last: int) -> list[float]:
    return [learning_rate_at(training, step) for step in range(first + 1, last + 1)]


def _batch_sizes(training: Training, last: int) -> tuple[list[StepRange], int]:
    """Return the batch sizes of the finished steps, and the smallest batch, by which the sampler makes streams."""
    return training.batch_schedule.step_ranges(0, last), min(training.batch_schedule.batch_sizes)


def _mixtures(training: Training, last: int) -> list[tuple[int, dict[str, Any]]]:
    return [
        (start, mixture.model_dump(include={"by", "weights", "epochs"}))
        for start, mixture in training.sampling.mixtures(training.steps)
        if start < last
    ]


def _output_learning_rate_factor(architecture: Architecture) -> float:
    return learning_rate_factor("output.weight", 2, architecture)


def _token_stream_keys(training: Training) -> dict[str, Any]:
    """Return the keys that divide the tokens into streams, each with its own order (`pipeline.tokens.sampler`)."""
    stream_keys: dict[str, Any] = {}
    for _, mixture in training.sampling.mixtures(training.steps):
        if mixture.weights or stream_keys.get(mixture.by) == "all":
            stream_keys[mixture.by] = "all"
        elif mixture.epochs:
            stream_keys[mixture.by] = stream_keys.get(mixture.by, frozenset()) | mixture.epochs.keys()
    return stream_keys


def _format_value(written: dict[str, Any], settings: SegmentSettings, key: str) -> str:
    value: Any = written.get(key, settings)
    for name in () if key in written else key.split("."):
        value = getattr(value, name, None)
    return json.dumps(value)


def list_finished_step_changes(made: SegmentSettings, today: SegmentSettings) -> list[str]:
    """Return the settings of finished steps that differ today, each with both values.

    A schedule or a mixture counts by its values in these steps, not by its keys.
    """
    before, now = (dict(flatten_settings(settings.result_settings())) for settings in (made, today))
    differing = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]

    def ignore_keys(*names: str) -> None:
        whole = tuple(f"training.{name}." for name in names)
        differing[:] = [key for key in differing if not f"{key}.".startswith(whole)]

    ignore_keys(*KEYS_OF_LATER_STEPS)
    first, last = made.first_step, made.last_step
    if differing and _learning_rates(made.training, first, last) == _learning_rates(today.training, first, last):
        ignore_keys(*SCHEDULE_KEYS)
    if differing and _batch_sizes(made.training, last) == _batch_sizes(today.training, last):
        ignore_keys(*BATCH_SIZE_KEYS)
    same = _mixtures(made.training, last) == _mixtures(today.training, last)
    if differing and same and _token_stream_keys(made.training) == _token_stream_keys(today.training):
        ignore_keys("sampling.phases")
    if _output_learning_rate_factor(made.architecture) == _output_learning_rate_factor(today.architecture):
        differing = [key for key in differing if key != "architecture.base_width"]
    names = {"first_step": "milestone_every: the milestone before it is of step"}
    both = ((key, _format_value(before, made, key), _format_value(now, today, key)) for key in differing)
    return [f"{names.get(key, key)} {then}, now {current}" for key, then, current in both]


TOKEN_INPUTS = ("index", "tokenizer", "configuration")


def hash_tokens(index_sha256: bytes, configuration_sha256: bytes) -> str:
    """Return one hash of a token set and its tokenizer."""
    return hashlib.sha256(index_sha256 + configuration_sha256).hexdigest()[:16]


class FinishedTraining:
    """The finished segments of models with at least as many device hours as the configuration protects.

    `planned` returns the versions of a job today, by step and instance.
    """

    def __init__(self, config: Config, planned: Callable[[str, dict[str, str]], Versions]) -> None:
        self.config = config
        self._planned = planned
        self._segment_records: dict[tuple[str, int], Record | None] = {}
        self._refusals: dict[str, str | None] = {}

    @cached_property
    def _records(self) -> dict[tuple[str, int], Record]:
        """The records of protected segments whose milestones are there, by model and step."""
        protected_records: dict[tuple[str, int], Record] = {}
        for model in self.config.models.keys() - self._retrained_models():
            records = {
                step: self._segment_record(model, step) for step in self.config.models[model].training.milestone_steps()
            }
            there = {(model, step): record for step, record in records.items() if record}
            hours = sum(self._segment_device_hours(*one, record) for one, record in there.items())
            if there and hours >= self.config.run.protected_device_hours:
                protected_records |= there
        return protected_records

    def _retrained_models(self) -> set[str]:
        """Return the models that may be trained again; the name of an experiment means all its cells."""
        pages = self.config.experiment_page_settings()
        named = {*self.config.run.retrain}
        return named | {cell.name for name in named & pages.keys() for cell in pages[name].cells}

    def _segment_record(self, model: str, step: int) -> Record | None:
        """Return the record of a segment with all its files; each record is read once."""
        if (model, step) not in self._segment_records:
            self._segment_records[model, step] = self._load_complete_record(model, step)
        return self._segment_records[model, step]

    def _load_complete_record(self, model: str, step: int) -> Record | None:
        run = self.config.run_directory
        import_record = layout.RECORD.path(run, job=f"pretrain.adopt.{model}")
        path = layout.SEGMENT_RECORD.path(run, model=model, step=step) if step else import_record
        try:
            record = Record.load(path)
        except InputError:  # missing or damaged
            return None
        is_whole = {*TOKEN_INPUTS} <= {entry.name for entry in record.inputs} and not record.counts.get("outcome")
        return record if is_whole and outputs_exist(run, record.outputs) else None

    @cached_property
    def _attempts(self) -> list[str]:
        folder = self.config.run_directory / layout.ATTEMPTS
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    def _segment_device_hours(self, model: str, step: int, record: Record) -> float:
        """Return the device hours of all attempts at a segment with these settings; of a reused one, of its source."""
        reused = record.taken_over_from and record.taken_over_from.attempt
        beginning = ".".join((reused or record.name).split(".")[:4]) + "."
        folder = self.config.run_directory / layout.ATTEMPTS
        attempts, _ = read_job_files(Attempt, [folder / name for name in self._attempts if name.startswith(beginning)])
        digest = command_settings_digest(record.command)
        seconds = sum(one.wall_seconds for one in attempts if command_settings_digest(one.command) == digest)
        return max(record.wall_seconds, seconds) * int(record.counts.get("world_size") or 1) / 3600

    @cached_property
    def _changes(self) -> dict[tuple[str, int], list[str]]:
        """The settings of finished steps that differ today, for each protected segment."""
        changes = {}
        for (model, step), record in self._records.items():
            today = self.config.segment_settings(model, step)
            try:
                made = SegmentSettings.model_validate(record.settings)
            except ValidationError as error:
                key = ".".join(map(str, error.errors()[0]["loc"]))
                changes[model, step] = [f"{key}, which this version of Polder does not take as it is recorded"]
            else:
                changes[model, step] = [
                    *list_finished_step_changes(made, today),
                    *self._describe_changed_inputs(model, step, record),
                ]
        return changes

    def _describe_changed_inputs(self, model: str, step: int, record: Record) -> Iterator[str]:
        """Yield the inputs of a segment that have another name today, and a milestone before it that has changed."""
        section = self.config.models[model]
        tokenizer = self.config.tokens[section.tokens].tokenizer
        today = {
            "index": layout.TOKEN_INDEX.relative_path(tokens=section.tokens),
            "tokenizer": layout.TOKENIZER.relative_path(tokenizer=tokenizer),
            "configuration": layout.TOKENIZER_CONFIGURATION.relative_path(tokenizer=tokenizer),
        }
        start = section.training.start
        is_first = section.training.segment_start(step) == section.training.first_step
        before = start.model if start and is_first else model
        if is_first and not start:
            yield from self._describe_changed_start(model, record)
        for entry in record.inputs:
            if entry.path != today.get(entry.name, entry.path):
                yield f"{entry.path}, which it read, is called {today[entry.name]} now"
            if entry.name == "previous" and entry.path.endswith(f"/{layout.CHECKPOINT_STATE}"):
                _, other, _, number, _ = entry.path.split("/")
                if other != before:
                    yield f"{layout.MODEL.relative_path(model=other)}, which it goes on from, is called {before} now"
                before_it = self._segment_record(other, int(number)) if other == model else None
                written = before_it.outputs if before_it else ()
                if any(one.path == entry.path and one.sha256 != entry.sha256 for one in written):
                    yield f"the milestone of step {number}, which it continues, was made again since"

    def _describe_changed_start(self, model: str, record: Record) -> Iterator[str]:
        pretrained = self.config.models[model].pretrained
        today = pretrained.folder if pretrained else None
        continues = any(entry.name == "previous" for entry in record.inputs)
        first = self._segment_record(model, 0)
        made = (first.settings.get("folder", today) if first else today) if continues else None
        if made != today:
            yield f"it began with {made or 'weights that were drawn'}, and pretrained is {today or 'nothing'} now"

    def kept_import_settings_and_versions(self, model: str) -> Versions | None:
        """Return the versions of the import of a pretrained model, as long as the first segment stays."""
        record = self._segment_record(model, 0)
        is_kept = record and self.kept_versions(model, self.config.models[model].training.milestone_steps()[0])
        return record.planned_settings_and_versions if record and is_kept else None

    def is_protected(self, record: str) -> bool:
        """Return whether the record of that name belongs to a protected segment."""
        return record in {f"{one.name}.json" for one in self._records.values()}

    def kept_versions(self, model: str, step: int) -> Versions | None:
        """Return the versions of a finished segment that stays; None of another one."""
        if self._changes.get((model, step), ["not protected"]):
            return None
        return self._records[model, step].planned_settings_and_versions

    def describe_kept_models(self) -> list[str]:
        """Return a sentence for each model with finished segments that would be made differently today."""
        others: dict[str, list[int]] = {}
        for (model, step), record in self._records.items():
            if (kept := self.kept_versions(model, step)) and kept != self._planned(record.step, record.instance):
                others.setdefault(model, []).append(step)
        return [
            f"models.{model}: what is done up to step {max(steps)} stays as it was made, and what follows is made with "
            f"the settings and code of today; run: {{retrain: [{model}]}} throws it away and trains it again"
            for model, steps in sorted(others.items())
        ] + [
            f"models.{model} stays as it was made, though {files[0]}, which it began with, was changed since; "
            f"run: {{retrain: [{model}]}} trains it again"
            for model in sorted({name for name, _ in self._records})
            if self.kept_import_settings_and_versions(model) and (files := self._changed_pretrained_files(model))
        ]

    def _changed_pretrained_files(self, model: str) -> list[Path]:
        """Return the files of the pretrained model that have another size, or are newer than the import."""
        record = self._segment_record(model, 0)
        if record is None:
            return []
        then, read = record.ended_seconds, [entry for entry in record.inputs if entry.name == "model"]
        sizes = {Path(entry.path.removeprefix("data:")).name: entry.bytes for entry in read}
        files = [Path(file) for file in self.config.pretrained_files(model)]
        return [file for file in files if sizes.get(file.name) != file.stat().st_size or file.stat().st_mtime > then]

    def find_refusal(self, model: str) -> str | None:
        """Return why the jobs of a model would discard finished training; None if they do not."""
        if model not in self._refusals:
            self._refusals[model] = (
                self._find_changed_setting(model)
                or self._find_unplanned_milestone(model)
                or self._find_missing_milestone(model)
            )
        return self._refusals[model]

    def _find_changed_setting(self, model: str) -> str | None:
        for (name, step), changes in sorted(self._changes.items()):
            if name == model and changes:
                return self._format_refusal(
                    model, step, changes[0] + (f" and {len(changes) - 1} more" * (len(changes) > 1))
                )
        return None

    def _find_unplanned_milestone(self, model: str) -> str | None:
        """Return a sentence if steps would be repeated because a finished milestone is not in today's plan."""
        training = self.config.models[model].training
        planned = training.milestone_steps()
        open_steps = [step for step in planned if self._segment_record(model, step) is None]
        for step in sorted(self._recorded_steps.get(model, set()) - {*planned}):
            again = [one for one in open_steps if training.segment_start(one) < step]
            record = self._segment_record(model, step) if again and model not in self._retrained_models() else None
            hours = self._segment_device_hours(model, step, record) if record else 0.0
            if record and hours >= self.config.run.protected_device_hours:
                return (
                    f"models.{model}: the milestone of step {step}, of {hours:,.3g} device hours, is none of today's, "
                    f"and its steps would be done again up to {again[0]}: write a milestone_every of which {step} is a "
                    f"multiple, or have the model trained again: run: {{retrain: [{model}]}}"
                )
        return None

    @cached_property
    def _recorded_steps(self) -> dict[str, set[int]]:
        steps_by_model: dict[str, set[int]] = {}
        for path in layout.SEGMENT_RECORD.glob(self.config.run_directory):
            model, step = path.name.split(".")[2:4]
            steps_by_model.setdefault(model, set()).add(int(step))
        return steps_by_model

    def _find_missing_milestone(self, model: str) -> str | None:
        """Return a sentence if a milestone is missing that a finished one was trained from."""
        last = max((step for name, step in self._records if name == model), default=0)
        section = self.config.models[model]
        is_imported = last and section.pretrained and self._segment_record(model, 0) is None
        for step in ([0] if is_imported else []) + section.training.milestone_steps():
            if step < last and (model, step) not in self._records:
                return (
                    f"models.{model}: the milestone of step {step} is not there as its record says, and to make it "
                    f"again would throw away what was trained from it, up to step {last}: put it back from a copy, or "
                    f"have the model trained again: run: {{retrain: [{model}]}}"
                )
        return None

    def kept_training_tokens_hash(self, model: str, step: int) -> str | None:
        """Return the `Dag.hash_training_tokens` of the inputs of a finished segment that stays; None of another one."""
        if self.kept_versions(model, step) is None:
            return None
        read = self._token_inputs(model, step)
        return hash_tokens(bytes.fromhex(read["index"].sha256), bytes.fromhex(read["configuration"].sha256))

    def describe_changed_tokens(self, model: str, step: int) -> str | None:
        """Return a sentence if a finished segment stays although the tokens have changed."""
        if self.kept_versions(model, step) is None:
            return None
        for entry in self._token_inputs(model, step).values():
            path = self.config.run_directory / entry.path
            if path.is_file() and hash_file(path) != entry.sha256:
                return (
                    f"models.{model} was trained for {self._model_device_hours(model):,.3g} device hours on another "
                    f"{entry.path} than is there now, and stays as it was made: undo the change, give the new tokens "
                    f"and their trainings names of their own, or have it trained again: run: {{retrain: [{model}]}}"
                )
        return None

    def previous_segment_tokens_hash(self, model: str, step: int) -> dict[str, str]:
        """Return the hash of the tokens on which the kept segments before this one were trained."""
        before = [one for name, one in self._records if name == model and one < step]
        return {"index_sha256": str(self._token_inputs(model, max(before))["index"].sha256)} if before else {}

    def _token_inputs(self, model: str, step: int) -> dict[str, FileEntry]:
        return {one.name: one for one in self._records[model, step].inputs if one.name in TOKEN_INPUTS}

    def _model_device_hours(self, model: str) -> float:
        return sum(self._segment_device_hours(*one, record) for one, record in self._records.items() if one[0] == model)

    def _format_refusal(self, model: str, step: int, what: str) -> str:
        same = [one for name, one in self._records if name == model and one < step]
        branch = f" from there on (start: {{model: {model}, step: {max(same)}}})" if same else ""
        return (
            f"models.{model} was trained for {self._model_device_hours(model):,.3g} device hours; this would throw "
            f"away its steps up to {step}: {what}; undo the change, or give the other training a model of its own"
            f"{branch}, "
            f"or have this one trained again: run: {{retrain: [{model}]}}"
        )
