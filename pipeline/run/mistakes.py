"""What is wrong with a file that a person wrote, in one sentence: the configuration, a platform's file."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pipeline.ground.errors import InputError


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
    given = "" if not field or problem["type"] == "value_error" else f" (given: {str(problem['input'])[:80]!r})"
    return f"{what}: {field + ': ' if field else ''}{message}{given}"


def refuse_repeated_keys(path: Path) -> None:
    """Check that no key of a YAML file stands twice in one place: of two the last would count, without a word.

    Raises:
        InputError: one does. A file that is missing, or no YAML, is left to whoever loads it.
    """
    try:
        waiting = [yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)]
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return
    seen = set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # by an alias, which may be within what it names
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            keys = [key for key, _ in node.value]
            for number, key in enumerate(keys):
                if key.value in [other.value for other in keys[:number]]:
                    raise InputError(
                        f"{path}, line {key.start_mark.line + 1}: the key {key.value} stands there twice: give one of "
                        "them another name, or leave it out"
                    )
            waiting += [value for _, value in node.value]
