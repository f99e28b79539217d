"""The house is built as docs/architecture.md draws it: who imports whom, what a room is, which steps a chapter has."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from pipeline.workflow.steps import CHAPTERS, STEPS, chapter

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DOOR = ("commands", "__main__")  # the modules that belong to no room
ROOMS = sorted(
    ".".join(file.parent.relative_to(ROOT / "pipeline").parts)
    for file in (ROOT / "pipeline").glob("*/**/__init__.py")  # without the package itself
)


def drawn(number: int) -> dict[str, list[str]]:
    """Return the arrows of one of the three drawings, in their order: of the floors, of rooms in rooms, exceptions."""
    section = PAGE.split("## Packages")[1].split("\n## ")[0]
    arrows: dict[str, list[str]] = {}
    last: list[str] = []
    for line in section.split("```")[2 * number + 1].splitlines():
        left, arrow, right = line.rpartition("→")
        if arrow:
            last = arrows.setdefault(left.split()[-1], [])
        elif not last:
            continue  # what stands above the first arrow
        last += right.split()[:1] if number == 2 else [word for word in right.split() if word != "nothing"]
    return arrows


FLOORS, INSIDE, EXCEPTIONS = drawn(0), drawn(1), drawn(2)


@cache
def files() -> dict[str, Path]:
    """Return the file of each module of the package, by the module's name without `pipeline.`."""
    found = {}
    for file in sorted((ROOT / "pipeline").rglob("*.py")):
        words = file.relative_to(ROOT / "pipeline").with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = file
    return found


def imported(tree: ast.AST) -> set[str]:
    """Return the modules of the package that are imported anywhere in a module, in functions too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports of this package are written out"
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        else:
            continue
        for name in (one.removeprefix("pipeline.") for one in named if one.startswith("pipeline.")):
            found.add(name if name in files() else name.rpartition(".")[0])
    return found


@cache
def imports() -> dict[str, set[str]]:
    """Return what each module imports of the package."""
    return {name: imported(ast.parse(file.read_text(encoding="utf-8"))) for name, file in files().items()}


def room_of(module: str) -> str:
    """Return the innermost room of a module; `commands` of those that belong to none."""
    if module in ROOMS:
        return module
    return "commands" if module in DOOR or not module else module.rpartition(".")[0]


def is_drawn(module: str, other: str) -> bool:
    """Return whether the page says that one module may import another one."""
    room, theirs = room_of(module), room_of(other)
    top, their_top = room.split(".")[0], theirs.split(".")[0]
    if room == theirs or (room == top == their_top):  # its own room, or the rooms of its chapter
        return True
    if other in EXCEPTIONS.get(module, ()):
        return True
    if top != their_top:
        return their_top in FLOORS.get(top, ())
    return bool({theirs, other} & set(INSIDE.get(room, ())))


def test_all_imports_are_drawn() -> None:
    others = [(name, other) for name, found in sorted(imports().items()) for other in sorted(found)]
    assert len(others) > 500, "the modules are found"
    assert [f"{name} → {other}" for name, other in others if not is_drawn(name, other)] == []


def test_all_that_is_drawn_is_imported() -> None:
    found = {(room_of(name), room_of(other)) for name, others in imports().items() for other in others}
    found |= {(room_of(name), other) for name, others in imports().items() for other in others}
    tops = {(room.split(".")[0], other.split(".")[0]) for room, other in found}
    assert [pair for pair in pairs(FLOORS) if pair not in tops] == []
    assert [pair for pair in pairs(INSIDE) if pair not in found] == []
    assert [(name, other) for name, other in pairs(EXCEPTIONS) if other not in imports()[name]] == []


def test_arrows_point_downwards() -> None:
    for arrows in (FLOORS, INSIDE):
        order = [*arrows]
        for room, other in pairs(arrows):
            assert other not in order or order.index(other) > order.index(room), f"{room} stands below {other}"
    assert {other for _, other in pairs(FLOORS)} <= {*FLOORS}, "each room that is pointed at is drawn"


def test_what_the_floors_are_for() -> None:
    assert FLOORS["core"] == [] and set(FLOORS["job"]) <= {"energy", "core"}
    rooms = {step.partition(".")[0] for step in STEPS} | {"model"}
    for room in rooms:
        assert not {"config", "workflow", "audit", "job", "slurm", "commands"} & set(FLOORS[room]), room


def pairs(arrows: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Return the arrows one by one."""
    return [(name, other) for name, others in arrows.items() for other in others]


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_and_so_does_the_page(room: str) -> None:
    sentence = ast.get_docstring(ast.parse(files()[room].read_text(encoding="utf-8")))
    assert sentence and sentence.endswith("."), "the first line of its __init__.py"
    assert f"| `{room}` | {' '.join(sentence.split())} |" in PAGE
    assert room in (INSIDE if "." in room else FLOORS)


