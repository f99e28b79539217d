"""Edits of a project's files that are all checked before the first file is written."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.atomic_files import write_atomically
from pipeline.core.errors import InputError


@dataclass(frozen=True)
class NewFile:
    """A file that must not exist yet; `path` is relative to the project."""

    path: str
    content: str

    def apply(self, before: str | None) -> str:
        """Return the content of the file.

        Raises:
            InputError: the file exists.
        """
        if before is not None:
            raise InputError(f"{self.path} exists: choose another name, or remove it")
        return self.content


@dataclass(frozen=True)
class ClassMember:
    """A field added behind the last field of a class, or a method added at its end."""

    path: str
    class_name: str
    content: str

    def apply(self, before: str | None) -> str:
        """Return the file with the member.

        Raises:
            InputError: the file has no such class.
        """
        for node in ast.parse(before or "").body:
            if isinstance(node, ast.ClassDef) and node.name == self.class_name:
                fields = [] if "def " in self.content else [one for one in node.body if isinstance(one, ast.AnnAssign)]
                return _insert(before, [node, *fields][-1].end_lineno or 0, self.content)
        raise InputError(f"{self.path} has no class {self.class_name}: this checkout differs from what Polder expects")


@dataclass(frozen=True)
class CollectionItem:
    """Lines added at the end of a dictionary, tuple or list that a module or one of its classes assigns to a name."""

    path: str
    name: str
    content: str

    def apply(self, before: str | None) -> str:
        """Return the file with the lines before the collection's closing bracket.

        Raises:
            InputError: the file assigns no collection of several lines to such a name.
        """
        for owner, body in _bodies(ast.parse(before or "")):
            for node in body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                names = [f"{owner}{target.id}" for target in targets if isinstance(target, ast.Name)]
                value = getattr(node, "value", None)
                if self.name in names and isinstance(value, ast.Dict | ast.Tuple | ast.List):
                    return _insert(before, (value.end_lineno or 0) - 1, self.content)
        raise InputError(f"{self.path} has no {self.name}: this checkout differs from what Polder expects")


@dataclass(frozen=True)
class TableRow:
    """A row added to the first Markdown table of a file, behind the last row that holds one of some words."""

    path: str
    behind: tuple[str, ...]
    content: str

    def apply(self, before: str | None) -> str:
        """Return the file with the row.

        Raises:
            InputError: the file has no table.
        """
        lines = (before or "").splitlines()
        rows = [number for number, line in enumerate(lines, 1) if line.startswith("|")]
        if not rows:
            raise InputError(f"{self.path} has no table: this checkout differs from what Polder expects")
        table = [number for place, number in enumerate(rows) if number == rows[0] + place]
        matching = [number for number in table if any(word in lines[number - 1] for word in self.behind)]
        return _insert(before, max(matching, default=table[-1]), self.content)


Edit = NewFile | ClassMember | CollectionItem | TableRow


def _bodies(tree: ast.Module) -> list[tuple[str, list[ast.stmt]]]:
    classes = [(f"{node.name}.", node.body) for node in tree.body if isinstance(node, ast.ClassDef)]
    return [("", tree.body), *classes]


def _insert(text: str | None, line: int, content: str) -> str:
    """Return the text with content behind a line; lines count from 1."""
    lines = (text or "").splitlines(keepends=True)
    return "".join([*lines[:line], content, *lines[line:]])


def apply_edits(project: Path, edits: Sequence[Edit]) -> list[Path]:
    """Make all edits in a project, or none, and return the files that changed.

    Raises:
        InputError: a file exists that should be new, or lacks what an edit extends.
    """
    contents: dict[str, str] = {}
    for edit in edits:
        file = project / edit.path
        before = contents.get(edit.path, file.read_text(encoding="utf-8") if file.exists() else None)
        contents[edit.path] = edit.apply(before)
    for path, content in contents.items():
        write_atomically(project / path, content.encode())
    return [Path(path) for path in contents]
