"""Write the reference pages from the code: `python docs/generate.py FOLDER`, which `make docs` runs before Sphinx.

The pages are Markdown: every key of a configuration, every command, every step, and the files of a results folder.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import inspect
import json
import re
import sys
import tempfile
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from typer.main import get_command  # noqa: E402

from pipeline import layout  # noqa: E402
from pipeline.cli.application import app  # noqa: E402
from pipeline.config import configuration  # noqa: E402
from pipeline.config.configuration import parse_configuration  # noqa: E402
from pipeline.config.platforms import Platform  # noqa: E402
from pipeline.config.sections import Sections  # noqa: E402
from pipeline.core.errors import InputError  # noqa: E402
from pipeline.core.job_records import PLACE_FIELDS, Attempt, BatchRecord, Record, UnitRecords  # noqa: E402
from pipeline.layout import PathTemplate  # noqa: E402
from pipeline.workflow import expected_run_files  # noqa: E402
from pipeline.workflow.job_parameters import Dag  # noqa: E402
from pipeline.workflow.steps import STAGES, STEPS  # noqa: E402
from pipeline.workflow.steps.declaration import Step  # noqa: E402

Path_ = tuple[str, ...]
ITEM = "[]"  # of a list
NAME = "NAME"  # of a mapping
UNITS = {
    "seconds": "s", "minutes": "min", "hours": "h", "bytes": "bytes", "megabytes": "MB",
    "watts": "W", "tokens": "tokens", "steps": "steps", "euros": "€", "liters": "l", "share": "share, 0 to 1",
    "fraction": "share, 0 to 1",
    "characters": "characters", "words": "words", "lines": "lines", "documents": "documents", "joules": "J",
}  # fmt: skip


def _cached(function: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    """Read the files of a suite once: they are the same for the hundreds of configurations that are tried."""
    read = cache(lambda kind, suite: function(kind.model_validate_json(suite)))
    return lambda suite: [*read(type(suite), suite.model_dump_json())]


configuration.list_item_files = _cached(configuration.list_item_files)
expected_run_files.list_suite_files = _cached(expected_run_files.list_suite_files)


Shown = dict[type[BaseModel], str]
"""Where the keys of a class of settings are listed, as a link."""


class Key(NamedTuple):
    """One key of the configuration; `owner` is the class of its section."""

    path: Path_
    field: FieldInfo
    owner: type[BaseModel]


def models_in(annotation: Any) -> list[tuple[Path_, type[BaseModel]]]:
    """Return the sections in an annotation, each with the path to it: `dict[str, Corpus]` has Corpus at NAME."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [((), annotation)]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is dict:
        return [((NAME, *path), model) for path, model in models_in(arguments[1])]
    if origin in (list, tuple):
        return [((ITEM, *path), model) for path, model in models_in(arguments[0])]
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return [pair for argument in arguments for pair in models_in(argument)]
    return []


def keys(model: type[BaseModel], prefix: Path_ = ()) -> Iterator[Key]:
    """Yield every key of a section and of the sections in it."""
    for name, field in model.model_fields.items():
        path = (*prefix, field.alias or name)
        yield Key(path, field, model)
        for more, section in models_in(field.annotation):
            if section is not Platform or not prefix:
                yield from keys(section, (*path, *more))


def type_name(annotation: Any) -> str:
    """Return an annotation as a reader of YAML calls it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is type(None):
        return "null"
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin is typing.Literal:
        return " · ".join(f"`{json.dumps(value) if isinstance(value, bool) else value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(argument) for argument in arguments))
    if origin in (list, tuple, set, frozenset):
        return f"list of {type_name(arguments[0])}"
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        return f"mapping of {type_name(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    plain = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any"}
    return plain.get(annotation, getattr(annotation, "__name__", str(annotation)))


def bounds(field: FieldInfo) -> str:
    """Return the limits of a number, such as `≥ 1`."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return ", ".join(
        f"{sign} {getattr(one, name)}"
        for one in field.metadata
        for name, sign in signs.items()
        if getattr(one, name, None) is not None
    )


