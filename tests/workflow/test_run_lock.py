"""The lock of a run: one holder, whatever process, host and end, and a way out where nobody can tell."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from pipeline import layout
from pipeline.core.errors import InputError
from pipeline.workflow import run_lock
from tests.conftest import ROOT
from tests.slurm.cluster import wait_until

RUN = Path("results/test")
# Takes the lock, says so, and goes on for a while; a refusal is its answer.
TAKES = """
import sys, time
from pathlib import Path
from pipeline.workflow import run_lock as lock
from pipeline.core.errors import InputError
lock.BEAT_SECONDS = 0.2
if len(sys.argv) > 2:
    print("ready", flush=True)
while len(sys.argv) > 2 and not Path(sys.argv[2]).exists():
    time.sleep(0.001)
try:
    held = lock.acquire_run_lock(Path("results/test"), lambda sentence: print(sentence, file=sys.stderr))
except InputError as error:
    sys.exit(str(error))
print("taken", flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, and watch shortly."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_lock, "WATCH_SECONDS", 1.0)
    monkeypatch.setattr(run_lock, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(
        run_lock, "_register_release_at_exit", lambda held: None
    )  # pytest's own signals and end stay as they are
    return tmp_path


def other(seconds: float = 60, go: str | None = None) -> subprocess.Popen[str]:
    """Start another process that takes the lock, and ends by SIGHUP whatever these tests were started by."""
    words = [sys.executable, "-c", TAKES, str(seconds), *([go] if go else [])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def taken(process: subprocess.Popen[str]) -> bool:
    """Wait until the other process has the lock or was refused."""
    assert process.stdout is not None
    return process.stdout.readline() == "taken\n"


def elsewhere(**changes: object) -> Path:
    """Write the lock of a process on another host."""
    path = RUN / layout.RUN_LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {
        "user": "ada",
        "host": "login2",
        "boot": "another",
        "process": 4711,
        "working_directory": "/home/ada/polder",
    }
    holder = run_lock.LockOwner.from_this_process(RUN).model_copy(update={**known, **changes})
    path.write_text(f"{holder.model_dump_json()}\n{7:012d}\n")
    return path


def test_a_second_start_is_refused_and_told_who_works_on_the_run() -> None:
    with other() as first:
        assert taken(first)
        with pytest.raises(InputError) as refused:
            run_lock.acquire_run_lock(RUN, print)
        first.kill()
    for part in ("results/test", platform.node(), f"process {first.pid}", str(Path.cwd()), "wait until"):
        assert part in str(refused.value)


def test_the_lock_of_a_killed_process_of_this_host_is_cleared_with_its_snakemake_lock(folder: Path) -> None:
    locks = folder / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("results/test/plan/plan.json\n")
    (locks / "1.output.lock").write_text("results/test2/plan/plan.json\n")
    first = other()
    assert taken(first)
    first.kill()  # and nobody has asked how it ended
    said: list[str] = []
    wait_until(lambda: psutil.Process(first.pid).status() == psutil.STATUS_ZOMBIE, "it is dead")
    held = run_lock.acquire_run_lock(RUN, said.append)
    held.dead.clear()
    held.release()
    assert [file.name for file in locks.iterdir()] == ["1.output.lock"]
    assert f"process {first.pid}" in said[0] and "0.output.lock" in said[1]
    first.communicate()
    assert not (RUN / layout.RUN_LOCK).exists()


@pytest.mark.parametrize("end", [None, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_run_is_free_when_its_process_ends_by_itself_or_asked_to(end: signal.Signals | None) -> None:
    (locks := Path(".snakemake/locks")).mkdir(parents=True)
    with other(seconds=0.2 if end is None else 60) as first:
        assert taken(first)
        (locks / "0.output.lock").write_text("results/test/plan/plan.json\n")
        if end is not None:
            first.send_signal(end)
    assert not [*RUN.rglob("lock")]
    assert first.returncode == 0 if end is None else first.returncode in (-end, 1)
    assert [*locks.iterdir()] == [] or end in (None, signal.SIGINT), "Snakemake removes its own at these ends"


def test_of_many_starts_at_once_one_has_the_run() -> None:
    for round_ in range(2):
        if round_:
            elsewhere(host=platform.node())  # of before this host was started anew: all judge it dead at once
        go = Path(f"go-{round_}")
        many = [other(go=str(go)) for _ in range(6)]
        assert all(one.stdout and one.stdout.readline() == "ready\n" for one in many)
        go.touch()
        holders = [one for one in many if taken(one)]  # the others have ended
        assert len(holders) == 1
        for one in many:
            one.terminate()
            one.communicate()


def test_a_silent_holder_on_another_host_keeps_the_run_until_a_person_says_that_it_is_dead() -> None:
    path = elsewhere()
    with pytest.raises(InputError) as refused:
        run_lock.acquire_run_lock(RUN, print)
    for part in ("ada on login2", "process 4711", "/home/ada/polder", "check on login2", "--unlock"):
        assert part in str(refused.value)
    said: list[str] = []
    run_lock.break_stale_lock(RUN, said.append)
    assert "ada on login2" in said[-1]
    held = run_lock.acquire_run_lock(RUN, print)
    assert [holder.user for holder in held.dead] == ["ada"], "the next start knows after whom it comes"
    held.release()  # before what ada's has left is settled
    held = run_lock.acquire_run_lock(RUN, print)
    assert [holder.user for holder in held.dead] == ["ada"]
    held.dead.clear()
    held.release()
    assert not path.exists()
    run_lock.break_stale_lock(RUN, said.append)  # there is nothing any more


def test_a_holder_on_another_host_that_counts_on_lives_whatever_its_clock_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_lock, "WATCH_SECONDS", 60.0)  # the first count that is seen ends it
    path = elsewhere(since="1970-01-01 00:00:00 +0000")
    os.utime(path, (0, 0))
    done = threading.Event()

    def count() -> None:
        with path.open("r+b") as file:
            line = file.readline()
            for number in range(8, 10**6):
                file.seek(len(line))
                file.write(b"%012d\n" % number)
                file.flush()
                os.utime(path, (0, 0))
                if done.wait(0.3):
                    return

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for refuses in (run_lock.acquire_run_lock, run_lock.break_stale_lock):
            with pytest.raises(InputError, match="being worked on by ada on login2"):
                refuses(RUN, print)
    finally:
        done.set()
        thread.join()
    assert path.exists()


def test_the_number_of_a_dead_process_may_be_that_of_another_one() -> None:
    me = run_lock.LockOwner.from_this_process(RUN)
    elsewhere(host=me.host, boot=me.boot, process=me.process, process_began_seconds=me.process_began_seconds - 3600)
    run_lock.acquire_run_lock(RUN, print).release()
    elsewhere(host=me.host, boot=me.boot, process=me.process, process_began_seconds=me.process_began_seconds + 2)
    with pytest.raises(InputError, match="being worked on"):  # the clock was set
        run_lock.acquire_run_lock(RUN, print)


def test_a_start_whose_lock_was_taken_away_ends_and_leaves_the_next_one_alone() -> None:
    with other() as first:
        assert taken(first)
        (RUN / layout.RUN_LOCK).unlink()
        path = elsewhere()
        before = path.read_bytes()
        assert first.wait(30) == -signal.SIGTERM
        assert first.stderr is not None and "was removed" in first.stderr.read()
    assert path.read_bytes() == before


def test_what_is_no_lock_is_named() -> None:
    path = elsewhere()
    path.write_text("")
    for refuses in (run_lock.acquire_run_lock, run_lock.break_stale_lock):
        with pytest.raises(InputError, match=f"{path} is not a lock: delete it"):
            refuses(RUN, print)


def test_the_lock_can_be_read_by_whom_the_umask_lets() -> None:
    before = os.umask(0o027)
    try:
        held = run_lock.acquire_run_lock(RUN, print)
    finally:
        os.umask(before)
    assert (RUN / layout.RUN_LOCK).stat().st_mode & 0o777 == 0o640
    assert json.loads((RUN / layout.RUN_LOCK).read_text().splitlines()[0])["process"] == os.getpid()
    held.release()
