"""The workflow in a crate: its file, its steps in their order, the tool of each step and the software below them."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import PackageNotFoundError, metadata, version
from typing import Any
from urllib.parse import quote

from pipeline.core.command_lines import DIGEST, command_option, settings_digest, settings_json
from pipeline.core.errors import InputError
from pipeline.core.records import Attempt, Record, producers
from pipeline.provenance.crate_graph import Files, reference, references

ENGINE_PAGE = "https://snakemake.github.io"
LANGUAGE = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
# The identifier of a commit at Software Heritage; it is computed from the commit alone, archived or not.
COMMIT = "https://identifiers.org/swh:1:rev:{commit}"
# The labels of a distribution's addresses, the best first.
PAGES = ("homepage", "home", "repository", "source", "source code", "documentation")
TYPES = {bool: "Boolean", int: "Integer", float: "Float"}


@cache
def home_page(distribution: str) -> str | None:
    """The address of an installed distribution, as its own metadata tell it; None where they tell none."""
    try:
        told = metadata(distribution)
    except PackageNotFoundError:
        return None
    pages = {}
    for line in told.get_all("Project-URL") or []:
        label, _, page = line.partition(",")
        pages[label.strip().lower()] = page.strip()
    pages.setdefault("homepage", "".join(told.get_all("Home-page") or []))
    return next((pages[label] for label in PAGES if pages.get(label, "").startswith("http")), None)


def positions(records: list[Record]) -> dict[str, int]:
    """The place of each step in the order of the workflow, from 1: after the steps whose files its jobs read."""
    made = producers(records)
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

    def __init__(self, files: Files, identifier: str) -> None:
        self.graph, self.files, self.identifier = files.graph, files, identifier
        self.positions = positions(files.records)
        self.tools: dict[str, set[str]] = defaultdict(set)

    def packages(self, environment: dict[str, Any]) -> list[str]:
        """Add the distributions of an environment whose version and address are known, and return their @ids."""
        found = []
        for name, pinned in (environment.get("packages") or {}).items():
            page = home_page(name)
            if page is not None and ";" not in pinned:  # a version that depends on the machine is none
                identifier = f"{page}#{quote(name)}-{quote(pinned)}"
                found.append(
                    self.graph.add(identifier, "SoftwareApplication", name=name, softwareVersion=pinned, url=page)
                )
        return found

    def tool(self, step: str, code: str, environment: str, commit: str | None, packages: dict[str, Any]) -> str:
        """Add the code of a step at its version, in an environment, and return its @id."""
        page = COMMIT.format(commit=commit) if commit else None
        identifier = f"{page or ''}#tool/{step}/{quote(code)}/{quote(environment)}"
        if identifier not in self.graph.entities:
            words = ", ".join(f"{name} {pinned}" for name, pinned in sorted((packages.get("packages") or {}).items()))
            self.graph.add(
                identifier,
                "SoftwareApplication",
                name=f"polder {step}",
                softwareVersion=code,
                url=page,
                description=f"in the environment {environment}" + (f": {words}" if words else ""),
                softwareRequirements=references(self.packages(packages)),
                input=references(self.files.parameters[step, "input"]),
                output=references(self.files.parameters[step, "output"]),
            )
        self.tools[step].add(identifier)
        return identifier

    def tool_of(self, record: Record) -> str:
        """Add the tool of a finished job."""
        commit = (record.git or {}).get("commit")
        environment = record.read_environment(self.files.run_directory)
        return self.tool(record.step, record.code_version, record.environment_version, commit, environment)

    def tool_of_attempt(self, attempt: Attempt, commit: str | None) -> str:
        """Add the tool of an attempt that left no record: its command says the versions."""
        code, environment = (
            command_option(attempt.command, name) or "not recorded" for name in ("--code", "--environment")
        )
        return self.tool(attempt.step, code, environment, commit, {})

    def step(self, name: str) -> str:
        """The @id of a step of the workflow."""
        return f"#step/{name}"

    def setting(self, record: Record, key: str, value: Any) -> str:
        """Add a setting of a step and return its @id; jobs with the same value share it.

        A section of several keys is in a record: its value is the sha256 of its JSON, `subjectOf` the record.
        """
        parameter = self.graph.parameter(
            f"#parameter/{record.step}/settings/{quote(key)}", key, TYPES.get(type(value), "Text")
        )
        is_plain = isinstance(value, int | float | str) and value != ""
        text = settings_json(value)
        digest = settings_digest(text)
        is_long = len(text) > len(digest)
        return self.graph.add(
            f"#setting/{record.step}/{quote(key)}/{digest.removeprefix(DIGEST)[:16]}",
            "PropertyValue",
            name=key,
            value=digest if is_long else value if is_plain else text,
            exampleOfWork=reference(parameter),
            subjectOf=reference(quote(record.file)) if is_long else None,
        )

    def add_steps(self) -> list[str]:
        """Add the steps that have a tool, and return their @ids."""
        last = len(self.positions)
        for name, tools in sorted(self.tools.items()):
            if name not in self.positions:  # it never finished
                last += 1
            self.graph.add(
                self.step(name),
                "HowToStep",
                name=name,
                position=str(self.positions.get(name, last)),
                workExample=references(tools),
            )
        return [self.step(name) for name in self.tools]

    def engine(self) -> str:
        """Add Snakemake, which ran the steps, and the language of the workflow; return the engine's @id."""
        pinned = version("snakemake")
        self.graph.add(LANGUAGE, "ComputerLanguage", name="Snakemake", url=ENGINE_PAGE, version=pinned)
        return self.graph.add(
            f"{ENGINE_PAGE}#snakemake-{pinned}",
            "SoftwareApplication",
            name="Snakemake",
            softwareVersion=pinned,
            url=ENGINE_PAGE,
        )
