"""Old names of keys and values of a configuration: they work for one more version, and a sentence says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.core.errors import InputError

# By the path of a key, * for any name or entry of a list, its new name.
RENAMED_KEYS: dict[tuple[str, ...], str] = {
    ("corpus", "*", "deduplication", "buckets"): "bands",
    ("corpus", "*", "deduplication", "hashes_per_bucket"): "rows",
    ("corpus", "*", "normalisation"): "normalization",
    ("disclosure", "authorised_representative"): "authorized_representative",
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
