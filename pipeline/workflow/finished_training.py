"""Finished training that no edit throws away: what of it stays as it was made, and what concerns steps that are done.

A milestone is a fact, and its record tells what made it. Where a model took many device hours, a change of code, or of
how steps are computed, concerns the steps to come alone. A change of what was done (the order of the data, the shape,
the learning rate of past steps) is refused until the configuration says to throw the training away.
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
from pipeline.core.command_lines import planned_settings_digest
from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of
from pipeline.core.ramp import Stretch
from pipeline.core.records import Attempt, FileEntry, Record, Versions, outputs_exist, read_each
from pipeline.core.settings import leaves
from pipeline.model.settings import Architecture
from pipeline.model.size import learning_rate_factor
from pipeline.pretrain.learning_rate import learning_rate_at
from pipeline.pretrain.settings import HOW_NUMBERS_ARE_COMPUTED, SegmentSettings, Training

FROM_HERE_ON = HOW_NUMBERS_ARE_COMPUTED | {"precision", "gradient_reduction", "float8", "milestone_every", "stability"}
"""Keys of a training that may be others from a milestone on: they change its steps by rounding alone, or not at all."""
SIZES = ("batch_size", "ramp")
"""Keys that concern a step by how many sequences it takes, and how long they are, alone."""
SCHEDULE = ("learning_rate", "minimum_learning_rate_fraction", "warmup_steps", "schedule", "decay_fraction", "steps")
"""Keys that concern a step by its learning rate alone."""


def _rates(training: Training, first: int, last: int) -> list[float]:
    return [learning_rate_at(training, step) for step in range(first + 1, last + 1)]


def _sizes(training: Training, last: int) -> tuple[list[Stretch], int]:
    """Return the sizes of the done steps, and the fewest sequences of any step, by which the sampler tells streams."""
    return training.batches.stretches(0, last), min(training.batches.batch_sizes)


def _mixtures(training: Training, last: int) -> list[tuple[int, dict[str, Any]]]:
    return [
        (start, mixture.model_dump(include={"by", "weights", "epochs"}))
        for start, mixture in training.sampling.mixtures(training.steps)
        if start < last
    ]


def _slower(architecture: Architecture) -> float:
    return learning_rate_factor("output.weight", 2, architecture)


def _streams(training: Training) -> dict[str, Any]:
    """Return what divides the tokens into streams, each in an order of its own: see `pipeline.tokens.sampler`."""
    found: dict[str, Any] = {}
    for _, mixture in training.sampling.mixtures(training.steps):
        if mixture.weights or found.get(mixture.by) == "all":
            found[mixture.by] = "all"
        elif mixture.epochs:
            found[mixture.by] = found.get(mixture.by, frozenset()) | mixture.epochs.keys()
    return found


def _told(written: dict[str, Any], settings: SegmentSettings, key: str) -> str:
    value: Any = written.get(key, settings)
    for name in () if key in written else key.split("."):
        value = getattr(value, name, None)
    return json.dumps(value)


def past_changes(made: SegmentSettings, today: SegmentSettings) -> list[str]:
    """Return which settings of a finished segment concern steps that are done and are others today, with both values.

    Whether a schedule or a mixture does is told by what it comes to in these steps, not by its keys.
    """
    before, now = (dict(leaves(settings.of_result())) for settings in (made, today))
    differing = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]

    def drop(*names: str) -> None:
        whole = tuple(f"training.{name}." for name in names)
        differing[:] = [key for key in differing if not f"{key}.".startswith(whole)]

    drop(*FROM_HERE_ON)
    first, last = made.first_step, made.last_step
    if differing and _rates(made.training, first, last) == _rates(today.training, first, last):
        drop(*SCHEDULE)
    if differing and _sizes(made.training, last) == _sizes(today.training, last):
        drop(*SIZES)
    same = _mixtures(made.training, last) == _mixtures(today.training, last)
    if differing and same and _streams(made.training) == _streams(today.training):
        drop("sampling.phases")
    if _slower(made.architecture) == _slower(today.architecture):
        differing = [key for key in differing if key != "architecture.base_width"]
    names = {"first_step": "milestone_every: the milestone before it is of step"}
    both = ((key, _told(before, made, key), _told(now, today, key)) for key in differing)
    return [f"{names.get(key, key)} {then}, now {told}" for key, then, told in both]


READ = ("index", "tokenizer", "configuration")


def hash_of_tokens(index_sha256: bytes, configuration_sha256: bytes) -> str:
    """Return one hash of a token set and its tokenizer, by those of the index and of the tokenizer's configuration."""
    return hashlib.sha256(index_sha256 + configuration_sha256).hexdigest()[:16]


