"""The files of a run by what they belong to: batches of a source, units of a corpus, milestones of a model."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.config.configuration import Config
from pipeline.core.job_command_lines import compress_numbered_paths
from pipeline.evaluate.task_file_reader import list_suite_files
from pipeline.layout import PathTemplate
from pipeline.workflow.finished_training_protection import FinishedTraining, hash_tokens

Wildcards = Mapping[str, str]
"""The values of the wildcards of one job."""


@cache
def _unit_hashes(manifest: Path, changed_nanoseconds: int) -> dict[str, str]:
    """Return the hash of each unit in a manifest, which is read once for all batches."""
    units = json.loads(manifest.read_text(encoding="utf-8"))["units"]
    return {unit: str(entry["sha256"]) for unit, entry in units.items()}


def hash_json_value(content: Any) -> str:
    """Return a hash of 16 digits of a JSON value."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


class RunFiles(ABC):
    """The files of one run, by its configuration.

    Attributes:
        run: the folder of the results.
        private: the folder of the removed texts, which no record lists.
        finished: the finished training that stays.
    """

    finished: FinishedTraining

    def __init__(self, config: Config) -> None:
        self.config = config
        self.run = config.run_directory.as_posix()
        self.private = (Path(config.run.results).parent / "private" / config.run.name).as_posix()

    @abstractmethod
    def job_settings_and_versions(self, step: str, instance: Wildcards) -> tuple[str, str, str]:
        """Return settings (sorted JSON), code version and environment version of a job."""

    @abstractmethod
    def non_batch_record_paths(self) -> list[str]:
        """Return the records of all jobs before the report that work on no batch, in the order of the steps."""

    @abstractmethod
    def unit_record_list_paths(self) -> list[str]:
        """Return the lists of the records of units, of all batches, in the order of the steps."""

    @cached_property
    def task_definition_files(self) -> list[str]:
        """The files of the evaluation tasks, the same for every model."""
        return [str(file) for suite in self.config.suites() for file in list_suite_files(suite)]

    def file(self, place: PathTemplate, **values: object) -> str:
        """Return a file or folder of the run; wildcards without a value stay."""
        return place.path_with_wildcards(self.run, **values)

    def record_path(self, *job: str) -> str:
        """Return the record of a job, such as `("corpus.ngrams", "main")`."""
        return self.file(layout.RECORD, job=".".join(job))

    def batch_record_path(self, *job: str) -> str:
        """Return the file of a batch, such as `("corpus.filter", "main", "laws", "0")`."""
        return self.file(layout.BATCH, job=".".join(job))

    def batch_record_paths(self, step: str, sources: Iterable[str], corpus: str | None = None) -> list[str]:
        """Return the files of all batches of a step, of some sources."""
        names = [step] if corpus is None else [step, corpus]
        return [
            self.batch_record_path(*names, source, batch)
            for source in sources
            for batch in self.config.job_batches(source)
        ]

    def corpus_batch_record_paths(self, step: str, corpus: str) -> list[str]:
        return self.batch_record_paths(step, self.config.corpus_sources(corpus), corpus)

    def corpus_files(self, place: PathTemplate, corpus: str) -> list[str]:
        """Return the files of all units of a corpus, in one of its folders."""
        return self.unit_files(place.fill(corpus=corpus), self.config.corpus_sources(corpus))

    def opt_out_source_unit_files(self, place: PathTemplate, corpus: str) -> list[str]:
        """Return the files of all units of the sources that have an opt-out list, in a folder of a corpus."""
        return self.unit_files(place.fill(corpus=corpus), self.config.sources_with_opt_out_list())

    def unit_files(self, place: PathTemplate, sources: Iterable[str]) -> list[str]:
        """Return the files of all units of some sources, in the order in which every step reads them."""
        return [
            self.file(place, source=source, unit=unit) for source in sources for unit in self.config.unit_files(source)
        ]

    def shard_files(self, place: PathTemplate, tokens: str) -> list[str]:
        return [self.file(place, tokens=tokens, shard=shard) for shard in range(self.config.tokens[tokens].shards)]

    def batch_listing_files(self, wildcards: Wildcards) -> list[str]:
        """Return the listing files of the units of a batch, as a short list."""
        units = self.config.job_batches(wildcards["source"])[wildcards["batch"]]
        return compress_numbered_paths(
            self.file(layout.UNIT_LISTING, source=wildcards["source"], unit=unit) for unit in units
        )

    def raw_folder(self, wildcards: Wildcards) -> str:
        """Return the folder that the names of a source's raw files are relative to."""
        return str(self.config.source_units(wildcards["source"]).folder_and_pattern()[0])

    def hash_raw_names_and_sizes(self, wildcards: Wildcards) -> str:
        """Return one hash of the names and sizes of a batch's raw files: a replaced file may have an older time."""
        listed = self.config.source_units(wildcards["source"])
        return hash_json_value(
            [
                [unit, name, listed.sizes[name] if listed.part_folders[unit] is None else None]
                for unit in listed.batches[wildcards["batch"]]
                for name in listed.units[unit]
            ]
        )

    def batch_hash(self, wildcards: Wildcards) -> str | None:
        """Return one hash of the units of a batch by the source's manifest; None before it exists."""
        source = wildcards["source"]
        manifest = Path(self.file(layout.MANIFEST, source=source))
        if not manifest.is_file():
            return None
        known = _unit_hashes(manifest, manifest.stat().st_mtime_ns)
        return hash_json_value([known.get(unit) for unit in self.config.job_batches(source)[wildcards["batch"]]])

    def find_file_to_split(self, wildcards: Wildcards) -> str:
        """Return the raw file of a source that has this number, to be cut into parts."""
        listed = self.config.source_units(wildcards["source"])
        return str(listed.files[listed.large_files[wildcards["file"]][0]])

    def split_raw_file_bytes(self, wildcards: Wildcards) -> int:
        """Return the size of a file that is cut into parts."""
        return Path(self.find_file_to_split(wildcards)).stat().st_size

    def milestone(self, model: str, step: int | str) -> str:
        return self.file(layout.MILESTONE, model=model, step=step)

    def milestones(self, model: str) -> list[str]:
        """Return all milestones of a model, the last one last."""
        return [self.milestone(model, step) for step in self.config.models[model].training.milestone_steps()]

    def token_index(self, model: str) -> str:
        return self.file(layout.TOKEN_INDEX, tokens=self.config.models[model].tokens)

    def tokenizer_file(self, place: PathTemplate, model: str) -> str:
        return self.file(place, tokenizer=self.config.tokens[self.config.models[model].tokens].tokenizer)

    def hash_training_tokens(self, model: str) -> str | None:
        """Return one hash of the tokens that a model is trained on and of its tokenizer; None before they exist."""
        paths = [Path(self.token_index(model)), Path(self.tokenizer_file(layout.TOKENIZER_CONFIGURATION, model))]
        if not all(path.is_file() for path in paths):
            return None
        return hash_tokens(*(hashlib.sha256(path.read_bytes()).digest() for path in paths))