def unit(key: Key) -> str:
    """Return the unit that the name of a number ends with, or nothing."""
    if not re.search(r"integer|number", type_name(key.field.annotation)):
        return ""
    name = key.path[-1]
    for word, symbol in UNITS.items():
        if name == word or name.endswith(f"_{word}"):
            return symbol
    return "tokens/s" if name.endswith("tokens_per_second") else ""


def default(field: FieldInfo) -> str:
    """Return the default of a key as YAML writes it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True) if field.default is PydanticUndefined else field.default
    if isinstance(value, BaseModel) or (
        isinstance(value, dict) and any(isinstance(one, BaseModel) for one in value.values())
    ):
        return ""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"`{text}`" if len(text) <= 60 else "see the code"


@cache
def sections_in(model: type[BaseModel]) -> frozenset[type[BaseModel]]:
    """Return a class of settings and all classes of the sections in it."""
    inner = [section for field in model.model_fields.values() for _, section in models_in(field.annotation)]
    return frozenset({model}).union(*map(sections_in, inner))


def input_files(step: Step, dag: Dag, instance: dict[str, str]) -> list[Any]:
    """Return the names of the files that a job reads, as far as they are known before it runs."""
    return [one.files(dag, instance) for one in step.inputs if callable(one.files) and one.is_read]


class Reruns:
    """Which steps read a key: those with other settings or input files when its value is another one.

    A small configuration has nearly every section. Each key gets another value in it, and the settings of all jobs are
    compared with what they were before.
    """

    def __init__(self, folder: Path) -> None:
        self.refusal: Exception | None = None
        self.classes: dict[str, frozenset[type[BaseModel]]] = {}
        self.base = base_configuration(folder)
        self.before = self.settings_of(self.base)
        assert self.before, self.refusal
        self.known: dict[Path_, frozenset[str] | None] = {}

    def settings_of(self, raw: dict[str, Any]) -> dict[str, Any] | None:
        """Return settings and input files of every job by step, or None for a configuration that is refused."""
        try:
            config = parse_configuration(raw)
            dag = Dag(config)
            jobs_by_step: dict[str, Any] = {}
            for name, step in STEPS.items():
                jobs = {}
                for values in step.instances.jobs(config):
                    instance = dict(zip(step.instances.wildcards, values, strict=True))
                    label = ".".join(str(value) for key, value in instance.items() if key != "batch")
                    if label not in jobs:
                        settings = step.settings(config, instance)
                        read = [] if jobs else input_files(step, dag, instance)  # of the first job, for speed
                        jobs[label] = settings.result_settings(), read
                        self.classes[name] = sections_in(type(settings))
                jobs_by_step[name] = jobs
        except (InputError, ValueError, KeyError, OSError, TypeError, AttributeError) as error:
            self.refusal = error
            return None
        return jobs_by_step

    def of(self, path: Path_, field: FieldInfo) -> frozenset[str] | None:
        """Return the steps that read a key; None where no other value of it was accepted."""
        if path not in self.known:
            self.known[path] = self._tried(path, field)
        return self.known[path]

    def _tried(self, path: Path_, field: FieldInfo) -> frozenset[str] | None:
        present = value_at(self.base, path)
        current = present if present is not None else field.get_default(call_default_factory=True)
        accepted = False
        for candidate in candidates(path, field.annotation, current):
            raw = copy.deepcopy(self.base)
            if not set_at(raw, path, candidate):
                return None
            after = self.settings_of(raw)
            if after is None:
                continue
            accepted = True
            if changed := {name for name in STEPS if after[name] != self.before[name]}:
                return frozenset(changed)
        return frozenset() if accepted else None


def base_configuration(folder: Path) -> dict[str, Any]:
    """Return the micro configuration with most optional sections; the files that they name are in a folder."""
    raw: dict[str, Any] = yaml.safe_load((ROOT / "config/micro.yaml").read_text(encoding="utf-8"))
    (folder / "opt-out.txt").write_text("voorbeeld.nl\n", encoding="utf-8")
    (folder / "words.txt").write_text("woord\n", encoding="utf-8")
    for name in ("good", "bad", "text"):
        (folder / f"{name}.jsonl").write_text('{"text": "Een tekst."}\n', encoding="utf-8")
    raw["data"] = str(folder)
    raw["sources"][1] |= {"opt_out": "{data}/opt-out.txt", "genre": "documentation"}
    raw["allowed_licenses"] = ["CC0-1.0", "CC-BY-4.0"]
    seeds = {label: [{"path": f"{{data}}/{label}.jsonl", "license": "CC0-1.0"}] for label in ("good", "bad")}
    raw["corpus"]["main"] |= {
        "quality": {"nl": seeds},
        "harmful": {"word_lists": [{"name": "words", "path": "{data}/words.txt", "languages": ["nl"]}]},
        "deduplication": {"paragraphs": True, "line_characters": 20},
        "languages": {"nl": {"quality": {}, "repetition": {}, "fineweb": {}, "c4": {}, "nordic_pile": {}}, "en": {}},
    }
    (folder / "encoder").mkdir(exist_ok=True)
    for name in ("hq.bin", "encoder/model.onnx", "encoder/tokenizer.json"):
        (folder / name).write_bytes(b"")
    known = {"sha256": "0" * 64, "license": "CC0-1.0"}
    raw["corpus"]["main"]["classifiers"] = {
        "edu": {"path": "{data}/encoder", **known},
        "hq": {"path": "{data}/hq.bin", "label": "__label__hq", **known},
    }
    raw["tokens"]["main"]["strata"] = {"genre": True}
    for section in ("corpus", "tokenizer", "tokens"):  # for keys that name one of them
        raw[section]["other"] = copy.deepcopy(raw[section]["main"])
    raw["models"]["other"] = copy.deepcopy(raw["models"]["base"])
    raw["tokenizer"]["other"]["corpus"] = "other"
    raw["tokens"]["other"] |= {"corpus": "other", "tokenizer": "other"}
    raw["models"]["other"]["tokens"] = "other"
    raw["corpus"]["main"] |= {"perplexity": {"model": "other", "tokens": 32}}
    raw["evaluation"] |= {
        "memorization": {"prompts": 4, "prompt_tokens": 10, "continuation_tokens": 20},
        "texts": {"news": {"language": "nl", "path": "{data}/text.jsonl"}},
    }
    day = "2026-01-01"
    raw["disclosure"] = {
        "crawlers": [{"name": "c", "purpose": "p", "behavior": "b", "first_day": day, "last_day": day}],
        "synthetic_data": [{"name": "s", "provider": "p", "purpose": "u"}],
    }
    series = {"path": "{data}/grid.csv", "grams_per_kwh": "g", "place": "NL", "source": "S"}
    meter = {"path": "{data}/meter.csv", "unit": "kWh", "outlet": "o", "value": "v", "nodes": {"n": ["1"]}}
    raw["energy"] = {"carbon_intensity_series": series, "smart_meters": [meter], "pue": 1.2, "pue_source": "the site"}
    return raw


def value_at(raw: Any, path: Path_) -> Any:
    """Return the value at a path, of the first item and the first name; None where there is none."""
    for part in path:
        if part == ITEM and isinstance(raw, list) and raw:
            raw = raw[min(1, len(raw) - 1)]
        elif part == NAME and isinstance(raw, dict) and raw:
            raw = next(iter(raw.values()))
        elif isinstance(raw, dict) and part in raw:
            raw = raw[part]
        else:
            return None
    return raw


def set_at(raw: Any, path: Path_, value: Any) -> bool:
    """Set a value at a path and say whether there is such a section."""
    for part in path[:-1]:
        if part == ITEM and isinstance(raw, list) and raw:
            raw = raw[min(1, len(raw) - 1)]
        elif part == NAME and isinstance(raw, dict) and raw:
            raw = next(iter(raw.values()))
        elif part not in (ITEM, NAME) and isinstance(raw, dict):
            raw = raw.setdefault(part, {})
        else:
            return False
    if path[-1] in (ITEM, NAME) or not isinstance(raw, dict):
        return False
    raw[path[-1]] = value
    return True


def candidates(path: Path_, annotation: Any, current: Any) -> Iterator[Any]:
    """Yield values of a type that are not the current one, the likely ones first."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from candidates(path, arguments[0], current)
    elif origin in (typing.Union, types.UnionType):
        for argument in arguments:
            yield from candidates(path, argument, current)
    elif origin is typing.Literal:
        yield from (value for value in arguments if value != current)
    elif annotation is bool:
        yield not current
    elif annotation in (int, float):
        number = current if isinstance(current, int | float) else 1
        more = [number * 2, number + 1, number / 2, 0.5, 2, 10, 1000]
        yield from (int(one) if annotation is int else float(one) for one in more if one != current)
    elif annotation is datetime.date:
        yield "2026-01-02"
    elif annotation is str:
        more = (
            "2026-01-02",
            "https://example.org/other",
            "a" * 64,
            "CC-BY-4.0",
            "{data}/text.jsonl",
            "{data}/words.txt",
        )
        yield from ("other", f"{current}-2", "nl", "en", "nl_gids", *more)
    elif origin is list and not models_in(annotation):
        for value in candidates(path, arguments[0], None):
            yield [value]
        yield []
    elif origin is dict and not models_in(annotation):
        for value in candidates(path, arguments[1], None):
            yield {"nl": value}


