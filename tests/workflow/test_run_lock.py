"""The lock of a run: one owner for any process, host and end, and a remedy if its state is unknown."""

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
# Take the lock, report it, and continue for a while; a refusal is its answer.
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
    """Work in an empty folder with a short watch interval."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_lock, "WATCH_SECONDS", 1.0)
    monkeypatch.setattr(run_lock, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(
        run_lock, "_register_release_at_exit", lambda held: None
    )  # pytest's own signals and end are unchanged
    return tmp_path


def other(seconds: float = 60, go: str | None = None) -> subprocess.Popen[str]:
    """Start another process that takes the lock and ends by SIGHUP, regardless of the parent of these tests."""
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
    owner = run_lock.LockOwner.from_this_process(RUN).model_copy(update={**known, **changes})
    path.write_text(f"{owner.model_dump_json()}\n{7:012d}\n")
    return path


def test_second_invocation_is_refused_with_the_lock_owner() -> None:
    with other() as first:
        assert taken(first)
        with pytest.raises(InputError) as refused:
            run_lock.acquire_run_lock(RUN, print)
        first.kill()
    for part in ("results/test", platform.node(), f"process {first.pid}", str(Path.cwd()), "wait until"):
        assert part in str(refused.value)


def test_lock_of_a_killed_local_process_is_cleared_with_its_snakemake_lock(folder: Path) -> None:
    locks = folder / ".snakemake/locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text("results/test/plan/plan.json\n")
    (locks / "1.output.lock").write_text("results/test2/plan/plan.json\n")
    first = other()
    assert taken(first)
    first.kill()  # a zombie process
    messages: list[str] = []
    wait_until(lambda: psutil.Process(first.pid).status() == psutil.STATUS_ZOMBIE, "it is dead")
    held = run_lock.acquire_run_lock(RUN, messages.append)
    held.dead.clear()
    held.release()
    assert [file.name for file in locks.iterdir()] == ["1.output.lock"]
    assert f"process {first.pid}" in messages[0] and "0.output.lock" in messages[1]
    first.communicate()
    assert not (RUN / layout.RUN_LOCK).exists()


@pytest.mark.parametrize("end", [None, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_lock_is_released_when_its_process_ends_or_is_terminated(end: signal.Signals | None) -> None:
    (locks := Path(".snakemake/locks")).mkdir(parents=True)
    with other(seconds=0.2 if end is None else 60) as first:
        assert taken(first)
        (locks / "0.output.lock").write_text("results/test/plan/plan.json\n")
        if end is not None:
            first.send_signal(end)
    assert not [*RUN.rglob("lock")]
    assert first.returncode == 0 if end is None else first.returncode in (-end, 1)
    assert [*locks.iterdir()] == [] or end in (None, signal.SIGINT), "Snakemake removes its own at these ends"


def test_one_of_many_concurrent_invocations_gets_the_lock() -> None:
    for round_ in range(2):
        if round_:
            elsewhere(host=platform.node())  # from before this host was rebooted: considered dead immediately
        go = Path(f"go-{round_}")
        many = [other(go=str(go)) for _ in range(3)]
        assert all(one.stdout and one.stdout.readline() == "ready\n" for one in many)
        go.touch()
        owners = [one for one in many if taken(one)]  # the others have ended
        assert len(owners) == 1
        for one in many:
            one.terminate()
            one.communicate()


def test_silent_remote_owner_keeps_the_lock_until_confirmed_dead() -> None:
    path = elsewhere()
    with pytest.raises(InputError) as refused:
        run_lock.acquire_run_lock(RUN, print)
    for part in ("ada on login2", "process 4711", "/home/ada/polder", "check on login2", "--unlock"):
        assert part in str(refused.value)
    messages: list[str] = []
    run_lock.break_stale_lock(RUN, messages.append)
    assert "ada on login2" in messages[-1]
    held = run_lock.acquire_run_lock(RUN, print)
    assert [owner.user for owner in held.dead] == ["ada"], "the next invocation knows its predecessor"
    held.release()  # before ada's leftovers are settled
    held = run_lock.acquire_run_lock(RUN, print)
    assert [owner.user for owner in held.dead] == ["ada"]
    held.dead.clear()
    held.release()
    assert not path.exists()
    run_lock.break_stale_lock(RUN, messages.append)  # nothing is left


def test_remote_owner_with_a_changing_counter_is_alive_despite_its_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_lock, "WATCH_SECONDS", 60.0)  # the first new count ends it
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


def test_reused_process_id_does_not_identify_the_lock_owner() -> None:
    me = run_lock.LockOwner.from_this_process(RUN)
    elsewhere(host=me.host, boot=me.boot, process=me.process, process_began_seconds=me.process_began_seconds - 3600)
    run_lock.acquire_run_lock(RUN, print).release()
    elsewhere(host=me.host, boot=me.boot, process=me.process, process_began_seconds=me.process_began_seconds + 2)
    with pytest.raises(InputError, match="being worked on"):  # the clock was set
        run_lock.acquire_run_lock(RUN, print)


def test_invocation_that_lost_its_lock_ends_without_disturbing_the_next() -> None:
    with other() as first:
        assert taken(first)
        (RUN / layout.RUN_LOCK).unlink()
        path = elsewhere()
        before = path.read_bytes()
        assert first.wait(30) == -signal.SIGTERM
        assert first.stderr is not None and "was removed" in first.stderr.read()
    assert path.read_bytes() == before


def test_invalid_lock_file_is_named() -> None:
    path = elsewhere()
    path.write_text("")
    for refuses in (run_lock.acquire_run_lock, run_lock.break_stale_lock):
        with pytest.raises(InputError, match=f"{path} is not a lock: delete it"):
            refuses(RUN, print)


def test_lock_permissions_follow_the_umask() -> None:
    before = os.umask(0o027)
    try:
        held = run_lock.acquire_run_lock(RUN, print)
    finally:
        os.umask(before)
    assert (RUN / layout.RUN_LOCK).stat().st_mode & 0o777 == 0o640
    assert json.loads((RUN / layout.RUN_LOCK).read_text().splitlines()[0])["process"] == os.getpid()
    held.release()
