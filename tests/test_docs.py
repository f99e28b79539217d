"""The pages of the documentation: links, length, commands and words; and the generated reference."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic import TypeAdapter

from pipeline.cli.application import app, main
from pipeline.config.configuration import parse_configuration
from pipeline.config.sections import Sections
from tests.architecture import ROOT

DOCS = ROOT / "docs"
GENERATED = DOCS / "reference/generated"
WRITTEN = sorted(
    page for page in DOCS.rglob("*.md") if not page.is_relative_to(GENERATED) and "_build" not in page.parts
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *WRITTEN]
FILE = re.compile(r"`((?:pipeline|rules|tests|config|docs|workflow|envs|benchmarks)/[a-z\d_./-]+\.[a-z]+)`")
TEST_FILE = re.compile(r"`(?:tests/)?((?:[a-z_]+/)*test_[a-z_\d]+\.py)`")
LONGEST_PAGE = 250  # lines
INCLUDED = {"contributing.md"}  # a page included from a file outside of docs/

# Words of Polder's old dialect without a use in technical English: CONTRIBUTING.md has the standards. Allowed are
# `stands for`, `stand-in`, and `lies` of numbers.
DIALECT = re.compile(
    r"\b(?:told|tells|stands?(?! for|-)|stood|lies?(?! (?:above|below|between|outside|within)| in its interval)|beside|"
    r"twins?|drawing lots|by lots|anew|likeness|t(?:akes|aken|aking|ook) over|at hand|foreseen|foresees?|in vain|"
    r"seal(?:s|ed)?|ledgers?|rooms|(?:the|corpus|data|tokens?|tokenizer) chapters?|quarter of an hour|"
    r"half as much again|who asks|what is trivial|heads of the log|(?:own|meter|energy) books|"
    r"books of (?:nodes|meters|energy))\b",
    flags=re.IGNORECASE,
)
UNCHANGED = {"reach.py", "versions.py"}  # of pipeline/job: an edit of these makes every step of every run stale
MODULES = sorted(path for path in (ROOT / "pipeline").rglob("*.py") if path.name not in UNCHANGED)
TEXTS = [
    ROOT / "CHANGELOG.md",
    *sorted(path for kind in ("*.jinja", "*.po") for path in (ROOT / "pipeline").rglob(kind)),
]
SUFFIXES = {
    "config": ("md", "yaml"),
    "workflow": ("md", "sh", "yaml"),
    "envs": ("in", "py", "sh"),
    "rules": ("smk",),
    "benchmarks": ("md", "py", "sh"),
    "tests": ("py", "yaml"),
}
SCRIPTS = [
    ROOT / "Makefile",
    ROOT / "Snakefile",
    *sorted(
        path
        for folder, suffixes in SUFFIXES.items()
        for suffix in suffixes
        for path in (ROOT / folder).rglob(f"*.{suffix}")
        # The first is data, the second has the list of the words.
        if not path.is_relative_to(ROOT / "config/corpus") and path != Path(__file__)
    ),
]
CODE = {tokenize.NAME, tokenize.OP, tokenize.NUMBER}
PROGRAMS = {
    *("polder", "snakemake", "python", "python3", "pip", "make", "git", "sh", "cp", "ls", "mkdir", "rm", "cd"),
    *("source", "export", "ssh", "module", "singularity", "apptainer", "tmux", "rsync"),
    *("tensorboard", "tail", "squeue", "model_signing", "find", "cosign", "in-toto-verify", "in-toto-golang"),
    *("sort", "xargs", "sha256sum", ".venv/bin/python", ".venv/bin/snakemake", "pytest"),
}  # fmt: skip


def name_of(page: Path) -> str:
    """Return the name of a page in test ids."""
    return page.relative_to(ROOT).as_posix()


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_there(page: Path, link: str) -> bool:
    """Return whether the linked file exists, with the linked heading."""
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if target.is_relative_to(GENERATED):  # Sphinx checks these
        return True
    if not anchor or target.suffix != ".md":
        return target.exists()
    return target.exists() and anchor in anchors(target.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_paths_of_a_page_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [target for target in re.findall(r"\]\(([^)]*)\)", text) if ":" not in target]
    assert [target for target in links if not is_there(page, target)] == []
    # How-to guides and tutorials name files that a reader makes.
    if page.parent.name in ("howto", "tutorials"):
        return
    named = [*FILE.findall(text), *(f"tests/{name}" for name in TEST_FILE.findall(text))]
    assert [name for name in named if not any((ROOT / base / name).exists() for base in ("", "tests"))] == []


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_page_is_short_and_names_its_audience(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGEST_PAGE
    if page.name not in INCLUDED:
        assert lines[0].startswith("# ") and lines[2].startswith("For ")


def test_each_page_is_in_one_table_of_contents() -> None:
    entries = []
    for page in WRITTEN:
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            names = [line for line in tree.splitlines() if line and not line.startswith(":")]
            entries += [(page.parent / name).relative_to(DOCS).as_posix() for name in names]
    pages = [page.relative_to(DOCS).with_suffix("").as_posix() for page in WRITTEN]
    assert sorted(entry for entry in entries if "generated" not in entry) == sorted({*pages} - {"index"})


def texts_of_module(path: Path) -> str:
    """Return the comments and strings of Python, without the strings of a test that are no docstrings."""
    with tokenize.open(path) as file:
        tokens = [token for token in tokenize.generate_tokens(file.readline) if token.type not in CODE]
    if path.is_relative_to(ROOT / "tests"):
        docstrings = {
            node.body[0].lineno
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None
        }
        tokens = [token for token in tokens if token.type == tokenize.COMMENT or token.start[0] in docstrings]
    return " ".join(" ".join(token.string.removeprefix("#") for token in tokens).split())


def texts_of_script(path: Path) -> str:
    """Return the words of a file to check: a task or a YAML file of the tests has its data as values."""
    if path.suffix in (".py", ".smk") or path.name == "Snakefile":
        return texts_of_module(path)
    text = re.sub(r"```.*?```|`[^`]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    if path.suffix == ".yaml" and any(path.is_relative_to(ROOT / name) for name in ("config/tasks", "tests")):
        text = " ".join(re.findall(r"(?:^|\s)#.*", text))
    return " ".join(re.sub(r"^\s*#", "", text, flags=re.MULTILINE).split())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_contains_no_word_of_the_old_dialect(page: Path) -> None:
    code = r"```.*?```|`[^`]*`|<!-- drawn .*?<!-- end"
    text = re.sub(code, "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert DIALECT.findall(" ".join(text.split())) == []


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_template_or_catalogue_contains_no_word_of_the_old_dialect(path: Path) -> None:
    text = re.sub(r"`[^`]*`|^msgstr.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert DIALECT.findall(" ".join(text.split())) == []


def test_messages_and_docstrings_contain_no_word_of_the_old_dialect() -> None:
    hits = {name_of(path): DIALECT.findall(texts_of_module(path)) for path in MODULES}
    assert {name: words for name, words in hits.items() if words} == {}


def test_scripts_settings_and_tests_contain_no_word_of_the_old_dialect() -> None:
    hits = {name_of(path): DIALECT.findall(texts_of_script(path)) for path in SCRIPTS}
    assert len(hits) > 400, "the files are found"
    assert {name: words for name, words in hits.items() if words} == {}


def command_lines(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command in the `sh` blocks of a page."""
    for block in re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|(?<!')\|(?!')", re.sub(r"(^|\s)#.*", "", line)):
                words = shlex.split(part)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words.pop(0)
                if words:
                    yield words


