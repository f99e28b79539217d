"""The shape of a model."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from pipeline.core.settings import Settings, optional_later_field
from pipeline.model.architectures import get_architecture_formulas, list_presets

INITIAL_DEVIATION = 0.02


def _remove_required(schema: dict[str, Any]) -> None:
    """Remove `required`, because a preset may set every field, which a JSON Schema cannot express."""
    schema.pop("required", None)


def _list_preset_names(schema: dict[str, Any]) -> None:
    schema["enum"] = list(list_presets())


class RopeScaling(Settings):
    """Scaling of rotary frequencies beyond the original context length ("llama3" type)."""

    factor: float = Field(ge=1, description="divisor of the low frequencies")
    low_frequency_factor: float = Field(
        default=1.0, gt=0, description="wavelengths above the original context divided by it are scaled"
    )
    high_frequency_factor: float = Field(
        default=4.0, gt=0, description="wavelengths below the original context divided by it stay"
    )
    original_context_length: int = Field(default=8192, ge=1, description="tokens")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError(
                f"high_frequency_factor {self.high_frequency_factor:g} is not above low_frequency_factor "
                f"{self.low_frequency_factor:g}: change one of them"
            )
        return self


class Architecture(Settings):
    """The shape of a decoder-only transformer; the preset selects the architecture and sets unset fields."""

    model_config = ConfigDict(json_schema_extra=_remove_required)

    preset: str = Field(
        default="llama3",
        json_schema_extra=_list_preset_names,
        description="a published shape, or the name of an architecture",
    )
    layers: int = Field(ge=1, description="transformer blocks")
    width: int = Field(ge=2, description="size of the hidden state")
    feed_forward_width: int | None = Field(
        default=None,
        ge=1,
        description="width of the feed-forward block, or of each expert; default: 8/3 width, rounded up to 64",
    )
    heads: int = Field(ge=1, description="attention heads")
    key_value_heads: int | None = Field(
        default=None, ge=1, description="key-value heads, shared by groups of heads; default: as many as heads"
    )
    head_width: int | None = Field(
        default=None, ge=2, description="width of one attention head; default: width / heads"
    )
    rope_theta: float = Field(default=500_000.0, gt=0, description="base of the rotary frequencies")
    rope_scaling: RopeScaling | None = None
    norm_epsilon: float = Field(default=1e-5, gt=0, description="added to the mean square in RMSNorm")
    tie_embeddings: bool = Field(default=False, description="whether the output uses the embedding's weights")
    window: int | None = optional_later_field(
        None, ge=1, description="tokens that a position attends to, itself counted; default: all before it"
    )
    full_attention_layers: tuple[int, ...] = optional_later_field(
        (), description="layers, counted from 0, without the window"
    )
    experts: int | None = optional_later_field(
        None, ge=1, description="experts in each layer, of which a token visits a few; needs a preset such as qwen3-moe"
    )
    experts_per_token: int | None = optional_later_field(None, ge=1, description="experts that a token visits")
    initial_deviation: float = optional_later_field(
        INITIAL_DEVIATION, gt=0, description="initial standard deviation of matrices"
    )
    base_width: int | None = optional_later_field(
        None,
        ge=1,
        description="width at which learning_rate was tuned, for maximal update parametrization; default: off",
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, data: Any) -> Any:
        if isinstance(data, dict) and (name := list_presets().get(str(data.get("preset")))):
            return {**get_architecture_formulas(name).presets[data["preset"]], **data}
        return data

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, preset: str) -> str:
        if preset not in list_presets():
            raise ValueError(f"there is no preset {preset!r}: choose one of {', '.join(list_presets())}")
        return preset

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        if self.width % self.heads:  # Transformers refuses it even with a head_width
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}: change one of them")
        if self.head_dimension % 2:
            name = "head_width" if self.head_width else "width / heads"
            raise ValueError(f"{name} is {self.head_dimension}, which must be even for rotary embeddings: change heads")
        if self.heads % self.key_value_head_count:
            raise ValueError(
                f"heads {self.heads} is not divisible by key_value_heads {self.key_value_head_count}: "
                "change one of them"
            )
        full = self.full_attention_layers
        if full and self.window is None:
            raise ValueError("full_attention_layers names exceptions to a window: set window or remove them")
        if list(full) != sorted({*full} & {*range(self.layers)}) or len(full) == self.layers:
            raise ValueError(
                f"full_attention_layers {list(full)} must be some of the layers 0 to {self.layers - 1}, in order, and "
                "leave one with the window: change them"
            )
        self._check_experts()
        if self.base_width and self.tie_embeddings:
            raise ValueError(
                "base_width has embedding and output learn at rates of their own: set tie_embeddings to false"
            )
        return self

    def _check_experts(self) -> None:
        experts, chosen = self.experts, self.experts_per_token
        if get_architecture_formulas(self.name).active_parameter_count is None:
            if experts or chosen:
                raise ValueError(
                    f"preset {self.preset} has no experts: remove experts and experts_per_token or take qwen3-moe"
                )
        elif experts is None or chosen is None or chosen > experts:
            raise ValueError(
                f"experts_per_token {chosen} must be at least 1 and at most experts {experts}: change one of them"
            )
        elif self.full_attention_layers:
            raise ValueError(
                "full_attention_layers is not available with experts, whose models have one window: remove it"
            )
        elif self.base_width:
            raise ValueError("base_width has no rate for the router of experts: remove it")

    @property
    def name(self) -> str:
        """Return the name of the preset's architecture."""
        return list_presets()[self.preset]

    @property
    def head_dimension(self) -> int:
        """Return the width of one attention head."""
        return self.head_width or self.width // self.heads

    @property
    def key_value_head_count(self) -> int:
        """Return the number of key-value heads."""
        return self.key_value_heads or self.heads

    @property
    def intermediate_width(self) -> int:
        """Return the width of the feed-forward block, or of each expert."""
        return self.feed_forward_width or -(-8 * self.width // (3 * 64)) * 64

    def windows(self) -> list[int | None]:
        """Return the window of each layer, None where it attends to all before it."""
        return [None if layer in self.full_attention_layers else self.window for layer in range(self.layers)]

    def attention_spans(self, length: int) -> list[int]:
        """Return for each layer how many of `length` tokens the last one attends to, itself counted."""
        return [min(window or length, length) for window in self.windows()]
