"""The provenance of a run as PROV-JSON: files as entities, jobs as activities, code and who ran it as agents."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from prov.model import PROV, ProvDocument

from pipeline.core.job_command_lines import command_option
from pipeline.core.job_records import Attempt, FileEntry, Record

VOCABULARY = "https://schema.org/"


def _entity_identifier(entry: FileEntry) -> str:
    """Return a short identifier of a path with a content; `prov:label` is the path."""
    return f"run:file/{sha256(f'{entry.path} {entry.sha256}'.encode()).hexdigest()[:12]}"


def build_prov_document(run: str, records: list[Record], attempts: list[Attempt], provider: str | None) -> str:
    """Return the PROV-JSON of a run; `attempts` are those without valid outputs.

    Jobs are numbered; `prov:label` names the step and its instance.

    A file is said to be derived from what its job read where that job wrote no other file; of several, no record says
    which of them came from what.
    """
    graph = ProvDocument()
    graph.add_namespace("run", f"arcp://name,{run}/")
    graph.add_namespace("schema", VOCABULARY)
    files: dict[str, FileEntry] = {}
    agents: set[str] = set()
    person = "run:provider"
    if provider is not None:
        graph.agent(person, {"prov:type": PROV["Organization"], "prov:label": provider})

    def activity(name: str, title: str, started: str, ended: str, code: str) -> str:
        identifier = f"run:{quote(name)}"
        graph.activity(
            identifier, datetime.fromisoformat(started), datetime.fromisoformat(ended), {"prov:label": title}
        )
        agent = f"run:code/{code}"
        if agent not in agents:
            agents.add(agent)
            graph.agent(agent, {"prov:type": PROV["SoftwareAgent"], "prov:label": f"code {code}"})
        graph.wasAssociatedWith(identifier, agent)
        if provider is not None:
            graph.wasAssociatedWith(identifier, person)
        return identifier

    def entity(entry: FileEntry) -> str:
        name = _entity_identifier(entry)
        if name not in files:
            files[name] = entry
            graph.entity(name, {"prov:label": entry.path, "schema:sha256": entry.sha256})
        return name

    for number, record in enumerate(
        records, 1
    ):  # short identifiers: each is in the file once for every file of its job
        done = activity(f"job/{number}", record.title, record.started, record.ended, record.code_version)
        read = [entity(entry) for entry in record.inputs]
        for name in dict.fromkeys(read):
            graph.used(done, name)
        for output in record.outputs:
            graph.wasGeneratedBy(entity(output), done)
        for name in dict.fromkeys(read) if len(record.outputs) == 1 else []:
            graph.wasDerivedFrom(entity(record.outputs[0]), name)
    for attempt in attempts:
        ended = attempt.ended or attempt.last_seen
        code = command_option(attempt.command, "--code") or "not-recorded"
        name = f"attempt/{Path(attempt.file).stem}"
        activity(name, f"{attempt.step}: {attempt.status}", attempt.started, ended, code)
    return str(graph.serialize(sort_keys=True, indent=None, separators=(",", ":"))) + "\n"
