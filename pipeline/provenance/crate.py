"""The RO-Crate of a run: every file with its hash, every job with what it read, wrote and cost.

The metadata follow RO-Crate 1.1 and the Process Run Crate profile 0.5. They are computed from the records and the
files alone: no identifier is random and no date is today's, so the same results give the same bytes.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline.ground.errors import InputError
from pipeline.ground.hashing import sha256_of
from pipeline.provenance.files import METADATA, RECORDS, artefacts
from pipeline.provenance.records import FileEntry, Record, load_records, producers
from pipeline.provenance.settings import CrateSettings

ENTITY = dict[str, Any]
CRATE_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
CONTEXT = [
    f"{CRATE_SPECIFICATION}/context",
    "https://w3id.org/ro/terms/workflow-run/context",
    {"sha256": "https://schema.org/sha256"},
]
# Identifiers such as CC0-1.0, CC-BY-SA-3.0-NL, Apache-2.0 and GPL-3.0-only have a page of their own at SPDX.
SPDX = re.compile(r"(MIT|ISC|Unlicense|[A-Za-z][A-Za-z0-9]*(-[A-Za-z]+)*-\d+(\.\d+)*(-[A-Za-z]+)*)")
MEDIA_TYPES = {
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".parquet": "application/vnd.apache.parquet",
    ".arrow": "application/vnd.apache.arrow.file",
    ".html": "text/html",
    ".md": "text/markdown",
}


def _reference(identifier: str) -> dict[str, str]:
    return {"@id": identifier}


def _references(identifiers: list[str]) -> list[dict[str, str]]:
    return [_reference(identifier) for identifier in sorted(set(identifiers))]


def _identifier(entry: FileEntry) -> str:
    """The @id of a file: its path, or for raw data, which lie outside the crate, its name and hash."""
    if entry.is_outside:
        return f"#data/{quote(entry.path.removeprefix('data:'))}/{entry.sha256[:16]}"
    return quote(entry.path)


class _Graph:
    """The entities of the crate by @id."""

    def __init__(self) -> None:
        self.entities: dict[str, ENTITY] = {}

    def add(self, identifier: str, kind: str, /, **properties: Any) -> str:
        """Add an entity, unless it is there, and return its @id; properties without a value are left out."""
        given = {key: value for key, value in properties.items() if value not in (None, "", [])}
        self.entities.setdefault(identifier, {"@id": identifier, "@type": kind, **given})
        return identifier

    def license(self, license: str) -> str:
        """Add a licence, given by SPDX identifier or URL or in words, and return its @id."""
        if "://" in license:
            identifier = license
        elif SPDX.fullmatch(license):
            identifier = f"https://spdx.org/licenses/{license}"
        else:
            identifier = f"#license/{quote(license)}"
        return self.add(identifier, "CreativeWork", name=license, identifier=license)

    def job(self, record: Record) -> str:
        """Add a finished job: a CreateAction with its software, settings, inputs, outputs and cost."""
        name = Path(record.file).stem
        inputs = [self.raw(entry) if entry.is_outside else _identifier(entry) for entry in record.inputs]
        settings = json.dumps(record.settings, sort_keys=True, ensure_ascii=False)
        inputs.append(self.add(f"#settings/{name}", "PropertyValue", name="settings", value=settings))
        return self.add(
            f"#job/{name}",
            "CreateAction",
            name=record.title,
            description=shlex.join(record.command),
            instrument=_reference(self.software(record)),
            object=_references(inputs),
            result=_references([_identifier(entry) for entry in record.outputs]),
            startTime=record.started,
            endTime=record.ended,
            actionStatus=_reference("http://schema.org/CompletedActionStatus"),
            resourceUsage=_references(self.usage(name, record)),
            subjectOf=_reference(quote(record.file)),
        )

    def software(self, record: Record) -> str:
        """Add the code of a step at its version, with its environment."""
        packages = record.environment.get("packages") or {}
        environment = self.add(
            f"#environment/{record.environment_version}",
            "SoftwareApplication",
            name="environment",
            softwareVersion=record.environment_version,
            description=", ".join(f"{name} {version}" for name, version in sorted(packages.items())),
        )
        return self.add(
            f"#software/{record.step}/{record.code_version}",
            "SoftwareApplication",
            name=f"polder {record.step}",
            softwareVersion=record.code_version,
            softwareRequirements=_reference(environment),
        )

    def usage(self, name: str, record: Record) -> list[str]:
        """Add what a job used: energy, with the word measured or estimated, CPU time and memory."""
        meters = "; ".join(
            f"{meter.meter}: {meter.joules:.6g} J, {'measured' if meter.measured else 'estimated'}"
            for meter in record.energy.meters
        )
        quantities = (
            ("energy", record.energy.joules, "joule", meters),
            ("CPU time", record.cpu_seconds, "second", None),
            ("peak memory", record.peak_memory_bytes, "byte", None),
        )
        return [
            self.add(
                f"#usage/{name}/{quote(what)}", "PropertyValue", name=what, value=value, unitText=unit, description=text
            )
            for what, value, unit, text in quantities
        ]

    def raw(self, entry: FileEntry) -> str:
        """Add a raw file, which is described but not contained."""
        return self.add(
            _identifier(entry),
            "CreativeWork",
            name=entry.path.removeprefix("data:"),
            sha256=entry.sha256,
            contentSize=str(entry.bytes),
        )

    def file(self, path: str, sha256: str, size_bytes: int, is_left_over: bool) -> str:
        """Add a file of the run."""
        return self.add(
            quote(path),
            "File",
            name=Path(path).name,
            sha256=sha256,
            contentSize=str(size_bytes),
            encodingFormat=MEDIA_TYPES.get(Path(path).suffix, "application/octet-stream"),
            description="not made by a job of this run's configuration" if is_left_over else None,
        )


def _words(value: Any) -> str:
    """A value of a source's description in words: {basis: …, holder: …} as `basis: …; holder: …`."""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_words(item)}" for key, item in sorted(value.items()) if item is not None)
    return ", ".join(map(_words, value)) if isinstance(value, list) else str(value)


