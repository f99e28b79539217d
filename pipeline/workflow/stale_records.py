"""Which records no longer say the truth about a run: what Snakemake cannot know, because it forgot or does not look.

Snakemake compares a job's parameters with those in its memory (.snakemake/metadata). Where that is lost it believes
every file that exists; the truth then lies in the records. A stale record is deleted, so that its step runs again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of
from pipeline.core.records import BatchRecord, Record, outputs_exist
from pipeline.workflow.dag import Dag
from pipeline.workflow.snakemake_internals import remembered
from pipeline.workflow.steps import STAGES, STEPS

# Of these the files are not known to Snakemake one by one.
WITH_FOLDERS = tuple(f"{name}." for name, step in STEPS.items() if step.has_folders)


def _read(path: Path) -> Record | BatchRecord | None:
    kind: type[Record] | type[BatchRecord] = BatchRecord if path.parent.name == "batches" else Record
    try:
        return kind.load(path)
    except InputError:
        return None


@dataclass(frozen=True)
class Stale:
    """The stale records of a run, whose paths are below the working directory."""

    dag: Dag
    memory: Path

    def unfit(self) -> list[Path]:
        """Return the forgotten records that do not fit the configuration, code and environment."""
        stale = []
        for name in [*self.dag.records(STAGES), *self.dag.all_batches()]:
            path = Path(name)
            if path.is_file() and not remembered(self.memory, name) and not self.dag.finished.protects(path.name):
                record = _read(path)
                try:
                    fits = record and record.was_made_with(self.dag.versions(record.step, record.instance))
                except (KeyError, TypeError, AttributeError):  # not a record of a job of this run
                    fits = False
                if not fits:
                    stale.append(path)
        return stale

    def incomplete(self) -> list[Path]:
        """Return the records of steps and batches that wrote a file which is missing or has another size.

        Snakemake looks no further than whether a folder exists, and knows nothing of the units in a batch.
        """
        stale = []
        batches = self.dag.all_batches()
        for path in map(Path, [*self.dag.records(), *batches]):
            if not (path.name.startswith(WITH_FOLDERS) or path.parent.name == "batches") or not path.is_file():
                continue
            record = _read(path)
            if record and not outputs_exist(self.dag.run, record.outputs):
                stale.append(path)
        return stale

    def of_units_no_more(self) -> list[Path]:
        """Return everything of units that a source or corpus of this run no longer has, and of their batches.

        Records, what they list, and private texts: a corpus is what lies in its folder. What is of no source or corpus
        of the configuration is another matter, and stays.
        """
        known = {os.path.basename(name) for name in self.dag.unit_records()}
        batches = set(self.dag.all_batches())
        sources = {source.name for source in self.dag.config.sources}
        gone = [path for path in Path(self.dag.run, layout.BATCHES).glob("*.json") if path.as_posix() not in batches]
        records = Path(self.dag.run, layout.RECORDS)
        found = {path.name for path in records.glob("*.*.*.json")} - known
        for file in sorted(found):
            room, name, of, *rest = file.removesuffix(".json").split(".")
            step = STEPS.get(f"{room}.{name}")
            if step is None or step.per.units is None:
                continue
            if of in (sources if step.per.wildcards[0] == "source" else self.dag.config.corpus):
                path = records / file
                record = _read(path)
                outputs = [Path(entry.path) for entry in record.outputs] if record else []
                inside = [output for output in outputs if not output.is_absolute() and ".." not in output.parts]
                gone += [path, *(Path(self.dag.run, output) for output in inside)]
                if step.private:
                    source, unit = rest
                    values = {"corpus": of, "step": step.private, "source": source, "unit": unit}
                    gone.append(layout.REMOVED.path(Path(self.dag.private), **values))
        return [path for path in gone if path.exists()]

    def of_other_files(self, batch: str, planned: str | None) -> list[Path]:
        """Return the file of a forgotten batch that read other raw files than is planned now, by their hash."""
        if remembered(self.memory, batch):
            return []
        written = _read(Path(batch))
        return [] if not isinstance(written, BatchRecord) or written.of == planned else [Path(batch)]

    def of_other_raw_files(self) -> list[Path]:
        """Return the files of the forgotten batches that hashed other raw files than those that are there."""
        return [
            path
            for source in self.dag.config.sources
            for batch in self.dag.config.batches(source.name)
            for step in ("sources.fingerprint", "opt_out.entries")
            for path in self.of_other_files(
                self.dag.batch_of(step, source.name, batch),
                self.dag.raw_hash({"source": source.name, "batch": batch}),
            )
        ]

    def of_other_tokens(self, model: str, step: str) -> list[Path]:
        """Return the forgotten record of a segment that was trained on other tokens or with another tokenizer."""
        name = layout.SEGMENT_RECORD.in_run(self.dag.run, model=model, step=step)
        record = None if remembered(self.memory, name) else _read(Path(name))
        if not isinstance(record, Record) or self.dag.finished.kept(model, int(step)):
            return []
        given = [entry for entry in record.inputs if entry.name in ("index", "tokenizer", "configuration")]
        files = [Path(self.dag.run, entry.path) for entry in given]
        same = all(file.is_file() and sha256_of(file) == entry.sha256 for file, entry in zip(files, given, strict=True))
        return [] if same else [Path(name)]
