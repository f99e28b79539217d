"""What of this package a function can run: followed from name to name through the syntax trees of the modules.

Nothing is imported. A module is taken apart into its statements; a statement reaches those that bind a name which it
mentions, in its own module or, by an import, in another one. Where this cannot be told (a module is handed on as an
object, an attribute that nothing binds, `globals()`), the whole module counts, so that more is reached than can run,
never less. Statements that bind nothing (a call at the top of a module, `if __name__ == "__main__"`) count as soon as
anything of their module does.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
_WHOLE_MODULE = {"globals", "locals", "vars", "eval", "exec"}  # with these any name of the module may be meant
_HARMLESS = sys.stdlib_module_names | {"pydantic"}  # decorators from here register nothing anywhere

Mention = tuple[str, str | None]  # a name, and the attribute that is taken of it


@cache
def names_in(folder: Path) -> frozenset[str]:
    """Return what lies in a folder, listed once: a step asks whether a few hundred names are modules."""
    try:
        return frozenset(os.listdir(folder))
    except OSError:  # none, such as an archive among the folders of modules
        return frozenset()


@cache
def file_of(module: str) -> Path | None:
    """Return the file of a module of this package; None where there is none of that name."""
    path = PACKAGE.parent / module.replace(".", "/")
    if f"{path.name}.py" in names_in(path.parent):
        return path.with_suffix(".py")
    if path.name in names_in(path.parent) and "__init__.py" in names_in(path):
        return path / "__init__.py"
    return None


def _docstring(node: ast.AST) -> ast.Constant | None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            return first.value
    return None


def _walk(node: ast.AST, mentions: set[Mention]) -> Iterator[ast.AST]:
    """Yield a node and all below it without docstrings, which are taken out, and note the names that they mention."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if _docstring(one) is not None:
            one.body = one.body[1:]  # type: ignore[attr-defined]  # it has one
        yield one
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
            mentions.add((one.value.id, one.attr))
        elif isinstance(one, ast.Name):
            mentions.add((one.id, None))
        else:
            waiting += ast.iter_child_nodes(one)


@dataclass
class Statement:
    """One statement at the top of a module: what it mentions, and what it names by strings."""

    node: ast.stmt
    mentions: set[Mention] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)  # imported by name, or started as programs of their own
    file_names: set[str] = field(default_factory=set)

    @cached_property
    def dumped(self) -> str:
        """The statement's tree, in which comments and formatting are none."""
        return ast.dump(self.node)


def _bound(node: ast.stmt) -> set[str] | None:
    """Return the names that a statement binds; None where it may do something else as well."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        found = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        return {name.id for name in found}
    return None


class Module:
    """A module of this package, taken apart."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.imports: dict[str, set[tuple[str, str | None]]] = {}  # by the name here: module, and name in it
        self.statements: list[Statement] = []
        self.binding: dict[str, list[int]] = {}
        self.always: list[int] = []
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body[_docstring(tree) is not None :]:
            self._take(node)

    def _take(self, node: ast.stmt) -> None:
        statement = Statement(node)
        number = len(self.statements)
        imports_alone = True
        for one in _walk(node, statement.mentions):
            if isinstance(one, ast.Import | ast.ImportFrom):
                self._import(one, statement.mentions if one is not node else set())
            elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                if one.value.startswith(f"{PACKAGE.name}."):
                    statement.modules.add(one.value)
                if re.fullmatch(r"[\w./-]+\.\w+", one.value):
                    statement.file_names.add(one.value)
            if isinstance(one, ast.stmt) and not isinstance(one, ast.Import | ast.ImportFrom | ast.If | ast.Pass):
                imports_alone = False
        if imports_alone or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return  # what it binds is followed where it is mentioned; or a text that stands below a constant
        self.statements.append(statement)
        bound = _bound(node)
        if bound is None or self._registers(node) or bound & self.imports.keys():
            self.always.append(number)
            inside = (_bound(one) for one in ast.walk(node) if isinstance(one, ast.stmt))
            bound = (bound or set()).union(*filter(None, inside))
        for name in bound:
            self.binding.setdefault(name, []).append(number)

    def _import(self, node: ast.Import | ast.ImportFrom, mentions: set[Mention]) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            if isinstance(node, ast.ImportFrom):
                self.imports.setdefault(name, set()).add((str(node.module), alias.name))
            elif alias.asname:
                self.imports.setdefault(name, set()).add((alias.name, None))
            else:
                name = alias.name.split(".")[0]
                self.imports.setdefault(name, set()).add((alias.name, None))
            mentions.add((name, None) if isinstance(node, ast.Import) else (name, ""))

    def _registers(self, node: ast.stmt) -> bool:
        """Return whether a decorator may do more than change what it stands on."""
        for decorator in getattr(node, "decorator_list", []):
            names = [name.id for name in ast.walk(decorator) if isinstance(name, ast.Name)]
            for name in names:
                where = {module.split(".")[0] for module, _ in self.imports.get(name, set())}
                if where - _HARMLESS:
                    return True
        return False


