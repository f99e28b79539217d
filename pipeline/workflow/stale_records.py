"""Find stale records of a run that Snakemake does not notice. A stale record is deleted, so that its step runs again.

Snakemake compares the parameters of a job with those in its memory (.snakemake/metadata). Without that memory it
accepts every file that exists; the records then decide.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipeline import layout
from pipeline.core.archived_run_files import FileStore, StoredFile
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import BatchRecord, Record, outputs_exist, select_record_files
from pipeline.core.output_archives import OutputArchives
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.snakemake_internals import has_metadata
from pipeline.workflow.steps import STAGES, STEPS

# Snakemake does not know the files in the output folders of these steps.
STEPS_WITH_FOLDERS = tuple(f"{name}." for name, step in STEPS.items() if step.has_folders)


def _load_record(path: StoredFile) -> Record | BatchRecord | None:
    is_batch = isinstance(path, Path) and path.parent.name == "batches"
    kind: type[Record] | type[BatchRecord] = BatchRecord if is_batch else Record
    try:
        return kind.load(path)
    except InputError:
        return None


@dataclass(frozen=True)
class StaleRecords:
    """Finds the stale records of a run; paths are relative to the working directory."""

    dag: Dag
    memory: Path

    @cached_property
    def _store(self) -> FileStore:
        """The records, which are listed once: a run of ten thousand units has eighty thousand."""
        return FileStore(Path(self.dag.run))

    @cached_property
    def _outputs(self) -> OutputArchives:
        return OutputArchives(Path(self.dag.run))

    def find_outdated(self) -> list[Path]:
        """Return records that Snakemake forgot and that do not match configuration, code and environment."""
        stale = []
        for name in [*self.dag.non_batch_record_paths(STAGES), *self.dag.all_batch_record_paths()]:
            path = Path(name)
            if path.is_file() and not has_metadata(self.memory, name) and not self.dag.finished.is_protected(path.name):
                record = _load_record(path)
                try:
                    fits = record and record.matches_versions(
                        self.dag.job_settings_and_versions(record.step, record.instance)
                    )
                except (KeyError, TypeError, AttributeError):  # not a record of a job of this run
                    fits = False
                if not fits:
                    stale.append(path)
        return stale

    def find_missing_outputs(self) -> list[Path]:
        """Return the records of steps and batches that wrote a file that is missing or has another size.

        Snakemake only checks that a folder exists, and does not know the units of a batch.
        """
        stale = []
        batches = self.dag.all_batch_record_paths()
        for path in map(Path, [*self.dag.non_batch_record_paths(), *batches]):
            if not (path.name.startswith(STEPS_WITH_FOLDERS) or path.parent.name == "batches") or not path.is_file():
                continue
            record = _load_record(path)
            if record is None:
                continue
            if not outputs_exist(self.dag.run, record.outputs) or not self._has_unit_records(path.stem):
                stale.append(path)
        return stale

    def _has_unit_records(self, batch: str) -> bool:
        """Return whether the records that the list of a batch names exist; Snakemake knows the list itself."""
        path = layout.UNIT_RECORDS.path(Path(self.dag.run), job=batch)
        try:
            files = select_record_files(self._store, [path]) if path.is_file() else []
        except InputError:
            return False
        return all(file.is_file() for file in files)

    def find_damaged_archives(self) -> list[str]:
        """Return a sentence for each archive that cannot be read."""
        return [*self._store.problems.values(), *self._outputs.problems.values()]

    def find_removed_units(self) -> list[Path]:
        """Return the files of units, and of their batches, that a source or corpus of this run no longer has.

        These are records, the files that they list, and private texts, because every file in the folder of a corpus
        belongs to it. Files of sources and corpora that the configuration does not name stay.
        """
        known = {os.path.basename(name) for name in self.dag.unit_record_paths()}
        batches = set(self.dag.all_batch_record_paths())
        sources = {source.name for source in self.dag.config.sources}
        gone = [path for path in Path(self.dag.run, layout.BATCHES).glob("*.json") if path.as_posix() not in batches]
        lists = {*self.dag.unit_record_list_paths()}
        gone += [path for path in layout.UNIT_RECORDS.glob(Path(self.dag.run)) if path.as_posix() not in lists]
        for file in self._store.find_all(layout.RECORD, job="*.*.*"):
            if file.name in known:
                continue
            package, name, of, *rest = file.stem.split(".")
            step = STEPS.get(f"{package}.{name}")
            if step is None or step.instances.units is None:
                continue
            if of in (sources if step.instances.wildcards[0] == "source" else self.dag.config.corpus):
                record = _load_record(file)
                outputs = [Path(entry.path) for entry in record.outputs] if record else []
                inside = [output for output in outputs if not output.is_absolute() and ".." not in output.parts]
                gone += [layout.RECORDS.path(Path(self.dag.run)) / file.name]
                gone += [Path(self.dag.run, output) for output in inside]
                if step.private:
                    source, unit = rest
                    values = {"corpus": of, "step": step.private, "source": source, "unit": unit}
                    gone.append(layout.REMOVED.path(Path(self.dag.private), **values))
        archived = {Path(self.dag.run, path) for files in (self._store, self._outputs) for path in files.archived}
        return [path for path in gone if path in archived or path.exists()]

    def find_changed_batch(self, batch: str, planned: str | None) -> list[Path]:
        """Return the file of a batch that Snakemake forgot and that read other raw files than planned."""
        if has_metadata(self.memory, batch):
            return []
        written = _load_record(Path(batch))
        return [] if not isinstance(written, BatchRecord) or written.of == planned else [Path(batch)]

    def find_batches_with_changed_raw_files(self) -> list[Path]:
        """Return the files of all batches that Snakemake forgot and that hashed other raw files."""
        return [
            path
            for source in self.dag.config.sources
            for batch in self.dag.config.job_batches(source.name)
            for step in ("sources.fingerprint", "opt_out.entries")
            for path in self.find_changed_batch(
                self.dag.batch_record_path(step, source.name, batch),
                self.dag.hash_raw_names_and_sizes({"source": source.name, "batch": batch}),
            )
        ]

    def find_changed_tokens(self, model: str, step: str) -> list[Path]:
        """Return the record of a segment that Snakemake forgot and that read other tokens or another tokenizer."""
        name = layout.SEGMENT_RECORD.path_with_wildcards(self.dag.run, model=model, step=step)
        record = None if has_metadata(self.memory, name) else _load_record(Path(name))
        if not isinstance(record, Record) or self.dag.finished.kept_versions(model, int(step)):
            return []
        inputs = [entry for entry in record.inputs if entry.name in ("index", "tokenizer", "configuration")]
        files = [Path(self.dag.run, entry.path) for entry in inputs]
        same = all(
            file.is_file() and hash_file(file) == entry.sha256 for file, entry in zip(files, inputs, strict=True)
        )
        return [] if same else [Path(name)]
