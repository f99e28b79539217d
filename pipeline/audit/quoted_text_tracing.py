"""From a text to its sources: `polder provenance quote RUN MODEL "a text"`.

It prints the longest parts of the text in the training documents of a model, with source, license, holder and training
steps of each document, and no other text of a document. For one token of a training step it prints text, document and
raw file, and verifies each link.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.audit.document_lineage import trace_document
from pipeline.audit.training_documents import TrainingAudit
from pipeline.core.display_text import pluralize
from pipeline.core.errors import InputError
from pipeline.core.hashing import hash_file
from pipeline.core.job_records import FileEntry, Record, load_records, map_producers
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.corpus.documents import id_hash
from pipeline.tokenizer.encoder import Encoder, load_encoder
from pipeline.tokens.settings import MINIMUM_CHARACTERS
from pipeline.tokens.text_search import TextMatch, TextSearch, count_covered_characters

SHOWN_DOCUMENTS = 3
SHOWN_STEPS = 10
SEARCH_LIMITS = (
    "not searched: documents held out for validation, documents that a filter or an opt-out removed before the "
    "training, and what says the same in other words, letters or spaces"
)
CONTEXT_TOKENS = 8  # tokens on either side that are shown with it


class QuoteSearch:
    """Searches the training documents of a model for a text.

    Raises:
        InputError: the run has no training of that model, or its tokens or their suffix arrays are gone or others.
    """

    def __init__(self, run_directory: Path, model: str) -> None:
        self.audit = TrainingAudit(run_directory, model)
        self.search = TextSearch(self.audit.index, self.audit.tokenizer)

    def describe_rights(self, source: str) -> str:
        """Return holder and basis of the rights on a source from its manifest."""
        described = self.audit.source_description(source)
        if not described:
            return "holder not known: its manifest is not here"
        rights = described.get("rights") or {}
        stated = [f"{key} {rights[key]}" for key in ("holder", "basis") if rights.get(key)]
        return ", ".join(stated) or "holder not stated"

    def describe_training_steps(self, document: str) -> str:
        visits = self.audit.find_document_visits(document)
        seen = sorted({visit["step"] for visit in visits if visit["step"] is not None})
        if not seen:
            return "seen in no step"
        first, more = ", ".join(map(str, seen[:SHOWN_STEPS])), len(seen) - SHOWN_STEPS
        return f"seen in {pluralize(len(seen), 'step')}: {first}{f' and {more} more' if more > 0 else ''}"

    def describe_matches(self, text: str, minimum: int, most: int | None) -> Iterator[str]:
        """Yield the matches of a text as lines, with at most `most` documents each."""
        parts = self.search.find_parts(text, minimum)
        where = f"the training documents of {self.audit.model}"
        if not parts:
            least = "it" if minimum == len(text) else f"no part of it of {minimum} characters or more"
            yield f"not found: {least} is in {where}"
            return
        share = count_covered_characters(parts) / len(text)
        whole = parts[0].start == 0 and parts[0].end == len(text)
        what = "the whole text is" if whole else f"{100 * share:.1f} % of the {len(text)} characters are"
        yield f"found: {what} in {where}, in {pluralize(len(parts), 'part')} of at least {minimum} characters"
        for part in parts:
            yield from self._describe_match(text, part, most)

    def _describe_match(self, text: str, part: TextMatch, most: int | None) -> Iterator[str]:
        documents = self.search.count_documents(part)
        count = f"{pluralize(part.occurrence_count, 'time')} in {pluralize(documents, 'document')}"
        yield f"characters {part.start + 1} to {part.end}, {count}: {text[part.start : part.end]!r}"
        for row in islice(self.search.documents(part), most):
            yield f"  {row['id']}: {self._describe_document(row)}"
        if most is not None and documents > most:
            yield f"  and {pluralize(documents - most, 'document')} more, which --all names"

    def _describe_document(self, row: dict[str, Any]) -> str:
        described = (
            f"source {row['source']}, license {self.audit.document_license(row)}, {self.describe_rights(row['source'])}"
        )
        return f"{pluralize(row['occurrences'], 'time')}; {described}; {self.describe_training_steps(row['id'])}"


def find_text_in_training(
    run_directory: Path, model: str, text: str, minimum: int = MINIMUM_CHARACTERS, *, all_documents: bool = False
) -> Iterator[str]:
    """Yield where the longest parts of a text occur in the training documents of a model, in lines of text.

    Args:
        minimum: characters; shorter parts are left out.
        all_documents: name all documents of each part, and not only the first.

    Raises:
        InputError: the text is empty, the minimum is no length, or there is no such model.
    """
    text = normalize_nfc(text.strip("\r\n"))
    if not text.strip():
        raise InputError("the text is empty: give at least one word")
    if minimum < 1:
        raise InputError(f"--minimum {minimum} is no length: give 1 or more")
    quoted = QuoteSearch(run_directory, model)
    yield quoted.audit.describe_training()
    yield from quoted.describe_matches(text, min(minimum, len(text)), None if all_documents else SHOWN_DOCUMENTS)
    yield SEARCH_LIMITS


def trace_token(run_directory: Path, model: str, step: int, sample: int, token: int) -> list[str]:
    """Return the origin of an input token of a training step; steps count from 1, samples and tokens from 0.

    Raises:
        InputError: there is no such model, step, sample or token, or its tokens are gone or others.
    """
    audit = TrainingAudit(run_directory, model)
    row, tokens, place = audit.find_token(step, sample, token)
    records = load_records(run_directory)
    made = map_producers(records)
    named = next(entry for entry in audit.record.inputs if entry.name == "tokenizer")
    tokenizer = run_directory / named.path
    if not named.matches_file(tokenizer):
        raise InputError(f"{tokenizer} is gone or no longer what {audit.record.file} read: the text is not known")
    encoder = load_encoder(tokenizer)
    context = [max(0, place - CONTEXT_TOKENS), place, place + 1, place + 1 + CONTEXT_TOKENS]
    before, own, after = (
        encoder.tokenizer.decode(tokens[a:b], skip_special_tokens=False) for a, b in pairwise(context)
    )
    index = json.loads(audit.index.read_text(encoding="utf-8"))
    number = id_hash(row["id"]) * int(index["shards"]) >> 64
    shard = index["train"]["shards"][number]
    path = (audit.index.parent / shard["path"]).relative_to(run_directory).as_posix()
    is_same = hash_file(run_directory / path) == shard["sha256"]
    lines = [
        audit.describe_training(),
        f"step {step}, sample {sample}, token {token}: {own!r}, number {tokens[place]}",
        f"  between {before!r} and {after!r}",
        f"  token {place} of the {len(tokens)} of document {row['id']}",
        f"  source {row['source']}, language {row['language']}, license {audit.document_license(row)}",
        f"  shard {path} ({'proven: the bytes of the index' if is_same else 'ALTERED since it was indexed'})",
    ]
    maker = made[path][0] if path in made else None
    lines.append(f"  {_verify_document_tokens(run_directory, maker, row['id'], encoder, tokens)}")
    try:
        lines += [f"  {line}" for line in trace_document(run_directory, row["id"])[1:]]
    except InputError as error:  # the corpus may have been deleted
        lines.append(f"  its decisions are not here: {error}")
    return [*lines, *(f"  {line}" for line in _describe_raw_files(records, row["id"]))]


def _verify_document_tokens(
    run_directory: Path, maker: Record | None, document: str, encoder: Encoder, tokens: list[int]
) -> str:
    """Encode a document of the corpus again and say whether it gives these tokens."""
    source = document.partition("/")[0]
    for entry in maker.inputs if maker else []:
        file = run_directory / entry.path
        if not Path(entry.path).name.startswith(f"{source}.") or not file.is_file():
            continue
        texts = pq.read_table(file, columns=["text"], filters=[("id", "=", document)])["text"].to_pylist()
        if texts:
            again = [encoder.begin_of_text_id, *encoder.encode(texts)[0], encoder.end_of_text_id]
            state = "proven: its text gives these tokens again" if again == tokens else "ALTERED: it gives other tokens"
            return f"text in {entry.path} ({state})"
    return "its text is no longer in the corpus, so its tokens cannot be computed again"


def _describe_raw_files(records: list[Record], document: str) -> list[str]:
    """Return the raw file of a document and whether it exists with its recorded hash."""
    source, _, rest = document.partition("/")
    raw_files: dict[str, FileEntry] = {}
    for record in records:
        if record.step == "corpus.filter" and record.instance.get("source") == source:
            for entry in record.inputs:
                words = entry.path.removeprefix("data:").split("/")  # the name of a raw file may have folders
                names = ["/".join(words[start:]) for start in range(len(words))]
                if entry.name == "files" and any(rest.startswith(f"{name}/") for name in names):
                    raw_files[entry.path] = entry
    lines = []
    for path, entry in sorted(raw_files.items()):
        file = Path(path.removeprefix("data:"))
        state = "proven: it is here with these bytes" if entry.matches_file(file) else "not here, or with other bytes"
        lines.append(f"raw file {path} (sha256 {entry.sha256}; {state})")
    return lines
