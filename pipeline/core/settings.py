"""The base of every typed section of the configuration and of every step's settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator


def _leaf_types(annotation: Any) -> set[Any]:
    """Return the types and values that an annotation is made of, such as float and None of `list[float] | None`."""
    parts = get_args(annotation)[: 1 if get_origin(annotation) is Annotated else None]
    return set().union(*map(_leaf_types, parts)) if parts else {annotation}


def _has_switch(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_switch, value))
    return isinstance(value, bool)


class Settings(BaseModel):
    """Immutable settings in which an unknown key is an error, and so is a number that is none: true, .inf, .nan."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `yes` and `true` where a number is meant; pydantic takes them for 1."""
        types = _leaf_types(cls.model_fields[str(info.field_name)].annotation)
        if _has_switch(value) and types & {int, float} and not types & {bool, True, False, Any, object}:
            raise ValueError("true, false, yes, no, on and off are no numbers: write a number")
        return value

    def operation(self) -> dict[str, Any]:
        """Return which of a step's settings change no number of its result, as pydantic's `include` names them."""
        return {}

    def result_settings(self) -> dict[str, Any]:
        """Return what a step's result depends on, as JSON: a job runs again when one of these changes."""
        return self.model_dump(mode="json", exclude=self.operation())

    def operation_settings(self) -> dict[str, Any]:
        """Return the rest, as JSON."""
        keys = self.operation()
        return self.model_dump(mode="json", include=keys) if keys else {}


def optional_later_field(default: Any, **options: Any) -> Any:
    """Return a field that dumps leave out at its default, so that what was done before there was the field stays."""
    return Field(default=default, exclude_if=lambda value: bool(value == default), **options)


def merge_settings(result: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of which these are the two parts."""
    both = dict(result)
    for key, value in operation.items():
        both[key] = merge_settings(both[key], value) if isinstance(both.get(key), dict) else value
    return both


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting that is no section with something in it, by its keys joined with dots."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flatten_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class Pretrained(Settings):
    """A model that somebody has trained, from whose weights another training goes on."""

    folder: str = Field(description="in the layout of Hugging Face, such as {data}/models/NAME")
    name: str | None = Field(default=None, description="what it is called; default: the folder without {data}")
    license: str = Field(min_length=1, description="an SPDX expression; LicenseRef-NAME for what SPDX does not list")
    url: str | None = Field(default=None, description="where it is published")

    @property
    def title(self) -> str:
        """Return what readers are told that it is."""
        return self.name or self.folder.removeprefix("{data}/")
