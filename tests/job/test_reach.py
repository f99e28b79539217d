"""The code that a function can run is found statically, and nothing that runs is missed."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pipeline.job import reach
from tests.corpus.conftest import TEXTS, Chain, json_lines


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Return the function that writes a package of these modules, name to source."""
    folder = tmp_path / "pipeline"

    def write(**modules: str) -> Path:
        for name, source in {"__init__": "", **modules}.items():
            path = folder / f"{name.replace('__of__', '/')}.py" if name != "__init__" else folder / "__init__.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return folder

    caches = (reach.names_in, reach.file_of, reach.module_of)
    monkeypatch.setattr(reach, "PACKAGE", folder)
    for cached in caches:
        cached.cache_clear()
    yield write
    for cached in caches:
        cached.cache_clear()


def reached(name: str = "run", apart: tuple[str, ...] = ()) -> set[str]:
    """Return the definitions that the function `name` of the module `step` reaches: names or source."""
    result = set()
    for file, statements in reach.Reach("pipeline.step", name, apart).statements():
        for statement in statements:
            definition = getattr(statement.node, "name", None) or ast.unparse(statement.node)
            result.add(f"{file.stem}: {definition}")
    return result


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("from pipeline.other import one\ndef run(): one()", {"step: run", "other: one"}),
        ("from pipeline import other\ndef run(): other.one()", {"step: run", "other: one"}),
        ("import pipeline.other as o\ndef run(): o.one()", {"step: run", "other: one"}),
        (
            "from pipeline import other\ndef run(): use(other)",
            {"step: run", "other: one", "other: two", "other: X = 1"},
        ),
        ("def run():\n    from pipeline.other import two\n    two()", {"step: run", "other: two", "other: X = 1"}),
        ("from pipeline.other import one\ndef run(): pass", {"step: run"}),
        ("from pipeline.other import one\ndef run(x: one): pass", {"step: run", "other: one"}),
        ("X = {1}\nX |= {2}\nY = 3\ndef run(): return X", {"step: run", "step: X = {1}", "step: X |= {2}"}),
        ("X = {}\nX[1] = 2\ndef run(): return X", {"step: run", "step: X = {}", "step: X[1] = 2"}),
        ("X = 1\ndef run(): return globals()['X']", {"step: run", "step: X = 1"}),
        ("register('a')\ndef run(): pass", {"step: run", "step: register('a')"}),
        ("from foreign import register\n@register\ndef a(): pass\ndef run(): pass", {"step: run", "step: a"}),
        ("from functools import cache\n@cache\ndef a(): pass\ndef run(): pass", {"step: run"}),
        (
            "W = 'pipeline.program'\ndef run(): return W",
            {"step: run", "step: W = 'pipeline.program'"} | {"program: main"},
        ),
        ("class A:\n    def f(self): return B()\nclass B: pass\ndef run(): A", {"step: run", "step: A", "step: B"}),
        (
            "if True:\n    X = 1\nelse:\n    X = 2\ndef run(): pass",
            {"step: run", "step: if True:\n    X = 1\nelse:\n    X = 2"},
        ),
    ],
)
def test_reachable_definitions(package: Callable[..., Path], step: str, expected: set[str]) -> None:
    package(
        step=step,
        other="def one(): pass\ndef two(): return X\nX = 1\n",
        program="def main(): pass\nif __name__ == '__main__':\n    main()\n",
    )
    result = reached()
    assert {name for name in result if "__name__" not in name} == expected
    assert ("program: if __name__ == '__main__':\n    main()" in result) == ("program: main" in expected)


def test_definitions_in_excluded_modules_are_not_followed(package: Callable[..., Path]) -> None:
    package(
        step="from pipeline.room import watch\nfrom pipeline.other import one, two\ndef run(): watch.x(); one(); two()",
        other="def one(): pass\ndef two(): pass\n",
        room__of____init__="",
        room__of__watch="def x(): pass",
    )
    assert reached(apart=("pipeline.room", "pipeline.other.two")) == {"step: run", "other: one"}
    assert reached() == {"step: run", "other: one", "other: two", "watch: x"}


@contextmanager
def noted(called: set[tuple[Path, int]]) -> Iterator[None]:
    """Record every called function of the package: its file and its first line."""
    package = str(reach.PACKAGE)

    def note(frame: FrameType, event: str, given: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            called.add((Path(frame.f_code.co_filename), frame.f_code.co_firstlineno))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


STEPS = ("sources.fingerprint", "sources.manifest", *(f"corpus.{name}" for name in ("filter", "signatures", "ngrams")))
STEPS += tuple(f"corpus.{name}" for name in ("find_duplicates", "deduplicate", "matches", "find_items"))
STEPS += ("corpus.decontaminate", "corpus.statistics")


def test_functions_called_by_a_chain_of_steps_are_reachable(tmp_path: Path) -> None:
    """Inverse check: Python reports the calls, and the trees must contain all of them."""

    def work(chain: Chain) -> None:
        chain.filter("s", {"x.jsonl": json_lines(TEXTS)})
        chain.deduplicate(["s"])
        chain.decontaminate(["s"], {"items.jsonl": json_lines({"an item": TEXTS["nl_water"]})})
        chain.statistics(["s"])

    chains = [Chain(tmp_path / name) for name in ("once", "again")]
    work(chains[0])  # imported, compiled or cached code is not called by a step
    called: set[tuple[Path, int]] = set()
    with noted(called):
        work(chains[1])
    lines: dict[Path, list[range]] = {}
    for step in STEPS:
        for file, statements in reach.reach(f"pipeline.{step}").statements():
            for node in (statement.node for statement in statements):
                first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
                lines.setdefault(file, []).append(range(first, (node.end_lineno or first) + 1))
    missed = [(file.name, line) for file, line in called if not any(line in result for result in lines.get(file, []))]
    assert len(called) > 150 and missed == []


def test_garbage_collection_is_enabled_after_reading_the_code() -> None:
    reach.reach.__wrapped__("pipeline.plan.estimate")
    assert gc.isenabled()
