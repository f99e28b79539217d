"""Differences between two runs by step: settings, code, environment, data, counts, results and energy.

Every field of every record is compared. Clock times, hosts and names of attempts always differ: they are listed as not
compared.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.core.archived_run_files import FileStore, StoredFile
from pipeline.core.display_text import align_columns, pluralize
from pipeline.core.errors import InputError
from pipeline.core.job_command_lines import DIGEST_PREFIX, command_option, settings_digest, settings_json
from pipeline.core.job_records import Record, load_records
from pipeline.core.shared_environment_files import read_environment
from pipeline.energy.run_energy_report_reader import EnergyAccounting, EnergyFigure, read_energy_accounting
from pipeline.provenance.content_differences import (
    RECORD_FOLDERS,
    compare_file_contents,
    flatten_json,
    format_changes,
    has_timings,
    is_timing_key,
)

IGNORED_FIELDS = ("started", "ended", "wall_seconds", "cpu_seconds", "peak_memory_bytes", "host", "slurm", "attempt")
INVOCATION_FIELDS = ("git", "frozen")  # equal for all jobs of an invocation
FIELD_LABELS = {
    "code_version": "code",
    "environment_version": "environment version",
    "inputs": "input",
    "outputs": "output",
}
ENERGY_TOTALS = ("total", "finished", "lost", "idle", "snakemake")
SHOWN_JOBS = 3
SHOWN_DIFFERENCES, SHOWN_STEPS = 30, 3
"""The most differences that are listed without being asked for, and the steps that are named of a kind of them."""
START_SECTION = "the start of the runs"
OTHER_SECTIONS = ("results", "energy", "code")
"""Sections of which all lines are of one kind."""

Content = dict[str, Any]


@dataclass
class RunComparison:
    """Differences of run `b` from run `a` as lines, and notes.

    `code` has the records of both runs for each step whose code differs.
    """

    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    code: dict[str, tuple[Record, Record]] = field(default_factory=dict)


class _JobDifferences:
    """Differences of jobs by step; jobs with the same difference share a line."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, list[str]]] = {}
        self.not_compared: set[str] = set()

    def add(self, step: str, difference: str, instance: str) -> None:
        self.steps.setdefault(step, {}).setdefault(difference, []).append(instance)

    def format_lines(self) -> list[str]:
        lines = []
        for step, differences in sorted(self.steps.items()):
            lines.append(step)
            for difference, instances in differences.items():
                where = "; ".join(instance for instance in instances[:SHOWN_JOBS] if instance)
                more = f" and {len(instances) - SHOWN_JOBS} more" if len(instances) > SHOWN_JOBS else ""
                lines.append(f"  {difference}" + (f"  [{where}{more}]" if where else ""))
        return lines

    def compare_records(self, a: Content, b: Content) -> Iterable[tuple[str, str]]:
        """Yield section and text of each difference between two records of one job."""
        reads_records = any(str(entry["path"]).startswith(RECORD_FOLDERS) for entry in a["inputs"])
        for key in sorted(a.keys() | b.keys()):
            if a.get(key) == b.get(key) and (key in a) == (key in b):
                continue
            if key in IGNORED_FIELDS:
                self.not_compared.add(key)
            elif key in INVOCATION_FIELDS:
                yield from (
                    ("", f"{key}.{line}") for line in format_changes(_flatten_field(a, key), _flatten_field(b, key))
                )
            elif key in ("inputs", "outputs"):
                yield from (
                    ("job", line) for line in self.compare_files(FIELD_LABELS[key], a[key], b[key], reads_records)
                )
            elif key == "command":
                given = (dict(flatten_json(_comparable_command(record))) for record in (a, b))
                yield from (("job", f"command {line}") for line in format_changes(*given))
            else:
                for line in format_changes(_flatten_field(a, key), _flatten_field(b, key)):
                    name = line.partition(":")[0]
                    if key == "counts" and is_timing_key(name):
                        self.not_compared.add(f"{a['step']} counts {name}")
                    else:
                        yield "job", f"{FIELD_LABELS.get(key, key)} {line}".replace(" : ", ": ")

    def compare_files(self, kind: str, a: list[Content], b: list[Content], reads_records: bool) -> list[str]:
        """Return the files that differ; files with clock times or joules are listed as not compared."""

        def format_file_entry(path: str, entry: Content) -> str:
            # What is computed from records, such as the report, holds their times and joules.
            is_quiet = has_timings(path) or path.startswith(RECORD_FOLDERS) or (reads_records and kind == "output")
            hidden = ("path", "sha256", "bytes") if is_quiet else ("path",)
            return ", ".join(f"{key} {value}" for key, value in sorted(entry.items()) if key not in hidden)

        before, now = ({str(entry["path"]): entry for entry in entries} for entries in (a, b))
        descriptions = [
            {path: format_file_entry(path, entry) for path, entry in entries.items()} for entries in (before, now)
        ]
        lines = [f"{kind} {line}" for line in format_changes(*descriptions)]
        if not lines and [entry["path"] for entry in a] != [entry["path"] for entry in b]:
            lines.append(f"the order of the {kind}s")
        for path in before.keys() & now.keys():
            if before[path] != now[path] and descriptions[0][path] == descriptions[1][path]:
                name = "records" if path.startswith(RECORD_FOLDERS) else path
                self.not_compared.add(f"the bytes of {name}")
        return lines


