"""A job's twin: one that was done under another name, and so gave what this one would give.

Two corpora may be filtered alike, and a model may get another name. Where step, settings, code, environment and every
byte that is read are the same, what the twin wrote is taken over instead of being made again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# Of an instance: what a person may name otherwise. A source, a unit, a shard and a training step say what is done.
GIVEN_NAMES = ("corpus", "tokenizer", "tokens", "model")


@cache
def _records(folder: Path) -> dict[tuple[str, ...], list[str]]:
    """Return the names of the records in a folder, by their words but the third, a given name; listed once a job."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        room, step, *instance = name.split(".")
        found.setdefault((room, step, *instance[1:]), []).append(name)
    return found


def _renamed(path: str, old: str, new: str) -> str:
    return "/".join(new if word == old else word for word in path.split("/"))


@dataclass(frozen=True)
class Twin:
    """The record of a job's twin: the record's name, what it counted and wrote, and the given names of both.

    `attempt` is the file of the attempt that computed it, which may be of a twin's twin.
    """

    name: str
    attempt: str | None
    counts: dict[str, Any]
    outputs: list[dict[str, Any]]
    other: str
    own: str

    @property
    def hashes(self) -> set[str]:
        """The sha256 of the files that it wrote."""
        return {entry["sha256"] for entry in self.outputs}

    def take_over(self, run: Path, outputs: Mapping[str, Path], partial: Mapping[str, Path], *, linked: bool) -> bool:
        """Give a job what its twin wrote, under its temporary names; return whether all was there to be given.

        Args:
            outputs: the job's, by their names, in the folder `run`.
            linked: whether files are linked, which takes no room. Snakemake compares the times of those that it knows,
                so they are copied; what lies in a folder is always linked. No step writes into a file that is there.
        """
        for entry in self.outputs:
            final, begun = outputs[entry["name"]].absolute(), partial[entry["name"]]
            path = run / _renamed(entry["path"], self.other, self.own)
            if not path.is_relative_to(final):
                return False
            target = begun / path.relative_to(final)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                (os.link if linked or path != final else shutil.copyfile)(run / entry["path"], target)
            except OSError:
                return False
        return True


def find(record: Path, instance: Mapping[str, str], described: Mapping[str, Any]) -> Twin | None:
    """Return a job's twin; None where it has none.

    Args:
        record: where the record of the job itself goes.
        instance: of the job; its first value is the given name, such as the corpus.
        described: what its record says of settings, code, environment and inputs.
    """
    kind, own = next(iter(instance.items()), ("", ""))
    if kind not in GIVEN_NAMES:
        return None
    room, step, _, *rest = record.name.split(".")
    for name in _records(record.parent).get((room, step, *rest), []):
        with suppress(OSError, ValueError, KeyError, TypeError):  # no record
            content = json.loads((record.parent / name).read_text(encoding="utf-8"))
            other = str(content["instance"][kind])
            read = [{**entry, "path": _renamed(entry["path"], other, own)} for entry in content["inputs"]]
            if "outcome" in content["counts"]:  # of a training that did not reach its end
                continue
            if other != own and content["outputs"] and {**content, "inputs": read}.items() >= described.items():
                earlier = content.get("taken_over_from") or content
                return Twin(name, earlier.get("attempt"), content["counts"], content["outputs"], other, own)
    return None
