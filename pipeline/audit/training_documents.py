"""What a model has seen: `polder audit RUN MODEL`, from a step to its documents and back.

Steps count from 1, as in metrics.jsonl, samples of a step from 0. Settings, the batches that were left out and a hash
of each batch were written down while the model trained: what a step saw is computed again from the records and the
tokens, and its hash is compared with the one that the processes logged of what they had read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import layout
from pipeline.audit.document_lineage import trace_document
from pipeline.core.errors import InputError
from pipeline.core.job_records import SEGMENT_STEP, load_records
from pipeline.core.settings import merge_result_and_nonresult_settings
from pipeline.corpus.documents import id_hash
from pipeline.pretrain.monitors import metrics
from pipeline.pretrain.settings import SegmentSettings
from pipeline.provenance.crate_graph import read_source_description
from pipeline.tokens.data_order import format_batch_hash, partial_batch_hash
from pipeline.tokens.sampler import Sampler
from pipeline.tokens.token_reader import TokenReader


class TrainingAudit:
    """The sampler of a training, rebuilt from its records and its last milestone."""

    def __init__(self, run_directory: Path, model: str) -> None:
        self.run_directory = run_directory
        self.model = model
        records = [record for record in load_records(run_directory) if record.step == SEGMENT_STEP]
        model_records = [record for record in records if record.instance["model"] == model]
        if not model_records:
            names = sorted({str(record.instance["model"]) for record in records})
            there = f"it has {', '.join(names)}" if names else "no model has been trained yet"
            raise InputError(f"{run_directory} has no record of a training of {model}: {there}")
        record = self.record = max(model_records, key=lambda record: int(record.settings["last_step"]))
        self.first_step = min(int(record.settings["first_step"]) for record in model_records)
        self.settings = SegmentSettings.model_validate(
            merge_result_and_nonresult_settings(record.settings, record.operation)
        )
        self.last_step = self.settings.last_step
        entry = next(entry for entry in record.inputs if entry.name == "index")
        self.index = entry.resolve_path(run_directory)
        self._segments = model_records
        self._sources: dict[str, dict[str, Any]] = {}
        if not entry.matches_file(self.index):
            raise InputError(
                f"{self.index} is gone or no longer what {record.file} names: the tokens are others by now"
            )
        state = layout.MILESTONE.path(run_directory, model=model, step=self.last_step) / layout.CHECKPOINT_STATE
        try:
            self.skips: list[int] = sorted(json.loads(state.read_text(encoding="utf-8")).get("skips", []))
        except (OSError, ValueError) as error:
            raise InputError(f"{state} cannot be read, which names the skipped batches: {error}") from None
        training = self.settings.training
        self.length = training.sequence_length
        self.sampler = Sampler(
            TokenReader(self.index, "train"),
            self.length,
            training.batch_size,
            self.settings.seed,
            training.sampling,
            training.steps,
            self.skips,
            training.ramp,
        )

    @property
    def tokenizer(self) -> Path:
        """The tokenizer of the training; InputError where its record names none."""
        for entry in self.record.inputs:
            if entry.name == "tokenizer":
                return entry.resolve_path(self.run_directory)
        raise InputError(f"{self.record.file} names no tokenizer: train the model again")

    @property
    def base_model(self) -> str:
        """The model of the run that this training continues."""
        first = min(self._segments, key=lambda record: int(record.settings["last_step"]))
        paths = [entry.path for entry in first.inputs if entry.name == "previous"]
        return paths[0].split("/")[1] if paths else "another"

    def source_description(self, name: str) -> dict[str, Any]:
        """Return the description of a source from its manifest; empty if there is none."""
        if name not in self._sources:
            try:
                self._sources[name] = read_source_description(layout.MANIFEST.path(self.run_directory, source=name))
            except InputError:
                self._sources[name] = {}
        return self._sources[name]

    def document_license(self, row: Mapping[str, Any]) -> str:
        """Return the license of a document of the tokens: its own, or that of its source where it states none."""
        return (
            row["license"]
            or self.source_description(row["source"]).get("license")
            or "not known: its manifest is not here"
        )

    def describe_training(self) -> str:
        skips = ", ".join(map(str, self.skips)) or "none"
        sizes = dict.fromkeys(map(str, self.sampler.batches.batch_sizes))
        begun = f"from step {self.first_step} of model {self.base_model} " if self.first_step else ""
        return (
            f"model {self.model}: trained {begun}to step {self.last_step}, {', then '.join(sizes)} "
            f"sequences of {self.length} tokens in a step, seed {self.settings.seed}, skipped data steps (from 0): "
            f"{skips}"
        )

    def list_documents_in_sequence(self, step: int, sample: int) -> list[dict[str, Any]]:
        """The documents of one sample with their `tokens` among its input tokens, in their order.

        Raises InputError when the training has no such step or sample.
        """
        stream, start = self._locate_sample(step, sample)
        documents = self.sampler.rows[stream].documents_in(start, self.length)
        return [{**row, "tokens": min(row["end"], start + self.length) - max(row["start"], start)} for row in documents]

    def count_step_sequences(self, step: int) -> int:
        return self.sampler.batches.at(self.sampler.data_step(step - 1)).batch_size

    def _locate_sample(self, step: int, sample: int) -> tuple[int, int]:
        """Return the token stream of a sample and its start."""
        for name, number, first, end in (
            ("step", step, self.first_step + 1, self.last_step + 1),
            ("sample", sample, 0, self.count_step_sequences(step)),
        ):
            if not first <= number < end:
                raise InputError(f"there is no {name} {number}: name one from {first} to {end - 1}")
        return self.sampler.locate(int(self.sampler.global_batch_sequence_numbers(step - 1)[sample]))

    def find_token(self, step: int, sample: int, token: int) -> tuple[dict[str, Any], list[int], int]:
        """The document of one input token of a sample, the document's tokens, and the place of the token among them."""
        stream, start = self._locate_sample(step, sample)
        if not 0 <= token < self.length:
            raise InputError(f"there is no token {token}: name one from 0 to {self.length - 1}")
        (row,) = self.sampler.rows[stream].documents_in(start + token, 1)
        tokens = self.sampler.rows[stream].read(row["start"], row["end"] - row["start"])
        return row, tokens.tolist(), start + token - row["start"]

    def find_document_visits(self, document_id: str) -> list[dict[str, Any]]:
        """Each time that a document was in a data step, in order: its `tokens`, its `sample`, and the `step`, or None
        where the batch was skipped.
        """
        sampler, order, hashed = self.sampler, self.sampler.order, id_hash(document_id)
        shard = hashed * sampler.reader.shards >> 64
        places = [row.find_document_span(document_id, hashed, shard) for row in sampler.rows]
        stream = next((number for number, place in enumerate(places) if place), None)
        if stream is None:
            held_out = TokenReader(self.index, "validation").find_document_span(document_id, hashed, shard)
            advice = (
                "it was held out for validation" if held_out else f"ask corpus why {self.run_directory} {document_id}"
            )
            raise InputError(f"the training tokens of {self.model} hold no document {document_id}: {advice}")
        start, end = places[stream] or (0, 0)
        data_steps = sampler.data_step(self.last_step - 1) + 1
        visits = []
        for number in range(start // self.length, min(-(-end // self.length), int(order.sizes[stream]))):
            tokens = min(end, (number + 1) * self.length) - max(start, number * self.length)
            sequence = number + int(order.offsets[stream])
            for data_step in sorted(set(order.find_steps(sequence, data_steps))):
                step = None if data_step in self.skips else data_step + 1 - sum(s < data_step for s in self.skips)
                if step is not None and step <= self.first_step:
                    continue  # another model's, whose batches may have been others
                for sample in np.flatnonzero(order.batch_sequences_of_all_streams(data_step) == sequence).tolist():
                    visits.append({"data_step": data_step, "step": step, "sample": sample, "tokens": tokens})
        return sorted(visits, key=lambda visit: (visit["data_step"], visit["sample"]))

    @cached_property
    def logged_hashes(self) -> dict[int, str]:
        """The logged batch hash of each step; older trainings have none."""
        hashes: dict[int, str] = {}
        for record in self._segments:
            for entry in record.outputs:
                if entry.path.endswith(f"/{layout.METRICS_FILE}"):
                    path = self.run_directory / entry.path
                    if not entry.matches_file(path):
                        raise InputError(f"{path} is gone or no longer what {record.file} names: put it back")
                    hashes |= {
                        line["step"]: line["batch_hash"] for line in metrics.read_metrics(path) if "batch_hash" in line
                    }
        return hashes

    def mismatched_steps(self, steps: Iterable[int]) -> list[int]:
        """Return the steps whose logged batch hash differs from the rebuilt batch."""
        differing = []
        for step in steps:
            tokens_BT = self.sampler.read_rows(self.sampler.global_batch_sequence_numbers(step - 1))
            if (
                step in self.logged_hashes
                and format_batch_hash(partial_batch_hash(tokens_BT, 0)) != self.logged_hashes[step]
            ):
                differing.append(step)
        return differing

    def verify_steps(self, steps: Iterable[int]) -> tuple[str, bool]:
        """Return a sentence on the batch hashes of some steps, and whether one contradicts the rebuilt batch."""
        steps = sorted(set(steps))
        known = [step for step in steps if step in self.logged_hashes]
        if differing := self.mismatched_steps(known):
            return (
                f"WRONG: in {len(differing)} of {len(known)} steps, the first of them {differing[0]}, the processes "
                "logged the hash of another batch: what records and tokens say is not what was trained on",
                True,
            )
        without = f"; {len(steps) - len(known)} have no hash" if len(known) < len(steps) else ""
        return f"checked: {len(known)} of {len(steps)} steps logged the hash of this batch{without}", False


def _format_sample(audit: TrainingAudit, step: int, sample: int, with_decisions: bool) -> list[str]:
    lines = [f"step {step}, sample {sample}"]
    for row in audit.list_documents_in_sequence(step, sample):
        described = f"source {row['source']}, language {row['language']}, license {audit.document_license(row)}"
        lines.append(f"  {row['tokens']} tokens of {row['id']}: {described}")
        if with_decisions:
            try:
                lines += [f"    {line}" for line in trace_document(audit.run_directory, row["id"])[1:]]
            except InputError as error:  # the corpus may have been deleted or made by another run
                lines.append(f"    its decisions are not here: {error}")
    return lines


def query_training_documents(
    run_directory: Path, model: str, *, step: int | None = None, sample: int | None = None, document: str | None = None
) -> tuple[list[str], bool]:
    """Return the documents of a step, the steps of a document, or a check of all steps, in lines of text.

    Args:
        step: name the documents that this step saw; steps count from 1.
        sample: only this sample of the step, with the decisions of the filters; samples count from 0.
        document: name the steps that saw this document. Without it and `step`, check the batch of every step.

    Returns:
        The lines, and whether a logged hash contradicts them.

    Raises:
        InputError: there is no such model, step, sample or document, or its tokens are gone.
    """
    audit = TrainingAudit(run_directory, model)
    lines = [audit.describe_training()]
    if document is not None:
        visits = audit.find_document_visits(document)
        seen = [visit for visit in visits if visit["step"] is not None]
        asked: Iterable[int] = {visit["step"] for visit in seen}
        lines.append(f"{document}: {sum(visit['tokens'] for visit in seen)} tokens seen in {len({*asked})} steps")
        for visit in visits:
            where = f"step {visit['step']}" if visit["step"] else f"skipped data step {visit['data_step']}, not seen"
            lines.append(f"  {where}, sample {visit['sample']}: {visit['tokens']} tokens")
    elif step is not None:
        asked = [step]
        for number in range(audit.count_step_sequences(step)) if sample is None else [sample]:
            lines += _format_sample(audit, step, number, sample is not None)
    else:
        asked = range(audit.first_step + 1, audit.last_step + 1)
    said, contradicted = audit.verify_steps(asked)
    return [*lines, said], contradicted
