"""The workflow in a crate and what was done by it: steps, tools, software, jobs, lost attempts, starts and energy."""

from __future__ import annotations

import shlex
from collections import defaultdict
from datetime import UTC, datetime
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import PackageNotFoundError, metadata, version
from typing import Any
from urllib.parse import quote

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.core.job_command_lines import (
    DIGEST_PREFIX,
    command_option,
    replace_settings_by_digest,
    settings_digest,
    settings_json,
)
from pipeline.core.job_records import Attempt, Record, map_producers
from pipeline.core.shared_environment_files import read_environment
from pipeline.energy.run_energy_report_reader import JOULE, EnergyAccounting, EnergyFigure
from pipeline.provenance.crate_graph import CrateFiles, reference, references

ENGINE_PAGE = "https://snakemake.github.io"
LANGUAGE = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
# The identifier of a commit at Software Heritage; it is computed from the commit alone, archived or not.
COMMIT_URL = "https://identifiers.org/swh:1:rev:{commit}"
# The labels of a distribution's addresses, the best first.
URL_LABELS = ("homepage", "home", "repository", "source", "source code", "documentation")
SCHEMA_TYPES = {bool: "Boolean", int: "Integer", float: "Float"}
COMPLETED_STATUS = "http://schema.org/CompletedActionStatus"
FAILED_STATUS = "http://schema.org/FailedActionStatus"
ENERGY_TITLES = {
    "total": "energy of the run",
    "finished": "energy of attempts with valid outputs",
    "lost": "energy of attempts without a result",
    "idle": "energy of nodes that were held and idle",
    "snakemake": "energy of Snakemake's own process",
}
# What a quantity is by QUDT, and its unit in words and by the codes of UN/CEFACT's recommendation 20.
QUANTITIES = {
    "CPU time": ("http://qudt.org/vocab/quantitykind/Time", "second", "SEC"),
    "peak memory": ("http://qudt.org/vocab/quantitykind/InformationEntropy", "byte", "AD"),
    "energy": ("http://qudt.org/vocab/quantitykind/Energy", "joule", "JOU"),
}
UNKNOWN = "unknown"


@cache
def find_home_page(distribution: str) -> str | None:
    """Return the home page of an installed distribution from its metadata; None if they have none."""
    try:
        fields = metadata(distribution)
    except PackageNotFoundError:
        return None
    pages = {}
    for line in fields.get_all("Project-URL") or []:
        label, _, page = line.partition(",")
        pages[label.strip().lower()] = page.strip()
    pages.setdefault("homepage", "".join(fields.get_all("Home-page") or []))
    return next((pages[label] for label in URL_LABELS if pages.get(label, "").startswith("http")), None)


def order_steps(records: list[Record]) -> dict[str, int]:
    """Return the position of each step in the workflow, from 1: after the steps whose files its jobs read.

    Raises:
        InputError: the records say that two jobs have read what the other wrote.
    """
    made = map_producers(records)
    by_file = {record.file: record for record in records}
    before: dict[str, set[str]] = {
        record.file: {made[entry.path][0].file for entry in record.inputs if entry.path in made} for record in records
    }
    depth: dict[str, int] = {}
    try:
        for file in TopologicalSorter(before).static_order():
            depth[file] = 1 + max((depth[earlier] for earlier in before[file]), default=0)
    except CycleError as error:
        files = " and ".join(sorted(set(error.args[1]))[:2])
        raise InputError(f"{files} read what the other wrote: delete them, so that their steps run again") from None
    first: dict[str, int] = {}
    for file, place in depth.items():
        step = by_file[file].step
        first[step] = min(place, first.get(step, place))
    return {step: place for place, step in enumerate(sorted(first, key=lambda step: (first[step], step)), 1)}


