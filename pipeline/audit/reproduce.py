"""Does steps of a run again, one by name or a draw of all, and says whether they write the same."""

from __future__ import annotations

import argparse
import difflib
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline import layout
from pipeline.audit.rerun import Again, Outcome, Verdict
from pipeline.core.errors import InputError
from pipeline.core.hashing import sha256_of
from pipeline.core.path_ranges import shorten
from pipeline.core.records import Record, load_records
from pipeline.job.versions import code_version

# Statistics from rows, papers and figures from records, joules from readings, the crate from all of them.
CONCLUDING = (
    *("corpus.statistics", "corpus.publish", "tokenizer.fertility", "tokens.index", "plan.estimate"),
    *("report.page", "provenance.crate"),
)


def named(records: list[Record], step: str) -> Record:
    """The record of that name, such as `corpus.filter.main.laws.0`, or title."""
    by_name = {word: record for record in records for word in (record.title, record.name)}
    name = step.removesuffix(".json").rpartition("/")[2]
    if name in by_name:
        return by_name[name]
    near = difflib.get_close_matches(step, by_name, n=3, cutoff=0.3)
    raise InputError(f"the run has no record {step}: {'did you mean ' + ' or '.join(near) if near else 'name one'}?")


def draw(records: list[Record], number: int, seed: str) -> list[Record]:
    """Some of the records: those with the smallest sha256 of `SEED NAME`, so that anybody can draw the same again."""

    def place(record: Record) -> str:
        return hashlib.sha256(f"{seed} {record.name}".encode()).hexdigest()

    return sorted(records, key=place)[:number]


def reproduce(run_directory: Path, record: Record, folder: Path | None = None, raw: Path | None = None) -> Outcome:
    """Do one step again, in a new folder below `folder`, or in one that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="reproduce-") as temporary:
        place = (folder or Path(temporary)) / record.name
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            return Outcome(record.name, Verdict.COULD_NOT, [f"{place} is there already: name another --folder"])
        return Again(run_directory, record, place.absolute(), raw).outcome()


def recomputed(run_directory: Path) -> Iterator[Outcome]:
    """Do again what draws conclusions from other files of a run, where the code here is that of its record."""
    for record in load_records(run_directory):
        if record.step not in CONCLUDING:
            continue
        if code_version(f"pipeline.{record.step}") == record.code_version:
            yield reproduce(run_directory, record)
        else:
            commit = (record.git or {}).get("commit") or "that its record does not name"
            yield Outcome(record.name, Verdict.COULD_NOT, [f"its code is another one: check out the commit {commit}"])


def main(arguments: list[str]) -> int:
    """`python -m pipeline reproduce RUN STEP`: 0 if all is identical, 1 if something differs, 2 if it could not."""
    parser = argparse.ArgumentParser(prog="python -m pipeline reproduce", description=__doc__)
    parser.add_argument("run_directory", type=Path)
    parser.add_argument("step", nargs="?", help="the name of its record, such as corpus.filter.main.laws.0")
    parser.add_argument("--sample", type=int, metavar="N", help="do N steps again, drawn with equal chances")
    parser.add_argument("--seed", help="of the draw; by default the sha256 of the crate's metadata")
    parser.add_argument("--raw", type=Path, help="where raw files outside of the project lie here")
    parser.add_argument("--folder", type=Path, help="keep what is written, below this folder")
    options = parser.parse_args(arguments)
    if (options.step is None) == (options.sample is None):
        raise InputError("name a step, or how many are to be drawn: reproduce RUN STEP, or reproduce RUN --sample N")
    records = load_records(options.run_directory)
    chosen = [named(records, options.step)] if options.step else []
    if options.sample is not None:
        if not 1 <= options.sample <= len(records):
            raise InputError(f"--sample {options.sample}: the run has {len(records)} steps, name a number up to that")
        crate = options.run_directory / layout.CRATE
        if options.seed is None and not crate.is_file():
            raise InputError(f"{crate} is missing, whose hash is the seed of the draw: name one with --seed")
        seed = options.seed or sha256_of(crate)
        chosen = draw(records, options.sample, seed)
        print(f"drawn with the seed {seed}: {len(chosen)} of {len(records)} steps")
    worst: set[Verdict] = set()
    for record in chosen:
        outcome = reproduce(options.run_directory, record, options.folder, options.raw)
        worst.add(outcome.verdict)
        print("\n".join(outcome.told()), flush=True)
    if options.sample is not None:
        left = sorted(record.name for record in records if record not in chosen)
        print(f"not drawn: {', '.join(shorten(left)) or 'none'}")
    order = (Verdict.DIFFERS, Verdict.COULD_NOT, Verdict.IDENTICAL)
    return int(next(verdict for verdict in order if verdict in worst))
