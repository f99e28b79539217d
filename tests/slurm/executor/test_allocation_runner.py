"""An allocation without Slurm runs its own jobs, once each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.slurm.executor import allocation_runner
from pipeline.slurm.executor.allocation_runner import AllocationTask

ROOT = Path(__file__).parents[3]


def run(path: Path, sha256: str, *avoided: str) -> subprocess.CompletedProcess[str]:
    """Run an allocation's file as its batch script does."""
    words = [sys.executable, "-m", "pipeline.slurm.executor.allocation_runner", str(path), sha256, *avoided]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)


def task(folder: Path, name: str, then: str = "true", **environment: str) -> AllocationTask:
    """Return a task that records each execution."""
    return AllocationTask(name, f'echo "${{WHAT:-}}" >> {folder}/{name}; {then}', [], environment, [f"{name}.out"])


def runs(folder: Path, name: str) -> list[str]:
    """Return the records of a task."""
    return (folder / name).read_text().splitlines()


def test_each_job_runs_in_its_environment_and_its_exit_code_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    done = run(path, allocation_runner.write_allocation(path, [task(tmp_path, "a", WHAT="é 'x'"), task(tmp_path, "b")]))
    assert done.returncode == 0, done.stderr
    assert runs(tmp_path, "a") == ["é 'x'"] and allocation_runner.read_exit_codes(path) == {0: 0, 1: 0}
    assert allocation_runner.list_finished_outputs(tmp_path) == ["a.out", "b.out"]


def test_requeued_allocation_runs_only_unfinished_jobs(tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    sha256 = allocation_runner.write_allocation(
        path, [task(tmp_path, "a"), task(tmp_path, "b", f"[ $(wc -l < {tmp_path}/b) = 2 ]")]
    )
    first = run(path, sha256)
    assert first.returncode == 1 and "b ended with exit code 1" in first.stderr
    assert allocation_runner.list_finished_outputs(tmp_path) == ["a.out"]
    assert run(path, sha256).returncode == 0
    assert (len(runs(tmp_path, "a")), len(runs(tmp_path, "b"))) == (1, 2)


def test_exit_code_of_a_killed_job_is_that_of_a_shell(tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    assert run(path, allocation_runner.write_allocation(path, [task(tmp_path, "a", "kill -9 $$")])).returncode == 137


@pytest.mark.parametrize(
    ("srun", "command", "cause"),
    [(["no-such-srun"], "true", "No such file or directory"), ([], f": {'x' * 140_000}", "Argument list too long")],
)
def test_job_that_cannot_be_started_has_failed(tmp_path: Path, srun: list[str], command: str, cause: str) -> None:
    path = tmp_path / "1.json"
    done = run(path, allocation_runner.write_allocation(path, [AllocationTask("a", command, srun)]))
    assert done.returncode == 126 and allocation_runner.read_exit_codes(path) == {0: 126}
    assert f"cannot be started: {cause}" in done.stderr and len(done.stderr) < 200


def test_internal_error_is_not_a_success(tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    sha256 = allocation_runner.write_allocation(path, [task(tmp_path, "a"), task(tmp_path, "b", NAME=1)])  # type: ignore[arg-type]
    done = run(path, sha256)
    assert done.returncode == 1 and allocation_runner.read_exit_codes(path) == {0: 0} and "Error" in done.stderr
    path.unlink()
    assert run(path, sha256, "1").returncode == 3


@pytest.mark.parametrize(("code", "avoided", "shown"), [(1, "1 4", 3), (2, "1 2", 3), (4, "1 2", 4), (0, "1 2", 0)])
def test_exit_codes_that_slurm_requeues_are_avoided(tmp_path: Path, code: int, avoided: str, shown: int) -> None:
    path = tmp_path / "1.json"
    sha256 = allocation_runner.write_allocation(path, [task(tmp_path, "a", f"exit {code}")])
    assert run(path, sha256, *avoided.split()).returncode == shown
    assert allocation_runner.read_exit_codes(path) == {0: code}


def test_allocation_file_changed_after_submission_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    sha256 = allocation_runner.write_allocation(path, [task(tmp_path, "a")])
    path.write_text(path.read_text().replace("true", "rm -rf x"))
    done = run(path, sha256)
    assert done.returncode == 2 and "has changed since its submission" in done.stderr and not (tmp_path / "a").exists()


def test_truncated_allocation_file_has_no_outputs(tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    allocation_runner.write_allocation(path, [task(tmp_path, "a")])
    path.write_text(path.read_text()[:9])  # its snakemake was killed, so nothing was submitted
    assert allocation_runner.list_finished_outputs(tmp_path) == []


@pytest.mark.parametrize("cut", ["1", "1 ", "", "x 0"])
def test_truncated_line_is_not_an_exit_code(cut: str, tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    allocation_runner.exit_codes_file(path).write_text(f"0 0\n{cut}")
    assert allocation_runner.read_exit_codes(path) == {0: 0}


def test_allocation_runner_imports_only_the_standard_library() -> None:
    listed = (
        "import sys; import pipeline.slurm.executor.allocation_runner; print(*{n.split('.')[0] for n in sys.modules})"
    )
    names = subprocess.run([sys.executable, "-c", listed], cwd=ROOT, capture_output=True, text=True).stdout.split()
    site = {"sitecustomize", "usercustomize", "distutils-precedence"}
    foreign = {name for name in names if name not in sys.stdlib_module_names and not name.startswith("_")} - site
    assert foreign <= {"pipeline"}