class CrateWorkflow:
    """The workflow of one run: `identifier` is the @id of its file."""

    def __init__(self, files: CrateFiles, identifier: str) -> None:
        self.graph, self.files, self.identifier = files.graph, files, identifier
        self.positions = order_steps(files.records)
        self.tools: dict[str, set[str]] = defaultdict(set)

    def add_packages(self, environment: dict[str, Any]) -> list[str]:
        """Add the distributions of an environment whose version and address are known, and return their @ids."""
        identifiers = []
        for name, pinned in (environment.get("packages") or {}).items():
            page = find_home_page(name)
            if page is not None and ";" not in pinned:  # a version that depends on the machine is none
                identifier = f"{page}#{quote(name)}-{quote(pinned)}"
                identifiers.append(
                    self.graph.add_entity(
                        identifier, "SoftwareApplication", name=name, softwareVersion=pinned, url=page
                    )
                )
        return identifiers

    def add_tool(self, step: str, code: str, environment: str, commit: str | None, packages: dict[str, Any]) -> str:
        """Add the code of a step at its version, in an environment, and return its @id."""
        page = COMMIT_URL.format(commit=commit) if commit else None
        identifier = f"{page or ''}#tool/{step}/{quote(code)}/{quote(environment)}"
        if identifier not in self.graph.entities:
            words = ", ".join(f"{name} {pinned}" for name, pinned in sorted((packages.get("packages") or {}).items()))
            self.graph.add_entity(
                identifier,
                "SoftwareApplication",
                name=f"polder {step}",
                softwareVersion=code,
                url=page,
                description=f"in the environment {environment}" + (f": {words}" if words else ""),
                softwareRequirements=references(self.add_packages(packages)),
                input=references(self.files.parameters[step, "input"]),
                output=references(self.files.parameters[step, "output"]),
            )
        self.tools[step].add(identifier)
        return identifier

    def add_tool_of_record(self, record: Record) -> str:
        commit = (record.git or {}).get("commit")
        environment = read_environment(self.files.run_directory, record)
        return self.add_tool(record.step, record.code_version, record.environment_version, commit, environment)

    def add_tool_of_attempt(self, attempt: Attempt, commit: str | None) -> str:
        """Add the tool of an attempt that left no record: its command says the versions."""
        code, environment = (
            command_option(attempt.command, name) or "not recorded" for name in ("--code", "--environment")
        )
        return self.add_tool(attempt.step, code, environment, commit, {})

    def step_identifier(self, name: str) -> str:
        """Return the @id of a step of the workflow."""
        return f"#step/{name}"

    def add_setting(self, record: Record, key: str, value: Any) -> str:
        """Add a setting of a step and return its @id; jobs with the same value share it.

        A section of several keys is in a record: its value is the sha256 of its JSON, `subjectOf` the record.
        """
        parameter = self.graph.add_parameter(
            f"#parameter/{record.step}/settings/{quote(key)}", key, SCHEMA_TYPES.get(type(value), "Text")
        )
        is_plain = isinstance(value, int | float | str) and value != ""
        text = settings_json(value)
        digest = settings_digest(text)
        is_long = len(text) > len(digest)
        return self.graph.add_entity(
            f"#setting/{record.step}/{quote(key)}/{digest.removeprefix(DIGEST_PREFIX)[:16]}",
            "PropertyValue",
            name=key,
            value=digest if is_long else value if is_plain else text,
            exampleOfWork=reference(parameter),
            subjectOf=reference(self.files.record_identifier(record)) if is_long else None,
        )

    def add_steps(self) -> list[str]:
        """Add the steps that have a tool, and return their @ids."""
        last = len(self.positions)
        for name, tools in sorted(self.tools.items()):
            if name not in self.positions:  # it never finished
                last += 1
            self.graph.add_entity(
                self.step_identifier(name),
                "HowToStep",
                name=name,
                position=str(self.positions.get(name, last)),
                workExample=references(tools),
            )
        return [self.step_identifier(name) for name in self.tools]

    def add_engine(self) -> str:
        """Add Snakemake, which ran the steps, and the language of the workflow; return the engine's @id."""
        pinned = version("snakemake")
        self.graph.add_entity(LANGUAGE, "ComputerLanguage", name="Snakemake", url=ENGINE_PAGE, version=pinned)
        return self.graph.add_entity(
            f"{ENGINE_PAGE}#snakemake-{pinned}",
            "SoftwareApplication",
            name="Snakemake",
            softwareVersion=pinned,
            url=ENGINE_PAGE,
        )


