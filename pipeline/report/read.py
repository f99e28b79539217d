"""The files that the report is computed from, read once and put in a fixed order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.ground.errors import InputError

Json = dict[str, Any]
UNCOUNTED = ("report.", "provenance.")  # these run after, or while, the page is written


@dataclass(frozen=True)
class Artefact:
    """The content of one file, the name it goes by and the link from the page to it."""

    name: str
    link: str
    content: Json
    lines: list[Json] = field(default_factory=list)


@dataclass(frozen=True)
class Material:
    """Everything that the report says is computed from this."""

    records: list[Artefact]
    attempts: list[Artefact]
    accounting: list[Artefact]
    statistics: list[Artefact]
    fertility: list[Artefact]
    metrics: list[Artefact]
    evaluation: list[Artefact]
    manifests: list[Artefact]
    indexes: list[Artefact]
    forgotten: list[Artefact]
    remains: list[Artefact]
    plan: Artefact

    def records_of(self, step: str, **instance: str) -> list[Artefact]:
        """Return the records of one step whose instance has the given values."""
        return [
            record
            for record in self.records
            if record.content["step"] == step
            and all(record.content["instance"].get(key) == value for key, value in instance.items())
        ]


def read_object(path: Path) -> Json:
    """Return the JSON object in a file.

    Raises:
        InputError: the file is no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not readable as JSON ({error}): rerun the step that writes it") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object: rerun the step that writes it")
    return content


def read_lines(path: Path) -> list[Json]:
    """Return the JSON objects of a file, one per line, in the order of their steps."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return sorted(lines, key=lambda line: int(line["step"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not readable as metrics ({error!r}): rerun pretrain.export") from None


def beside(records: list[Path], name: str) -> list[Path]:
    """Return the files of the folder of that name, such as attempts, that lies beside the folder of the records."""
    folder = records[0].parent.parent / name if records else None
    if folder is None or not folder.is_dir():
        return []
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))


def read_material(
    page: Path,
    *,
    records: list[Path],
    statistics: list[Path],
    fertility: list[Path],
    metrics: list[Path],
    evaluation: list[Path],
    plan: Path,
    manifests: list[Path],
    indexes: list[Path],
    forgotten: list[Path],
    remains: list[Path],
) -> Material:
    """Return everything that the page is computed from, sorted by name, with links relative to the page.

    Raises:
        InputError: a file is not what its name says.
    """

    def link(path: Path) -> str:
        return Path(os.path.relpath(path.absolute(), page.absolute().parent)).as_posix()

    def objects(paths: Iterable[Path], *keys: str) -> list[Artefact]:
        found = []
        for path in paths:
            content = read_object(path)
            missing = [key for key in keys if key not in content]
            if missing:
                raise InputError(f"{path} lacks the key {missing[0]!r}: rerun the step that writes it")
            found.append(Artefact(path.parent.name, link(path), content))
        return sorted(found, key=lambda artefact: artefact.link)

    def counted(artefacts: list[Artefact]) -> list[Artefact]:
        return [artefact for artefact in artefacts if not artefact.content["step"].startswith(UNCOUNTED)]

    keys = ("step", "instance", "started")
    results = objects(evaluation, "model", "step", "tasks")
    return Material(
        records=counted(objects(records, *keys, "settings", "inputs", "outputs", "energy", "wall_seconds", "ended")),
        attempts=counted(objects(beside(records, "attempts"), *keys, "status")),
        accounting=objects(beside(records, "accounting"), "job", "comment", "cause", "allocations", "total"),
        statistics=objects(statistics, "corpus", "sources", "totals"),
        fertility=objects(fertility, "languages"),
        metrics=[Artefact(path.parent.name, link(path), {}, read_lines(path)) for path in sorted(metrics)],
        evaluation=sorted(results, key=lambda artefact: (artefact.content["model"], int(artefact.content["step"]))),
        manifests=objects(manifests, "source", "files", "bytes"),
        indexes=objects(indexes, "train", "validation"),
        forgotten=objects(forgotten, "corpus", "before", "after", "searched"),
        remains=objects(remains, "tokens", "places"),
        plan=objects([plan])[0],
    )
