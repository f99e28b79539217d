"""The base of every typed section of the configuration and of every step's settings."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Immutable settings in which an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