class CrateActions:
    """The actions of one run; `agent` is the @id of who ran it."""

    def __init__(
        self, files: CrateFiles, workflow: CrateWorkflow, agent: str, account: EnergyAccounting | None
    ) -> None:
        self.graph, self.files, self.workflow, self.agent, self.account = files.graph, files, workflow, agent, account
        self.done: list[str] = []
        self.controls: dict[str, list[str]] = defaultdict(list)
        self.ends: dict[str, str] = {}

    def add_job(self, record: Record, start: str | None) -> None:
        """Add a finished job: a CreateAction with its software, settings, inputs, outputs and cost."""
        name, own = record.name, self.files.record_identifier(record)
        inputs = [self.files.file_identifier(entry) for entry in record.inputs]
        inputs += [self.workflow.add_setting(record, key, value) for key, value in sorted(record.settings.items())]
        identifier = self.graph.add_entity(
            f"#job/{name}",
            "CreateAction",
            name=record.title,
            description=shlex.join(replace_settings_by_digest(record.command)),
            instrument=reference(self.workflow.add_tool_of_record(record)),
            agent=reference(self.agent),
            object=references(inputs),
            result=references([self.files.file_identifier(entry) for entry in record.outputs] or [own]),
            startTime=record.started,
            endTime=record.ended,
            actionStatus=COMPLETED_STATUS,
            resourceUsage=self.add_usage(
                name,
                record.computing_attempt_file_name,
                {"CPU time": record.cpu_seconds, "peak memory": record.peak_memory_bytes},
            ),
            subjectOf=reference(own),
        )
        self.add_control_action(record, identifier, COMPLETED_STATUS, start, record.ended)

    def add_attempt(self, attempt: Attempt, commit: str | None) -> None:
        """Add an attempt without valid outputs: it failed, was killed or was repeated later.

        It is an ActivateAction, since nothing is left that it created.
        """
        name = attempt.name
        is_finished = attempt.status == "finished"
        error = attempt.error or f"it was {attempt.status} when it was last seen, and has left no end"
        status = COMPLETED_STATUS if is_finished else FAILED_STATUS
        work = self.graph.add_entity(
            f"#file/{quote(attempt.file)}", "CreativeWork", name=f"{layout.ATTEMPTS}/{name}.json"
        )
        identifier = self.graph.add_entity(
            f"#attempt/{quote(name)}",
            "ActivateAction",
            name=f"{attempt.title}, an attempt without valid outputs",
            description=shlex.join(replace_settings_by_digest(attempt.command)),
            instrument=reference(self.workflow.add_tool_of_attempt(attempt, commit)),
            agent=reference(self.agent),
            startTime=attempt.started,
            endTime=attempt.ended or attempt.last_seen,
            actionStatus=status,
            error=None if is_finished else error,
            resourceUsage=self.add_usage(name, f"{name}.json", {"CPU time": attempt.cpu_seconds}),
            subjectOf=reference(work),
        )
        self.add_control_action(attempt, identifier, status, attempt.snakemake, attempt.ended or attempt.last_seen)

    def add_control_action(self, of: Record | Attempt, action: str, status: str, start: str | None, ended: str) -> None:
        """Add that one invocation of Snakemake ran a job."""
        self.done.append(action)
        start = start or UNKNOWN
        self.controls[start].append(
            self.graph.add_entity(
                f"#control/{quote(of.name)}",
                "ControlAction",
                name=f"have done: {of.title}",
                instrument=reference(self.workflow.step_identifier(of.step)),
                object=reference(action),
                actionStatus=status,
            )
        )
        self.ends[start] = max(ended, self.ends.get(start, ended))

    def add_invocations(self, engine: str, run: str) -> None:
        """Add each invocation of Snakemake with its jobs; `run` is the run's action."""
        for start, controls in sorted(self.controls.items()):
            _, began, process, *_ = [*start.split("."), "", ""]
            self.graph.add_entity(
                f"#start/{began}.{process}" if began else f"#start/{UNKNOWN}",
                "OrganizeAction",
                name=f"start of Snakemake at {began} UTC" if began else "starts of Snakemake that no attempt names",
                instrument=reference(engine),
                agent=reference(self.agent),
                object=references(controls),
                result=reference(run),
                startTime=_parse_invocation_time(began),
                endTime=self.ends[start],
            )

    def add_usage(self, name: str, attempt: str | None, measured: dict[str, float]) -> Any:
        """Add measured use of a job or attempt, and its energy from the report."""
        place = f"#usage/{quote(name)}"
        used = [
            self.add_quantity(f"{place}/{quote(what)}", what, what, value=value) for what, value in measured.items()
        ]
        figure = self.account.attempt_energy(attempt) if self.account else EnergyFigure()
        return references([*used, *self.add_energy(f"{place}/energy", "energy", figure)])

    def add_energy(self, identifier: str, name: str, figure: EnergyFigure) -> list[str]:
        """Add an energy with its 95 % interval, label and meters; nothing if it is unknown."""
        if not figure.is_known:
            return []
        values = {"value": figure.joules, "minValue": figure.low_joules, "maxValue": figure.high_joules}
        described = "; ".join((figure.text(JOULE), *figure.meters))
        return [self.add_quantity(identifier, "energy", name, described, **values)]

    def add_quantity(
        self, identifier: str, what: str, name: str, description: str | None = None, **values: float
    ) -> str:
        """Add a value of one of `QUANTITIES`, in its unit."""
        kind, unit, code = QUANTITIES[what]
        units = {"unitText": unit, "unitCode": code, "description": description}
        return self.graph.add_entity(identifier, "PropertyValue", name=name, propertyID=kind, **values, **units)

    def add_run_energies(self) -> list[str]:
        if self.account is None:
            return []
        parts = {name: getattr(self.account, name) for name in ENERGY_TITLES}
        return [made for name in parts for made in self.add_energy(f"#energy/{name}", ENERGY_TITLES[name], parts[name])]


def _parse_invocation_time(began: str) -> str | None:
    """Return the time in the name of an invocation, such as 20261123T072529, in ISO 8601; None if it has none."""
    try:
        return datetime.strptime(began, "%Y%m%dT%H%M%S").replace(tzinfo=UTC).isoformat()
    except ValueError:
        return None