def parse_polder(words: list[str]) -> None:
    """Parse the words of a command by the application, without running it."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"there is no command polder {' '.join(words[:2])}"
        command, words = command.commands[words[0]], words[1:]
    if "--help" not in words:
        command.make_context("polder", words)


COMMANDS = [(page, words) for page in PAGES for words in command_lines(page)]


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[f"{name_of(p)}: {' '.join(w)}" for p, w in COMMANDS])
def test_command_of_a_page_is_accepted_by_its_program(page: Path, words: list[str]) -> None:
    assert words[0] in PROGRAMS
    if words[0] == "polder":
        parse_polder(words[1:])  # it does not run the command
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word]
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        declared = " ".join(re.findall(r"^([\w -]+):", makefile, flags=re.MULTILINE)).split()
        assert {*targets} <= {*declared}


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_inline_commands_of_a_page_exist(page: Path) -> None:
    known: Any = typer.main.get_command(app)
    for text in re.findall(r"`polder ([a-z][^`]*)`", page.read_text(encoding="utf-8")):
        command, words = known, text.split()
        while hasattr(command, "commands") and words:
            assert words[0] in command.commands, f"polder {text}"
            command = command.commands[words.pop(0)]
        given = {word for word in text.partition(" -- ")[0].split() if word.startswith("--")} - {"--help"}
        options = {name for one in getattr(command, "params", ()) for name in one.opts}
        assert given <= options | {"--version", "--install-completion"}, f"polder {text}"


def configuration_on(page: str) -> dict[str, Any]:
    """Return the configuration on a page: the first YAML block that begins with `run:`."""
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    content: dict[str, Any] = yaml.safe_load(next(block for block in blocks if block.startswith("run:")))
    return content


def test_tutorial_command_writes_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "tutorials/own-text.md").read_text(encoding="utf-8")
    for name in ("Snakefile", "workflow"):
        (tmp_path / name).symlink_to(Path(name).absolute())
    (tmp_path / "data/mine").mkdir(parents=True)
    for file in re.findall(r"config/corpus/\S+\.jsonl", re.findall(r"^cp .*$", page, re.MULTILINE)[0]):
        shutil.copy(file, tmp_path / "data/mine")
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^polder (new run .*)$", page, re.MULTILINE)
    assert main(shlex.split(command)) == 0 and (tmp_path / "config/encyclopedia.yaml").is_file()


def test_tutorial_configurations_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = configuration_on("tutorials/own-text.md")
    dutch = configuration_on("tutorials/dutch-model.md")
    monkeypatch.chdir(tmp_path)
    for name in ("nl_encyclopedie.jsonl", "en_stories.jsonl"):
        (tmp_path / "data/mine").mkdir(parents=True, exist_ok=True)
        (tmp_path / "data/mine" / name).write_bytes((ROOT / "config/corpus" / name).read_bytes())
    (tmp_path / "config").symlink_to(ROOT / "config")
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    config = parse_configuration(own)
    assert [source.name for source in config.sources] == ["encyclopedia_nl", "stories_en"]
    page = (DOCS / "tutorials/ablation.md").read_text(encoding="utf-8")
    (experiments, *_) = re.findall(r"```yaml\n(experiments:.*?)```", page, flags=re.DOTALL)
    assert len(parse_configuration(own | yaml.safe_load(experiments)).cell_model_names()) == 9
    assert parse_configuration(dutch).baselines().keys() == {"adopted-dutch"}
    listed = own | {"sources": [source | {"opt_out": "data/mine/opt-out.txt"} for source in own["sources"]]}
    page = (DOCS / "tutorials/forget-a-document.md").read_text(encoding="utf-8")
    (entries, *_) = re.findall(r"```text\n(date:.*?)```", page, flags=re.DOTALL)
    (tmp_path / "data/mine/opt-out.txt").write_text(entries, encoding="utf-8")
    assert parse_configuration(listed).sources_with_opt_out_list() == ["encyclopedia_nl", "stories_en"]


SOURCE = {"name": "n", "path": "x.jsonl", "language": "nl", "license": "CC0-1.0"}
SOURCE |= {"rights": {"basis": "statute", "holder": "h"}}
TRAINING = {"sequence_length": 4096, "batch_size": 512, "micro_batch_size": 2, "steps": 10000, "learning_rate": 0.001}


def complete(section: str, written: Any) -> Any:
    """Return a section of a page completed with its omitted parts, such as the required keys of a source."""
    if section == "sources":
        left_out = {key: value for key, value in SOURCE.items() if key != "path"}
        results = [{**(left_out if "dataset" in source else SOURCE), **source} for source in written]
        return [{key: value for key, value in one.items() if key != "x"} for one in results]
    if section != "models":
        return written
    models = {}
    for name, model in written.items():
        training = {key: value for key, value in model.get("training", {}).items() if key != "x"}
        models[name] = {"architecture": {"preset": "llama3-1b"}, **model, "training": TRAINING | training}
    return models


def yaml_blocks() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the partial configurations on all pages."""
    for page in WRITTEN:
        for block in re.findall(
            r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
        ):
            content = yaml.safe_load(block.replace("sha256: …", f"sha256: '{'0' * 64}'").replace("…", "x"))
            if content.keys() <= Sections.model_fields.keys():
                yield page, content


