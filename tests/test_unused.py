"""Packages in envs/requirements.in are used, imported packages are listed, and no code is dead."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "pipeline").rglob("*.py"))
OTHERS = [file for folder in ("tests", "benchmarks") for file in sorted((ROOT / folder).rglob("*.py"))]
# Reasons for listed distributions that no module imports.
NOT_IMPORTED = {
    "accelerate": "lm-eval's models of Hugging Face import it, without requiring it",
    "in-toto-attestation": "a test starts a program that reads attestations with it",
    "model-signing": "started as a program: `python -m model_signing`",
    "ninja": "DeepSpeed compiles with it",
    "pyopenssl": "model-signing imports it, without requiring it",
    "snakemake-executor-plugin-slurm-jobstep": "the plugin for Slurm requires it; its version is fixed here",
    **dict.fromkeys(("mypy", "pytest-timeout", "pytest-xdist", "ruff", "snakefmt"), "a tool of the checks"),
    "types-pyyaml": "mypy reads it",
    "orjson": "datatrove's JSON writer imports it, without requiring it",
}
# Reasons for imported modules of unlisted distributions.
NOT_LISTED = {
    "torch": "lock.sh adds it, by accelerator",
    "torchao": "lock.sh adds it for CUDA",
    "vllm": "asked where a user has installed it",
    "amdsmi": "an AMD machine brings it",
    "mlflow": "asked for by --mlflow alone, and installed by whoever uses it",
}
# Methods called by a library or by tests: their names occur nowhere else.
CALLED_BY_LIBRARIES = {
    *("check_active_jobs", "run_job"),  # Snakemake's executors
    "filter_batch",  # datatrove's steps
    "tok_batch_encode",  # lm-eval's models
    "format_help",  # Typer's groups
    "emit",  # handlers of logging
    "_update_peak_stats",  # torch's memory tracker
}
FOR_TESTS = {"ACCEPTED_WITHOUT_VOUCHER"}
VALIDATORS = re.compile(r"((model|field)_(validator|serializer)\b|command\(|(\w+\.)?callback\()")


def canonical(name: str) -> str:
    """Return the canonical name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def listed() -> set[str]:
    """Return the distributions of envs/requirements.in."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / "envs/requirements.in").read_text().splitlines())
    return {canonical(re.split(r"[=<>!~;\[ ]", line)[0]) for line in lines if line}


def imported(files: list[Path]) -> set[str]:
    """Return the third-party top-level modules that files import, also in functions."""
    result = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            result |= {name.partition(".")[0] for name in names}
    return result - sys.stdlib_module_names - {"pipeline", "tests"}


def missing(modules: set[str], known: set[str]) -> set[str]:
    """Return the modules of unknown distributions."""
    of = metadata.packages_distributions()
    return {name for name in modules if not {canonical(one) for one in of.get(name, [name])} & known}


def test_imported_packages_are_listed() -> None:
    assert missing(imported(PACKAGE), listed()) == {*NOT_LISTED}
    assert missing({"yaml", "nowhere"}, {"pyyaml"}) == {"nowhere"}


def test_listed_packages_are_imported() -> None:
    of = metadata.packages_distributions()
    used = {canonical(one) for name in imported([*PACKAGE, *OTHERS]) for one in of.get(name, [name])}
    assert listed() - used == {*NOT_IMPORTED}


def test_listed_packages_are_locked() -> None:
    for lock in ("cpu", "cuda", "rocm"):
        locked = {line.partition("==")[0] for line in (ROOT / f"envs/{lock}.lock").read_text().splitlines()}
        assert listed() <= {canonical(name) for name in locked}, lock


def definitions(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the names that a module defines with their positions, except those called by Python or pydantic."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) and not any(
            VALIDATORS.match(ast.unparse(one)) for one in node.decorator_list
        ):
            yield node.name, f"{file.relative_to(ROOT)}:{node.lineno}"
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield target.id, f"{file.relative_to(ROOT)}:{node.lineno}"


def mentions(files: list[Path]) -> Counter[str]:
    """Return how often each name occurs in files: in Python code, without multi-line strings."""
    result: Counter[str] = Counter()
    for file in files:
        text = file.read_text(encoding="utf-8")
        if file.suffix != ".py":
            result.update(re.findall(r"\w+", text))
            continue
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in (tokenize.COMMENT, tokenize.NL) and '"""' not in token.string:
                result.update(re.findall(r"\w+", token.string))
    return result


def test_dead_code_is_absent() -> None:
    places: dict[str, list[str]] = {}
    for file in PACKAGE:
        if file != ROOT / "pipeline/layout.py":  # it lists all paths of a results folder
            for name, place in definitions(file):
                places.setdefault(name, []).append(place)
    more = [file for folder in ("rules", "workflow", "pipeline") for file in (ROOT / folder).rglob("*.*")]
    used = mentions([*PACKAGE, ROOT / "Snakefile", *(one for one in more if one.suffix in (".smk", ".yaml", ".jinja"))])
    once = {name for name, known in places.items() if used[name] <= len(known) and not name.startswith("__")}
    dead = {name: places[name] for name in once - CALLED_BY_LIBRARIES - FOR_TESTS}
    assert dead == {}, "nothing calls them"
    assert once >= CALLED_BY_LIBRARIES | FOR_TESTS, "these are used now: remove them from the lists of this test"
