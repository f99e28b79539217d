"""The packages match docs/explanation/architecture.md, and its pages name existing ones."""

from __future__ import annotations

import ast
import re
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from pipeline.workflow.steps import STEPS
from tests import architecture
from tests.architecture import EXCEPTIONS, imports

ORDER = [name for layer in architecture.LAYERS.values() for name in layer]
TEXT = architecture.PAGE.read_text(encoding="utf-8")


def test_architecture_page_equals_the_package_imports() -> None:
    drawn = TEXT.split(architecture.BEGIN)[1].split(architecture.END)[0]
    assert drawn == architecture.drawing(), "write it with `python -m tests.architecture`"


def test_packages_import_only_lower_layers() -> None:
    pairs = [(name, other) for name, others in imports().items() for other in others]
    assert len(pairs) > 500, "the modules are found"
    places = [
        (name, other, *(architecture.package_of(one).split(".")[0] for one in (name, other))) for name, other in pairs
    ]
    upwards = {
        (name, other) for name, other, own, theirs in places if own != theirs and ORDER.index(own) > ORDER.index(theirs)
    }
    allowed = {(name, other) for name, others in EXCEPTIONS.items() for other in others}
    assert upwards - allowed == set()
    assert allowed - set(pairs) == set(), "an unused exception"


def test_subpackages_have_no_cyclic_imports() -> None:
    arrows = architecture.arrows()
    inner = {name: {other for other in others if "." in other} for name, others in arrows.items() if "." in name}
    try:
        TopologicalSorter(inner).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_layers_import_only_their_allowed_packages() -> None:
    arrows = {name.split(".")[0]: set[str]() for name in architecture.arrows()}
    for name, others in architecture.arrows().items():
        arrows[name.split(".")[0]] |= {other.split(".")[0] for other in others} - {name.split(".")[0]}
    assert arrows["core"] <= {"layout"} and not arrows["layout"] and arrows["job"] <= {"energy", "core", "layout"}
    for stage in {step.partition(".")[0] for step in STEPS} | {"model"}:
        assert not {"config", "workflow", "audit", "slurm", "commands"} & arrows[stage], stage


def test_executor_is_independently_publishable() -> None:
    allowed = {*sys.stdlib_module_names, "snakemake", "snakemake_interface_common"}
    # It takes the name and the options from the Slurm plugin.
    allowed |= {"snakemake_interface_executor_plugins", "snakemake_executor_plugin_slurm"}
    own = {name: file for name, file in architecture.files().items() if f"{name}.".startswith("slurm.executor.")}
    assert len(own) > 5, "its modules are found"
    for name, file in own.items():
        nodes = [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        foreign = {one for one in names if not f"{one}.".startswith("pipeline.slurm.executor.")}
        assert {one.partition(".")[0] for one in foreign} <= allowed, name


SNAKEMAKE = {"slurm.executor.snakemake_private", "workflow.snakemake_internals"}


# Names that Snakemake's documentation offers for rules.
DOCUMENTED = {"snakemake.exceptions.WorkflowError", "snakemake.io.ancient", "snakemake.io.directory"}
DOCUMENTED |= {"snakemake.io.report"}


def test_snakemake_internals_are_imported_only_in_dedicated_modules() -> None:
    results = {name: foreign_imports(file) for name, file in architecture.files().items()}
    users = {name for name, names in results.items() if any(one.startswith("snakemake.") for one in names - DOCUMENTED)}
    assert "slurm.executor.snakemake_private" in users and users <= SNAKEMAKE


PRIVATE = ("model.torch_private", "pretrain.monitors.torch_tracing_private")


def foreign_imports(file: Path) -> set[str]:
    """Return the imports of a module with their names, and torch attributes: `torch._C._distributed_c10d.HashStore`."""
    nodes = [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    named = {f"{n.module}.{alias.name}" for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names}
    named |= {ast.unparse(n) for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n).startswith("torch._")}
    return named | {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}


def test_private_torch_names_are_used_only_in_dedicated_modules() -> None:
    def is_private(name: str) -> bool:
        return name.startswith("torch.") and re.search(r"\._(?!_)", name) is not None

    results = {
        name: {one for one in foreign_imports(file) if is_private(one)} for name, file in architecture.files().items()
    }
    assert all(results[name] for name in PRIVATE)
    assert {name: names for name, names in results.items() if names and name not in PRIVATE} == {}


def test_modules_have_no_cyclic_imports() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


@pytest.mark.parametrize("name", architecture.packages())
def test_every_package_has_a_docstring(name: str) -> None:
    sentence = ast.get_docstring(ast.parse(architecture.files()[name].read_text(encoding="utf-8")))
    assert sentence and sentence.endswith("."), "the first line of its __init__.py"


def test_page_lists_the_steps_of_each_stage() -> None:
    drawn = TEXT.split(architecture.STAGES_BEGIN)[1].split(architecture.STAGES_END)[0]
    assert drawn == architecture.stages(), "write it with `python -m tests.architecture`"
