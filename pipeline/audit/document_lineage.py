"""The lineage of one document: its source, the decision of each step with its reason, and its shards."""

from __future__ import annotations

import difflib
import json
from bisect import bisect
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.config.genre_estimation_from_samples import add_estimated_genres
from pipeline.core.display_text import escape_to_one_line
from pipeline.core.errors import InputError, suggest_name
from pipeline.core.job_records import Record, load_records
from pipeline.core.output_archives import ArchivedOutput, find_output, get_parquet_source, glob_outputs
from pipeline.corpus.documents import DUPLICATE_PARAGRAPHS, OPT_OUT, id_hash, is_validation_cluster
from pipeline.corpus.removal_explanations import explain_removal
from pipeline.corpus.settings import Deduplication
from pipeline.layout import PathTemplate
from pipeline.provenance.crate_graph import format_license_and_rights

NEAR_IDS = 3
SEARCHED_NEIGHBORS = 2000  # ids before and after in order, among which near ones are looked for
SHOWN_COPIES = 10  # and removed parts
EXCERPT_CHARACTERS = 60
# What is a copy, or an evaluation item, is decided of the whole corpus, by a step of its own.
DECIDING_STEPS = {"deduplicate": "corpus.find_duplicates", "decontaminate": "corpus.find_items"}
STEP_OUTPUTS = {"filter": layout.FILTERED, "deduplicate": layout.DEDUPLICATED, "decontaminate": layout.FINAL_DOCUMENTS}


def _read_rows(
    path: Path | ArchivedOutput, ids: list[str], column: str = "id", leave_out: str = "text"
) -> list[dict[str, Any]]:
    """Return the rows of a file with one of the values in a column; none if there is no file."""
    if not path.is_file():
        return []
    columns = [name for name in pq.read_schema(get_parquet_source(path)).names if name != leave_out]
    rows: list[dict[str, Any]] = pq.read_table(
        get_parquet_source(path), columns=columns, filters=[(column, "in", ids)]
    ).to_pylist()
    return rows


