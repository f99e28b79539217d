"""What has a source inside: from its raw files forward to corpora, tokenizers, tokens, milestones, models, evaluation.

By records alone. A job of a unit has the source inside where it is a unit of that source; any other job where it read
something that has. So a text of another source, which was compared with this one for copies, is not among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline import layout
from pipeline.core.paths import shorten
from pipeline.core.records import Record, load_records
from pipeline.provenance.crate_files import source_of

SHOWN_PATHS = 4
ROOMS = ("sources", "corpus", "opt_out", "tokenizer", "tokens", "pretrain", "evaluate", "report", "provenance")


def is_source(run_directory: Path, name: str) -> bool:
    """Whether the run has a source of that name."""
    return "/" not in name and layout.SOURCE.path(run_directory, source=name).is_dir()


def holders(records: Iterable[Record], source: str) -> list[Record]:
    """The jobs whose outputs have a source inside, in the order in which they ended."""
    inside: set[str] = set()
    found = []
    for record in sorted(records, key=lambda record: (record.ended, record.file)):
        own = record.instance.get("source")
        given = own == source if own is not None else any(entry.path in inside for entry in record.inputs)
        if given:
            found.append(record)
            inside.update(entry.path for entry in record.outputs)
            inside.add(record.file)
    return found


def _documents(record: Record) -> str:
    """How many documents a job kept, of a unit of the source."""
    kept = record.counts.get("documents_out")
    return f": {kept} of {record.counts.get('documents_in')} documents kept" if kept is not None else ""


def trace_source(run_directory: Path, source: str) -> list[str]:
    """Everything that has a source inside, as lines by step, for a removal.

    Raises:
        InputError: the run has no records.
    """
    found = holders(load_records(run_directory), source)
    manifest = layout.MANIFEST.path(run_directory, source=source)
    lines = [f"source {source}"]
    if manifest.is_file():
        described = source_of(manifest)
        rights = described.get("rights") or {}
        lines.append(f"  licence {described.get('license', 'not stated')}, language {described.get('language')}")
        lines += [f"  {name}: {rights.get(name) or 'not stated'}" for name in ("basis", "holder", "url")]
    own = (record for record in found if record.instance.get("source") == source)
    raw = sorted(
        {entry.path for record in own for entry in record.inputs if entry.is_outside and entry.name == "files"}
    )
    lines += [f"  raw file {path}" for path in raw[:SHOWN_PATHS]]
    lines += [f"  and {len(raw) - SHOWN_PATHS} more raw files"] if len(raw) > SHOWN_PATHS else []
    for room in ROOMS:
        of_room = [record for record in found if record.step.startswith(f"{room}.")]
        for record in sorted(of_room, key=lambda record: record.file):
            is_unit = "source" in record.instance
            lines.append(f"{record.title}{_documents(record) if is_unit else ''}")
            paths = shorten(sorted(entry.path for entry in record.outputs))
            lines += [f"  {path}" for path in paths[:SHOWN_PATHS]]
            lines += [f"  and {len(paths) - SHOWN_PATHS} more"] if len(paths) > SHOWN_PATHS else []
    files = sum(len(record.outputs) for record in found)
    lines.append(
        f"{files} files of {len(found)} jobs have {source} inside, or were computed from what has ({layout.RECORDS})"
    )
    lines.append(
        "what the listed jobs wrote elsewhere (scratch, private texts, other runs) is searched by opt_out.remains"
    )
    return lines
