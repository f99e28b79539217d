"""The kinds of parts that `polder new` writes: files from templates, edits of files, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from pipeline.core.errors import InputError
from pipeline.scaffold.project_edits import ClassMember, CollectionItem, Edit, NewFile, TableRow

# Brackets that neither YAML templates of lm-eval nor Python use.
_TEMPLATES = Environment(
    loader=PackageLoader("pipeline.scaffold"),
    undefined=StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    variable_start_string="<<",
    variable_end_string=">>",
    autoescape=False,  # what it writes is Python, YAML and Markdown
)


DECLARATIONS = "pipeline/workflow/steps/corpus_decontamination_and_publication.py"


@dataclass(frozen=True)
class NewPart:
    """The edits that add a part to a project, and the sentences to print once they are made."""

    edits: tuple[Edit, ...]
    next_steps: tuple[str, ...]


def _render(template: str, **values: object) -> str:
    return _TEMPLATES.get_template(template).render(values)


def _check_name(name: str, pattern: str, hint: str) -> None:
    if not re.fullmatch(pattern, name):
        raise InputError(f"the name {name!r}: use {hint}")


def run_edits(name: str, texts: Mapping[str, str], license_id: str, holder: str, text_key: str = "text") -> NewPart:
    """Return a configuration that trains a small model in minutes.

    Args:
        name: of the run and of its file in config/.
        texts: paths or patterns of raw text, each with its language; without any, the embedded texts.
        license_id: the SPDX identifier of the license of these texts.
        holder: who holds the rights.
        text_key: the field with the text, in files of records.

    Raises:
        InputError: the name is no name of a run, texts have no license or holder, or these have no texts.
    """
    _check_name(name, "[a-z0-9][a-z0-9_-]*", "lower case letters, digits, - and _")
    if not texts and (license_id or holder):
        raise InputError("--license and --holder describe your own text: add --text, or leave them out")
    if texts and not (license_id and holder):
        raise InputError(f"{next(iter(texts))} needs a license and a holder of its rights: add --license and --holder")
    sources = [
        {"name": f"text_{number}", "path": path, "language": language}
        for number, (path, language) in enumerate(texts.items(), 1)
    ]
    file = f"config/{name}.yaml"
    content = _render(
        "run.yaml.jinja", name=name, sources=sources, license=license_id, holder=holder, text_key=text_key
    )
    return NewPart(
        (NewFile(file, content),),
        (f"polder plan {file}", f"polder run {file} --profile local"),
    )


def filter_edits(name: str) -> NewPart:
    """Return a rule of the set `quality`: its threshold, its measure, its line among the rules, and its test.

    Raises:
        InputError: the name is no name of a Python method, or a rule or a measure has it.
    """
    from pipeline.corpus.rules.gopher import ProseMeasures
    from pipeline.corpus.rules.settings import Quality

    _check_name(name, "[a-z][a-z0-9_]*", "lower case letters, digits and _, such as capital_letters")
    if name in {*dir(Quality), *Quality.model_fields, *dir(ProseMeasures), *signature(ProseMeasures).parameters}:
        raise InputError(f"{name} is a rule or a measure already: use another name")
    rules = "pipeline/corpus/rules/gopher.py"
    description = "largest share of characters that are capitals"
    field = f'    {name}: float | None = Field(default=None, description="{description}")\n'
    rule = f'        FilterRule("many_{name}", ProseMeasures.{name}, most="{name}"),\n'
    test = f"tests/corpus/rules/test_{name}.py"
    return NewPart(
        (
            ClassMember("pipeline/corpus/rules/settings.py", "Quality", field),
            ClassMember(rules, "ProseMeasures", _render("filter/measure.py.jinja", name=name)),
            CollectionItem(rules, "GopherQuality.filter_rules", rule),
            NewFile(test, _render("filter/test.py.jinja", name=name)),
        ),
        (
            f"Write the measure and its docstring in ProseMeasures.{name} of {rules}.",
            f"python -m pytest {test} tests/corpus/test_removal_explanations.py",
            f"Switch it on in a configuration: corpus: {{main: {{languages: {{nl: {{quality: {{{name}: 0.3}}}}}}}}}}",
        ),
    )


def step_edits(name: str) -> NewPart:
    """Return a step corpus.NAME that reads a corpus's final documents: its module, its declaration and its test.

    Raises:
        InputError: the name is no corpus.NAME.
    """
    hint = (
        "corpus.NAME in lower case, such as corpus.lengths; for a step of another stage, copy the nearest declaration"
    )
    _check_name(name, r"corpus\.[a-z][a-z0-9_]*", f"{hint} in pipeline/workflow/steps")
    word = name.removeprefix("corpus.")
    module, test = f"pipeline/corpus/{word}.py", f"tests/corpus/test_{word}.py"
    return NewPart(
        (
            NewFile(module, _render("step/module.py.jinja", name=word)),
            CollectionItem(DECLARATIONS, "STEPS", _render("step/declaration.py.jinja", name=word)),
            NewFile(test, _render("step/test.py.jinja", name=word)),
        ),
        (
            f"Write what the step computes in {module}.",
            "python -m tests.architecture    # lists the step in docs/",
            f"python -m pytest {test} tests/workflow/test_steps.py",
            "polder run config/micro.yaml -n",
        ),
    )


def task_edits(name: str, suite: str) -> NewPart:
    """Return an evaluation task of four items in a suite: its items, its task file, its row in the list and its test.

    Raises:
        InputError: the name or the suite is none.
    """
    _check_name(name, "[a-z][a-z0-9_]*", "lower case letters, digits and _")
    _check_name(suite, "[a-z][a-z0-9_]*", "lower case letters, digits and _")
    folder, test = f"config/tasks/{suite}", f"tests/evaluate/test_{name}.py"
    own_suite = f"{{name: {suite}, language: nl, folder: {folder}}}"
    others = tuple(f"`{file.stem}`" for file in Path(folder).glob("*.yaml"))
    row = f"| | | `{name}` |" if others else f"| `{suite}/` | `{suite}` | `{name}` |"
    return NewPart(
        (
            NewFile(f"{folder}/{name}.jsonl", _render("task/items.jsonl.jinja")),
            NewFile(f"{folder}/{name}.yaml", _render("task/task.yaml.jinja", name=name)),
            TableRow("config/tasks/README.md", others, f"{row} `question`, `choices` (4), `answer` (index) | 25 % |\n"),
            NewFile(test, _render("task/test.py.jinja", name=name, suite=suite)),
        ),
        (
            f"Write your items into {folder}/{name}.jsonl: some hundred, the right answers spread over the places.",
            f"python -m pytest {test} tests/evaluate/test_task_file_reader.py",
            f"Name the suite in a configuration: evaluation: {{suites: [{suite if others else own_suite}]}}",
        ),
    )


def platform_edits(name: str, known: Mapping[str, str] = {}) -> NewPart:
    """Return the file of a platform, with every key that is not known as a comment, and its test.

    Args:
        name: of the platform and of its file.
        known: key to its lines of YAML.

    Raises:
        InputError: the name is no name of a platform.
    """
    _check_name(name, "[a-z0-9][a-z0-9-]*", "lower case letters, digits and -")
    file = f"workflow/platforms/{name}.yaml"
    template = Path("workflow/platforms/template.yaml").read_text(encoding="utf-8")
    content = re.sub(r"\A.*?(?=^name: )", f"# {name}. Not run there yet.\n", template, flags=re.DOTALL | re.MULTILINE)
    content = re.sub(r"^name: .*$", f"name: {name}", content, count=1, flags=re.MULTILINE)
    for key, lines in known.items():
        commented = rf"^# {key}:.*$(?:\n#.*$)*" if key == "partitions" else rf"^# {key}:.*$"
        content = re.sub(commented, lines.replace("\\", r"\\"), content, count=1, flags=re.MULTILINE)
    test = f"tests/config/test_{name.replace('-', '_')}.py"
    return NewPart(
        (NewFile(file, content), NewFile(test, _render("platform_test.py.jinja", name=name))),
        (
            f"Remove the comment signs of what you know in {file}, and write the source next to each figure.",
            f"python -m pytest {test}",
            f"polder platform check --platform {name} --account ACCOUNT    # on its login node",
        ),
    )


def architecture_edits(name: str) -> NewPart:
    """Return an architecture that computes what a Llama does until you change it: two modules, two lines and a test.

    Raises:
        InputError: the name is no name of a Python module.
    """
    _check_name(name, "[a-z][a-z0-9_]*", "lower case letters, digits and _")
    values = {"name": name, "class_name": "".join(map(str.capitalize, name.split("_")))}
    model, test = f"pipeline/model/{name}", f"tests/model/test_{name}_shape.py"
    line = f'"{name}": "pipeline.model.{name}'
    return NewPart(
        (
            NewFile(f"{model}_shape.py", _render("architecture/shape.py.jinja", **values)),
            NewFile(f"{model}_network.py", _render("architecture/network.py.jinja", **values)),
            CollectionItem("pipeline/model/architectures.py", "ARCHITECTURES", f'    {line}_shape",\n'),
            CollectionItem("pipeline/model/networks.py", "NETWORKS", f'    {line}_network",\n'),
            NewFile(test, _render("architecture/test.py.jinja", **values)),
        ),
        (
            f"Write what a layer computes in {model}_network.py, and its size in {model}_shape.py.",
            f"python -m pytest {test} tests/model/test_architectures.py",
            f"Choose it in a configuration: architecture: {{preset: {name}-tiny}}",
        ),
    )
