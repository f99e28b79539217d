"""Keys that a person wrote: the sentence on a wrong one, and the new names of old ones.

An old name works for one version more, and a sentence says so.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from pipeline.core.errors import InputError


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


# Where the key stands, * for any name, and its new name.
RENAMED = {
    ("corpus", "*", "deduplication", "buckets"): "bands",
    ("corpus", "*", "deduplication", "hashes_per_bucket"): "rows",
}


def _rename(section: Any, path: tuple[str, ...], new: str, above: tuple[str, ...] = ()) -> tuple[Any, list[str]]:
    """Return a copy of a section with one key renamed wherever it stands, and the full names that were renamed."""
    if not isinstance(section, Mapping):
        return section, []
    first, *rest = path
    if rest:
        found = dict(section)
        old_names = []
        for key in [*section] if first == "*" else [first] if first in section else []:
            found[key], names = _rename(section[key], tuple(rest), new, (*above, str(key)))
            old_names += names
        return found, old_names
    if first not in section:
        return section, []
    place = ".".join(above)
    if new in section:
        raise InputError(f"configuration: {place}.{first} is the old name of {place}.{new}: leave {first} out")
    return {new if key == first else key: value for key, value in section.items()}, [f"{place}.{first}"]


def in_new_words(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Return a configuration with the names of today, and a sentence for each that was an old one.

    Raises:
        InputError: a key stands there under both names.
    """
    content, sentences = raw, []
    for path, new in RENAMED.items():
        content, old_names = _rename(content, path, new)
        sentences += [
            f"configuration: {old} is called {new} now: write that, the next version refuses {path[-1]}"
            for old in old_names
        ]
    return content, sentences