@cache
def module_of(file: Path) -> Module:
    """Return a module, taken apart once."""
    return Module(file)


class Reach:
    """What can run from one function on, without the modules, rooms and functions that `apart` names."""

    def __init__(self, module: str, name: str, apart: tuple[str, ...] = ()) -> None:
        self.apart = apart
        self.foreign: set[str] = set()
        self._found: dict[Path, set[int]] = {}
        self._touched: set[str] = set()
        self._waiting: list[tuple[str, Statement]] = []
        self._name(module, name)
        while self._waiting:
            of, statement = self._waiting.pop()
            for mention in statement.mentions:
                self._mention(of, *mention)
            for named in statement.modules:
                self._whole(named)

    def statements(self) -> Iterator[tuple[Path, list[Statement]]]:
        """Yield the files, in order, each with the statements of it that are reached, in theirs."""
        for file in sorted(self._found):
            known = module_of(file)
            yield file, [known.statements[number] for number in sorted(self._found[file])]

    def _add(self, module: str, file: Path, numbers: list[int]) -> None:
        found = self._found.setdefault(file, set())
        for number in numbers:
            if number not in found:
                found.add(number)
                self._waiting.append((module, module_of(file).statements[number]))

    def _touch(self, module: str) -> Path | None:
        """Count what a module does when it is imported; return its file, None where it has none or stands apart."""
        if any(f"{module}.".startswith(f"{name}.") for name in self.apart):
            return None
        file = file_of(module)
        if file is not None and module not in self._touched:
            self._touched.add(module)
            self._add(module, file, module_of(file).always)
            if parent := module.rpartition(".")[0]:
                self._touch(parent)
        return file

    def _whole(self, module: str) -> None:
        if (file := self._touch(module)) is not None:
            self._add(module, file, [*range(len(module_of(file).statements))])

    def _name(self, module: str, name: str) -> None:
        """Count what binds a name of a module."""
        if f"{module}.{name}" in self.apart or (file := self._touch(module)) is None:
            return
        known = module_of(file)
        if name in known.binding:
            self._add(module, file, known.binding[name])
        elif name in known.imports:
            self._mention(module, name, None)
        elif file_of(f"{module}.{name}") is not None:
            self._touch(f"{module}.{name}")
        elif not name.startswith("__"):
            self._whole(module)

    def _mention(self, module: str, name: str, attribute: str | None) -> None:
        file = file_of(module)
        known = module_of(file) if file else None
        if known is None:
            return
        if name in _WHOLE_MODULE:
            self._whole(module)
        if name in known.binding:
            self._name(module, name)
        for target, inside in known.imports.get(name, ()):
            top = target.split(".")[0]
            if top != PACKAGE.name:
                self.foreign |= {top} - sys.stdlib_module_names
            elif inside is not None and file_of(f"{target}.{inside}") is None:
                self._name(target, inside)
            else:
                meant = target if inside is None else f"{target}.{inside}"
                if attribute is None:
                    self._whole(meant)
                elif attribute:
                    self._name(meant, attribute)
                else:
                    self._touch(meant)


WATCHING = "WATCHING"


@cache
def reach(module: str) -> Reach:
    """Return what a step can run from its function `run` on.

    A step may name modules in a constant WATCHING: what only watches, and changes nothing of the result.
    """
    apart: tuple[str, ...] = ()
    if (file := file_of(module)) is not None:
        for number in module_of(file).binding.get(WATCHING, []):
            apart = ast.literal_eval(module_of(file).statements[number].node.value)  # type: ignore[attr-defined]
    # Trees are kept until the process ends: to look for garbage among them takes longer than to read them.
    gc.disable()
    try:
        return Reach(module, "run", apart)
    finally:
        gc.freeze()
        gc.enable()


def data_files(file: Path, statements: Iterable[Statement]) -> list[Path]:
    """Return the files at `file` that the statements name in a string constant."""
    named = {file.parent / name for statement in statements for name in statement.file_names}
    return sorted(path for path in named if path.suffix != ".py" and path.name in names_in(path.parent))
