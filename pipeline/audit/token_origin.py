"""One token of a training step: its text, its document, and the way back to the raw file, each link proven anew."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.audit.document_lineage import why
from pipeline.audit.training_documents import Audit
from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of
from pipeline.core.records import FileEntry, Record, load_records, producers
from pipeline.corpus.documents import id_hash
from pipeline.tokenizer.encoder import Encoder, load_encoder

AROUND = 8  # tokens on either side that are shown with it


def trace_token(run_directory: Path, model: str, step: int, sample: int, token: int) -> list[str]:
    """The origin of one input token of a training step, as lines; steps count from 1, samples and tokens from 0."""
    audit = Audit(run_directory, model)
    row, tokens, place = audit.token(step, sample, token)
    records = load_records(run_directory)
    made = producers(records)
    named = next(entry for entry in audit.record.inputs if entry.name == "tokenizer")
    tokenizer = run_directory / named.path
    if not named.is_at(tokenizer):
        raise InputError(f"{tokenizer} is gone or no longer what {audit.record.file} read: the text is not known")
    encoder = load_encoder(tokenizer)
    context = [max(0, place - AROUND), place, place + 1, place + 1 + AROUND]
    before, own, after = (
        encoder.tokenizer.decode(tokens[a:b], skip_special_tokens=False) for a, b in pairwise(context)
    )
    index = json.loads(audit.index.read_text(encoding="utf-8"))
    number = id_hash(row["id"]) * int(index["shards"]) >> 64
    shard = index["train"]["shards"][number]
    path = (audit.index.parent / shard["path"]).relative_to(run_directory).as_posix()
    is_same = sha256_of(run_directory / path) == shard["sha256"]
    lines = [
        audit.header(),
        f"step {step}, sample {sample}, token {token}: {own!r}, number {tokens[place]}",
        f"  between {before!r} and {after!r}",
        f"  token {place} of the {len(tokens)} of document {row['id']}",
        f"  source {row['source']}, language {row['language']}, licence {audit.license(row)}",
        f"  shard {path} ({'proven: the bytes of the index' if is_same else 'ALTERED since it was indexed'})",
    ]
    maker = made[path][0] if path in made else None
    lines.append(f"  {_document(run_directory, maker, row['id'], encoder, tokens)}")
    try:
        lines += [f"  {line}" for line in why(run_directory, row["id"])[1:]]
    except InputError as error:  # the corpus may have been deleted
        lines.append(f"  its decisions are not here: {error}")
    return [*lines, *(f"  {line}" for line in _raw(records, row["id"]))]


def _document(run_directory: Path, maker: Record | None, document: str, encoder: Encoder, tokens: list[int]) -> str:
    """Whether the document in the corpus gives these tokens, by encoding it again."""
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


def _raw(records: list[Record], document: str) -> list[str]:
    """The raw file that a filter read the document from, and whether it is at hand with the same bytes."""
    source, _, rest = document.partition("/")
    found: dict[str, FileEntry] = {}
    for record in records:
        if record.step == "corpus.filter" and record.instance.get("source") == source:
            for entry in record.inputs:
                words = entry.path.removeprefix("data:").split("/")  # the name of a raw file may have folders
                names = ["/".join(words[start:]) for start in range(len(words))]
                if entry.name == "files" and any(rest.startswith(f"{name}/") for name in names):
                    found[entry.path] = entry
    lines = []
    for path, entry in sorted(found.items()):
        file = Path(path.removeprefix("data:"))
        state = "proven: it is here with these bytes" if entry.is_at(file) else "not here, or with other bytes"
        lines.append(f"raw file {path} (sha256 {entry.sha256}; {state})")
    return lines
