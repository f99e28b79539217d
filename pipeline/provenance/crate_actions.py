"""What was done in a run: jobs, attempts that left nothing, who started them and when, and what they used."""

from __future__ import annotations

import shlex
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from pipeline import layout
from pipeline.core.command_lines import short_command
from pipeline.core.records import Attempt, Record
from pipeline.energy.energy_accounting import JOULE, EnergyAccounting, Figure
from pipeline.provenance.crate_graph import Files, reference, references
from pipeline.provenance.crate_workflow import CrateWorkflow

COMPLETED = "http://schema.org/CompletedActionStatus"
FAILED = "http://schema.org/FailedActionStatus"
ENERGIES = {
    "total": "energy of the run",
    "finished": "energy of attempts whose outputs stand",
    "lost": "energy of attempts whose result was lost",
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


class Actions:
    """The actions of one run; `agent` is the @id of who ran it."""

    def __init__(self, files: Files, workflow: CrateWorkflow, agent: str, account: EnergyAccounting | None) -> None:
        self.graph, self.files, self.workflow, self.agent, self.account = files.graph, files, workflow, agent, account
        self.done: list[str] = []
        self.controls: dict[str, list[str]] = defaultdict(list)
        self.ends: dict[str, str] = {}

    def job(self, record: Record, start: str | None) -> None:
        """Add a finished job: a CreateAction with its software, settings, inputs, outputs and cost."""
        name = record.name
        inputs = [self.files.identifier(entry) for entry in record.inputs]
        inputs += [self.workflow.setting(record, key, value) for key, value in sorted(record.settings.items())]
        identifier = self.graph.add(
            f"#job/{name}",
            "CreateAction",
            name=record.title,
            description=shlex.join(short_command(record.command)),
            instrument=reference(self.workflow.tool_of(record)),
            agent=reference(self.agent),
            object=references(inputs),
            result=references([self.files.identifier(entry) for entry in record.outputs] or [quote(record.file)]),
            startTime=record.started,
            endTime=record.ended,
            actionStatus=COMPLETED,
            resourceUsage=self.usage(
                name, record.computed_by, {"CPU time": record.cpu_seconds, "peak memory": record.peak_memory_bytes}
            ),
            subjectOf=reference(quote(record.file)),
        )
        self.control(record, identifier, COMPLETED, start, record.ended)

    def attempt(self, attempt: Attempt, commit: str | None) -> None:
        """Add an attempt whose outputs do not stand: it failed, was killed, or was done again later.

        It is an ActivateAction, since nothing is left that it created.
        """
        name = attempt.name
        is_finished = attempt.status == "finished"
        error = attempt.error or f"it was {attempt.status} when it was last seen, and has left no end"
        status = COMPLETED if is_finished else FAILED
        work = self.graph.add(f"#file/{quote(attempt.file)}", "CreativeWork", name=f"{layout.ATTEMPTS}/{name}.json")
        identifier = self.graph.add(
            f"#attempt/{quote(name)}",
            "ActivateAction",
            name=f"{attempt.title}, an attempt whose outputs do not stand",
            description=shlex.join(short_command(attempt.command)),
            instrument=reference(self.workflow.tool_of_attempt(attempt, commit)),
            agent=reference(self.agent),
            startTime=attempt.started,
            endTime=attempt.ended or attempt.last_seen,
            actionStatus=status,
            error=None if is_finished else error,
            resourceUsage=self.usage(name, f"{name}.json", {"CPU time": attempt.cpu_seconds}),
            subjectOf=reference(work),
        )
        self.control(attempt, identifier, status, attempt.snakemake, attempt.ended or attempt.last_seen)

    def control(self, of: Record | Attempt, action: str, status: str, start: str | None, ended: str) -> None:
        """Add that Snakemake had one job done, at one of its starts."""
        self.done.append(action)
        start = start or UNKNOWN
        self.controls[start].append(
            self.graph.add(
                f"#control/{quote(of.name)}",
                "ControlAction",
                name=f"have done: {of.title}",
                instrument=reference(self.workflow.step(of.step)),
                object=reference(action),
                actionStatus=status,
            )
        )
        self.ends[start] = max(ended, self.ends.get(start, ended))

    def starts(self, engine: str, run: str) -> None:
        """Add each start of Snakemake that had jobs done, and what it organized; `run` is the run's action."""
        for start, controls in sorted(self.controls.items()):
            _, began, process, *_ = [*start.split("."), "", ""]
            self.graph.add(
                f"#start/{began}.{process}" if began else f"#start/{UNKNOWN}",
                "OrganizeAction",
                name=f"start of Snakemake at {began} UTC" if began else "starts of Snakemake that no attempt names",
                instrument=reference(engine),
                agent=reference(self.agent),
                object=references(controls),
                result=reference(run),
                startTime=_moment(began),
                endTime=self.ends[start],
            )

    def usage(self, name: str, attempt: str | None, measured: dict[str, float]) -> Any:
        """Add what a job or attempt was measured to use, and its energy by the account of the report."""
        place = f"#usage/{quote(name)}"
        used = [self.quantity(f"{place}/{quote(what)}", what, what, value=value) for what, value in measured.items()]
        figure = self.account.of_attempt(attempt) if self.account else Figure()
        return references([*used, *self.energy(f"{place}/energy", "energy", figure)])

    def energy(self, identifier: str, name: str, figure: Figure) -> list[str]:
        """Add an energy with its 95 % interval, how it is known and its meters; nothing where it is not known."""
        if not figure.is_known:
            return []
        values = {"value": figure.joules, "minValue": figure.low_joules, "maxValue": figure.high_joules}
        described = "; ".join((figure.text(JOULE), *figure.meters))
        return [self.quantity(identifier, "energy", name, described, **values)]

    def quantity(self, identifier: str, what: str, name: str, description: str | None = None, **values: float) -> str:
        """Add a value of one of `QUANTITIES`, in its unit."""
        kind, unit, code = QUANTITIES[what]
        units = {"unitText": unit, "unitCode": code, "description": description}
        return self.graph.add(identifier, "PropertyValue", name=name, propertyID=kind, **values, **units)

    def energies(self) -> list[str]:
        """Add the energies of the run as a whole."""
        if self.account is None:
            return []
        parts = {name: getattr(self.account, name) for name in ENERGIES}
        return [made for name in parts for made in self.energy(f"#energy/{name}", ENERGIES[name], parts[name])]


def _moment(began: str) -> str | None:
    """The moment that a start's name tells, such as 20261123T072529, in ISO 8601; None where it tells none."""
    try:
        return datetime.strptime(began, "%Y%m%dT%H%M%S").replace(tzinfo=UTC).isoformat()
    except ValueError:
        return None