class Finished:
    """The finished segments of the models that took as many device hours as the configuration protects.

    `planned` returns, by step and instance, what a job would be today.
    """

    def __init__(self, config: Config, planned: Callable[[str, dict[str, str]], Versions]) -> None:
        self.config = config
        self._planned = planned
        self._read_once: dict[tuple[str, int], Record | None] = {}
        self._refusals: dict[str, str | None] = {}

    @cached_property
    def _records(self) -> dict[tuple[str, int], Record]:
        """The records of protected segments whose milestones are there, by model and step."""
        found: dict[tuple[str, int], Record] = {}
        for model in self.config.models.keys() - self._retrained():
            records = {step: self._read(model, step) for step in self.config.models[model].training.milestones()}
            there = {(model, step): record for step, record in records.items() if record}
            hours = sum(self._device_hours(*one, record) for one, record in there.items())
            if there and hours >= self.config.run.protected_device_hours:
                found |= there
        return found

    def _retrained(self) -> set[str]:
        """Return the models that may be trained again; the name of an experiment stands for all its cells."""
        pages = self.config.experiment_pages()
        named = {*self.config.run.retrain}
        return named | {cell.name for name in named & pages.keys() for cell in pages[name].cells}

    def _read(self, model: str, step: int) -> Record | None:
        """Return the record of a segment whose files are there; a start reads each once."""
        if (model, step) not in self._read_once:
            self._read_once[model, step] = self._found(model, step)
        return self._read_once[model, step]

    def _found(self, model: str, step: int) -> Record | None:
        run = self.config.directory
        adopted = layout.RECORD.path(run, job=f"pretrain.adopt.{model}")
        path = layout.SEGMENT_RECORD.path(run, model=model, step=step) if step else adopted
        try:
            record = Record.load(path)
        except InputError:  # none, or none that says the truth
            return None
        is_whole = {*READ} <= {entry.name for entry in record.inputs} and not record.counts.get("outcome")
        return record if is_whole and outputs_exist(run, record.outputs) else None

    @cached_property
    def _attempts(self) -> list[str]:
        folder = self.config.directory / layout.ATTEMPTS
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    def _device_hours(self, model: str, step: int, record: Record) -> float:
        """Return what all attempts at a segment with these settings took, or those of who had it taken over."""
        reused = record.taken_over_from and record.taken_over_from.attempt
        beginning = ".".join((reused or record.name).split(".")[:4]) + "."
        folder = self.config.directory / layout.ATTEMPTS
        attempts, _ = read_each(Attempt, [folder / name for name in self._attempts if name.startswith(beginning)])
        asked = planned_settings_digest(record.command)
        seconds = sum(one.wall_seconds for one in attempts if planned_settings_digest(one.command) == asked)
        return max(record.wall_seconds, seconds) * int(record.counts.get("world_size") or 1) / 3600

    @cached_property
    def _changes(self) -> dict[tuple[str, int], list[str]]:
        """Of each protected segment which settings concern steps that are done, and are others today."""
        found = {}
        for (model, step), record in self._records.items():
            today = self.config.segment_settings(model, step)
            try:
                made = SegmentSettings.model_validate(record.settings)
            except ValidationError as error:
                key = ".".join(map(str, error.errors()[0]["loc"]))
                found[model, step] = [f"{key}, which this version of Polder does not take as it is recorded"]
            else:
                found[model, step] = [*past_changes(made, today), *self._other_inputs(model, step, record)]
        return found

    def _other_inputs(self, model: str, step: int, record: Record) -> Iterator[str]:
        """Yield what a segment read that has another name today, and a milestone before it that is another now."""
        section = self.config.models[model]
        tokenizer = self.config.tokens[section.tokens].tokenizer
        today = {
            "index": layout.TOKEN_INDEX.name(tokens=section.tokens),
            "tokenizer": layout.TOKENIZER.name(tokenizer=tokenizer),
            "configuration": layout.TOKENIZER_CONFIGURATION.name(tokenizer=tokenizer),
        }
        start = section.training.start
        is_first = section.training.segment_start(step) == section.training.first_step
        before = start.model if start and is_first else model
        if is_first and not start:
            yield from self._other_beginning(model, record)
        for entry in record.inputs:
            if entry.path != today.get(entry.name, entry.path):
                yield f"{entry.path}, which it read, is called {today[entry.name]} now"
            if entry.name == "previous" and entry.path.endswith(f"/{layout.CHECKPOINT_STATE}"):
                _, other, _, number, _ = entry.path.split("/")
                if other != before:
                    yield f"{layout.MODEL.name(model=other)}, which it goes on from, is called {before} now"
                before_it = self._read(other, int(number)) if other == model else None
                written = before_it.outputs if before_it else ()
                if any(one.path == entry.path and one.sha256 != entry.sha256 for one in written):
                    yield f"the milestone of step {number}, which it goes on from, was made anew since"

    def _other_beginning(self, model: str, record: Record) -> Iterator[str]:
        pretrained = self.config.models[model].pretrained
        today = pretrained.folder if pretrained else None
        adopted = any(entry.name == "previous" for entry in record.inputs)
        first = self._read(model, 0)
        made = (first.settings.get("folder", today) if first else today) if adopted else None
        if made != today:
            yield f"it began with {made or 'weights that were drawn'}, and pretrained is {today or 'nothing'} now"

    def adopted(self, model: str) -> Versions | None:
        """Return what the model that a training began with was made with, as long as its first segment stays."""
        record = self._read(model, 0)
        is_kept = record and self.kept(model, self.config.models[model].training.milestones()[0])
        return record.made_with if record and is_kept else None

    def protects(self, record: str) -> bool:
        """Return whether the record of that name is of a segment that is not thrown away unasked."""
        return record in {f"{one.name}.json" for one in self._records.values()}

    def kept(self, model: str, step: int) -> Versions | None:
        """Return what a finished segment was made with, which its job is planned with as long as it stays."""
        if self._changes.get((model, step), ["not protected"]):
            return None
        return self._records[model, step].made_with

    def stays(self) -> list[str]:
        """Return a sentence for each model of which finished segments stay that would be made otherwise today."""
        others: dict[str, list[int]] = {}
        for (model, step), record in self._records.items():
            if (kept := self.kept(model, step)) and kept != self._planned(record.step, record.instance):
                others.setdefault(model, []).append(step)
        return [
            f"models.{model}: what is done up to step {max(steps)} stays as it was made, and what follows is made with "
            f"the settings and code of today; run: {{retrain: [{model}]}} throws it away and trains it again"
            for model, steps in sorted(others.items())
        ] + [
            f"models.{model} stays as it was made, though {files[0]}, which it began with, was changed since; "
            f"run: {{retrain: [{model}]}} trains it again"
            for model in sorted({name for name, _ in self._records})
            if self.adopted(model) and (files := self._changed_files(model))
        ]

    def _changed_files(self, model: str) -> list[Path]:
        """Return the files of the model that a training began with which are of another size or younger than that."""
        record = self._read(model, 0)
        if record is None:
            return []
        then, read = record.ended_seconds, [entry for entry in record.inputs if entry.name == "model"]
        sizes = {Path(entry.path.removeprefix("data:")).name: entry.bytes for entry in read}
        files = [Path(file) for file in self.config.pretrained_files(model)]
        return [file for file in files if sizes.get(file.name) != file.stat().st_size or file.stat().st_mtime > then]

    def refusal(self, model: str) -> str | None:
        """Return why the jobs of a model would throw finished training away; None where they do not."""
        if model not in self._refusals:
            self._refusals[model] = self._changed(model) or self._unplanned(model) or self._missing(model)
        return self._refusals[model]

    def _changed(self, model: str) -> str | None:
        for (name, step), changes in sorted(self._changes.items()):
            if name == model and changes:
                return self._refused(model, step, changes[0] + (f" and {len(changes) - 1} more" * (len(changes) > 1)))
        return None

    def _unplanned(self, model: str) -> str | None:
        """Return that steps would be done again which a milestone has that is none of today's."""
        training = self.config.models[model].training
        planned = training.milestones()
        open_steps = [step for step in planned if self._read(model, step) is None]
        for step in sorted(self._recorded.get(model, set()) - {*planned}):
            again = [one for one in open_steps if training.segment_start(one) < step]
            record = self._read(model, step) if again and model not in self._retrained() else None
            hours = self._device_hours(model, step, record) if record else 0.0
            if record and hours >= self.config.run.protected_device_hours:
                return (
                    f"models.{model}: the milestone of step {step}, of {hours:,.3g} device hours, is none of today's, "
                    f"and its steps would be done again up to {again[0]}: write a milestone_every of which {step} is a "
                    f"multiple, or have the model trained again: run: {{retrain: [{model}]}}"
                )
        return None

    @cached_property
    def _recorded(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for path in layout.SEGMENT_RECORD.glob(self.config.directory):
            model, step = path.name.split(".")[2:4]
            found.setdefault(model, set()).add(int(step))
        return found

    def _missing(self, model: str) -> str | None:
        """Return that a milestone is gone from which a finished one was trained, which would be made anew after it."""
        last = max((step for name, step in self._records if name == model), default=0)
        section = self.config.models[model]
        adopted = last and section.pretrained and self._read(model, 0) is None
        for step in ([0] if adopted else []) + section.training.milestones():
            if step < last and (model, step) not in self._records:
                return (
                    f"models.{model}: the milestone of step {step} is not there as its record says, and to make it "
                    f"anew would throw away what was trained from it, up to step {last}: put it back from a copy, or "
                    f"have the model trained again: run: {{retrain: [{model}]}}"
                )
        return None

    def tokens_hash(self, model: str, step: int) -> str | None:
        """Return `Dag.tokens_hash` of what a finished segment that stays read; None of another one."""
        if self.kept(model, step) is None:
            return None
        read = self._read_by(model, step)
        return hash_of_tokens(bytes.fromhex(read["index"].sha256), bytes.fromhex(read["configuration"].sha256))

    def of_other_tokens(self, model: str, step: int) -> str | None:
        """Return that a finished segment stays though it read other tokens than are there; None where it did not."""
        if self.kept(model, step) is None:
            return None
        for entry in self._read_by(model, step).values():
            path = self.config.directory / entry.path
            if path.is_file() and sha256_of(path) != entry.sha256:
                return (
                    f"models.{model} was trained for {self._hours(model):,.3g} device hours on another {entry.path} "
                    "than is there now, and stays as it was made: undo the change, give the new tokens and what is "
                    f"trained on them names of their own, or have it trained again: run: {{retrain: [{model}]}}"
                )
        return None

    def operation(self, model: str, step: int) -> dict[str, str]:
        """Return what the job of a segment is told of those before it that stay: on what they were trained."""
        before = [one for name, one in self._records if name == model and one < step]
        return {"index_sha256": str(self._read_by(model, max(before))["index"].sha256)} if before else {}

    def _read_by(self, model: str, step: int) -> dict[str, FileEntry]:
        return {one.name: one for one in self._records[model, step].inputs if one.name in READ}

    def _hours(self, model: str) -> float:
        return sum(self._device_hours(*one, record) for one, record in self._records.items() if one[0] == model)

    def _refused(self, model: str, step: int, what: str) -> str:
        same = [one for name, one in self._records if name == model and one < step]
        branch = f" from there on (start: {{model: {model}, step: {max(same)}}})" if same else ""
        return (
            f"models.{model} was trained for {self._hours(model):,.3g} device hours; this would throw away "
            f"its steps up to {step}: {what}; undo the change, or give the other training a model of its own{branch}, "
            f"or have this one trained again: run: {{retrain: [{model}]}}"
        )
