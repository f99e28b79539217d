"""What is wrong with a configuration, as one sentence with file, line, key and the way out."""

from __future__ import annotations

import datetime
import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pipeline.core.errors import InputError
from pipeline.core.yaml_files import find_line, load_yaml
from pipeline.sources.spdx_license_parser import suggest_license

NAME = r"^[a-z0-9][a-z0-9_-]*$"
"""The pattern of the names of runs, sources, models and other sections."""


# What PyYAML's error says, the problem and its remedy in words, and whether its place is where the part begins.
YAML_PROBLEMS = (
    ("quoted scalar", "the text in quotes that begins here has no end: add the closing quote", True),
    ("flow (mapping|sequence)", "the bracket that opens here is not closed: close it, or add a missing comma", True),
    (r"found '[]}]'", "no bracket is open that this one could close: delete it", False),
    ("expected ':'", "the key that begins here needs a colon behind it: add it", True),
    (
        "mapping values",
        "a key cannot begin here: indent it as its neighbors, and quote texts with a colon",
        False,
    ),
    ("block (mapping|collection)", "this line is not indented as its neighbors: give them the same spaces", False),
    (r"'\\t'", "indent with spaces, not tabs", False),
    ("any token|undefined alias", "put the value that begins here in quotes", False),
)


def load_configuration_yaml(path: Path) -> Any:
    """Return the content of a YAML file of a configuration, as `load_yaml` does, with errors in the words of users.

    Raises:
        OSError: the file cannot be read.
        InputError: it is no YAML, or has a key twice.
    """
    try:
        return load_yaml(path)
    except InputError as error:
        cause = error.__context__
        if not isinstance(cause, yaml.MarkedYAMLError):
            raise
        known = (one for one in YAML_PROBLEMS if re.search(one[0], f"{cause.context} {cause.problem}"))
        _, words, is_beginning = next(known, ("", "", False))
        mark = (is_beginning and cause.context_mark) or cause.problem_mark
        if not words or mark is None:
            raise
        place = f"{path}, line {mark.line + 1}, column {mark.column + 1}"
    raise InputError(f"{place} is not valid YAML: {words}")


def explain_bad_file_path(path: str) -> str | None:
    """Return a sentence for a path of files that begins with ~ or is a folder."""
    if path.startswith("~"):
        return f"~ is not expanded in {path}: write {Path(path).expanduser()}"
    if not Path(path).is_dir():
        return None
    endings = Counter(file.suffix for file in Path(path).iterdir() if file.is_file() and file.suffix)
    pattern = f"*{endings.most_common(1)[0][0]}" if endings else "**/*.txt"
    return f"{path} is a folder, and a path needs files: write {path.rstrip('/')}/{pattern}"


@cache
def _generate_schema(model: type[BaseModel]) -> Any:
    return model.model_json_schema()


def _find_schema(model: type[BaseModel], location: tuple[str | int, ...]) -> dict[str, Any]:
    """Return the JSON Schema of a key of a model; empty where it has none."""
    schema = node = _generate_schema(model)
    for part in (*location, None):
        node = next((option for option in node.get("anyOf", []) if "$ref" in option), node)
        while "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
        if isinstance(part, int):
            node = node.get("items", {})
        elif part is not None and part in node.get("properties", {}):
            node = node["properties"][part]
        elif part is not None:
            node = next(iter(node.get("patternProperties", {}).values()), {})
    return dict(node)


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


@dataclass(frozen=True)
class Origin:
    """Where a configuration was written. All are equal, because a run does not depend on it.

    Attributes:
        content: the configuration as written, with the current names of keys.
        files: of YAML, the one that counts most first.
        deprecations: a sentence for each old name.
    """

    content: Mapping[str, Any] = field(default_factory=dict, compare=False)
    files: Sequence[Path] = field(default=(), compare=False)
    deprecations: Sequence[str] = field(default=(), compare=False)

    def prefix_source_location(self, sentence: str) -> str:
        """Return a sentence that begins with a key, as `corpus.main.x: …`, behind its file and line if a file has it.

        A sentence that begins with `source NAME` gets the line of the key of that source whose value it quotes.
        """
        match = re.match(r"(?:configuration: )?(source )?([\w-]+(?:\.[\w-]+)*)", sentence)
        location: list[str | int] = [*["sources"] * bool(match[1]), *match[2].split(".")] if match else []
        if location[:1] == ["sources"] and location[1:]:
            location[1:] = self._locate_in_source(str(location[1]), location[2:], sentence)
        while location and location[0] in self.content:
            if place := _find_place(location, None, self.files):
                return f"{place}: {sentence.removeprefix('configuration: ')}"
            location.pop()
        return sentence

    def describe_deprecations(self) -> list[str]:
        """Return a sentence with its place for each old name."""
        return [*map(self.prefix_source_location, self.deprecations)]

    def _locate_in_source(self, name: str, keys: list[str | int], sentence: str) -> list[str | int]:
        """Return the position of a source, the second of two of one name, and the key in it."""
        for number, source in reversed([*enumerate(self.content.get("sources") or ())]):
            if isinstance(source, Mapping) and source.get("name") == name:
                quoted = {str(value): key for key, value in source.items() if len(str(value)) > 2 and key != "name"}
                longest = max((value for value in quoted if value in sentence), key=len, default="")
                return [number, *(keys or ([quoted[longest]] if longest else []))]
        return [name, *keys]


