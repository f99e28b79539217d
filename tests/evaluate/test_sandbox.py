"""Programs that a model wrote: what they can do in the sandbox, and where it is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.evaluate import sandbox
from pipeline.evaluate.sandbox import passes_tests, require_permission, require_sandbox
from tests.conftest import is_lacking


@pytest.fixture(autouse=True)
def available() -> None:
    try:
        require_sandbox()
    except InputError as error:
        is_lacking(str(error))


@pytest.mark.parametrize(
    ("program", "passed"),
    [
        ("def add(a, b):\n    return a + b\nassert add(2, 3) == 5", True),
        ("def add(a, b):\n    return a * b\nassert add(2, 3) == 5", False),
        ("import sys; sys.exit(0)", False),
        ("import os; os._exit(0)", False),
        ("raise KeyboardInterrupt", False),
        ("def f(:", False),
        ("input()", False),
        ("print('x' * 10**7)", True),
        ("assert __name__ != '__main__'", True),
        ("x = '\ud800'", False),
        ("\0", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGABRT); 1 / 0", False),
        ("", True),
    ],
)
def test_program_passes_if_it_runs_to_its_end(program: str, passed: bool) -> None:
    assert passes_tests(program) is passed


def assert_passes(program: str) -> None:
    """Assert by a program that does so itself, and by its opposite, that a program is executed."""
    assert passes_tests(program)
    assert not passes_tests(f"{program}\nraise SystemExit")


def test_program_sees_no_files_but_python_and_its_own(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    names = {Path(folder).parts[1] for folder in (*sandbox.SYSTEM_FOLDERS, os.path.realpath(sys.base_prefix))}
    names |= {Path(folder).parts[1] for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder}
    assert_passes(
        f"""
import os
assert {{*os.listdir("/")}} <= {names | {"tmp"}}, os.listdir("/")
assert os.listdir("/tmp") == [] and os.getcwd() == "/tmp"
for path in ({str(tmp_path / "secret")!r}, "/etc/passwd", "/proc/self/environ", "/dev/shm", "/home", "/run"):
    assert not os.path.exists(path), path
assert {{*os.environ}} <= {{"PATH", "HOME", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "LC_CTYPE"}}, os.environ
assert os.getpid() == 1
"""
    )


def test_program_writes_into_its_own_folder_alone(tmp_path: Path) -> None:
    assert_passes(
        f"""
import os
open("/tmp/own", "w").write("own")
assert open("/tmp/own").read() == "own"
for path in ("/x", "/usr/x", {os.path.realpath(sys.base_prefix)!r} + "/x", {str(tmp_path / "x")!r}):
    try:
        open(path, "w")
    except OSError:
        continue
    raise AssertionError(path)
try:
    open("/tmp/big", "wb").write(b"x" * {sandbox.FILE_BYTES + 1})
except OSError:
    os.remove("/tmp/big")
else:
    raise AssertionError("no limit of a file")
