"""The base class of configuration sections and step settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


def _leaf_types(annotation: Any) -> set[Any]:
    """Return the types and values that an annotation is made of, such as float and None of `list[float] | None`."""
    parts = get_args(annotation)[: 1 if get_origin(annotation) is Annotated else None]
    return set().union(*map(_leaf_types, parts)) if parts else {annotation}


def _contains_bool(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_contains_bool, value))
    return isinstance(value, bool)


class Settings(BaseModel):
    """Immutable settings; unknown keys, and true, .inf or .nan in place of a number, are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `yes` and `true` where a number is meant; pydantic takes them for 1."""
        if _contains_bool(value):  # rarely; the types take longer
            types = _leaf_types(cls.model_fields[str(info.field_name)].annotation)
            if types & {int, float} and not types & {bool, True, False, Any, object}:
                raise ValueError("true, false, yes, no, on and off are no numbers: write a number")
        return value

    def non_result_fields(self) -> dict[str, Any]:
        """Return the settings that do not affect the result of a step, as pydantic's `include`."""
        return {}

    def result_settings(self) -> dict[str, Any]:
        """Return the settings that affect the result of a step, as JSON: a job reruns when one of them changes."""
        return self.model_dump(mode="json", exclude=self.non_result_fields())

    def non_result_settings(self) -> dict[str, Any]:
        """Return the settings that do not affect the result, as JSON."""
        keys = self.non_result_fields()
        return self.model_dump(mode="json", include=keys) if keys else {}


def optional_later_field(default: Any, **options: Any) -> Any:
    """Return a field that dumps omit at its default, so that a new field reruns no earlier job."""
    return Field(default=default, exclude_if=lambda value: bool(value == default), **options)


def merge_result_and_nonresult_settings(result: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """Merge the settings that affect the result with those that do not."""
    both = dict(result)
    for key, value in operation.items():
        both[key] = merge_result_and_nonresult_settings(both[key], value) if isinstance(both.get(key), dict) else value
    return both


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf setting with its dotted key; an empty section is a leaf."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flatten_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class Pretrained(Settings):
    """A pretrained model that a training starts from."""

    folder: str = Field(description="in the layout of Hugging Face, such as {data}/models/NAME")
    name: str | None = Field(default=None, description="what it is called; default: the folder without {data}")
    license: str = Field(min_length=1, description="an SPDX expression; LicenseRef-NAME for what SPDX does not list")
    url: str | None = Field(default=None, description="where it is published")
    tokens: int | None = optional_later_field(None, gt=0, description="that it was trained on, as its publisher says")

    @property
    def display_name(self) -> str:
        """Return the name for readers."""
        return self.name or self.folder.removeprefix("{data}/")
