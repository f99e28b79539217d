"""Search the folder of one run for documents of opt-out lists and their copies."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from pipeline import layout
from pipeline.core.archived_run_files import FileStore
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import SEGMENT_STEP, FileEntry, Record, read_job_files
from pipeline.core.output_archives import ArchivedOutput, get_parquet_source, glob_outputs
from pipeline.corpus.duplicates.signature_files import CONTENT, Keys, band_columns
from pipeline.corpus.settings import SignatureSettings
from pipeline.opt_out.document_matching import OptedOutSignatures, hash_ids, match_domains, union_hashes
from pipeline.opt_out.entries import hash_membership_mask
from pipeline.opt_out.other_runs_fingerprint import (
    WEIGHTS_SUFFIX,
    list_weights_imported_by_run,
    read_unit_free_records,
    run_private_folder,
)
from pipeline.pretrain.checkpoints.recovery import training_identity
from pipeline.pretrain.settings import SegmentSettings

AnyOutput = TypeVar("AnyOutput", Path, Path | ArchivedOutput)
CORPUS_FILES = {
    layout.FILTERED: "texts between steps",
    layout.DEDUPLICATED: "texts between steps",
    layout.FINAL_DOCUMENTS: "corpus",
}
EXPORT_STEP = "pretrain.export"
# What a signature depends on, each with its name in records that are one version older.
SIGNATURE_SETTINGS = {"ngram": "ngram", "bands": "buckets", "rows": "hashes_per_bucket", "seed": "seed"}


@dataclass(frozen=True)
class RemainingCopy:
    """A path, relative to the results folder, that has or may have documents to be forgotten.

    Where it is not `certain`, `why` says why it is suspected; `documents` is None where they could not be counted.
    """

    run: str
    kind: str
    path: str
    certain: bool
    documents: int | None
    why: str


@dataclass(frozen=True)
class ForgottenDocuments:
    """Documents to search for: hashed ids, domains by source, and reserved signatures by corpus."""

    ids: Keys
    domains: dict[str, set[str]]
    reserved: list[tuple[SignatureSettings, OptedOutSignatures]]

    def find_matching_ids(self, table: pa.Table, source: str, ids: Keys) -> Keys:
        """Return the hashed ids of those documents of a source, of columns `id` and `url`, that are looked for."""
        hashed_ids = hash_ids(table["id"])
        urls = table["url"] if "url" in table.column_names else pa.chunked_array([pa.nulls(len(table), pa.string())])
        return np.asarray(
            hashed_ids[hash_membership_mask(ids, hashed_ids) | match_domains(urls, self.domains.get(source, set()))]
        )


class Verdict(NamedTuple):
    """What a model learned of forgotten documents: their number, how it is known, and whether it is certain."""

    documents: int | None
    why: str
    certain: bool


@dataclass(frozen=True)
class KnownWeights:
    """A file of weights that a searched run wrote: the path of its checkpoint or model, and its verdict."""

    path: str
    verdict: Verdict | None = None


def read_shard_ids(path: Path) -> Iterator[Keys]:
    """Yield the hashed ids of a shard of tokens, a batch at a time."""
    with pa.memory_map(os.fspath(path)) as mapped, pa.ipc.open_stream(mapped) as stream:
        for batch in stream:
            yield hash_ids(batch.column("id"))


class RunSearch:
    """Searches the folder of one run.

    Args:
        own: whether it is the run that the report is about.
        proven: token sets that were searched before, with nothing found.
        proven_corpora: corpora whose final documents were searched before, with nothing found.
        weights: those that all searched runs wrote, by sha256; the searches share it.
    """

    def __init__(
        self,
        results: Path,
        run: str,
        wanted: ForgottenDocuments,
        *,
        own: bool = False,
        proven: Iterable[str] = (),
        proven_corpora: Iterable[str] = (),
        weights: dict[str, KnownWeights],
    ) -> None:
        self.results, self.run, self.folder = results, run, results / run
        self.wanted, self.own, self.proven = wanted, own, set(proven)
        self.proven_corpora = set(proven_corpora)
        self.weights = weights
        self.ids = wanted.ids
        self.in_tokens: dict[str, int] = dict.fromkeys(self.proven, 0)
        self.in_corpora = self.documents = 0
        self.unread: list[RemainingCopy] = []

    def search_documents(self) -> list[RemainingCopy]:
        """Return every place with texts or tokens, in the order of the stages."""
        return [*self._search_corpora(), *self._search_file_parts(), *self._search_tokens()]

    def search_models(self) -> list[RemainingCopy]:
        """Return every place with weights, then private texts and unread files, once all weights are judged."""
        copies = [*self._search_models(), *self._search_recovery_checkpoints()]
        return [*copies, *self._search_private_texts(), *self.unread]

    def _remaining_copy(
        self, kind: str, path: Path | ArchivedOutput, documents: int | None, why: str, *, certain: bool = True
    ) -> RemainingCopy:
        return RemainingCopy(self.run, kind, os.path.relpath(str(path), self.results), certain, documents, why)

    def _read_files(self, kind: str, paths: Iterable[AnyOutput], read: Callable[[AnyOutput], Keys]) -> list[Keys]:
        """Return what is found in each finished file; one that cannot be read is a place of its own."""
        keys = []
        for path in sorted((path for path in paths if not path.name.startswith(".")), key=str):
            try:
                keys.append(read(path))
            except (pa.ArrowException, OSError, KeyError, ValueError):
                self.unread.append(self._remaining_copy(kind, path, None, "it cannot be read", certain=False))
        return keys

    def _match_signatures(self, corpus: Path) -> Iterator[Keys]:
        """Yield the ids of documents whose signatures are those of reserved ones, as far as they can be compared."""
        step = f"corpus.signatures.{corpus.name}."
        signing = FileStore(self.folder, step).find_all(layout.RECORD, job=f"{step}*")[:1]
        records, _ = read_job_files(Record, signing)
        stored = records[0].settings if records else {}

        def read(path: Path | ArchivedOutput) -> Keys:
            present = pq.read_schema(get_parquet_source(path)).names
            parts = []
            for settings, reserved in self.wanted.reserved:
                same = all(
                    stored.get(key, stored.get(old)) == getattr(settings, key)
                    for key, old in SIGNATURE_SETTINGS.items()
                )
                columns = [name for name in [CONTENT[0], *band_columns(settings) * same] if name in present]
                table = pq.read_table(get_parquet_source(path), columns=["id", *columns])
                parts.append(hash_ids(table["id"].filter(pa.array(reserved.match_signatures(table, columns)))))
            return union_hashes(parts)

        yield from self._read_files(
            "signatures", glob_outputs(self.folder, layout.SIGNATURES, corpus=corpus.name), read
        )

    def _search_corpora(self) -> Iterator[RemainingCopy]:
        corpora = [path for path in layout.CORPUS.glob(self.folder) if path.is_dir()]
        for corpus in corpora:
            self.ids = union_hashes([self.ids, *self._match_signatures(corpus)])

        def read(path: Path) -> Keys:
            present = pq.read_schema(path).names
            if "text" not in present:  # what the deduplication keeps is named without its text
                return union_hashes([])
            table = pq.read_table(path, columns=[name for name in ("id", "url") if name in present])
            self.documents += len(table)
            return self.wanted.find_matching_ids(table, path.name.split(".")[0], self.ids)

        for corpus in corpora:
            for place, kind in CORPUS_FILES.items():
                if place == layout.FINAL_DOCUMENTS and corpus.name in self.proven_corpora:
                    continue
                paths = place.glob(self.folder, corpus=corpus.name)
                matching_ids = union_hashes(self._read_files(kind, paths, read))
                self.ids = union_hashes([self.ids, matching_ids])
                self.in_corpora += len(matching_ids)
                if len(matching_ids):
                    yield self._remaining_copy(kind, paths[0].parent, len(matching_ids), "searched")

    def _search_file_parts(self) -> Iterator[RemainingCopy]:
        def read(path: Path) -> Keys:
            return self.wanted.find_matching_ids(pq.read_table(path, columns=["id", "url"]), path.parts[-4], self.ids)

        for folder in layout.FILE_PARTS.glob(self.folder):
            matching_ids = union_hashes(self._read_files("raw texts in parts", folder.glob("*.parquet"), read))
            if len(matching_ids):
                yield self._remaining_copy("raw texts in parts", folder, len(matching_ids), "searched")

    def _search_tokens(self) -> Iterator[RemainingCopy]:
        def read(path: Path) -> Keys:
            return union_hashes(
                [batch_ids[hash_membership_mask(self.ids, batch_ids)] for batch_ids in read_shard_ids(path)]
            )

        for folder in layout.TOKEN_SET.glob(self.folder):
            if folder.name in self.proven:
                continue
            splits = ("train", "validation")
            shards = [layout.TOKEN_SHARD.glob(self.folder, tokens=folder.name, split=split) for split in splits]
            matching_ids = union_hashes(self._read_files("tokens", chain(*shards), read))
            self.in_tokens[folder.name] = len(matching_ids)
            if len(matching_ids):
                yield self._remaining_copy("tokens", folder, len(matching_ids), "searched")

    @cached_property
    def _training_records(self) -> dict[tuple[str, int], Record]:
        """The records of the training, by model and step; that of an imported model has step 0."""
        records = read_unit_free_records(self.folder, "pretrain.adopt", SEGMENT_STEP)
        return {(record.instance["model"], int(record.instance.get("step", 0))): record for record in records}

    @cached_property
    def _token_verdicts(self) -> dict[tuple[str, int], Verdict | None]:
        return {key: self._judge_tokens(record) for key, record in self._training_records.items()}

    def _last_step(self, model: str) -> int:
        return max((at for name, at in self._training_records if name == model), default=-1)

    @cached_property
    def _export_records(self) -> list[Record]:
        return read_unit_free_records(self.folder, EXPORT_STEP)

    def judge_weight_files(self) -> Iterator[tuple[str, KnownWeights]]:
        """Yield the sha256 of each file of weights that the run wrote, with the verdict known by now."""
        for record in (*self._export_records, *self._training_records.values()):
            model, is_export = record.instance["model"], record.step == EXPORT_STEP
            step = self._last_step(model) if is_export else int(record.instance.get("step", 0))
            place = layout.FINAL_MODEL if is_export else layout.MILESTONE
            path = os.path.relpath(place.path(self.folder, model=model, step=step), self.results)
            known = KnownWeights(path, self._judge_model(model, step))
            yield from ((entry.sha256, known) for entry in _weights(record.outputs))

    def _judge_model(self, model: str, step: int) -> Verdict | None:
        """Return the verdict on what was trained up to a step; None where it is free of forgotten documents."""
        verdicts: list[Verdict | None] = []
        for key, record in sorted(self._training_records.items()):
            if key[0] == model and key[1] <= step:
                verdicts += [self._token_verdicts[key], *self._judge_read_weights(record)]
        if (model, step) not in self._training_records:
            verdicts.append(self._uncertain_verdict("no record says what it was trained on"))
        return max((verdict for verdict in verdicts if verdict), key=lambda verdict: verdict.certain, default=None)

    def _uncertain_verdict(self, why: str) -> Verdict | None:
        """Return a suspicion; none where another run's corpora are there and hold nothing of it."""
        free = not self.own and self.documents and not self.in_corpora
        return None if free else Verdict(None, why, False)

    def _judge_tokens(self, record: Record) -> Verdict | None:
        if record.step != SEGMENT_STEP:
            return None
        index = next((entry for entry in record.inputs if entry.name == "index"), None)
        file = self.folder / index.path if index else None
        if (
            index is None
            or file is None
            or not _has_sha256(file, index.sha256)
            or file.parent.name not in self.in_tokens
        ):
            return self._uncertain_verdict("the tokens that it was trained on are no longer there")
        count = self.in_tokens[file.parent.name]
        why = f"trained on the tokens of {file.parent.name}, as its record says"
        return Verdict(count, why, True) if count else None

    def _judge_read_weights(self, record: Record) -> Iterator[Verdict]:
        """Yield a verdict for each file of weights that a training began with, if they may have learned a document."""
        read = _weights(record.inputs)
        known = [(entry, self.weights[entry.sha256]) for entry in read if entry.sha256 in self.weights]
        for entry, made in known:
            if made.verdict:
                yield made.verdict._replace(why=f"continues {made.path}: its record lists {_describe_weights(entry)}")
        if read and not known:
            why = f"no searched run made {_describe_weights(read[0])}, which it continues: what they learned is unknown"
            yield Verdict(None, why, False)

    def find_imported_model_copies(self) -> Iterator[RemainingCopy]:
        """Yield the folders outside of the run from which a job read such weights, if they are still there."""
        for entry, file in list_weights_imported_by_run(self.folder):
            made = self.weights.get(entry.sha256)
            if made and made.verdict and entry.matches_file(file):
                why = f"holds a copy of the weights of {made.path}: {_describe_weights(entry)}"
                yield self._remaining_copy(
                    "imported model", file.parent, made.verdict.documents, why, certain=made.verdict.certain
                )

    def _search_models(self) -> Iterator[RemainingCopy]:
        for path in layout.MILESTONE.glob(self.folder):
            if path.name.isdigit() and (verdict := self._judge_model(path.parts[-3], int(path.name))):
                yield self._remaining_copy("milestone", path, *verdict[:2], certain=verdict.certain)
        for path in layout.FINAL_MODEL.glob(self.folder):
            if verdict := self._judge_model(path.parent.name, self._last_step(path.parent.name)):
                yield self._remaining_copy("model", path, *verdict[:2], certain=verdict.certain)

    def _search_recovery_checkpoints(self) -> Iterator[RemainingCopy]:
        for path in layout.RECOVERY_STATE.glob(self.folder):
            model, step = path.parts[-6], path.parts[-5]
            try:
                own = json.loads(path.read_text(encoding="utf-8"))["identity"]
            except (OSError, ValueError, LookupError, TypeError):
                own = None
            if own == self._training_identity(self._training_records.get((model, int(step)))):
                verdict = self._judge_model(model, int(step))
            else:
                why = "it is of other tokens, settings or milestones than the finished training"
                began = self._judge_model(model, int(step))
                verdict = self._uncertain_verdict(why) or (began and Verdict(None, began.why, False))
            if verdict:
                yield self._remaining_copy("recovery checkpoint", path.parent, *verdict[:2], certain=verdict.certain)

    def _training_identity(self, record: Record | None) -> str:
        """Return what the recovery checkpoints of a finished segment call themselves; nothing where it is not known."""
        try:
            if record is None:
                return ""
            entries = {entry.name: entry for entry in record.inputs}
            index, previous = entries["index"], entries.get("previous")
            if not _has_sha256(self.folder / index.path, index.sha256):
                return ""
            start = previous and self.folder.joinpath(*Path(previous.path).parts[:4])  # models/MODEL/milestones/STEP
            return training_identity(SegmentSettings.model_validate(record.settings), self.folder / index.path, start)
        except (OSError, KeyError, ValueError):
            return ""

    def _search_private_texts(self) -> Iterator[RemainingCopy]:
        def read(path: Path) -> Keys:
            table = pq.read_table(path, columns=["id", "text"])
            return self.wanted.find_matching_ids(table.filter(table["text"].is_valid()), "", self.ids)

        for folder in layout.REMOVED_FOLDER.glob(run_private_folder(self.results, self.run)):
            matching_ids = union_hashes(self._read_files("private texts", folder.glob("*.parquet"), read))
            if len(matching_ids):
                yield self._remaining_copy("private texts", folder, len(matching_ids), "searched")
            elif any(folder.glob("*.parquet")):
                why = "texts of documents that a filter removed were not compared with what is forgotten"
                yield self._remaining_copy("private texts", folder, None, why, certain=False)


def judge_weights(searches: list[RunSearch], weights: dict[str, KnownWeights]) -> None:
    """Fill in the verdict on all weights that the searched runs wrote, by sha256.

    A verdict passes to whatever read such weights, in any run, until none is new.
    """
    for search in searches:
        for sha256, made in search.judge_weight_files():
            weights.setdefault(sha256, replace(made, verdict=None))
    is_changed = True
    while is_changed:
        is_changed = False
        for search in searches:
            for sha256, made in search.judge_weight_files():
                if _rank(made.verdict) > _rank(weights[sha256].verdict):
                    weights[sha256], is_changed = made, True


def _rank(verdict: Verdict | None) -> int:
    return 0 if verdict is None else 1 + verdict.certain


def _weights(entries: Iterable[FileEntry]) -> list[FileEntry]:
    return [entry for entry in entries if entry.path.endswith(WEIGHTS_SUFFIX)]


def _describe_weights(entry: FileEntry) -> str:
    return f"{entry.path.removeprefix('data:')}, sha256 {entry.sha256[:16]}…"


def _has_sha256(file: Path, sha256: str) -> bool:
    return file.is_file() and hash_file(file) == sha256
