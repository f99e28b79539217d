"""The files that the report is computed from, read once and put in a fixed order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError, anonymous
from pipeline.energy.external_meters.meter_tables import ExternalReadings, read_external_readings

Json = dict[str, Any]
UNCOUNTED = ("report.", "provenance.")  # these run after, or while, the page is written
SIGNER = ("owner", "algorithm", "key_sha256", "timestamp")


@dataclass(frozen=True)
class Artefact:
    """The content of one file, the name it goes by and the link from the page to it."""

    name: str
    link: str
    content: Json
    lines: list[Json] = field(default_factory=list)


@dataclass(frozen=True)
class Unreadable:
    """A record, attempt or other evidence that the report had to leave out: the link to it, and what is wrong."""

    link: str
    reason: str


@dataclass(frozen=True)
class Material:
    """Everything that the report says is computed from this.

    `starts` are the run as each start of it froze it; `signer` is what the run says of its signatures, None where it is
    unsigned; `unreadable` is what was left out.
    """

    records: list[Artefact]
    attempts: list[Artefact]
    accounting: list[Artefact]
    starts: list[Artefact]
    statistics: list[Artefact]
    fertility: list[Artefact]
    metrics: list[Artefact]
    evaluation: list[Artefact]
    answers: list[Path]
    samples: list[Artefact]
    differences: list[Artefact]
    manifests: list[Artefact]
    data_sets: list[Artefact]
    indexes: list[Artefact]
    later_suites: list[Artefact]
    forgotten: list[Artefact]
    remains: list[Artefact]
    plan: Artefact
    readings: list[Path]
    books: ExternalReadings
    carbon_intensity: list[Path]
    signer: Json | None = None
    unreadable: list[Unreadable] = field(default_factory=list)

    def records_of(self, step: str, /, **instance: str) -> list[Artefact]:
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


def _with_keys(path: Path, keys: Iterable[str]) -> Json:
    content = read_object(path)
    missing = [key for key in keys if key not in content]
    if missing:
        raise InputError(f"{path} lacks the key {missing[0]!r}: rerun the step that writes it")
    return content


def read_lines(path: Path) -> list[Json]:
    """Return the JSON objects of a file, one per line, in the order of their steps."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return sorted(lines, key=lambda line: int(line["step"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not readable as metrics ({error!r}): rerun pretrain.export") from None


def beside(records: list[Path], name: str, ending: str = "json") -> list[Path]:
    """Return the files of the folder of that name, such as attempts, that lies beside the folder of the records."""
    folder = records[0].parent.parent / name if records else None
    if folder is None or not folder.is_dir():
        return []
    return sorted(path for path in folder.glob(f"*.{ending}") if not path.name.startswith("."))


def _signer(records: list[Path]) -> list[Path]:
    """Return the file that names the owner of the key, where the run is signed."""
    return [path for path in {record.parent.parent / "signer.json" for record in records[:1]} if path.is_file()]


def read_material(
    page: Path,
    *,
    records: list[Path],
    statistics: list[Path],
    fertility: list[Path],
    metrics: list[Path],
    evaluation: list[Path],
    answers: list[Path],
    samples: list[Path],
    differences: list[Path],
    plan: Path,
    manifests: list[Path],
    data_sets: list[Path],
    indexes: list[Path],
    later_suites: list[Path],
    forgotten: list[Path],
    remains: list[Path],
    carbon_intensity: list[Path],
) -> Material:
    """Return everything that the page is computed from, sorted by name, with links relative to the page.

    A record, an attempt or a book that is cut off loses its own part alone, and is named in `unreadable`.

    Raises:
        InputError: an artefact that the figures stand on is not what its name says.
    """
    unreadable: list[Unreadable] = []

    def link(path: Path) -> str:
        return Path(os.path.relpath(path.absolute(), page.absolute().parent)).as_posix()

    def objects(paths: Iterable[Path], *keys: str) -> list[Artefact]:
        found = [Artefact(path.parent.name, link(path), _with_keys(path, keys)) for path in paths]
        return sorted(found, key=lambda artefact: artefact.link)

    def evidence(paths: Iterable[Path], *keys: str) -> list[Artefact]:
        found = []
        for path in sorted(paths):
            try:
                found += objects([path], *keys)
            except InputError as error:
                unreadable.append(Unreadable(link(path), anonymous(str(error))))
        return found

    def counted(artefacts: list[Artefact]) -> list[Artefact]:
        return [artefact for artefact in artefacts if not artefact.content["step"].startswith(UNCOUNTED)]

    keys = ("step", "instance", "started")
    books = read_external_readings(records[0].parents[2]) if records else ExternalReadings()
    results = objects(evaluation, "model", "step", "tasks")
    return Material(
        records=counted(evidence(records, *keys, "settings", "inputs", "outputs", "wall_seconds", "ended")),
        attempts=counted(evidence(beside(records, "attempts"), *keys, "status")),
        starts=evidence(beside(records, "frozen")),
        accounting=evidence(beside(records, "accounting"), "job", "comment", "cause", "allocations", "total"),
        statistics=objects(statistics, "corpus", "sources", "totals"),
        fertility=objects(fertility, "languages"),
        metrics=[Artefact(path.parent.name, link(path), {}, read_lines(path)) for path in sorted(metrics)],
        differences=objects(differences, "comparisons"),
        evaluation=sorted(results, key=lambda artefact: (artefact.content["model"], int(artefact.content["step"]))),
        answers=sorted(answers),
        samples=objects(samples, "model", "samples", "written", "held_out"),
        data_sets=objects(data_sets, "corpus", "domains"),
        manifests=objects(manifests, "source", "files", "bytes"),
        indexes=objects(indexes, "train", "validation"),
        later_suites=objects(later_suites, "corpus", "contamination"),
        forgotten=objects(forgotten, "corpus", "before", "after", "searched"),
        remains=objects(remains, "tokens", "places"),
        plan=objects([plan])[0],
        readings=beside(records, "readings", "jsonl"),
        books=books,
        carbon_intensity=carbon_intensity,
        signer=next((signer.content for signer in evidence(_signer(records), *SIGNER)), None),
        unreadable=unreadable,
    )
