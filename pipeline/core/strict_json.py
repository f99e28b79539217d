"""JSON that is evidence: text that means one thing to every program that reads it, or is refused."""

from __future__ import annotations

import json
import math
from typing import Any


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise ValueError(f"the key {twice!r} occurs twice in one object")
    return content


def _finite(text: str) -> float:
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(f"{text} is not a finite number")


_DECODERS = {
    False: json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite),
    True: json.JSONDecoder(object_pairs_hook=_object),
}


def parse_json(content: bytes | str, *, allow_nan: bool = False) -> Any:
    """Return the value of a JSON text, in UTF-8 where it is bytes.

    Args:
        content: the text.
        allow_nan: whether NaN and infinite numbers are values, as in the counts of a record.

    Raises:
        ValueError: it is not JSON, an object has a key twice, or a number is not finite.
    """
    text = content.decode() if isinstance(content, bytes) else content
    try:
        return _DECODERS[allow_nan].decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
