"""The entities of a crate by their identifiers, and the files of the run among them, with hash, size and dataset."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline import layout
from pipeline.core.archived_run_files import ArchivedFile, FileStore
from pipeline.core.display_text import file_name_problem
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import FileEntry, Record, map_producers
from pipeline.core.output_archives import ArchivedOutput, OutputArchives, parse_archive_job_name

Entity = dict[str, Any]
CRATE_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/provenance/0.5": ("Provenance Run Crate", "0.5"),
    WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
}
CONTEXT = [
    f"{CRATE_SPECIFICATION}/context",
    "https://w3id.org/ro/terms/workflow-run/context",
    {"sha256": "https://schema.org/sha256"},
]
# Identifiers such as CC0-1.0, CC-BY-SA-3.0-NL, Apache-2.0 and GPL-3.0-only have a page of their own at SPDX.
SPDX = re.compile(r"(MIT|ISC|Unlicense|[A-Za-z][A-Za-z0-9]*(-[A-Za-z]+)*-\d+(\.\d+)*(-[A-Za-z]+)*)")
UNKNOWN_AGENT = "#agent/not-stated"
CHECKPOINT_IDENTIFIER = "#log-checkpoint"
ARCHIVED_PREFIX = "#file/"
"""How the @id of a file begins that is inside of an archive, or of a lost attempt."""
MEDIA_TYPES = {
    ".zip": "application/zip",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".parquet": "application/vnd.apache.parquet",
    ".arrow": "application/vnd.apache.arrow.stream",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".md": "text/markdown",
    ".csv": "text/csv",
    ".txt": "text/plain",
    ".log": "text/plain",
    ".yaml": "application/yaml",
    ".gz": "application/gzip",
    ".zst": "application/zstd",
}
ARROW_FILE, ARROW_FILE_MAGIC = "application/vnd.apache.arrow.file", b"ARROW1"


def reference(identifier: str) -> dict[str, str]:
    return {"@id": identifier}


def references(identifiers: Iterable[str]) -> Any:
    """Return sorted references without duplicates; a single one is not in a list, as RO-Crate requires."""
    sorted_references = [reference(identifier) for identifier in sorted(set(identifiers))]
    return sorted_references[0] if len(sorted_references) == 1 else sorted_references


class CrateGraph:
    def __init__(self) -> None:
        self.entities: dict[str, Entity] = {}

    def add_entity(self, identifier: str, kind: str | list[str], /, **properties: Any) -> str:
        """Add an entity unless it exists and return its @id; properties without a value are omitted."""
        given = {key: value for key, value in properties.items() if value is not None and value not in ("", [])}
        self.entities.setdefault(identifier, {"@id": identifier, "@type": kind, **given})
        return identifier

    def add_license(self, license: str) -> str:
        """Add a license, given by SPDX identifier or URL or in words, and return its @id."""
        if "://" in license:
            identifier = license
        elif SPDX.fullmatch(license):
            identifier = f"https://spdx.org/licenses/{license}"
        else:
            identifier = f"#license/{quote(license)}"
        address = identifier if "://" in identifier else None  # converters to records of Zenodo take it for a link
        return self.add_entity(identifier, "CreativeWork", name=license, identifier=address)

    def add_organization(self, name: str | None, url: str | None, contact: str | None) -> str:
        """Add the organization that ran the pipeline, stated or not, and return its @id."""
        if name is None:
            described = "the configuration names nobody who is responsible for the run (run.provider)"
            return self.add_entity(UNKNOWN_AGENT, "Organization", name="not stated", description=described)
        point = contact and self.add_entity("#contact", "ContactPoint", name=contact)
        return self.add_entity(
            url or f"#organization/{quote(name)}",
            "Organization",
            name=name,
            url=url,
            contactPoint=reference(point) if point else None,
        )

    def add_parameter(self, identifier: str, name: str, kind: str) -> str:
        """Add a parameter of a tool or of the workflow; `kind` is the type of its values."""
        return self.add_entity(
            identifier,
            "FormalParameter",
            name=name,
            additionalType=kind,
            conformsTo=reference("https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"),
        )

    def link_entity_to_parameters(self, identifier: str, parameters: Iterable[str]) -> None:
        """Set the parameters that an entity is a value of."""
        self.entities[identifier]["exampleOfWork"] = references(parameters)

    def sorted_entities(self) -> list[Entity]:
        """Return all entities sorted by @id."""
        return [self.entities[key] for key in sorted(self.entities)]


def _format_value(value: Any) -> str:
    """Format a value of a source's description: {basis: …, holder: …} as `basis: …; holder: …`."""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_format_value(item)}" for key, item in sorted(value.items()) if item is not None)
    return ", ".join(map(_format_value, value)) if isinstance(value, list) else str(value)