def _flatten_field(record: Content, key: str) -> dict[str, str]:
    return dict(flatten_json(record[key])) if key in record else {}


def _comparable_command(record: Content) -> list[str]:
    """Return the words of a command without values of other fields and without the name of the run."""
    words = [str(word) for word in record["command"]]
    given = {"--settings": "settings", "--operation": "operation"}
    prefix = (command_option(words, "--record") or "").partition(f"/{layout.RECORDS}/")[0]
    comparable_words: list[str] = []
    for number, word in enumerate(words):
        option, equals, value = word.partition("=")
        before = words[number - 1] if number else ""
        field = given.get(option if equals else before)
        text = value if equals else word
        if field and _equals_as_json(text, record.get(field)):
            word = f"<{field}>"
        elif text and text == record.get("launch"):
            word = "<launch>"
        for key in ("code_version", "environment_version"):
            word = word.replace(str(record[key]), f"<{key}>") if record[key] else word
        if prefix:
            word = word.replace(f"{prefix}/", "RUN/").replace(f"private/{Path(prefix).name}/", "PRIVATE/")
        comparable_words.append(word)
    return comparable_words


def _equals_as_json(text: str, value: Any) -> bool:
    if text.startswith(DIGEST_PREFIX):
        return text == settings_digest(settings_json(value))
    try:
        return bool(json.loads(text) == value)
    except ValueError:
        return False


def _read_json(path: StoredFile) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise InputError(f"{path} is not valid JSON: run `polder verify` on its run") from None


def _read_record(store: FileStore, record: Record) -> Content:
    """Return the content of a record's file, and of the file that it names for its environment."""
    run = store.run_directory
    content: Content = _read_json(store.find(record.file))
    content.pop("environment_file", None)
    return {**content, "environment": read_environment(run, record)}


def _last_configuration(run: Path, records: list[Content]) -> dict[str, str]:
    """Return the configuration of the last snapshot that a record names; empty if the file is gone."""
    paths = sorted(run / record["frozen"]["path"] for record in records if record.get("frozen"))
    there = [path for path in paths if path.is_file()]
    content = _read_json(there[-1]) if there else {}
    return dict(flatten_json(content.get("configuration", {})))


def _read_results(run_directory: Path) -> dict[str, str]:
    """Return evaluation values and the last losses of each model."""
    results: dict[str, str] = {}
    for path in layout.RESULTS.glob(run_directory):
        for task in _read_json(path).get("tasks", []):
            key = "/".join([*path.parts[-3:-1], str(task.get("task")), str(task.get("language")), str(task["metric"])])
            results[key] = json.dumps(task["value"])
    for path in layout.METRICS.glob(run_directory):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                step = json.loads(line)
            except ValueError:
                raise InputError(f"{path} is cut off or broken: make it again") from None
            for key in ("loss", "validation_loss", "validation_bits_per_byte"):
                if key in step:
                    results[f"{path.parts[-2]}/last {key}"] = json.dumps(step[key])
    return results


def _compare_metrics(a: Path, b: Path) -> list[str]:
    """Return differences in the metrics of models of both runs, without clock times and speeds."""
    both = [path for one in layout.METRICS.glob(a) if (b / (path := one.relative_to(a))).is_file()]
    return [f"{path.parts[1]}/{line}" for path in both for line in compare_file_contents(a / path, b / path)]


def _compare_energy(a: EnergyAccounting | None, b: EnergyAccounting | None) -> tuple[list[str], list[str]]:
    """Return energies whose intervals do not overlap or that one run lacks, and notes on the others."""
    if a is None or b is None:
        if a is b:
            return [], [f"energy: not compared, for neither run has an account ({layout.ENERGY_ACCOUNT})"]
        return [f"only the {'second' if a is None else 'first'} run has an account ({layout.ENERGY_ACCOUNT})"], []
    figures = [{**{name: getattr(account, name) for name in ENERGY_TOTALS}, **account.steps} for account in (a, b)]
    differences, notes = [], []
    for name in [*ENERGY_TOTALS, *sorted(a.steps.keys() | b.steps.keys())]:
        one, other = (run_figures.get(name, EnergyFigure()) for run_figures in figures)
        line = f"{name}: {one.text()} → {other.text()}"
        if one.is_known != other.is_known:
            differences.append(line)
        elif one.low_joules > other.high_joules or other.low_joules > one.high_joules:
            differences.append(f"{line}: their 95 % intervals do not overlap")
        elif name == "total" and one.is_known and one != other:
            notes.append(f"energy {line}: their 95 % intervals overlap, so no difference is shown")
    return differences, notes


