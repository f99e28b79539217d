"""YAML and JSON that users write; duplicate keys and numbers in an unexpected base are errors."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from pipeline.core.errors import InputError

# YAML 1.1 reads 010 as 8 and 1:30 as 90.
_ODD_NUMBER = re.compile(r"[-+]?0[0-7_]+|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE = "tag:yaml.org,2002:merge"
_TEXT_TAGS = ("tag:yaml.org,2002:null", _MERGE)


class _Loader(yaml.SafeLoader):
    """Reads the two escapes of a surrogate pair, as JSON writes them, as one character."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        return super().construct_scalar(node).encode("utf-16", "surrogatepass").decode("utf-16")


class _TextLoader(_Loader):
    """Reads every scalar as the text that is written, so that the id 0123 stays 0123."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _TEXT_TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def parse_yaml(text: str, path: Path, *, scalars_as_text: bool = False) -> Any:
    """Return the content of a YAML or JSON file.

    Args:
        path: the file that the messages name.
        scalars_as_text: read numbers, dates and booleans as they are written.

    Raises:
        InputError: it is no YAML, has a key twice in one place, or a number that YAML reads in another base.
    """
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith(("{", "[")):
        with suppress(InputError, ValueError, RecursionError):  # YAML says in which line
            return _parse_json_file(text, path, scalars_as_text)
        text = text.replace("\t", " ")
    try:
        loader = (_TextLoader if scalars_as_text else _Loader)(text)
        loader.name = path.name
        node = loader.get_single_node()
        if node is None:
            return None
        _check_ambiguous(node, path, loader)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        problem = " ".join(str(error.problem or error.context).split())
        advice = "indent with spaces, not tabs" if "'\\t'" in problem else "write plain YAML"
        raise InputError(f"{place} is not valid YAML: {problem}: {advice}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as the day 2026-13-01
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}: write plain YAML") from None


def _parse_json_file(text: str, path: Path, scalars_as_text: bool) -> Any:
    """Return the content of a JSON file: YAML 1.1 refuses or changes U+007F, U+2028 and more in the strings of JSON.

    Raises:
        ValueError: it is no JSON, or has half of a surrogate pair.
        InputError: an object has a key twice.
    """
    value = parse_unique_json(text, str(path), scalars_as_text=scalars_as_text)
    json.dumps(value, ensure_ascii=False).encode()
    return value


def load_yaml(path: Path, *, scalars_as_text: bool = False) -> Any:
    """Return the content of a YAML or JSON file, as `parse_yaml` does.

    Raises:
        OSError: the file cannot be read.
        InputError: it does not hold what it should.
    """
    try:
        text = (content := path.read_bytes()).decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].split(b"\n")
        place = f"{path}, line {len(before)}, column {len(before[-1].decode()) + 1}"
        raise InputError(f"{place}: this is not UTF-8 ({error.reason}): save the file as UTF-8") from None
    return parse_yaml(text, path, scalars_as_text=scalars_as_text)


def find_line(path: Path, location: Sequence[str | int], value: Any = None) -> int | None:
    """Return the line of the last of these keys and positions in a file that `load_yaml` reads; None if it has none.

    Args:
        path: the file.
        location: the keys and positions from the outermost to the innermost.
        value: if it is given and the file has another one there, None is returned.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8-sig").replace("\t", " "), Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError):  # JSON that YAML does not read
        return None
    line = None
    for part in location:
        if isinstance(node, yaml.MappingNode):
            item = next(((key, value) for key, value in node.value if key.value == str(part)), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            item = node.value[part], node.value[part]
        else:
            item = None
        if item is None:
            return None
        line, node = item[0].start_mark.line + 1, item[1]
    try:
        return line if value is None or _Loader("").construct_document(node) == value else None
    except RecursionError:  # the value contains itself
        return line


def parse_unique_json(text: str, place: str, *, scalars_as_text: bool = False) -> Any:
    """Return the value of a JSON text.

    Args:
        place: file and line that the messages name.
        scalars_as_text: read numbers as they are written.

    Raises:
        ValueError: it is no JSON.
        InputError: an object has a key twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            keys = [key for key, _ in pairs]
            raise InputError(_duplicate_key_message(place, next(key for key in keys if keys.count(key) > 1)))
        return fields

    number = str if scalars_as_text else None
    return json.loads(text, object_pairs_hook=unique, parse_int=number, parse_float=number)


def _duplicate_key_message(place: str, key: str) -> str:
    return f"{place}: the key {key} occurs twice: rename one of them, or delete it"


def _check_ambiguous(root: yaml.Node, path: Path, loader: yaml.SafeLoader) -> None:
    waiting = [root]
    seen = set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:  # by an alias, which may be within what it names
            continue
        seen.add(id(node))
        place = f"{path}, line {node.start_mark.line + 1}"
        if isinstance(node, yaml.ScalarNode):
            if node.tag in _NUMBERS and not node.style and _ODD_NUMBER.fullmatch(node.value):
                raise InputError(f"{place}: YAML reads {node.value} as another number: put it in quotes, or write that")
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            names = set[object]()
            for key, value in node.value:
                same: set[object] = {str(key.value)}
                if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                    same.add(loader.construct_object(key))  # 0x1 is 1, and yes is true
                if names & same:
                    raise InputError(_duplicate_key_message(f"{path}, line {key.start_mark.line + 1}", str(key.value)))
                names |= same
                waiting += [key, value]