def read_source_description(manifest: Path) -> dict[str, Any]:
    """Return the description of a source from its manifest: name, language, license, rights.

    Raises:
        InputError: the manifest is no JSON or has no source.
    """
    try:
        source = json.loads(manifest.read_text(encoding="utf-8"))["source"]
        return {"name": str(source["name"]), **source}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{layout.MANIFEST.relative_path(source=manifest.parent.name)} holds no description of a source: "
            "make it again"
        ) from None


def format_license_and_rights(source: dict[str, Any]) -> str:
    """Return the license of a source in words, with the basis and holder of the rights."""
    key, rights = source.get("license_key"), source.get("rights")
    own = f" (of a document: what it says itself, in {key})" if key else ""
    stated = sorted(rights.items()) if isinstance(rights, dict) else []
    basis = "".join(f", {name}: {value}" for name, value in stated if value)
    return f"{source.get('license', 'no license stated')}{own}{basis}"


def detect_media_type(path: Path) -> str:
    """Return the media type of a file, by its name; Arrow's two formats share a name, so its first bytes decide."""
    if path.suffix == ".arrow" and path.is_file():
        with path.open("rb") as file:
            if file.read(len(ARROW_FILE_MAGIC)) == ARROW_FILE_MAGIC:
                return ARROW_FILE
    return MEDIA_TYPES.get(path.suffix, "application/octet-stream")


