"""The entities of a crate by their identifiers, and what all of them need: references, licences, organizations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

ENTITY = dict[str, Any]
CRATE_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/provenance/0.5": ("Provenance Run Crate", "0.5"),
    WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
}
CONTEXT = [
    f"{CRATE_SPECIFICATION}/context",
    "https://w3id.org/ro/terms/workflow-run/context",
    {"sha256": "https://schema.org/sha256"},
]
# Identifiers such as CC0-1.0, CC-BY-SA-3.0-NL, Apache-2.0 and GPL-3.0-only have a page of their own at SPDX.
SPDX = re.compile(r"(MIT|ISC|Unlicense|[A-Za-z][A-Za-z0-9]*(-[A-Za-z]+)*-\d+(\.\d+)*(-[A-Za-z]+)*)")
NOBODY = "#agent/not-stated"
CHECKPOINT = "#log-checkpoint"


def reference(identifier: str) -> dict[str, str]:
    """A reference to an entity."""
    return {"@id": identifier}


def references(identifiers: Iterable[str]) -> Any:
    """References in order, each once: a list, or as RO-Crate asks the one itself where there is one."""
    found = [reference(identifier) for identifier in sorted(set(identifiers))]
    return found[0] if len(found) == 1 else found


class Graph:
    """The entities of a crate by @id."""

    def __init__(self) -> None:
        self.entities: dict[str, ENTITY] = {}

    def add(self, identifier: str, kind: str | list[str], /, **properties: Any) -> str:
        """Add an entity, unless it is there, and return its @id; properties without a value are left out."""
        given = {key: value for key, value in properties.items() if value is not None and value not in ("", [])}
        self.entities.setdefault(identifier, {"@id": identifier, "@type": kind, **given})
        return identifier

    def license(self, license: str) -> str:
        """Add a licence, given by SPDX identifier or URL or in words, and return its @id."""
        if "://" in license:
            identifier = license
        elif SPDX.fullmatch(license):
            identifier = f"https://spdx.org/licenses/{license}"
        else:
            identifier = f"#license/{quote(license)}"
        return self.add(identifier, "CreativeWork", name=license, identifier=license)

    def organization(self, name: str | None, url: str | None, contact: str | None) -> str:
        """Add who ran the pipeline, as the configuration says it or does not, and return the @id."""
        if name is None:
            described = "the configuration names nobody who is responsible for the run (run.provider)"
            return self.add(NOBODY, "Organization", name="not stated", description=described)
        point = contact and self.add("#contact", "ContactPoint", name=contact)
        return self.add(
            url or f"#organization/{quote(name)}",
            "Organization",
            name=name,
            url=url,
            contactPoint=reference(point) if point else None,
        )

    def parameter(self, identifier: str, name: str, kind: str) -> str:
        """Add a parameter of a tool or of the workflow; `kind` is the type of its values."""
        return self.add(
            identifier,
            "FormalParameter",
            name=name,
            additionalType=kind,
            conformsTo=reference("https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"),
        )

    def is_example_of(self, identifier: str, parameters: Iterable[str]) -> None:
        """Say that an entity is a value of some parameters."""
        self.entities[identifier]["exampleOfWork"] = references(parameters)

    def sorted(self) -> list[ENTITY]:
        """All entities by @id."""
        return [self.entities[key] for key in sorted(self.entities)]