def cell(text: str) -> str:
    """Return a text that fits into a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def dotted(path: Path_) -> str:
    """Return a path as the documentation writes it: `sources[].rights.basis`."""
    return ".".join(path).replace(f".{ITEM}", ITEM)


def anchor(path: Path_) -> str:
    """Return the anchor of the heading of a section."""
    return re.sub(r"[^\w-]", "", dotted(path).lower())


PAGES_OF_THEIR_OWN: dict[str, Path_] = {"corpus-rules": ("corpus", NAME, "languages", NAME)}
"""Sections that are too long for the page of their section at the top."""

MANY = 8
REPORTING = frozenset({"report.page", "provenance.crate"})
RERUN_NOTE = """The column *Read by* lists the steps that run again when the value changes. All steps that use their
outputs follow, and so do the report and the crate. *report* means: the report and the crate alone.
It is computed: each key gets another value in a small configuration, and settings and input files of all
jobs are compared. *As its section* means that no other value was valid there: these steps have the section among their
settings.
[Change a setting](../../../howto/change-a-setting.md) says how to ask before a run.
"""


PLATFORM_NOTE = """A configuration names a platform (`platform: snellius`); these are the keys of its file,
`workflow/platforms/NAME.yaml`. A change makes the plan and the report again and trains nothing again.
[Platform file](../../platform-file.md) explains them.
"""


def read_by(readers: frozenset[str] | None, section: frozenset[str]) -> str:
    """Return the column of steps of one key; `section` has the steps whose settings contain its section."""
    if readers is None:
        return f"{read_by(section, section)} (as its section)" if section else "–"
    steps = [name for name in STEPS if name in readers - REPORTING]
    if len(steps) > MANY:
        return f"`{steps[0]}` and {len(steps) - 1} other steps"
    return ", ".join(f"`{name}`" for name in steps) or ("report" if readers else "nothing")


def configuration_pages(reruns: Reruns) -> Iterator[tuple[str, str]]:
    """Yield the pages of the configuration: an index, and one for each section at its top."""
    names = []
    shown: Shown = {}
    top = [key for key in keys(Sections) if len(key.path) == 1 or key.path[0] == "run"]
    yield "configuration/run.md", section_page("run", "run", top, reruns, shown)
    for name, field in Sections.model_fields.items():
        if name == "run" or not models_in(field.annotation):
            continue
        section_keys = [key for key in keys(Sections) if key.path[0] == name and len(key.path) > 1]
        for page, part in PAGES_OF_THEIR_OWN.items():
            if part[0] == name:
                names.append(page)
                own = [key for key in section_keys if key.path[: len(part)] == part and key.path != part]
                yield f"configuration/{page}.md", section_page(page, dotted(part), own, reruns, shown)
                section_keys = [key for key in section_keys if key not in own]
        names.append(name)
        yield (
            f"configuration/{name}.md",
            section_page(name, name, section_keys, reruns, {} if name == "platform" else shown),
        )
    entries = "\n".join(("run", *names))
    yield (
        "configuration/index.md",
        "# Configuration keys\n\nFor everybody who writes a configuration. One YAML file describes a run; these pages "
        "list every key of it, section by section. Required are `run.name`, `sources` and, to train, `models`. Unknown "
        "keys are errors that name the nearest known key.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{entries}\n```\n\n`polder schema` prints the same as a JSON Schema, for an "
        "editor.\n",
    )


def section_page(page: str, name: str, section_keys: list[Key], reruns: Reruns, shown: Shown) -> str:
    """Return the page of one section: a table for each class of settings."""
    tables: dict[tuple[Path_, type[BaseModel]], list[Key]] = defaultdict(list)
    for key in section_keys:
        tables[key.path[:-1], key.owner].append(key)
    note = PLATFORM_NOTE if name == "platform" else RERUN_NOTE
    parts = [f"# `{name}`\n\nKeys of the section `{name}` of a configuration, from the code.\n\n{note}"]
    for (path, owner), rows in tables.items():
        if owner in shown:
            parts.append(f"## `{dotted(path)}`\n\nThe keys of {shown[owner]}.\n")
            continue
        shown[owner] = f"[`{dotted(path)}`]({page}.md#{anchor(path)})"
        sentence = (inspect.getdoc(owner) or "").split("\n\n")[0] if path else "The sections of a configuration."
        parts.append(f"## {f'`{dotted(path)}`' if path else 'Top level'}\n\n{cell(sentence)}\n")
        section = frozenset(step for step, classes in reruns.classes.items() if owner in classes)
        parts.append("| Key | Type | Default | Meaning | Read by |\n|---|---|---|---|---|")
        for key in rows:
            kind = ", ".join(filter(None, (type_name(key.field.annotation), bounds(key.field), unit(key))))
            has_steps = name != "platform" and not models_in(key.field.annotation)
            steps = read_by(reruns.of(key.path, key.field), section) if has_steps else ""
            columns = (f"`{key.path[-1]}`", kind, default(key.field), key.field.description or "", steps)
            parts.append(f"| {' | '.join(map(cell, columns))} |")
        parts.append("")
    return "\n".join(parts)


def steps_pages() -> Iterator[tuple[str, str]]:
    """Yield the page of all steps: what each has one job for, reads, writes and asks for."""
    lines = [
        "# Steps\n\nFor engineers and auditors: every step of the pipeline, by stage, from the declarations in "
        "`pipeline/workflow/steps/`. A *stage* is a target: `polder run CONFIG corpus` makes all up to the corpus. "
        "A job is one call of a step for one value of *One job per*.\n"
    ]
    for stage in STAGES:
        lines.append(f"## {stage}\n")
        lines.append("| Step | What it does | One job per | Writes | Memory, cores |\n|---|---|---|---|---|")
        for name, step in STEPS.items():
            if step.stage != stage:
                continue
            message = re.sub(r" ?\{wildcards\.(\w+)\}", r" *\1*", step.message)
            per = ", ".join(step.instances.wildcards) or "run"
            outputs = ", ".join(f"`{output.place}`" for output in step.outputs) or "–"
            need = (
                "GPUs: see [platform file](../platform-file.md)"
                if step.need is None
                else f"{step.need.memory_megabytes} MB, {step.need.cpus}"
            )
            lines.append(f"| `{name}` | {cell(message)} | {per} | {outputs} | {need} |")
        lines.append("")
    yield "steps.md", "\n".join(lines)


def files_pages() -> Iterator[tuple[str, str]]:
    """Yield the page of all files of a results folder, from `pipeline.layout`."""
    writers: dict[str, list[str]] = defaultdict(list)
    for name, step in STEPS.items():
        for output in step.outputs:
            writers[str(output.place)].append(name)
    lines = [
        "# Files of a results folder\n\nFor everybody who reads the results of a run: every path below `results/RUN/`, "
        "from `pipeline/layout.py`. Words in braces are names of the configuration or numbers. [What may be in a "
        "results folder](../results-folder.md) says who vouches for each.\n"
    ]
    heading = "Sources"
    for line in (ROOT / "pipeline/layout.py").read_text(encoding="utf-8").split("# Sources\n", 1)[1].splitlines():
        if line.startswith("# "):
            heading = line[2:]
        if match := re.match(r"([A-Z_]+) = (?:Place\(|\w+\.file)", line):
            if heading:
                lines.append(f"\n## {heading}\n\n| Path | Written by |\n|---|---|")
                heading = ""
            place: PathTemplate = getattr(layout, match[1])
            lines.append(f"| `{place}` | {', '.join(f'`{one}`' for one in writers.get(str(place), [])) or '–'} |")
    others = sorted({place for place in writers if place not in {str(value) for value in vars(layout).values()}})
    lines.append("\n## Files that only their step names\n\n| Path | Written by |\n|---|---|")
    lines += [f"| `{place}` | {', '.join(f'`{one}`' for one in writers[place])} |" for place in others]
    yield "files.md", "\n".join(lines).replace("\n\n\n", "\n\n")


FIELDS = {
    "step": "the step, such as `corpus.filter`",
    "instance": "the job's values of the step's wildcards, such as corpus and source",
    "code_version": "hash of the code that the step reaches",
    "environment_version": "hash of the versions of the packages that this code imports",
    "settings": "the settings that the result depends on",
    "settings_digest": "hash of the settings that the batch was planned with",
    "operation": "settings that change no number of the result",
    "command": "the command line; settings in it are replaced by their hash",
    "inputs": "name, path, sha256 and bytes of each file that was read; `data:` marks a file outside of the run",
    "outputs": "the same of each file that was written",
    "records": "path and sha256 of the record of each unit",
    "environment": "Python and packages, in records of earlier versions",
    "environment_file": "path and sha256 of the file with Python and packages",
    "frozen": "path and sha256 of the frozen configuration that the job was planned with",
    "launch": "the command that started the processes of a training",
    "taken_over_from": "record and attempt of an identical job, if its outputs were reused",
    "counts": "what the step counted, such as documents or restarts",
    "host": "the node",
    "slurm": "job number, cluster, partition and nodes",
    "git": "commit, and whether there were uncommitted changes",
    "machine": "kernel, C library, processor, GPUs, driver",
    "container": "the image that the processes ran in",
    "modules": "environment modules that were loaded",
    "started": "begin of the attempt, UTC",
    "ended": "end of the attempt, UTC; null while it runs, and after a kill",
    "wall_seconds": "time from begin to end, s",
    "cpu_seconds": "processor time, s",
    "peak_memory_bytes": "largest resident memory",
    "attempt": "the attempt that wrote this record",
    "snakemake": "the invocation that the attempt belongs to",
    "last_seen": "the last heartbeat, UTC",
    "status": "`running`, `finished`, `refused`, `failed` or `stopped`; a killed attempt stays `running`",
    "error": "the last lines of a failed attempt",
    "of": "hash of what the batch read of the raw files",
}


def records_pages() -> Iterator[tuple[str, str]]:
    """Yield the page of the fields of records, attempts and batches.

    Raises:
        KeyError: a field has no meaning in FIELDS.
    """
    lines = [
        "# Records\n\nFor auditors and engineers who read the JSON files of `provenance/`. Fields that every file of a "
        "kind has are *required*; the others may be missing. [Provenance](../../explanation/provenance.md) explains "
        "what they are for.\n"
    ]
    for kind in (Record, Attempt, BatchRecord, UnitRecords):
        sentence = cell((inspect.getdoc(kind) or "").split("\n\n")[0])
        lines.append(
            f"## {kind.noun.capitalize()}: `{kind.folder}/`\n\n{sentence}\n\n| Field | | Meaning |\n|---|---|---|"
        )
        for one in dataclasses.fields(kind):
            if one.name not in PLACE_FIELDS:
                needed = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
                lines.append(f"| `{one.name}` | {'required' if needed else ''} | {FIELDS[one.name]} |")
        lines.append("")
    yield "records.md", "\n".join(lines)


def leaves(command: Any, words: tuple[str, ...], panel: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the panel, the words and the command of each command of a group, without hidden ones."""
    panel = getattr(command, "rich_help_panel", None) or panel
    if not hasattr(command, "commands"):
        yield panel, " ".join(words), command
        return
    for name, child in command.commands.items():
        if not child.hidden:
            yield from leaves(child, (*words, name), panel)


