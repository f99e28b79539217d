"""What is wrong with a raw file that cannot be read whole, and where that is written down."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from pipeline.core.errors import InputError

Damage = Literal["truncated", "damaged", "decompression_bomb", "broken_records"]


class DamagedFile(InputError):
    """A raw file cannot be read whole; the message is one sentence that names it and the way out."""

    def __init__(self, sentence: str, damage: Damage, value: str | None = None) -> None:
        super().__init__(sentence)
        self.damage = damage
        self.value = value


@dataclass(frozen=True)
class Quarantined:
    """A raw file, or the stretch of a large one that a part stands for, of which nothing is used.

    `bytes` are those on disk; `value` is what decided, where the damage has something to say.
    """

    file: str
    bytes: int
    damage: Damage
    value: str | None = None

    def described(self) -> dict[str, Any]:
        """Return it as it stands in files and records."""
        return asdict(self)
