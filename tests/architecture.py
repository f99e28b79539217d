"""Draw the packages of `pipeline` into docs/explanation/architecture.md: `python -m tests.architecture`.

The order of the layers is defined here; imports and package descriptions are read from the code.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from textwrap import wrap

from pipeline.workflow.steps import STAGES, STEPS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
BEGIN, END = "<!-- drawn by `python -m tests.architecture` -->\n", "<!-- end of the drawing -->\n"
STAGES_BEGIN = "<!-- drawn by `python -m tests.architecture`: stages -->\n"
STAGES_END = "<!-- end of the drawing: stages -->\n"
WIDTH = 120

# From top to bottom: a package imports packages below it, and nothing else.
LAYERS = {
    "command line": ["cli", "scaffold"],
    "cluster": ["slurm"],
    "a run": ["audit", "workflow", "forecast", "config"],
    "stages": [
        "report",
        "interleaved",
        "opt_out",
        "experiment",
        "evaluate",
        "pretrain",
        "tokens",
        "tokenizer",
        "corpus",
        "sources",
    ],
    "knowledge": ["provenance", "plan", "model"],
    "a job": ["job", "energy"],
    "base": ["core", "layout"],
}
# Modules that import one from a package above theirs.
EXCEPTIONS = {
    "sources.manifest": ["opt_out.entries", "opt_out.lists"],  # a source manifest lists the entries of its opt-out list
    "pretrain.monitors.telemetry": ["pretrain.processes.device_and_process_group"],
    "pretrain.checkpoints.saver": ["pretrain.parallel.backend"],
}


@cache
def files() -> dict[str, Path]:
    """Return the file of each module of the package, by the module's name without `pipeline.`."""
    results = {}
    for file in sorted((ROOT / "pipeline").rglob("*.py")):
        words = file.relative_to(ROOT / "pipeline").with_suffix("").parts
        results[".".join(words[:-1] if words[-1] == "__init__" else words)] = file
    return results


def imported(tree: ast.AST) -> set[str]:
    """Return the modules of the package that are imported anywhere in a module, in functions too."""
    result = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports of this package are written out"
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        else:
            continue
        for name in (one.removeprefix("pipeline.") for one in named if one.startswith("pipeline.")):
            result.add(name if name in files() else name.rpartition(".")[0])
    return result


@cache
def imports() -> dict[str, set[str]]:
    """Return the imports of each module within the package."""
    return {name: imported(ast.parse(file.read_text(encoding="utf-8"))) for name, file in files().items()}


@cache
def packages() -> list[str]:
    """Return all packages below `pipeline`, including nested ones."""
    return sorted(name for name, file in files().items() if name and file.name == "__init__.py")


def package_of(module: str) -> str:
    """Return the innermost package of a module; `layout` is its own package, and `__main__` belongs to `cli`."""
    if module in packages() or module == "layout":
        return module
    return module.rpartition(".")[0] or "cli"


def arrows() -> dict[str, set[str]]:
    """Return which packages each package imports, without the exceptions."""
    results: dict[str, set[str]] = {package_of(name): set() for name in files()}
    for name, others in imports().items():
        own = package_of(name)
        results[own] |= {package_of(other) for other in others if other not in EXCEPTIONS.get(name, ())} - {own}
    return results


def _row(start: str, names: list[str]) -> list[str]:
    text = wrap(" ".join(names) or "nothing", WIDTH - len(start))
    return [start + text[0], *(" " * len(start) + line for line in text[1:])]


def drawing() -> str:
    """Return the text between the markers of the page."""
    order = [name for layer in LAYERS.values() for name in layer]
    tops = {
        name: {other.split(".")[0] for own, others in arrows().items() if own.split(".")[0] == name for other in others}
        for name in order
    }
    lines = ["```", f"{'layer':<15}{'package':<11}  imports"]
    for layer, names in LAYERS.items():
        for number, name in enumerate(names):
            start = f"{'' if number else layer:<15}{name:<11}→ "
            lines += _row(start, [other for other in order if other in tops[name] - {name}])
    lines += ["```", "", "Packages in packages import one another, and modules of the package around them:", "", "```"]
    for name in (name for name in packages() if "." in name):
        top = name.split(".")[0]
        inside = [other for other in sorted(arrows()[name]) if other.split(".")[0] == top and other != top]
        modules = {other for own, others in imports().items() if package_of(own) == name for other in others}
        inside += sorted(other for other in modules if package_of(other) == top and other != top)
        lines += _row(f"{name:<22} → ", inside)
    lines += ["```", "", "| package | purpose | modules |", "|---|---|---|"]
    for name in [*order, *(name for name in packages() if "." in name)]:
        if name not in packages():
            continue
        sentence = " ".join((ast.get_docstring(ast.parse(files()[name].read_text(encoding="utf-8"))) or "").split())
        modules_of = (own.rpartition(".")[2] for own in files() if own not in ("", name) and package_of(own) == name)
        lines.append(f"| `{name}` | {sentence} | {', '.join(modules_of)} |")
    return "\n".join(lines) + "\n"


# The entity of which a step has one job each, by the last wildcard of its jobs.
NOUNS = {
    "file": "large file",
    "batch": "batch of units",
    "share": "share of the keys",
    "tokens": "token set",
    "step": "milestone",
}


def stages() -> str:
    """Return the table of stages: their steps in order, and the entity of which each step has one job."""
    lines = ["| stage | steps, in their order, and what each has one job for |", "|---|---|"]
    for stage in STAGES:
        of_stage = [step for step in STEPS.values() if step.stage == stage]
        last = {step.name: (step.instances.wildcards or ("run",))[-1] for step in of_stage}
        lines.append(f"| {stage} | {', '.join(f'{name} ({NOUNS.get(one, one)})' for name, one in last.items())} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the drawings into the page."""
    text = PAGE.read_text(encoding="utf-8")
    for begin, drawn, end in ((BEGIN, drawing(), END), (STAGES_BEGIN, stages(), STAGES_END)):
        before, rest = text.split(begin)
        text = before + begin + drawn + end + rest.split(end)[1]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
