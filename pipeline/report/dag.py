"""The DAG of steps as a drawing: a box per step with its number of jobs, an arrow where one read what another wrote.

Inline SVG as in `charts`. Jobs are counted and not drawn, so that a run of ten thousand jobs has the same drawing as
one of ten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from markupsafe import Markup

from pipeline.report.read import Artefact

Edges = Mapping[str, set[str]]  # from each step to those that read what it wrote
BOX, TALL, ACROSS, DOWN = 168, 38, 16, 24  # a box's width and height, and the space beside and below it
BEND = 4  # half the width of the place that an arrow takes where it passes beside boxes
SWEEPS = 4  # how often the rows are put in order, by the rows above and below them
LETTERS = 22  # that fit in a box


def edges(records: Sequence[Artefact]) -> dict[str, set[str]]:
    """Return which steps read what each step wrote, by the paths in the records; what is implied is left out."""
    told = [(entry["path"], record.content["step"]) for record in records for entry in record.content["outputs"]]
    writers: dict[str, str] = dict(told)
    found: dict[str, set[str]] = {record.content["step"]: set() for record in records}
    for record in records:
        reader: str = record.content["step"]
        for entry in record.content["inputs"]:
            writer = writers.get(entry["path"], reader)
            if writer != reader and reader not in found[writer] and not _reaches(found, reader, writer):
                found[writer].add(reader)
    return {
        step: {
            reader
            for reader in readers
            if not any(_reaches(found, other, reader) for other in readers if other != reader)
        }
        for step, readers in found.items()
    }


def _reaches(graph: Edges, start: str, end: str) -> bool:
    """Return whether a way leads from a step to another; a step reaches itself."""
    seen, waiting = set(), [start]
    while waiting:
        step = waiting.pop()
        if step == end:
            return True
        if step not in seen:
            seen.add(step)
            waiting += graph[step]
    return False


def rows(graph: Edges) -> list[list[str]]:
    """Return the steps row by row, each below all that it reads from; an arrow that passes a row has a place in it.

    A place is named `WRITER>READER`, which is no step.
    """
    depth: dict[str, int] = {}

    def deep(step: str) -> int:
        if step not in depth:
            depth[step] = max((deep(writer) + 1 for writer in graph if step in graph[writer]), default=0)
        return depth[step]

    found: list[list[str]] = [[] for _ in range(max(map(deep, sorted(graph)), default=-1) + 1)]
    for step in graph:
        found[depth[step]].append(step)
    for writer, readers in graph.items():
        for reader in sorted(readers):
            for row in range(depth[writer] + 1, depth[reader]):
                found[row].append(f"{writer}>{reader}")
    return _ordered(found, graph)


def _ways(graph: Edges, found: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return each arrow as the places that it passes, from its writer to its reader."""
    places = [{*row} for row in found]
    return [
        [writer, *(f"{writer}>{reader}" for row in places if f"{writer}>{reader}" in row), reader]
        for writer, readers in graph.items()
        for reader in sorted(readers)
    ]


def _ordered(found: list[list[str]], graph: Edges) -> list[list[str]]:
    """Return the rows with each place near the mean of those that it is joined to, so that few arrows cross."""
    joined: dict[tuple[int, str], list[tuple[int, str]]] = {}
    row_of = {step: index for index, row in enumerate(found) for step in row if step in graph}
    for way in _ways(graph, found):
        placed = [(row_of[way[0]] + index, place) for index, place in enumerate(way)]
        for above, below in pairwise(placed):
            joined.setdefault(above, []).append(below)
            joined.setdefault(below, []).append(above)
    for sweep in range(2 * SWEEPS):
        down = sweep % 2 == 0
        order = range(1, len(found)) if down else range(len(found) - 2, -1, -1)
        for index in order:
            other = index - 1 if down else index + 1
            at = {name: place for place, name in enumerate(found[other])}
            width = max(len(found[other]), 1)

            def mean(
                name: str, index: int = index, other: int = other, width: int = width, at: Mapping[str, int] = at
            ) -> float:
                near = [(at[place] + 0.5) / width for row, place in joined.get((index, name), []) if row == other]
                return sum(near) / len(near) if near else 0.5

            found[index].sort(key=mean)
    return found


def drawing(records: Sequence[Artefact], told: Callable[[int], str], label: str, caption: str) -> Markup:
    """Return the DAG as a figure; `told` says a number of jobs in words. Nothing is drawn where there is no record."""
    graph = edges(records)
    if not graph:
        return Markup("")
    jobs = Counter(record.content["step"] for record in records)
    found = rows(graph)
    widths = [sum((BOX if name in graph else 2 * BEND) + ACROSS for name in row) - ACROSS for row in found]
    width, height = max(widths) + 8, len(found) * (TALL + DOWN) - DOWN + 8
    middle: dict[tuple[int, str], float] = {}
    top = {step: 4 + index * (TALL + DOWN) for index, row in enumerate(found) for step in row if step in graph}
    for index, row in enumerate(found):
        x = (width - widths[index]) / 2
        for name in row:
            wide = BOX if name in graph else 2 * BEND
            middle[index, name] = x + wide / 2
            x += wide + ACROSS
    parts = []
    for way in _ways(graph, found):
        first = top[way[0]] // (TALL + DOWN)
        xs = [middle[first + index, place] for index, place in enumerate(way)]
        path = ""
        for index, (start, end) in enumerate(pairwise(xs)):
            y = top[way[0]] + TALL + index * (TALL + DOWN)
            path += f"M{start:.1f} {y}C{start:.1f} {y + DOWN / 2} {end:.1f} {y + DOWN / 2} {end:.1f} {y + DOWN}"
            path += f"V{y + DOWN + TALL}" if index < len(xs) - 2 else ""
        parts.append(Markup('<path class="arrow" d="{}"/>').format(path))
        parts.append(Markup('<path class="head" d="M{0:.1f} {1}l-4 -6h8z"/>').format(xs[-1], top[way[-1]]))
    for step, y in top.items():
        x = middle[y // (TALL + DOWN), step]
        name = step if len(step) <= LETTERS else f"{step[: LETTERS - 1]}…"
        parts.append(
            Markup('<rect class="box" x="{:.1f}" y="{}" width="{}" height="{}" rx="4"/>').format(
                x - BOX / 2, y, BOX, TALL
            )
        )
        parts.append(
            Markup('<text class="name" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x, y + 16, name)
        )
        parts.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x, y + 31, told(jobs[step]))
        )
    svg = Markup(
        '<svg class="chart dag" viewBox="0 0 {0:.0f} {1}" width="{0:.0f}" role="img" aria-label="{2}">{3}</svg>'
    )
    return Markup(
        '<figure><div class="scroll" role="region" tabindex="0" aria-label="{}">{}</div>'
        "<figcaption>{}</figcaption></figure>"
    ).format(label, svg.format(width, height, _in_words(graph, jobs, label), Markup("").join(parts)), caption)


def _in_words(graph: Edges, jobs: Mapping[str, int], label: str) -> str:
    """Return the drawing as a person hears it: each step, its number of jobs, and who reads what it wrote."""
    told = [
        f"{step} ({jobs[step]:,})" + (f" → {', '.join(sorted(readers))}" if readers else "")
        for step, readers in graph.items()
    ]
    return f"{label}. {'; '.join(told)}"
