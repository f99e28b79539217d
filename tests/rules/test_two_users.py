"""Two users of a group on one results folder: one continues after the other was killed, and is refused before."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Project, new_project
from tests.slurm.cluster import wait_until

GROUP = 12000
USERS = {"ada": 12001, "bob": 12002}
# They may read everything, so that Python's location does not matter, and write with their own permissions.
READS = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


class User(Project):
    """A user's checkout with results in the folder of the group."""

    warm = False

    def __init__(self, folder: Path, name: str, results: Path) -> None:
        super().__init__(new_project(folder / name / "polder").folder)
        self.name = name
        self.path("results").symlink_to(results)
        for path in (folder / name, *(folder / name).rglob("*")):
            os.chown(path, USERS[name], GROUP, follow_symlinks=False)

    def command(self, *options: str, configuration: str = "config/micro.yaml") -> list[str]:
        identity = ("setpriv", f"--reuid={USERS[self.name]}", f"--regid={GROUP}", "--clear-groups", *READS)
        return [*identity, "sh", "-c", 'umask 007; exec "$@"', "-", *super().command(*options)]

    def environment(self) -> dict[str, str]:
        home = str(self.folder.parent)
        return {**super().environment(), "HOME": home, "USER": self.name, "LOGNAME": self.name, "TMPDIR": "/tmp"}


@pytest.fixture
def users() -> Iterator[tuple[User, User]]:
    """Return two users of a group."""
    if os.getuid() != 0 or subprocess.run(["setpriv", "--reuid=12001", *READS, "true"], capture_output=True).returncode:
        pytest.skip("only root can be two users")
    folder = Path(tempfile.mkdtemp(prefix="users-"))  # pytest's folders belong to root
    folder.chmod(0o755)
    results = folder / "results"
    results.mkdir()
    os.chown(results, USERS["ada"], GROUP)
    results.chmod(0o2770)
    yield User(folder, "ada", results), User(folder, "bob", results)
    shutil.rmtree(folder)


@pytest.mark.thorough
def test_colleague_resumes_a_run_killed_by_another_user(users: tuple[User, User]) -> None:
    ada, bob = users
    words = {"cwd": ada.folder, "env": ada.environment(), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(ada.command("sources"), **words) as first:  # type: ignore[call-overload]
        wait_until(ada.attempts, "a step works", seconds=180)
        first.send_signal(signal.SIGSTOP)  # it is slow
        output = bob.run("sources", check=False)
        assert bob.returncode == 2 and "is being worked on by ada on " in output
        first.kill()
    bob.run("sources")
    results = [*bob.results.resolve().rglob("*")]
    assert {path.stat().st_uid for path in results} == set(USERS.values())
    for path in results:
        about = path.stat()
        assert about.st_gid == GROUP, path
        assert stat.S_IMODE(about.st_mode) == (0o2770 if path.is_dir() else 0o660), path
    ada.edit("config/micro.yaml", "units: 2", "units: 1")
    ada.run("sources")  # bob's outputs are remade


def test_user_without_write_access_gets_instructions(users: tuple[User, User]) -> None:
    ada, bob = users
    (ada.folder.parents[1] / "results").chmod(0o2750)
    output = bob.run("plan", check=False)
    assert bob.returncode == 2 and "cannot be written by this user" in output and "umask 007" in output
    assert "Traceback" not in output