def commands_pages() -> Iterator[tuple[str, str]]:
    """Yield the pages of all commands of `polder`, from its Typer application."""
    panels: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for panel, name, command in leaves(get_command(app), ("polder",), "Commands"):
        panels[panel].append((name, command))
    rows = ["| Command | Purpose |\n|---|---|"]
    for panel, commands in panels.items():
        page = panel.lower()
        parts = [f"# Commands: {page}\n\nFor everybody: commands of the group *{panel}*, from their help texts.\n"]
        for name, command in commands:
            rows.append(f"| [`{name}`]({page}.md#{name.replace(' ', '-')}) | {cell(command.get_short_help_str(200))} |")
            parts.append(f"## {name}\n\n{help_text(command)}\n\n```text\n{usage(command, name)}\n```\n")
            if example := (command.epilog or "").removeprefix("Example: "):
                parts.append(f"Example: `{example}`\n")
            if options := [row for parameter in command.params if (row := parameter_row(parameter))]:
                parts += ["| Argument or option | Default | Meaning |\n|---|---|---|", *options, ""]
        yield f"commands/{page}.md", "\n".join(parts)
    entries = "\n".join(panel.lower() for panel in panels)
    yield (
        "commands/index.md",
        "# Commands\n\nFor everybody: every command of `polder`. `polder COMMAND --help` prints the same.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{entries}\n```\n\n" + "\n".join(rows),
    )


def usage(command: Any, name: str) -> str:
    """Return the line of usage of a command."""
    return " ".join((name, *command.collect_usage_pieces(command.make_context(name, [], resilient_parsing=True))))


def help_text(command: Any) -> str:
    """Return the help of a command as Markdown."""
    return inspect.cleandoc((command.help or "").replace("\b", "").split("\f")[0])


def parameter_row(parameter: Any) -> str | None:
    """Return the row of an option or argument; None for a hidden one and for --help."""
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return None
    names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar or parameter.name.upper()]
    value = parameter.default
    shown = "required" if parameter.required else "" if value in (None, False, ()) or callable(value) else f"`{value}`"
    text = getattr(parameter, "help", None) or ""
    return f"| {', '.join(f'`{name}`' for name in names)} | {cell(shown)} | {cell(text)} |"


def main(folder: Path) -> None:
    """Write all pages below a folder, and remove what is there and was not written."""
    with tempfile.TemporaryDirectory() as scratch:
        pages = dict(configuration_pages(Reruns(Path(scratch))))
    for more in (steps_pages(), files_pages(), records_pages(), commands_pages()):
        pages |= dict(more)
    for old in folder.rglob("*.md"):
        if old.relative_to(folder).as_posix() not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = text.rstrip() + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