MOST_ERRORS = 8
"""The number of mistakes that are printed at once."""
WHOLE_NUMBERS = ("int_parsing", "int_type", "int_from_float", "int_parsing_size")
PATTERN_WORDS = {
    NAME: "use lower case letters, digits, - and _ alone",
    r"^https?://\S+$": "write an address that begins with https:// and has no spaces",
}
# Unknown keys by section, of which users ask something that is set elsewhere.
OTHER_PLACES: dict[tuple[str | int, ...], str] = {
    ("slurm", "time"): "time limits come from the plan of each job and from `minutes` of the partitions in "
    "workflow/platforms/NAME.yaml: leave it out"
}


def _advise_map(given: Any, key: str, schema: Mapping[str, Any]) -> str:
    kind = {list: "a list", str: "text", type(None): "empty"}.get(type(given), "one value")
    keys = schema.get("required") or [*schema.get("properties", {})][:1]
    if keys:
        values = [str(given) if isinstance(given, str) else "…", *["…"] * len(keys)]
        example = ", ".join(f"{name}: {value}" for name, value in zip(keys, values, strict=False))
    else:
        first = given[0] if isinstance(given, list) and given else None
        example = f"{first['name'] if isinstance(first, Mapping) and 'name' in first else 'NAME'}: {{…}}"
    return f"is {kind}, but needs keys: write `{key}: {{{example}}}`"


def _advise_number(text: str, *, whole: bool) -> str:
    if whole:
        return "write a whole number without unit, such as 2048"
    with_point = text.replace(",", ".")
    example = with_point if re.fullmatch(r"-?\d+\.\d+", with_point) else "0.002"
    return f"write a number with a point and without unit, such as {example}"


def _advise_date(text: str) -> str:
    day = re.fullmatch(r"(\d\d?)[-/. ](\d\d?)[-/. ](\d{4})", text)
    return f"write {day[3]}-{int(day[2]):02}-{int(day[1]):02}" if day else "write the date as YYYY-MM-DD"


def _advise_limit(kind: str, given: Any, limits: Mapping[str, Any]) -> str:
    limit = next(iter(limits.values()))
    if kind.startswith("less") and limit == 1 and isinstance(given, int | float) and 1 < given <= 100:
        return f"write a fraction between 0 and 1: {given:g} % is {given / 100:g}"
    words = {"greater_than_equal": "{} or more", "less_than_equal": "{} or less", "greater_than": "more than {}"}
    return f"write {words.get(kind, 'less than {}').format(f'{limit:g}')}"


def _advise(problem: Any, key: str, schema: Mapping[str, Any]) -> str:
    """Return what a value needs to be, by the type of pydantic's error; pydantic's words where it has none of these."""
    kind, given, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return _advise_map(given, key, schema)
    if kind == "list_type":
        value = "{…}" if isinstance(given, Mapping) else given
        return f"needs a list: write `{key}: [{'…' if value is None else value}]`"
    if kind in WHOLE_NUMBERS or kind in ("float_parsing", "float_type"):
        return _advise_number(str(given), whole=kind in WHOLE_NUMBERS)
    if kind.startswith("bool_"):
        return "write true or false"
    if kind.startswith("date_"):
        return _advise_date(str(given))
    if kind.startswith(("greater_than", "less_than")):
        return _advise_limit(kind, given, context)
    if kind in ("literal_error", "enum"):
        choices = re.findall(r"'([^']*)'", context["expected"])
        near = difflib.get_close_matches(str(given).replace("-", "_"), choices, n=1)
        if near:
            return f"there is no {given!r}: did you mean {near[0]!r}?"
        return f"choose one of {', '.join(choices) or context['expected']}"
    if kind == "string_pattern_mismatch":
        words = PATTERN_WORDS.get(context["pattern"], f"it must match {context['pattern']}")
        near_name = re.sub(r"[^a-z0-9]+", "-", str(given).casefold()).strip("-")
        return f"{words}, such as {near_name}" if near_name and context["pattern"] == NAME else words
    if kind == "string_type" and isinstance(given, bool | int | float | datetime.date):
        return "this must be text, and YAML reads this as something else: put it in quotes"
    if kind == "string_type":
        return "is empty: write text, or leave the key out" if given is None else "write one text, no list and no keys"
    if kind == "invalid_key":
        return "this is no name of a key: write decimals with a point, and names in quotes"
    if kind in ("string_too_short", "too_short"):
        return f"write {context['min_length']} or more {'characters' if kind == 'string_too_short' else 'entries'}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    unknown = re.search(r"'([^']*)' is no SPDX license", message)
    near_license = suggest_license(unknown[1]) if unknown else None
    return f"{message[: unknown.end()]}: did you mean {near_license}?" if unknown and near_license else message


