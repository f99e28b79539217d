"""The shape of a model."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from pipeline.settings import Settings


class Architecture(Settings):
    """A decoder-only transformer; grouped-query attention where there are fewer key-value heads than heads."""

    preset: Literal["llama3"] = "llama3"
    layers: int = Field(ge=1)
    width: int = Field(ge=2)
    feed_forward_width: int | None = Field(default=None, ge=1, description="default: 8/3 width, rounded up to 64")
    heads: int = Field(ge=1)
    key_value_heads: int | None = Field(default=None, ge=1, description="default: as many as heads")
    rope_theta: float = Field(default=500_000.0, gt=0)
    norm_epsilon: float = Field(default=1e-5, gt=0)
    tie_embeddings: bool = False

    @model_validator(mode="after")
    def _shape(self) -> Self:
        """Check that the width divides into heads of even dimension and these into groups."""
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}: change one of them")
        if self.head_dimension % 2:
            raise ValueError(
                f"width / heads is {self.head_dimension}, which must be even for rotary embeddings: change heads"
            )
        if self.heads % self.groups:
            raise ValueError(
                f"heads {self.heads} is not divisible by key_value_heads {self.groups}: change one of them"
            )
        return self

    @property
    def head_dimension(self) -> int:
        """Return the width of one attention head."""
        return self.width // self.heads

    @property
    def groups(self) -> int:
        """Return the number of key-value heads."""
        return self.key_value_heads or self.heads

    @property
    def hidden(self) -> int:
        """Return the width inside the feed-forward block."""
        return self.feed_forward_width or -(-8 * self.width // (3 * 64)) * 64
