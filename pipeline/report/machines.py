"""What the jobs of a run ran on: machines kind by kind, images, libraries of GPUs, and what was not the lock's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline import layout
from pipeline.report.read import Artefact, Json, Material

LIBRARIES = ("torch", "cuda", "hip", "nccl")  # as a training's own process tells them
GIB = 2**30


class Kind(NamedTuple):
    """What machines of one kind have in common; an empty text is what none of them told."""

    processor: str
    gpus: str
    driver: str
    system: str
    image: str


@dataclass
class Machines:
    """The machines of one kind, their names, the records of the jobs on them, and one of these to look at."""

    kind: Kind
    link: str
    hosts: set[str] = field(default_factory=set)
    jobs: int = 0


class Difference(NamedTuple):
    """A distribution that a platform has of its own: the version that computed, the lock's, and in how many jobs."""

    name: str
    installed: str
    locked: str
    jobs: int


def gpus_of(node: Json) -> str:
    """Return the GPUs of a machine: how many of which, with their memory; nothing where it has none."""
    if node.get("gpus") is None and node.get("gpus_unknown"):
        return f"not known: {node['gpus_unknown']}"
    told = Counter(
        f"{gpu['name']} ({gpu['memory_bytes'] / GIB:.0f} GiB)" if gpu.get("memory_bytes") else str(gpu["name"])
        for gpu in node.get("gpus") or []
    )
    return ", ".join(f"{number} × {name}" for name, number in sorted(told.items()))


def processor_of(node: Json) -> str:
    """Return the processor of a machine by its own name, or its architecture, and its processors."""
    return f"{node.get('cpu_model') or node.get('architecture') or '?'}, {node.get('processors') or '?'} processors"


def _kind(node: Json, image: str) -> Kind:
    with_it = {"CUDA": node.get("driver_cuda"), "ROCm": node.get("driver_rocm")}
    driver = [node.get("driver"), *(f"{name} {version}" for name, version in with_it.items() if version)]
    system = [f"{node.get('system') or ''} {node.get('kernel') or ''}".strip(), node.get("libc")]
    by, on = (", ".join(str(part) for part in parts if part) for parts in (driver, system))
    return Kind(processor_of(node), gpus_of(node), by, on, image)


def _nodes(record: Json) -> Iterator[tuple[str, Json]]:
    """Return the machines of a job: those of its processes where these tell them, else that of the job."""
    nodes = (record.get("counts") or {}).get("nodes")
    if isinstance(nodes, dict) and nodes:
        yield from nodes.items()
    elif record.get("machine"):
        yield str(record.get("host") or "?"), record["machine"]


def _image(record: Json, starts: dict[str, Json]) -> str:
    """Return the name of the image that a job computed in, with the sha256 that the start of the run gave it."""
    name = (record.get("counts") or {}).get("container") or record.get("container")
    if not name:
        return ""
    frozen = starts.get((record.get("frozen") or {}).get("path", ""), {})
    sha256 = (frozen.get("image") or {}).get("sha256")
    return f"{name}, sha256 {sha256}" if sha256 else f"{name}, not hashed"


def machines(material: Material) -> list[Machines]:
    """Return the kinds of machines that jobs whose results stand ran on, the most used first."""
    starts = {f"{layout.FROZEN}/{start.link.rsplit('/', 1)[-1]}": start.content for start in material.starts}
    found: dict[Kind, Machines] = {}
    for record in material.records:
        kinds = set()
        for host, node in _nodes(record.content):
            kind = _kind(node, _image(record.content, starts))
            found.setdefault(kind, Machines(kind, record.link)).hosts.add(host)
            kinds.add(kind)
        for kind in kinds:
            found[kind].jobs += 1
    return sorted(found.values(), key=lambda one: (-one.jobs, one.kind))


def libraries(segments: list[Artefact]) -> list[tuple[str, str]]:
    """Return what a model's processes computed with, such as PyTorch, CUDA and NCCL, by what they told themselves."""
    told: dict[str, list[str]] = {}
    for segment in segments:
        for name in LIBRARIES:
            value: Any = (segment.content.get("counts") or {}).get(name)
            if value and str(value) not in told.setdefault(name, []):
                told[name].append(str(value))
    return [(name, ", ".join(values)) for name, values in told.items() if values]


def differences(material: Material) -> list[Difference]:
    """Return what was installed other than the lock says, where the platform's file allows it."""
    jobs: Counter[tuple[str, str, str]] = Counter()
    for record in material.records:
        environment = record.content.get("environment") or {}
        for name, locked in (environment.get("other_than_lock") or {}).items():
            jobs[name, str((environment.get("packages") or {}).get(name, "?")), str(locked)] += 1
    return [Difference(*key, number) for key, number in sorted(jobs.items())]