def source_of(manifest: Path) -> dict[str, Any]:
    """The description of a source from its manifest: name, language, license, rights.

    Raises:
        InputError: the manifest is no JSON or has no source.
    """
    try:
        source = json.loads(manifest.read_text(encoding="utf-8"))["source"]
        return {"name": str(source["name"]), **source}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"sources/{manifest.parent.name}/manifest.json holds no description of a source: make it again"
        ) from None


def _datasets(graph: _Graph, run_directory: Path, paths: list[str], records: list[Record]) -> dict[str, str]:
    """Add sources and models as Datasets; return path of each file in one of them and the Dataset's @id."""
    inside: dict[str, str] = {}
    folders = sorted({"/".join(path.split("/")[:2]) for path in paths if path.split("/")[0] in ("sources", "models")})
    for folder in folders:
        identifier, kind = f"{quote(folder)}/", folder.split("/")[0]
        parts = [path for path in paths if path.startswith(f"{folder}/")]
        inside |= dict.fromkeys(parts, identifier)
        name = folder.split("/")[1]
        if kind == "models" or f"{folder}/manifest.json" not in paths:
            graph.add(identifier, "Dataset", name=f"{kind[:-1]} {name}", hasPart=_references([*map(quote, parts)]))
            continue
        source = source_of(run_directory / folder / "manifest.json")
        license = source.get("license")
        raw = [
            _identifier(entry)
            for record in records
            if record.instance.get("source") == name
            for entry in record.inputs
            if entry.is_outside
        ]
        graph.add(
            identifier,
            "Dataset",
            name=source["name"],
            inLanguage=source.get("language"),
            license=_reference(graph.license(str(license))) if license else None,
            usageInfo=_words(source.get("rights") or ""),
            hasPart=_references([*map(quote, parts)]),
            mentions=_references(raw),
        )
    return inside


def _add_files(graph: _Graph, run_directory: Path, paths: list[str], records: list[Record]) -> int:
    """Add every file, with the hash that its record holds or else a computed one; return their bytes."""
    made, own = producers(records), {record.file for record in records}
    gone = next((path for path in sorted(made) if not (run_directory / path).is_file()), None)
    if gone is not None:
        raise InputError(f"{gone} is missing: delete {made[gone][0].file}, so that the step runs again")
    total_bytes = 0
    for path in paths:
        size_bytes = (run_directory / path).stat().st_size
        sha256 = None
        if path in made:
            record, entry = made[path]
            sha256 = entry.sha256
            if entry.bytes != size_bytes:
                raise InputError(
                    f"{path} has {size_bytes} bytes, but {record.file} says {entry.bytes}: "
                    f"it was changed after {record.step} wrote it, delete it so that the step runs again"
                )
        is_left_over = path not in made and path not in own
        graph.file(path, sha256 or sha256_of(run_directory / path), size_bytes, is_left_over)
        total_bytes += size_bytes
    return total_bytes


def run(settings: CrateSettings, *, files: list[Path], crate: Path) -> dict[str, Any]:
    """Write the RO-Crate metadata of the run whose folder is that of `crate`, and return counts.

    The jobs of the run are the records among `files` (all records of the folder if there is none among them);
    what else lies in the folder is listed as a file without a job. Prints the sha256 of the metadata.

    Raises:
        InputError: a record is broken, or a file is not as long as its record says.
    """
    run_directory = crate.parent
    planned = {file.name for file in files if file.parent.name == Path(RECORDS).name}
    records = [
        record
        for record in load_records(run_directory)
        if record.step != "provenance.crate" and (not planned or Path(record.file).name in planned)
    ]
    if not records:
        raise InputError(f"{RECORDS} holds no record of a finished step: run the steps before the crate")
    paths = [path for path in artefacts(run_directory) if path != crate.name]
    graph = _Graph()
    inside = _datasets(graph, run_directory, paths, records)
    total_bytes = _add_files(graph, run_directory, paths, records)
    jobs = [graph.job(record) for record in records]
    graph.add(PROFILE, "CreativeWork", name="Process Run Crate", version="0.5")
    top = _Graph()
    top.add(METADATA, "CreativeWork", about=_reference("./"), conformsTo=_reference(CRATE_SPECIFICATION))
    top.add(
        "./",
        "Dataset",
        name=settings.name or settings.run,
        description=settings.description,
        datePublished=max(record.ended for record in records)[:10],
        license=_reference(graph.license(settings.license)),
        conformsTo=_reference(PROFILE),
        hasPart=_references([*inside.values(), *(quote(path) for path in paths if path not in inside)]),
        mentions=_references(jobs),
    )
    entities = [*top.entities.values(), *(graph.entities[key] for key in sorted(graph.entities))]
    text = json.dumps({"@context": CONTEXT, "@graph": entities}, ensure_ascii=False, indent=1) + "\n"
    crate.write_text(text, encoding="utf-8")
    print(f"crate sha256: {sha256_of(crate)}", flush=True)
    return {"files": len(paths), "bytes": total_bytes, "jobs": len(jobs)}