def format_validation_error(error: ValidationError, model: type[BaseModel], what: str) -> str:
    """Return the deepest problem of what was to be such a model; `format_validation_errors` returns all of them."""
    (sentence,) = format_validation_errors(error, model, what)
    return sentence


def format_validation_errors(
    error: ValidationError, model: type[BaseModel], what: str, content: Any = None, files: Sequence[Path] = ()
) -> list[str]:
    """Return a sentence for each wrong value of what was to be such a model, with its key and the way out.

    Args:
        error: what pydantic found.
        model: the model.
        what: names it where no file has the key.
        content: what was to be the model; items of lists are then called by their names. Without it, only the deepest
            problem is returned.
        files: of YAML, the one that counts most first.
    """
    by_value: dict[tuple[str | int, ...], list[Any]] = {}
    for problem in error.errors():
        by_value.setdefault(_locate_value(problem, content), []).append(problem)
    # Of a value that may be one of several types, the deepest problem is that of the type which was meant.
    problems = [
        max(group, key=lambda one: (len(one["loc"]), one["type"] == "extra_forbidden")) for group in by_value.values()
    ]
    # An unknown key that resembles a missing one was meant to be that one.
    meant = {
        (*location[:-1], _suggest_key(model, location))
        for location in (_strip_types(problem) for problem in problems if problem["type"] == "extra_forbidden")
    }
    sentences = [
        _format_problem(problem, model, what, content, files)
        for problem in problems
        if problem["type"] != "missing" or _strip_types(problem) not in meant
    ]
    more = len(sentences) - MOST_ERRORS
    return [*sentences[:MOST_ERRORS], *[f"{what}: and {more} more: correct these first"] * (more > 0)]


def _is_type(part: str | int) -> bool:
    """Return whether a part of a location is one of several types that pydantic tried; `[key]` is a name's own."""
    return part != "[key]" and re.search(r"[\[(]", str(part)) is not None


def _strip_types(problem: Any) -> tuple[str | int, ...]:
    return tuple(part for part in problem["loc"] if not _is_type(part))


def _locate_value(problem: Any, content: Any) -> tuple[str | int, ...]:
    """Return the keys of the wrong value or of the missing key, up to where pydantic tried several types."""
    location = tuple(takewhile(lambda part: not _is_type(part), problem["loc"]))
    return location if content is not None else ()


def _suggest_key(model: type[BaseModel], location: tuple[str | int, ...]) -> str | None:
    """Return the known key that resembles an unknown one most."""
    known = sorted(_find_schema(model, location[:-1]).get("properties", {}))
    return next(iter(difflib.get_close_matches(str(location[-1]), known, n=1)), None)


def _format_problem(problem: Any, model: type[BaseModel], what: str, content: Any, files: Sequence[Path]) -> str:
    location = _strip_types(problem)
    path = _format_key_path(location, content)
    is_missing = problem["type"] == "missing"  # then its section is named
    place = _find_place(location[: len(location) - is_missing], problem["input"], files) or what
    if problem["type"] == "extra_forbidden":
        near = _suggest_key(model, location)
        known = ", ".join(sorted(_find_schema(model, location[:-1]).get("properties", {})))
        advice = f"did you mean {near!r}?" if near else f"the keys here are {known}"
        return f"{place}: unknown key {path}: {OTHER_PLACES.get(location, advice)}"
    if location[-1:] == ("[key]",) and problem["type"] == "string_pattern_mismatch":
        return f"{place}: the name {path.removesuffix('.[key]')}: use lower case letters, digits, - and _ alone"
    if is_missing:
        return f"{place}: the key {path} is missing: write it"
    key = next((part for part in reversed(location) if isinstance(part, str)), "")
    message = _advise(problem, key, _find_schema(model, location))
    is_shown = problem["type"] in ("value_error", "model_type", "dict_type") or "did you mean" in message
    given = "" if is_shown else f" (given: {str(problem['input'])[:80]!r})"
    if not path:
        return Origin(content or {}, files).prefix_source_location(f"{what}: {message}")
    return f"{place}: {path}{' ' if message.startswith(('is ', 'needs ')) else ': '}{message}{given}"