class _DocumentLineage:
    """Describes a document from the files of a run."""

    def __init__(self, run_directory: Path, document_id: str, raw: Path | None) -> None:
        self.run_directory = run_directory
        self.raw = raw
        self.id = document_id
        self.source, _, rest = document_id.partition("/")
        self.records: dict[tuple[str, ...], Record] = {
            (record.step, *map(str, record.instance.values())): record for record in load_records(run_directory)
        }
        self.corpora = [path.name for path in layout.CORPUS.glob(run_directory) if path.is_dir()]
        self.manifest = self._read_manifest()
        self.file, self.unit = self._find_raw_file(rest)
        self.lines: list[str] = []

    def _read_manifest(self) -> dict[str, Any]:
        path = layout.MANIFEST.path(self.run_directory, source=self.source)
        if not path.is_file():
            names = [entry.parent.name for entry in layout.MANIFEST.glob(self.run_directory)]
            raise InputError(
                f"there is no source {self.source!r} in {self.run_directory}, and an id is SOURCE/FILE/ID: "
                f"{suggest_name(self.source, names)}"
            )
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content

    def _find_raw_file(self, rest: str) -> tuple[dict[str, Any], str | None]:
        """Return the raw file of the document and the number of its unit, if the manifest has it."""
        for unit, described in self.manifest["units"].items():
            for file in described["files"]:
                if rest.startswith(f"{file['name']}/"):
                    return file, unit
        return {}, None

    def _unit_files(self, corpus: str, place: PathTemplate, **values: str) -> list[Path | ArchivedOutput]:
        """Return the document's unit's file of a kind, or those of all units of its source."""
        return glob_outputs(
            self.run_directory, place, corpus=corpus, source=self.source, unit=self.unit or "*", **values
        )

    def _find_row(self, corpus: str, place: PathTemplate, **values: str) -> dict[str, Any] | None:
        for path in self._unit_files(corpus, place, **values):
            for row in _read_rows(path, [self.id]):
                return {**row, "_unit": path.name.split(".")[-2]}
        return None

    def find_similar_ids(self) -> list[str]:
        unique_ids: set[str] = set()
        for corpus in self.corpora:
            for path in (
                *self._unit_files(corpus, layout.FILTERED),
                *self._unit_files(corpus, layout.REMOVED, step="filter"),
            ):
                unique_ids.update(pq.read_table(get_parquet_source(path), columns=["id"])["id"].to_pylist())
        ids = sorted(unique_ids)
        place = bisect(ids, self.id)
        return difflib.get_close_matches(
            self.id, ids[max(0, place - SEARCHED_NEIGHBORS) : place + SEARCHED_NEIGHBORS], n=NEAR_IDS
        )

    def describe(self) -> list[str]:
        """Return the lineage as lines.

        Raises:
            InputError: no corpus of the run read a document of that id.
        """
        source = self.manifest["source"]
        self.lines.append(f"document {self.id}")
        self.lines.append(f"source {self.source}: license {format_license_and_rights(source)}")
        if self.file:
            size = f"{self.file['bytes']} bytes, sha256 {self.file['sha256']}"
            self.lines.append(f"file {self.file['name']} ({size}), unit {self.unit}")
        known = [self._describe_corpus(corpus) for corpus in self.corpora]
        if not any(known):
            near = self.find_similar_ids()
            advice = f"did you mean {' or '.join(near)}?" if near else "ids are SOURCE/FILE/ID"
            raise InputError(f"no corpus in {self.run_directory} read a document {self.id}: {advice}")
        return self.lines

    def _describe_corpus(self, corpus: str) -> bool:
        """Describe what one corpus did with the document; return whether it read it."""
        start, cluster = len(self.lines), self.id
        self.lines.append(f"corpus {corpus}")
        for step, place in STEP_OUTPUTS.items():
            gone = self._find_row(corpus, layout.REMOVED, step=step)
            kept = None if gone else self._find_row(corpus, place)
            if gone is None and kept is None:
                if step == "filter" and (damage := self._find_raw_file_damage(corpus)):
                    self.lines.append(f"  filter: nothing of its file is used, for it cannot be read whole: {damage}")
                    return True
                if step == "filter":
                    del self.lines[start:]
                    return False
                self.lines.append(
                    f"  {step}: its files are not there: that step has not run, or its files were deleted"
                )
                return True
            if gone is not None:
                self._describe_removal(corpus, step, gone)
                return True
            if kept is not None:
                facts = [f"{kept['language']} {kept['language_score']:.4f}"] if step == "filter" else []
                if step == "filter" and kept.get("license") not in (None, self.manifest["source"]["license"]):
                    facts.append(f"license {kept['license']}")
                facts += [f"flagged {', '.join(kept['flags'])}"] if step == "filter" and kept.get("flags") else []
                if step == "deduplicate" and kept["cluster_size"] > 1:
                    facts.append(f"best of {kept['cluster_size']} copies")
                details = f" ({'; '.join(facts)})" if facts else ""
                self.lines.append(f"  {step}: kept{details}")
                if step == "filter":
                    self._describe_masked_data(corpus, kept["_unit"])
                if step == "deduplicate":
                    self._describe_removed_parts(corpus, kept["_unit"])
                    self._describe_copies(corpus, self.id)
                    cluster = kept["cluster"] or self.id
                    if cluster != self.id:
                        self.lines.append(f"    in the cluster of {cluster}, and not like what is kept before it")
        self._describe_tokens(corpus, cluster)
        return True

    def _find_raw_file_damage(self, corpus: str) -> str | None:
        """Return the damage of the document's raw file if the filter excluded that file."""
        record = self.records.get(("corpus.filter", corpus, self.source, str(self.unit)))
        listed = record.counts.get("quarantined", []) if record and self.file else []
        return next((str(one["damage"]) for one in listed if one["file"] == self.file["name"]), None)

    def _describe_removal(self, corpus: str, step: str, row: dict[str, Any]) -> None:
        of_unit = (f"corpus.{step}", corpus, self.source, row["_unit"])
        record = self.records.get((DECIDING_STEPS[step], corpus) if step in DECIDING_STEPS else of_unit)
        value = "no value" if row["value"] is None else f"value {row['value']}"
        self.lines.append(f"  {step}: removed, {row['reason']}, {value}")
        settings, configuration = (record.settings, self._read_configuration(record)) if record else ({}, None)
        if details := explain_removal(step, row, settings, configuration, corpus, self.source):
            self.lines.append(f"    {details}")
        if row["reason"] == OPT_OUT:
            self._describe_opt_out(corpus, self.id if step == "filter" else str(row["value"]))
        elif step == "deduplicate":
            self._describe_similarity(corpus, row, settings)
            self._describe_removed_parts(corpus, row["_unit"])
            self._describe_copies(corpus, str(row["value"]))
        for path in self._unit_files(corpus, layout.CONTAMINATED) if step == "decontaminate" else []:
            for hit in _read_rows(path, [self.id]):
                shares = f"{hit['found']} of {hit['ngrams']} n-grams"
                self.lines.append(f"    {hit['task']}, item {hit['item']}: {shares}")

    def _describe_masked_data(self, corpus: str, unit: str) -> None:
        """Describe how many items of each kind of personal data were masked, without their content."""
        from pipeline.audit.masked_personal_data_recount import (
            describe_masked_personal_data,
        )  # the filter's libraries take seconds

        record = self.records.get(("corpus.filter", corpus, self.source, unit))
        path = layout.FILTERED.path(self.run_directory, corpus=corpus, source=self.source, unit=unit)
        text = next((row.get("text") for row in _read_rows(path, [self.id], leave_out="")), None)
        if record is not None and self.file and text is not None:
            name, license = self.file["name"], self.manifest["source"]["license"]
            masked = describe_masked_personal_data(self.run_directory, record, self.id, name, text, license, self.raw)
            self.lines.append(f"    {masked}")

    def _read_configuration(self, record: Record) -> Any:
        """Return the configuration in the snapshot of a job, with genres by samples; None if there is none."""
        path = self.run_directory / record.frozen.path if record.frozen else None
        if path is None or not path.is_file():
            return None
        return add_estimated_genres(json.loads(path.read_text(encoding="utf-8")))

    def _describe_opt_out(self, corpus: str, reserved: str) -> None:
        """Describe the entry of an opt-out list that matches the document, or the document that it is a copy of."""
        source = reserved.partition("/")[0]
        if reserved != self.id:
            paths = glob_outputs(self.run_directory, layout.REMOVED, corpus=corpus, step="filter", source=source)
            rows = [row for path in paths for row in _read_rows(path, [reserved])]
            entry = f", {rows[0]['value']}" if rows else ""
            self.lines.append(f"    a copy of {reserved}, which is reserved{entry}")
        manifest = layout.MANIFEST.path(self.run_directory, source=source)
        listed = json.loads(manifest.read_text(encoding="utf-8")).get("opt_out") if manifest.is_file() else None
        if listed:
            dated = f"of {listed['date']}, " if listed.get("date") else ""
            self.lines.append(f"    on the opt-out list of {source} ({dated}sha256 {listed['sha256']})")

    def _describe_similarity(self, corpus: str, row: dict[str, Any], settings: dict[str, Any]) -> None:
        """Describe the similarity of a near-duplicate and the kept document, if it was measured."""
        values = {"corpus": corpus, "source": self.source, "unit": row["_unit"]}
        path = find_output(layout.DUPLICATES.path(self.run_directory, **values))
        for duplicate in _read_rows(path, [self.id]):
            if duplicate.get("jaccard") is not None:
                section = Deduplication.model_validate(settings.get("deduplication", {}))
                self.lines.append(
                    f"    it has {duplicate['jaccard']:.1%} of the different {section.ngram}-grams of both in common "
                    f"with {row['value']}: the least is {section.minimum_similarity:.1%}"
                )

    def _describe_removed_parts(self, corpus: str, unit: str) -> None:
        """Describe the paragraphs, lines and passages that the document lost, their places and where they are kept."""
        values = {"corpus": corpus, "source": self.source, "unit": unit}
        filtered = layout.FILTERED.path(self.run_directory, **values)
        for row in _read_rows(find_output(layout.DUPLICATES.path(self.run_directory, **values)), [self.id]):
            if row["cut"]:
                numbers = ", ".join(str(place + 1) for place in row["cut"])
                self.lines.append(f"    without its paragraphs {numbers}: {DUPLICATE_PARAGRAPHS}")
            spans = sorted(row.get("spans") or [], key=lambda span: (span["start"], span["reason"]))
            text = _read_rows(filtered, [self.id], leave_out="")[0]["text"].encode() if spans else b""
            for span in spans[:SHOWN_COPIES]:
                removed = text[span["start"] : span["end"]].decode()
                shown = removed if len(removed) <= EXCERPT_CHARACTERS else f"{removed[:EXCERPT_CHARACTERS]}…"
                self.lines.append(
                    f"    without bytes {span['start']} to {span['end']} of its filtered text: {span['reason']}, "
                    f"kept in {span['kept']}: {escape_to_one_line(shown)}"
                )
            if len(spans) > SHOWN_COPIES:
                self.lines.append(f"    and without {len(spans) - SHOWN_COPIES} more lines or passages")

    def _describe_copies(self, corpus: str, kept: str) -> None:
        files = glob_outputs(self.run_directory, layout.DUPLICATES, corpus=corpus)
        copies = sorted({row["id"] for file in files for row in _read_rows(file, [kept], "value")} - {kept})
        if copies:
            more = f" and {len(copies) - SHOWN_COPIES} more" if len(copies) > SHOWN_COPIES else ""
            self.lines.append(f"    copies of {kept}: {', '.join(copies[:SHOWN_COPIES])}{more}")

    def _describe_tokens(self, corpus: str, cluster: str) -> None:
        """Describe shard and split in every token set of the corpus."""
        for (step, *_), record in sorted(self.records.items()):
            read = any(
                (layout.FINAL_DOCUMENTS.parse(entry.path) or {}).get("corpus") == corpus for entry in record.inputs
            )
            if step != "tokens.shard" or not read:
                continue
            settings = record.settings
            if id_hash(self.id) * settings["shards"] >> 64 == settings["shard"]:
                split = "validation" if is_validation_cluster(cluster, settings["validation_fraction"]) else "train"
                self.lines.append(f"  tokens {record.instance.get('tokens')}: {split}, shard {settings['shard']}")


