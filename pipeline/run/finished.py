"""Finished training that no edit throws away: what of it stays as it was made, and what concerns steps that are done.

A milestone is a fact, and its record tells what made it. Where a model took many device hours, a change of code, or of
how steps are computed, concerns the steps to come alone. A change of what was done (the order of the data, the shape,
the learning rate of past steps) is refused until the configuration says to throw the training away.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from pipeline.ground.hashing import sha256_of
from pipeline.ground.recorded import as_written
from pipeline.pretrain.schedule import learning_rate
from pipeline.pretrain.settings import HOW_NUMBERS_ARE_COMPUTED, SegmentSettings, Training
from pipeline.run.config import Config
from pipeline.run.step_settings import pretrain_segment

FROM_HERE_ON = HOW_NUMBERS_ARE_COMPUTED | {"precision", "gradient_reduction", "float8", "milestone_every", "stability"}
"""Keys of a training that may be others from a milestone on: they change its steps by rounding alone, or not at all."""
SCHEDULE = ("learning_rate", "minimum_learning_rate_fraction", "warmup_steps", "schedule", "decay_fraction", "steps")
"""Keys that concern a step by its learning rate alone."""

READ = ("index", "tokenizer", "configuration")
VERSIONS = ("code_version", "environment_version")

Versions = tuple[str, str, str]
"""Settings as JSON, code version and environment version of a job."""


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _rates(training: Training, first: int, last: int) -> list[float]:
    return [learning_rate(training, step) for step in range(first + 1, last + 1)]


def _mixtures(training: Training, last: int) -> list[tuple[int, dict[str, Any]]]:
    return [
        (start, mixture.model_dump(include={"by", "weights", "epochs"}))
        for start, mixture in training.sampling.mixtures(training.steps)
        if start < last
    ]


def past_changes(made: SegmentSettings, today: SegmentSettings) -> list[str]:
    """Return which settings of a finished segment concern steps that are done and are others today, with both values.

    Whether a schedule or a mixture does is told by what it comes to in these steps, not by its keys.
    """
    before, now = (dict(_leaves(settings.of_result())) for settings in (made, today))
    differing = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]

    def drop(*names: str) -> None:
        whole = tuple(f"training.{name}." for name in names)
        differing[:] = [key for key in differing if not f"{key}.".startswith(whole)]

    drop(*FROM_HERE_ON)
    first, last = made.first_step, made.last_step
    if differing and _rates(made.training, first, last) == _rates(today.training, first, last):
        drop(*SCHEDULE)
    if differing and _mixtures(made.training, last) == _mixtures(today.training, last):
        drop("sampling.phases")
    names = {"first_step": "milestone_every: the milestone before it is of step"}
    return [f"{names.get(key, key)} {json.dumps(before.get(key))}, now {json.dumps(now.get(key))}" for key in differing]


def hash_of_tokens(index_sha256: bytes, configuration_sha256: bytes) -> str:
    """Return one hash of a token set and its tokenizer, by those of the index and of the tokenizer's configuration."""
    return hashlib.sha256(index_sha256 + configuration_sha256).hexdigest()[:16]


