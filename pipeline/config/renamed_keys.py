"""Keys of the configuration that have a new name: the old one works for one version more, and a sentence says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.core.errors import InputError

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