BLOCKS = list(yaml_blocks())


@pytest.mark.parametrize(
    ("page", "content"), BLOCKS, ids=[f"{name_of(page)}: {', '.join(one)}" for page, one in BLOCKS]
)
def test_partial_configuration_has_only_known_keys_and_valid_values(page: Path, content: dict[str, Any]) -> None:
    for section in content.keys() - {"run", "platform"}:
        field = Sections.model_fields[section]
        TypeAdapter(field.annotation).validate_python(complete(section, content[section]))


@pytest.mark.slow
def test_reference_is_generated_from_the_code(tmp_path: Path) -> None:
    script = [sys.executable, str(DOCS / "generate.py"), str(tmp_path)]
    subprocess.run(script, check=True, cwd=ROOT)
    pages = {page.relative_to(tmp_path).as_posix(): page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.md")}
    assert {"commands/index.md", "steps.md", "files.md", "configuration/models.md"} <= pages.keys()
    assert [name for name, text in pages.items() if len(text.splitlines()) > LONGEST_PAGE] == []
    (row,) = re.findall(r"^\| `learning_rate` .*$", pages["configuration/models.md"], flags=re.MULTILINE)
    assert "`pretrain.segment`" in row and "`corpus.filter`" not in row
    (row,) = re.findall(
        r"^\| `vocabulary_size` \| integer, .*$", pages["configuration/tokenizer.md"], flags=re.MULTILINE
    )
    assert "`tokenizer.train`" in row and "8192" in row
    (row,) = re.findall(r"^\| `nodes` .*$", pages["configuration/slurm.md"], flags=re.MULTILINE)
    assert "`pretrain.segment`" not in row
