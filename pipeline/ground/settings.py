"""The base of every typed section of the configuration and of every step's settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Immutable settings in which an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    def operation(self) -> dict[str, Any]:
        """Return which of a step's settings change no number of its result, as pydantic's `include` names them."""
        return {}

    def of_result(self) -> dict[str, Any]:
        """Return what a step's result depends on, as JSON: a job runs again when one of these changes."""
        return self.model_dump(mode="json", exclude=self.operation())

    def of_operation(self) -> dict[str, Any]:
        """Return the rest, as JSON."""
        keys = self.operation()
        return self.model_dump(mode="json", include=keys) if keys else {}


def joined(result: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of which these are the two parts."""
    both = dict(result)
    for key, value in operation.items():
        both[key] = joined(both[key], value) if isinstance(both.get(key), dict) else value
    return both


def leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting that is no section with something in it, by its keys joined with dots."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