try:
    for number in range(4):
        open(f"/tmp/{{number}}", "wb").write(b"x" * {sandbox.FILE_BYTES // 2})
except OSError:
    pass
else:
    raise AssertionError("no limit of the folder")
"""
    )
    assert passes_tests("import os; assert not os.path.exists('/tmp/own')"), "the next program starts anew"
    assert not (tmp_path / "x").exists() and not Path("/tmp/own").exists()


def test_folder_that_everybody_may_write_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's own Python is to its owner; here by a folder of libraries, which a module of a cluster names."""
    folder = tmp_path / "libraries \\é"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "a.so").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    assert_passes(
        f"""
import os
assert os.listdir({str(folder)!r}) == ["a.so"]
try:
    open({str(folder / "x")!r}, "w")
except OSError as error:
    assert error.errno == 30, error
else:
    raise AssertionError("written")
"""
    )
    assert [*folder.iterdir()] == [folder / "a.so"]


def test_program_has_no_network() -> None:
    assert_passes(
        """
import socket
assert [name for _, name in socket.if_nameindex()] == ["lo"]
for address in (("127.0.0.1", 22), ("10.0.0.1", 80), ("1.1.1.1", 53)):
    try:
        socket.create_connection(address, timeout=1)
    except OSError:
        continue
    raise AssertionError(address)
"""
    )


def test_program_starts_no_process_and_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_passes(
        """
import os, subprocess, threading
for start in (os.fork, lambda: subprocess.run(["/bin/true"]), threading.Thread(target=print).start):
    try:
        start()
    except (OSError, RuntimeError):
        continue
    raise AssertionError(start)
"""
    )
    monkeypatch.setattr(sandbox, "WALL_SECONDS", 1e4)  # it does not end by its time
    assert not passes_tests("import os\nwhile True:\n    os.fork()")


def test_program_gets_no_rights() -> None:
    assert_passes(
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x00020000, 0x40000000):
    assert libc.unshare(flags) == -1, "a new namespace"
assert libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == -1
assert libc.mount(None, b"/usr", None, 32 | 4096, None) == -1, "a folder that can be written"
assert libc.umount2(b"/tmp", 2) == -1
assert libc.chroot(b"/tmp") == -1 and libc.setuid(1) == -1 and libc.sethostname(b"x", 1) == -1
assert libc.kill(-1, 0) == -1, "no other process"
"""
    )


def test_program_has_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert passes_tests("x = bytearray(200 << 20)") and sandbox.MEMORY_BYTES == 1 << 30
    monkeypatch.setattr(sandbox, "MEMORY_BYTES", 1 << 28)
    for name in ("CPU_SECONDS", "WALL_SECONDS"):
        monkeypatch.setattr(sandbox, name, 1000)  # no program ends by its time
    assert passes_tests("x = bytearray(100 << 20)")
    assert not passes_tests(f"x = bytearray({sandbox.MEMORY_BYTES})")
    assert not passes_tests("x = []\nwhile True:\n    x.append(bytearray(1 << 24))")
    assert_passes("import os; os.ftruncate(os.memfd_create('x'), 1 << 20)")
    assert not passes_tests(f"import os; os.ftruncate(os.memfd_create('x'), {sandbox.FILE_BYTES + 1})"), "of a file"
    assert not passes_tests("def f(): f()\nimport sys; sys.setrecursionlimit(10**9)\nf()")


@pytest.mark.timeout(600)
def test_program_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "CPU_SECONDS", 1)
    monkeypatch.setattr(sandbox, "WALL_SECONDS", 1e4)  # beyond the time that a test may take
    assert not passes_tests("while True: pass"), "by its CPU time"
    assert not passes_tests("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass")
    monkeypatch.setattr(sandbox, "WALL_SECONDS", 0.7)
    assert not passes_tests("import time\ntime.sleep(9999)")
    assert not passes_tests(
        "import os, signal, time\n[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]\nos.setsid()\ntime.sleep(9999)"
    )
    assert not subprocess.run(["pgrep", "-f", "time.sleep(9999)"], capture_output=True, check=False).stdout


def test_same_program_has_the_same_verdict() -> None:
    """Hashes of texts, addresses of objects and random numbers do not differ between executions."""
    seen = "import random\nseen = [hash('x') % 7, id(object()) % 1009, random.randrange(1000)]\n"
    value = next(n for n in range(7) if passes_tests(f"{seen}assert seen[0] == {n}"))
    assert passes_tests(f"{seen}assert seen[0] == {value}")
    verdicts = [[passes_tests(f"{seen}assert seen[{place}] % 2") for _ in range(4)] for place in range(3)]
    assert all(len({*each}) == 1 for each in verdicts)


def test_user_without_root_has_the_same_sandbox(tmp_path: Path) -> None:
    """As nobody, with the system's Python, which everybody can read."""
    python = Path("/usr/bin/python3")
    if os.geteuid() or not python.exists():
        pytest.skip("needs root, and a Python of the system")
    entry = tmp_path / "sandbox_entry.py"
    entry.write_text(Path(sandbox.__file__).with_name("sandbox_entry.py").read_text())
    for folder in (entry, *tmp_path.parents, tmp_path):
        if folder != Path("/") and folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | 0o555)
    program = """
import os
try:
    os.fork()
except OSError:
    pass
else:
    raise AssertionError("a process")
try:
    open("/usr/x", "w")
except OSError:
    pass
else:
    raise AssertionError("a file")
assert not os.path.exists("/etc") and os.getpid() == 1
"""
    code = f"""
import json, os, subprocess, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
request = {{"program": {program!r}, "folders": ["/usr", "/lib", "/lib64", "/bin"], "environment": {{}},
  "cpu_seconds": 3, "wall_seconds": 20, "memory_bytes": 1 << 30, "file_bytes": 1 << 24}}
request["folders"] = [one for one in request["folders"] if os.path.isdir(one)]
subprocess.run([{str(python)!r}, "-I", "-S", {str(entry)!r}], input=json.dumps(request), text=True)
"""
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == '{"passed": true}\n', done


def test_machine_without_namespaces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run
    monkeypatch.setattr(sandbox, "require_sandbox", require_sandbox.__wrapped__)
    shell = 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"'

    def without_namespaces(command: list[str], **named: object) -> object:
        return run(["unshare", "--user", "--map-root-user", "sh", "-c", shell, "sh", *command], **named)  # type: ignore

    monkeypatch.setattr(subprocess, "run", without_namespaces)
    with pytest.raises(
        InputError, match=r"^this machine has no sandbox .*(not permitted|No space left).*: allow user "
    ):
        passes_tests("")
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: run([sys.executable, "-c", "1/0"], capture_output=True, text=True)
    )
    with pytest.raises(InputError, match=r"has no sandbox .*ZeroDivisionError"):
        require_permission("t", True)
    monkeypatch.setattr(sandbox, "require_sandbox", lambda: None)
    with pytest.raises(RuntimeError, match="the sandbox failed"):
        passes_tests("")


def test_programs_are_executed_only_where_the_run_allows_it() -> None:
    with pytest.raises(InputError, match=r"^task humaneval: it executes the programs .*write `execute_code: true`"):
        require_permission("humaneval", False)
    require_permission("humaneval", True)
