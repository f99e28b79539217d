"""A project that tests may edit and run: a copy of the files that the rules need, with a finished micro run."""

from __future__ import annotations

import ast
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from filelock import FileLock
from hypothesis import HealthCheck, settings

from pipeline.sources import fingerprint
from pipeline.sources.settings import FingerprintSettings
from tests import warm_python
from tests.changed import changed_tests
from tests.cpu_seconds import (  # noqa: F401 - pytest calls them
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_terminal_summary,
)
from tests.stored import read_attempts

# Background processes of a shell inherit ignored signals, and so would the processes of tests.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGHUP else signal.default_int_handler)

# The libraries read these at import. A test that accesses the network by mistake would retry for half an hour.
os.environ |= dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
# MKL reads this at its first product: an evaluation in this process sets it too late if an earlier test had one.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
# An OpenMP thread that waits for others yields its core to another test instead of spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# The time of one example depends on the machine and its load.
settings.register_profile("polder", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("polder"), max_examples=400)  # --hypothesis-profile
settings.load_profile("polder")

ROOT = Path(__file__).parents[1]
PARTS = ("Snakefile", "rules", "workflow", "pipeline", "envs", "config", "local", "slurm", "README.md")
# A project's first invocation takes seconds for these: pipeline/workflow/cache_between_invocations.py.
CACHES = (".snakemake/versions_of_steps.json", ".snakemake/names_without_persons")


def is_lacking(reason: str) -> NoReturn:
    """Skip a test that lacks a dependency which every CI machine has; fail in CI."""
    if "CI" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