def compare_runs(a: Path, b: Path) -> RunComparison:
    """Compare two runs; a difference that several jobs of a step share has one line.

    Energies differ where their 95 % intervals do not overlap.

    Raises:
        InputError: one of the folders holds no records, or broken ones.
    """
    records_a, records_b = ({record.title: record for record in load_records(run)} for run in (a, b))
    contents_a, contents_b = (
        {title: _read_record(store, record) for title, record in records.items()}
        for store, records in ((FileStore(a), records_a), (FileStore(b), records_b))
    )
    jobs, comparison = _JobDifferences(), RunComparison()
    start: dict[str, list[str]] = {}
    for title in sorted(records_a.keys() | records_b.keys()):
        record = records_a.get(title) or records_b[title]
        instance = title.removeprefix(record.step).strip(" ()")
        if title not in records_a or title not in records_b:
            jobs.add(record.step, f"only in {a if title in records_a else b}", instance)
            continue
        for where, line in jobs.compare_records(contents_a[title], contents_b[title]):
            if where:
                jobs.add(record.step, line, instance)
            else:
                start.setdefault(line, []).append(title)
        if record.code_version != records_b[title].code_version:
            comparison.code.setdefault(record.step, (record, records_b[title]))
    configurations = (_last_configuration(run, [*c.values()]) for run, c in ((a, contents_a), (b, contents_b)))
    starts = [f"configuration {line}" for line in format_changes(*configurations)]
    starts += [f"{line}  [{titles[0]} and {len(titles) - 1} more]" for line, titles in start.items()]
    energy, comparison.notes = _compare_energy(read_energy_accounting(a), read_energy_accounting(b))
    sections = {
        START_SECTION: starts,
        "results": [*format_changes(_read_results(a), _read_results(b)), *_compare_metrics(a, b)],
        "energy": energy,
    }
    comparison.differences = jobs.format_lines()
    for title, lines in sections.items():
        comparison.differences += [title, *(f"  {line}" for line in lines)] if lines else []
    if jobs.not_compared:
        comparison.notes.append(f"not compared, though it differs: {'; '.join(sorted(jobs.not_compared))}")
    return comparison


def summarize_differences(differences: Sequence[str]) -> list[str]:
    """Return one sentence, and all differences if they are few; else those of the configuration, and counts by kind.

    Args:
        differences: of a `RunComparison`: titles of sections, and their indented lines.
    """
    kinds: dict[str, Counter[str]] = {}
    configuration: list[str] = []
    section = ""
    for line in differences:
        if not line.startswith("  "):
            section = line
            continue
        word = line.split()[0]
        kind = "jobs of one run" if word == "only" else re.split("[.:]", word)[0]
        kinds.setdefault(section if section in OTHER_SECTIONS else kind, Counter())[section] += 1
        if section == START_SECTION and word == "configuration":
            configuration.append(line)
    steps = {step for steps in kinds.values() for step in steps} - {START_SECTION, *OTHER_SECTIONS}
    parts = [f"{pluralize(len(configuration), 'key')} of the configuration"] if configuration else []
    parts += [f"the records of {pluralize(len(steps), 'step')}"] if steps else []
    parts += [section for section in OTHER_SECTIONS if section in kinds]
    sentence = f"The runs differ in {', '.join(parts) or START_SECTION}."
    number = sum(steps.total() for steps in kinds.values())
    if number <= SHOWN_DIFFERENCES:
        return [sentence, *differences]
    rows = [["difference", "lines", "in"]]
    for kind, steps_of_kind in sorted(kinds.items(), key=lambda item: -item[1].total()):
        names = sorted(steps_of_kind)
        more = f" and {len(names) - SHOWN_STEPS} more" if len(names) > SHOWN_STEPS else ""
        rows.append([kind, str(steps_of_kind.total()), ", ".join(names[:SHOWN_STEPS]) + more])
    hidden = len(configuration) - SHOWN_DIFFERENCES
    return [
        sentence,
        *configuration[:SHOWN_DIFFERENCES],
        *([f"  and {hidden} more keys"] if hidden > 0 else []),
        *align_columns(rows),
    ]