class Finished:
    """The finished segments of the models that took as many device hours as the configuration protects.

    `planned` tells, by model and step, what the job of a segment would be today.
    """

    def __init__(self, config: Config, planned: Callable[[str, int], Versions]) -> None:
        self.config = config
        self._planned = planned

    @cached_property
    def _records(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The records of protected segments whose milestones are there, by model and step."""
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for model in self.config.models.keys() - {*self.config.run.retrain}:
            records = {step: self._read(model, step) for step in self.config.models[model].training.milestones()}
            there = {(model, step): record for step, record in records.items() if record}
            hours = sum(self._device_hours(*one, record) for one, record in there.items())
            if there and hours >= self.config.run.protected_device_hours:
                found |= there
        return found

    def _read(self, model: str, step: int) -> dict[str, Any] | None:
        path = self.config.directory / f"provenance/records/pretrain.segment.{model}.{step}.json"
        try:
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            whole = {*READ} <= {one["name"] for one in record["inputs"]} and {"settings", *VERSIONS} <= record.keys()
            return record if whole and as_written(self.config.directory, record["outputs"]) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or none that says the truth
            return None

    @cached_property
    def _attempts(self) -> list[str]:
        folder = self.config.directory / "provenance/attempts"
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    def _device_hours(self, model: str, step: int, record: Mapping[str, Any]) -> float:
        """Return what all attempts at a segment with these settings took, or those of who had it taken over."""
        attempt = str((record.get("taken_over_from") or {}).get("attempt") or f"pretrain.segment.{model}.{step}.")
        beginning, asked = ".".join(attempt.split(".")[:4]) + ".", _settings_of(record)
        seconds = float(record.get("wall_seconds") or 0)
        of_attempts = 0.0
        for name in self._attempts:
            if name.startswith(beginning):
                with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                    path = self.config.directory / f"provenance/attempts/{name}"
                    one = json.loads(path.read_text(encoding="utf-8"))
                    of_attempts += float(one["wall_seconds"]) if _settings_of(one) == asked else 0.0
        devices = int((record.get("counts") or {}).get("world_size") or 1)
        return max(seconds, of_attempts) * devices / 3600

    @cached_property
    def _changes(self) -> dict[tuple[str, int], list[str]]:
        """Of each protected segment which settings concern steps that are done, and are others today."""
        found = {}
        for (model, step), record in self._records.items():
            today = pretrain_segment(self.config, {"model": model, "step": str(step)})
            try:
                made = SegmentSettings.model_validate(record["settings"])
            except ValidationError:
                found[model, step] = ["settings that this version does not know"]
            else:
                found[model, step] = past_changes(made, today)
        return found

    def kept(self, model: str, step: int) -> Versions | None:
        """Return what a finished segment was made with, which its job is planned with as long as it stays."""
        if self._changes.get((model, step), ["not protected"]):
            return None
        record = self._records[model, step]
        settings = json.dumps(record["settings"], sort_keys=True, ensure_ascii=False)
        return settings, record["code_version"], record["environment_version"]

    def stays(self) -> list[str]:
        """Return a sentence for each model of which finished segments stay that would be made otherwise today."""
        others: dict[str, list[int]] = {}
        for model, step in self._records:
            if (kept := self.kept(model, step)) and kept != self._planned(model, step):
                others.setdefault(model, []).append(step)
        return [
            f"models.{model}: what is done up to step {max(steps)} stays as it was made, and what follows is made with "
            f"the settings and code of today; run: {{retrain: [{model}]}} throws it away and trains it again"
            for model, steps in sorted(others.items())
        ]

    def refusal(self) -> str | None:
        """Return why a start would throw finished training away; None where it does not."""
        for (model, step), changes in sorted(self._changes.items()):
            if changes:
                return self._refused(model, step, changes[0] + (f" and {len(changes) - 1} more" * (len(changes) > 1)))
        return self._missing()

    def _missing(self) -> str | None:
        """Return that a milestone is gone from which a finished one was trained, which would be made anew after it."""
        latest = {model: step for model, step in sorted(self._records)}
        for model, last in sorted(latest.items()):
            for step in self.config.models[model].training.milestones():
                if step < last and (model, step) not in self._records:
                    return (
                        f"models.{model}: the milestone of step {step} is not there as its record says, and to make it "
                        f"anew would throw away what was trained from it, up to step {last}: put it back from a copy, "
                        f"or have the model trained again: run: {{retrain: [{model}]}}"
                    )
        return None

    def tokens_hash(self, model: str, step: int) -> str | None:
        """Return `Dag.tokens_hash` of what a finished segment that stays read; None of another one."""
        if self.kept(model, step) is None:
            return None
        read = self._read_by(model, step)
        return hash_of_tokens(bytes.fromhex(read["index"]["sha256"]), bytes.fromhex(read["configuration"]["sha256"]))

    def of_other_tokens(self, model: str, step: int) -> str | None:
        """Return that a finished segment stays though it read other tokens than are there; None where it did not."""
        if self.kept(model, step) is None:
            return None
        for entry in self._read_by(model, step).values():
            path = self.config.directory / entry["path"]
            if path.is_file() and sha256_of(path) != entry["sha256"]:
                return (
                    f"models.{model} was trained for {self._hours(model):,.3g} device hours on another {entry['path']} "
                    "than is there now, and stays as it was made: undo the change, give the new tokens and what is "
                    f"trained on them names of their own, or have it trained again: run: {{retrain: [{model}]}}"
                )
        return None

    def operation(self, model: str, step: int) -> dict[str, str]:
        """Return what the job of a segment is told of those before it that stay: on what they were trained."""
        before = [one for name, one in self._records if name == model and one < step]
        return {"index_sha256": str(self._read_by(model, max(before))["index"]["sha256"])} if before else {}

    def _read_by(self, model: str, step: int) -> dict[str, dict[str, Any]]:
        """Return what a segment read of tokens and tokenizer, by name."""
        return {one["name"]: one for one in self._records[model, step]["inputs"] if one["name"] in READ}

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


def _settings_of(said: Mapping[str, Any]) -> Any:
    """Return the settings that a record's or an attempt's command was given."""
    words = said.get("command") or []
    return words[words.index("--settings") + 1] if "--settings" in words[:-1] else None