class CrateFiles:
    """The files of one run in its crate; `paths` are those that the crate lists, relative to the run."""

    def __init__(self, graph: CrateGraph, run_directory: Path, paths: list[str], records: list[Record]) -> None:
        self.graph = graph
        self.run_directory = run_directory
        self.paths = paths
        self.records = records
        self.listed = set(paths)
        self.archived: dict[str, ArchivedOutput] = {}
        self.parameters: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.total_bytes = 0

    def file_identifier(self, entry: FileEntry) -> str:
        """Return the @id of a file: its path, that in an archive, or name and hash if the crate has neither."""
        if entry.path in self.listed:
            return quote(entry.path)
        if entry.path in self.archived:
            return f"{ARCHIVED_PREFIX}{quote(entry.path)}"
        name = entry.path.removeprefix("data:")
        identifier = f"#data/{quote(name)}/{entry.sha256[:16]}"
        size = str(entry.bytes)
        return self.graph.add_entity(identifier, "CreativeWork", name=name, sha256=entry.sha256, contentSize=size)

    def result_identifier(self, entry: FileEntry) -> str:
        """Return the @id of a file that is a result of the run: an archive in place of what is in it."""
        archived = self.archived.get(entry.path)
        return quote(archived.archive_path) if archived else self.file_identifier(entry)

    def add_all_files(self) -> None:
        """Add every file with its recorded or else computed hash.

        Raises:
            InputError: a file that a record names is missing or has another length than the record says, or the name of
                a file is no UTF-8.
        """
        made = map_producers(self.records)
        own = {path for record in self.records for path in (record.file, record.archive)}
        own.update(path for path in self.paths if layout.UNIT_RECORDS.parse(path) or parse_archive_job_name(path))
        archived = OutputArchives(self.run_directory).archived
        self.archived = {path: file for path, file in archived.items() if path not in self.listed}
        gone = next(
            (path for path in sorted(made.keys() - self.archived) if not (self.run_directory / path).is_file()), None
        )
        if gone is not None:
            raise InputError(f"{gone} is missing: start again, which runs {made[gone][0].step} again")
        for path in self.paths:
            if problem := file_name_problem(path):
                raise InputError(problem)
            size_bytes = (self.run_directory / path).stat().st_size
            if path not in made:
                self.add_file(path, hash_file(self.run_directory / path), size_bytes, is_left_over=path not in own)
                continue
            record, entry = made[path]
            if entry.bytes != size_bytes:
                raise InputError(
                    f"{path} has {size_bytes} bytes, but {record.file} says {entry.bytes}: "
                    f"it was changed after {record.step} wrote it, delete it so that the step runs again"
                )
            self.add_file(path, entry.sha256, size_bytes, is_left_over=False)

    def add_archived_files(self) -> None:
        """Add the records and outputs of units that are inside of archives, with their recorded or computed hashes."""
        made = map_producers(self.records)
        records = [
            file for file in FileStore(self.run_directory).find_all(layout.RECORD) if isinstance(file, ArchivedFile)
        ]
        for file in (*records, *self.archived.values()):
            self.graph.add_entity(
                f"{ARCHIVED_PREFIX}{quote(file.path)}",
                "CreativeWork",
                name=file.path,
                sha256=made[file.path][1].sha256 if file.path in made else hash_file(file),
                contentSize=str(file.size_bytes),
                isPartOf=reference(quote(file.archive_path)),
            )

    @staticmethod
    def record_identifier(record: Record) -> str:
        """Return the @id of a record: its path, or that of a part of an archive."""
        return f"{ARCHIVED_PREFIX if record.archive else ''}{quote(record.file)}"

    def add_file(self, path: str, sha256: str, size_bytes: int, is_left_over: bool) -> None:
        self.graph.add_entity(
            quote(path),
            "File",
            name=Path(path).name,
            sha256=sha256,
            contentSize=str(size_bytes),
            encodingFormat=detect_media_type(self.run_directory / path),
            description="not made by a job of this run's configuration" if is_left_over else None,
        )
        self.total_bytes += size_bytes

    def add_datasets(self) -> dict[str, str]:
        """Add sources and models as Datasets; return path of each file in one of them and the Dataset's @id."""
        parts_of: dict[str, list[str]] = defaultdict(list)
        for path in self.paths:
            if path.split("/")[0] in ("sources", "models"):
                parts_of["/".join(path.split("/")[:2])].append(path)
        raw: dict[str, list[str]] = defaultdict(list)
        for record in self.records:
            entries = [e for e in record.inputs if e.is_outside_run and e.name != "classifier"]  # a model
            raw[str(record.instance.get("source"))] += [self.file_identifier(e) for e in entries]
        inside: dict[str, str] = {}
        for folder, parts in sorted(parts_of.items()):
            identifier = f"{quote(folder)}/"
            kind, name = folder.split("/")
            inside |= dict.fromkeys(parts, identifier)
            manifest = layout.MANIFEST.relative_path(source=name)
            if kind == "models" or manifest not in self.listed:
                title = f"{kind[:-1]} {name}"
                self.graph.add_entity(identifier, "Dataset", name=title, hasPart=references(map(quote, parts)))
                continue
            source = read_source_description(self.run_directory / manifest)
            license, key = source.get("license"), source.get("license_key")
            own = f"; license of a document: what it says itself, in {key}" if key else ""
            self.graph.add_entity(
                identifier,
                "Dataset",
                name=source["name"],
                inLanguage=source.get("language"),
                license=reference(self.graph.add_license(str(license))) if license else None,
                usageInfo=_format_value(source.get("rights") or "") + own,
                hasPart=references(map(quote, parts)),
                mentions=references(raw[name]),
            )
        return inside

    def add_step_inputs_and_outputs(self) -> None:
        """Add inputs and outputs of each step as parameters, with the files as their values.

        The value is the archive where a file is in one; what is not in the crate, such as raw text, is a collection.
        """
        parameters: dict[str, set[str]] = defaultdict(set)
        values_in_crate: set[str] = set()
        elsewhere: dict[str, set[str]] = defaultdict(set)
        for record in self.records:
            settings = {f"#parameter/{record.step}/settings/{quote(key)}" for key in record.settings}
            self.parameters[record.step, "input"] |= settings
            for direction, entries in (("input", record.inputs), ("output", record.outputs)):
                for entry in entries:
                    parameter = self.graph.add_parameter(
                        f"#parameter/{record.step}/{direction}/{quote(entry.name)}", entry.name, "File"
                    )
                    self.parameters[record.step, direction].add(parameter)
                    if entry.path in self.listed or entry.path in self.archived:
                        parameters[self.result_identifier(entry)].add(parameter)
                        values_in_crate.add(parameter)
                    else:
                        elsewhere[parameter].add(self.file_identifier(entry))
        for identifier, values in parameters.items():
            self.graph.link_entity_to_parameters(identifier, values)
        for parameter, identifiers in elsewhere.items():
            name = f"files that are not in the crate: {parameter.removeprefix('#parameter/')}"
            collection = f"#collection/{parameter.removeprefix('#parameter/')}"
            self.graph.add_entity(collection, "Collection", name=name, hasPart=references(identifiers))
            self.graph.link_entity_to_parameters(collection, [parameter])
            kinds = ["File", "Collection"] if parameter in values_in_crate else "Collection"
            self.graph.entities[parameter]["additionalType"] = kinds
