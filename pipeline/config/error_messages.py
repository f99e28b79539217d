"""What is wrong with a file that a person wrote, in one sentence: the configuration, a platform's file."""

from __future__ import annotations

import datetime
import difflib
import re
from typing import Any

from pydantic import BaseModel, ValidationError


def _known_keys(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Return the keys that a model knows where an unknown one stood."""
    schema: Any = model.model_json_schema()
    node = schema
    for part in location[:-1]:
        if isinstance(part, int):
            node = node.get("items", {})
        elif part in node.get("properties", {}):
            node = node["properties"][part]
        else:
            node = next(iter(node.get("patternProperties", {}).values()), {})
        node = next((option for option in node.get("anyOf", []) if "$ref" in option), node)
        while "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return sorted(node.get("properties", {}))


def sentence(error: ValidationError, model: type[BaseModel], what: str) -> str:
    """Return the first problem of what was to be such a model, as one sentence that names the key and the way out."""
    # Of a value that may be one of several types, the deepest problem is that of the type which was meant. An unknown
    # key beside one that is missing was meant to be that one.
    problem = max(error.errors(), key=lambda found: (len(found["loc"]), found["type"] == "extra_forbidden"))
    location = tuple(part for part in problem["loc"] if part == "[key]" or not re.search(r"[\[(]", str(part)))
    field = ".".join(map(str, location))
    if problem["type"] == "extra_forbidden":
        known = _known_keys(model, location)
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"the keys here are {', '.join(known)}"
        return f"{what}: unknown key {field}: {advice}"
    message = problem["msg"].removeprefix("Value error, ")
    if location[-1:] == ("[key]",) and problem["type"] == "string_pattern_mismatch":
        return f"{what}: the name {field.removesuffix('.[key]')}: use lower case letters, digits, - and _ alone"
    if problem["type"] == "missing":
        return f"{what}: the key {field} is missing: write it"
    if problem["type"] == "string_type" and isinstance(problem["input"], bool | int | float | datetime.date):
        message += ", and YAML reads this as something else: put it in quotes"
    given = "" if not field or problem["type"] == "value_error" else f" (given: {str(problem['input'])[:80]!r})"
    return f"{what}: {field + ': ' if field else ''}{message}{given}"
