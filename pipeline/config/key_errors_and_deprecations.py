"""Keys and values of a configuration: the message about a wrong one, and the new names of old ones.

An old name works for one more version, and a sentence says so.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pipeline.core.errors import InputError
from pipeline.core.yaml_files import find_line


def _known_keys(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Return the known keys of a model at the place of an unknown one."""
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


def _format_key_path(location: tuple[str | int, ...], content: Any) -> str:
    """Return a key in dots, with the name of an item of a list where it has one, and its number where it has none."""
    words = []
    for part in location:
        try:
            content = content[part]
        except (LookupError, TypeError):  # of a default, or where the key was meant for another type
            content = None
        name = content.get("name") if isinstance(content, Mapping) else None
        words.append(name if isinstance(part, int) and isinstance(name, str) else str(part))
    return ".".join(words)


def _find_place(location: Sequence[str | int], value: Any, files: Iterable[Path]) -> str | None:
    """Return the file and line of a key with a value."""
    for path in files:
        if line := find_line(path, location, value):
            return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}, line {line}"
    return None


def format_validation_error(
    error: ValidationError, model: type[BaseModel], what: str, content: Any = None, files: Iterable[Path] = ()
) -> str:
    """Return the first problem of what was to be such a model, as one sentence that names the key and the way out.

    Args:
        error: what pydantic found.
        model: the model.
        what: names it where no file has the key.
        content: what was to be the model; items of lists are then called by their names.
        files: of YAML, the one that counts most first.
    """
    # Of a value that may be one of several types, the deepest problem is that of the type which was meant. An unknown
    # key next to one that is missing was meant to be that one.
    problem = max(error.errors(), key=lambda found: (len(found["loc"]), found["type"] == "extra_forbidden"))
    location = tuple(part for part in problem["loc"] if part == "[key]" or not re.search(r"[\[(]", str(part)))
    field = _format_key_path(location, content)
    is_missing = problem["type"] == "missing"  # then its section is named
    what = _find_place(location[: len(location) - is_missing], problem["input"], files) or what
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
    if problem["type"] in ("literal_error", "enum"):
        choices = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        near = difflib.get_close_matches(str(problem["input"]).replace("-", "_"), choices, n=1)
        if near:
            return f"{what}: {field}: there is no {problem['input']!r}: did you mean {near[0]!r}?"
    given = "" if not field or problem["type"] == "value_error" else f" (given: {str(problem['input'])[:80]!r})"
    return f"{what}: {field + ': ' if field else ''}{message}{given}"


# By the path of a key, * for any name or entry of a list, its new name.
RENAMED_KEYS: dict[tuple[str, ...], str] = {
    ("corpus", "*", "deduplication", "buckets"): "bands",
    ("corpus", "*", "deduplication", "hashes_per_bucket"): "rows",
    ("corpus", "*", "normalisation"): "normalization",
    ("disclosure", "crawlers", "*", "behaviour"): "behavior",
    **{
        ("experiments", "*", "vary", f"corpus.normalisation{key}"): f"corpus.normalization{key}"
        for key in ("", ".punctuation", ".white_space")
    },
}
# By the path of a key its old values, each with its new name.
RENAMED_VALUES = {("sources", "*", "rights", "basis"): {"licence": "license"}}
Change = Callable[[Any, str], tuple[Any, list[str]]]


def _transform_at_path(section: Any, path: Sequence[str], change: Change, above: str = "") -> tuple[Any, list[str]]:
    """Return a copy of a section with a change wherever the path leads, and the places that changed."""
    if not path:
        return change(section, above.removeprefix("."))
    first, *rest = path
    if isinstance(section, list) and first == "*":
        names = [
            entry.get("name", number) if isinstance(entry, Mapping) else number for number, entry in enumerate(section)
        ]
        entries = [
            _transform_at_path(entry, rest, change, f"{above}.{name}")
            for name, entry in zip(names, section, strict=True)
        ]
        return [entry for entry, _ in entries], [place for _, places in entries for place in places]
    if not isinstance(section, Mapping):
        return section, []
    content, places = dict(section), []
    for key in [*section] if first == "*" else [first] if first in section else []:
        content[key], more = _transform_at_path(section[key], rest, change, f"{above}.{key}")
        places += more
    return content, places


def _rename_key(old: str, new: str, section: Any, place: str) -> tuple[Any, list[str]]:
    if not isinstance(section, Mapping) or old not in section:
        return section, []
    if new in section:
        raise InputError(f"configuration: {place}.{old} is the old name of {place}.{new}: leave {old} out")
    return {new if key == old else key: value for key, value in section.items()}, [f"{place}.{old}"]


def _rename_value(old: str, new: str, value: Any, place: str) -> tuple[Any, list[str]]:
    return (new, [f"{place}: {old}"]) if value == old else (value, [])


def replace_deprecated_names(raw: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Return a configuration with the current names of keys and values, and a sentence for each old one.

    Raises:
        InputError: a key is there under both names.
    """
    renames: list[tuple[Sequence[str], Change, str, str]] = [
        (path[:-1], partial(_rename_key, path[-1], new), path[-1], new) for path, new in RENAMED_KEYS.items()
    ] + [
        (path, partial(_rename_value, old, new), old, new)
        for path, values in RENAMED_VALUES.items()
        for old, new in values.items()
    ]
    content, sentences = raw, []
    for path, change, old, new in renames:
        content, places = _transform_at_path(content, path, change)
        if places:
            more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
            sentences.append(
                f"configuration: {places[0]}{more} is called {new} now: write that, the next version refuses {old}"
            )
    return content, sentences