def test_the_page_lists_the_steps_of_each_chapter() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| (\w+\.\w+ \(.*\)) \|$", PAGE, flags=re.MULTILINE))
    listed = {name: [step for step in STEPS if chapter(step) == name] for name in CHAPTERS}
    assert {name: re.findall(r"(\w+\.\w+) \([a-z ]+\)", steps) for name, steps in rows.items()} == listed


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
FILE = re.compile(r"`((?:pipeline|rules|tests|config|docs|workflow|envs)/[a-z\d_./-]+\.[a-z]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_is_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [target for target in re.findall(r"\]\(([^)#]*)[^)]*\)", text) if target and ":" not in target]
    assert [target for target in links if not (page.parent / target).exists()] == []
    named = [] if page.parent.name == "howto" else FILE.findall(text)  # those pages tell of files that are to come
    assert [name for name in named if not any((ROOT / base / name).exists() for base in ("", "tests"))] == []


EDIT = re.compile(
    r"^(?:(?P<new>New file)|(?P<end>At the end of)|In) `(?P<file>[^`]+)`"
    r"(?:, (?P<place>below|above|instead of) `(?P<line>[^`]+)`"
    r"|, write `(?P<text>[^`]+)`\s+instead of `(?P<old>[^`]+)`)?"
    r"(?::\n\n```\w*\n(?P<block>.*?)^```$|\.$)",
    flags=re.MULTILINE | re.DOTALL,
)


def edited(folder: Path, edit: re.Match[str]) -> tuple[Path, str]:
    """Return the file of an edit of a how-to page, and what it holds afterwards."""
    file, block = folder / edit["file"], edit["block"] or ""
    if edit["new"]:
        assert not file.exists(), f"{file} is there"
        return file, block
    content = file.read_text(encoding="utf-8")
    if edit["end"]:
        return file, f"{content}\n\n{block}"
    found = edit["line"] or edit["old"]
    assert content.count(found) == 1, f"{found} stands {content.count(found)} times in {file}"
    if edit["old"]:
        return file, content.replace(found, edit["text"])
    before, after = content.split(found)
    head, start = before.rpartition("\n")[::2]
    rest, end = after.partition("\n")[::2]
    line = f"{start}{found}{rest}\n"
    block += "\n\n" * block.startswith("def ")
    replaced = {"below": line + block, "above": block + line, "instead of": block}[edit["place"]]
    return file, f"{head}\n{replaced}{end}"


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/howto/*.md")), ids=lambda page: page.name)
def test_the_edits_of_a_page_can_be_made_in_their_order(page: Path, tmp_path: Path) -> None:
    edits = [*EDIT.finditer(page.read_text(encoding="utf-8"))]
    if any(edit["new"] and (ROOT / edit["file"]).exists() for edit in edits):
        pytest.skip("somebody has made the edits of this page")
    for edit in edits:
        copy = tmp_path / edit["file"]
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists() and (ROOT / edit["file"]).exists():
            copy.write_bytes((ROOT / edit["file"]).read_bytes())
        path, content = edited(tmp_path, edit)
        path.write_text(content, encoding="utf-8")
    for file in tmp_path.rglob("*.py"):
        ast.parse(file.read_text(encoding="utf-8"))