# Imports of a test file that takes seconds: it starts processes, trains, plans a run, evaluates a model, or loads
# large libraries.
LONG = {"subprocess", "concurrent", "multiprocessing", "warm_python", "segment", "memory_trace", "new_project"}
LONG |= {"training_memory", "corpus_estimate", "test_suites", "torch", "datatrove", "spacy", "datasets"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what takes seconds: see LONG")
    parser.addoption("--write-expected", action="store_true", help="write the expected files of tests")
    parser.addoption("--changed", action="store_true", help="only the files of tests that the last edits concern")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --quick, do not import a test file whose own imports take long."""
    if config.getoption("--changed") and collection_path.name.startswith("test_"):
        return True if collection_path not in changed_tests() else None
    if not config.getoption("--quick") or not collection_path.name.startswith("test_"):
        return None
    nodes = [*ast.walk(ast.parse(collection_path.read_text(encoding="utf-8")))]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    results = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = {str(node.module) for node in results} | {alias.name for node in results for alias in node.names}
    return True if LONG & {word for name in modules | names for word in name.split(".")} else None


# Folders with slow test files: they begin first, so that no worker is left alone with one at the end.
MINUTES = ("tests/rules/test_demo.py", "tests/rules/", "tests/pretrain/")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first; with --quick or --changed, skip tests of a complete run and marked ones."""
    items.sort(key=lambda item: [not item.nodeid.startswith(name) for name in MINUTES])
    if config.getoption("--quick") or config.getoption("--changed"):
        named = {"slurm", "demo", "thorough", "finished"}  # marks, and the fixture of a complete run
        named |= {"slow"} if config.getoption("--quick") else set()
        items[:] = [
            item
            for item in items
            if not named & {*(mark.name for mark in item.iter_markers()), *getattr(item, "fixturenames", ())}
        ]


# PyTorch switches that a test or its code may change: how each is read and set.
SWITCHES = {
    "get_default_dtype": "set_default_dtype",
    "get_num_threads": "set_num_threads",
    "get_float32_matmul_precision": "set_float32_matmul_precision",
    "get_deterministic_debug_mode": "set_deterministic_debug_mode",
    "is_grad_enabled": "set_grad_enabled",
}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Begin each test with the same random numbers, and restore the state for the next one."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    random.seed(7)
    if numpy:
        numpy.random.seed(7)
    if torch:
        torch.manual_seed(7)
    variables, folder = dict(os.environ), os.getcwd()
    switches = {name: getattr(torch, name)() for name in SWITCHES} if torch else {}
    yield
    os.chdir(folder)
    if variables != os.environ:
        os.environ.clear()
        os.environ.update(variables)
    for name, value in switches.items():
        if getattr(torch, name)() != value:
            getattr(torch, SWITCHES[name])(value)


@pytest.fixture(scope="module")
def warm_commands() -> Iterator[None]:
    """Fork the commands of a run from a Python that has imported the large libraries."""
    tools = Path(sys.executable).parent
    client, variables = warm_python.start()
    variables = {**variables, "PATH": os.pathsep.join([os.environ["PATH"], str(tools)])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", client)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def few_files() -> Callable[[int], AbstractContextManager[None]]:
    """Return the command that lets this process open the given number of additional files."""

    @contextmanager
    def limited(more: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = {*map(int, os.listdir("/proc/self/fd"))}
        free = (number for number in range(before[0]) if number not in taken)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, more, None)), before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    return limited


class Project:
    """A copy of the project with its own results.

    Its runs fork a warm Python and use one core: on a busy machine, PyTorch threads mostly wait for each other.
    With `warm` false each process is new and the runs use all cores, for tests that compare runs, kill processes,
    or measure resources.
    """

    warm = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """Return a file of the copy."""
        return self.folder / name

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace text in a file; the text must occur."""
        path = self.path(name)
        content = path.read_text()
        assert old in content, f"{old!r} does not occur in {name}"
        path.write_text(content.replace(old, new, 1))

    def train_alone(self) -> None:
        """Train with one process instead of two: half the work, for tests of other properties."""
        self.edit("workflow/platforms/local.yaml", "launch: torchrun --standalone --nproc-per-node=2\n", "")

    def keep_sources(self, *names: str) -> None:
        """Remove all other sources from the configuration of the micro run."""
        path = self.path("config/micro.yaml")
        config = yaml.safe_load(path.read_text())
        config["sources"] = [source for source in config["sources"] if source["name"] in names]
        path.write_text(yaml.safe_dump(config, sort_keys=False))

    def command(self, *options: str, configuration: str = "config/micro.yaml") -> list[str]:
        """Return the command line that runs the project."""
        cores = ("--cores", "1") if self.warm and "--cores" not in options else ()
        profile = ("--profile", "local", "--configfile", configuration)
        return [sys.executable, "-m", "snakemake", *options, *profile, *cores]

    def environment(self) -> dict[str, str]:
        """Return the environment of a run without the variables of the tests."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, "PYTHONPATH": "", "PYTHONHASHSEED": "random"}

    def run(
        self,
        *options: str,
        check: bool = True,
        configuration: str = "config/micro.yaml",
        timeout_seconds: int = 2400,
    ) -> str:
        """Run the DAG and return what it printed."""
        words, environment = self.command(*options, configuration=configuration), self.environment()
        if self.warm:
            words[0], variables = warm_python.start()
            environment |= variables
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_seconds,
        )
        assert not check or done.returncode == 0, done.stdout[-6000:]
        self.returncode = done.returncode
        return done.stdout

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m pipeline` in a fork of the warm Python."""
        python, variables = warm_python.start()
        return subprocess.run(
            [python, "-m", "pipeline", *words],
            cwd=self.folder,
            env=self.environment() | variables,
            text=True,
            capture_output=True,
        )

    def planned(self, *options: str) -> Counter[str]:
        """Return the planned jobs of a dry run by rule."""
        printed = self.run("--dry-run", *options)
        if " would run; " not in printed:
            return Counter()
        table = printed.split(" would run; ")[1].split("\ntotal")[0].splitlines()[3:]
        return Counter({name.replace(".", "_"): int(number) for name, number, *_ in map(str.split, table)})

    @property
    def results(self) -> Path:
        """Return the folder of the micro run."""
        return self.folder / "results" / "micro"

    def attempts(self) -> set[str]:
        """Return the names of the attempts so far."""
        return {*read_attempts(self.results)}

    def ran(self, *options: str) -> Counter[str]:
        """Run the DAG and return the executed jobs by rule."""
        before = self.attempts()
        self.run(*options)
        attempts = read_attempts(self.results)
        return Counter(attempts[name]["step"].replace(".", "_") for name in attempts.keys() - before)

    def clone(self, folder: Path) -> Project:
        """Return a copy of this project, results and Snakemake's memory included, with the times of the files."""
        shutil.copytree(self.folder, folder, symlinks=True, dirs_exist_ok=True)
        return Project(folder)


def new_project(folder: Path) -> Project:
    """Return a fresh copy of the project without results, with what Python and numba compiled of it, and CACHES."""
    folder.mkdir(parents=True, exist_ok=True)
    others_write = shutil.ignore_patterns("*.pyc.*", "*.tmp.*")  # and rename before long
    for part in PARTS:
        source = ROOT / part
        if source.is_symlink():
            (folder / part).symlink_to(os.readlink(source))
        elif source.is_dir():
            shutil.copytree(source, folder / part, ignore=others_write)
        else:
            shutil.copy2(source, folder / part)
    for cache in CACHES:
        if (ROOT / cache).exists():
            (folder / cache).parent.mkdir(exist_ok=True)
            shutil.copy2(ROOT / cache, folder / cache)
    return Project(folder)


def rewrite(path: Path, function: str = "run") -> None:
    """Rewrite a function or method without changing its effect: add a statement before its last one."""
    source = path.read_text()
    body: list[ast.stmt] = ast.parse(source).body
    for word in function.split("."):
        (result,) = (node for node in body if getattr(node, "name", None) == word)
        body = result.body  # type: ignore[attr-defined]  # it is a class or a function
    last, lines = body[-1], source.splitlines(keepends=True)
    path.write_text("".join([*lines[: last.lineno - 1], f"{' ' * last.col_offset}_ = 0\n", *lines[last.lineno - 1 :]]))


def fingerprinted(folder: Path, source: str, files: dict[str, Path], unit: int = 0) -> Path:
    """List and hash the raw files of a unit, name to path; return the file of its fingerprint."""
    folder.mkdir(parents=True, exist_ok=True)
    listing, out = folder / f"{unit}.listing", folder / f"{unit}.fingerprint"
    listing.write_text(json.dumps({"unit": unit, "files": [{"name": name, "part": None} for name in files]}))
    settings = FingerprintSettings(source=source)
    fingerprint.run(settings, listing=listing, files=[*files.values()], fingerprint=out)
    return out


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project with a complete micro run, shared by all workers; clone it, do not edit it."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "finished"
    folder = Path(os.environ.get("POLDER_FINISHED", folder))  # of both processes of `make test`
    with FileLock(f"{folder}.lock"):
        if (folder / "complete").exists():
            return Project(folder / "polder")
        project = new_project(folder / "polder")
        project.run()
        # Later copies of the project need not compile again: half a minute for numba.
        compiled = project.path("pipeline").rglob("__pycache__/*[ci]")
        for code in (*compiled, *map(project.path, CACHES)):
            there = ROOT / code.relative_to(project.folder)
            if there.exists() and code.suffix == ".pyc":
                continue
            there.parent.mkdir(exist_ok=True)
            own_name = f"{there}.tmp.{os.getpid()}"  # the Slurm tests have their own run
            shutil.copy2(code, own_name)
            os.replace(own_name, there)
        (folder / "complete").touch()
    return project


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    """Return a clone of the finished project that a test may edit."""
    return finished.clone(tmp_path / "polder")