def _find_full_id(run_directory: Path, document_id: str) -> str:
    """Return the full id of the only document with an id of its own source, as opt-out lists have it.

    It is returned as it is if its first part is a source, or no document has it.

    Raises:
        InputError: several documents have it.
    """
    if layout.MANIFEST.path(run_directory, source=document_id.partition("/")[0]).is_file():
        return document_id
    full_ids: set[str] = set()
    for path in (*layout.FILTERED.glob(run_directory), *glob_outputs(run_directory, layout.REMOVED, step="filter")):
        ids = pq.read_table(get_parquet_source(path), columns=["id"])["id"]
        full_ids.update(ids.filter(pc.ends_with(ids, f"/{document_id}")).to_pylist())
    if len(full_ids) > 1:
        raise InputError(
            f"{len(full_ids)} documents in {run_directory} have the id {document_id}: write the full id, such as "
            f"{' or '.join(sorted(full_ids)[:NEAR_IDS])}"
        )
    return full_ids.pop() if full_ids else document_id


def trace_document(run_directory: Path, document_id: str, raw: Path | None = None) -> list[str]:
    """Return the lineage of one document as lines.

    Args:
        document_id: SOURCE/FILE/ID, or the ID alone if it is that of one document.
        raw: a folder with raw files that are not where they were read.

    Raises:
        InputError: the run has no records, or no document of that id, or several.
    """
    return _DocumentLineage(run_directory, _find_full_id(run_directory, document_id), raw).describe()


def list_removed_documents(run_directory: Path) -> list[str]:
    """Return a line for each document that a corpus of a run removed: its id, a tab, the step, the reason, the value.

    Raises:
        InputError: no step that removes documents has run.
    """
    lines: list[str] = []
    steps: set[str] = set()
    for path in glob_outputs(run_directory, layout.REMOVED):
        name = path.path if isinstance(path, ArchivedOutput) else path.relative_to(run_directory).as_posix()
        part = layout.REMOVED.parse(name) or {}
        for row in pq.read_table(get_parquet_source(path), columns=["id", "reason", "value"]).to_pylist():
            value = "" if row["value"] is None else f", value {row['value']}"
            rest = f"corpus {part['corpus']}, {part['step']}: {row['reason']}{value}"
            lines.append(f"{escape_to_one_line(row['id'])}\t{escape_to_one_line(rest)}")
        steps.add(str(part["step"]))
    if not steps:
        raise InputError(f"{run_directory} has no corpus yet: its filters have not run")
    done = ", ".join(step for step in STEP_OUTPUTS if step in steps)
    return sorted(lines) or [f"No corpus in {run_directory} removed a document (steps that have run: {done})."]
