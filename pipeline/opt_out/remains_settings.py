"""What the search for the remains of what is forgotten must be told."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.settings import Settings
from pipeline.corpus.settings import SignaturesSettings


class RemainsSettings(Settings):
    """How each corpus is signed, from which corpus each token set is made, and what lies beside the run."""

    run: str
    corpora: dict[str, SignaturesSettings]
    tokens: dict[str, str]
    others: dict[str, str] = Field(description="a hash of the state of each other run and of each archive")
