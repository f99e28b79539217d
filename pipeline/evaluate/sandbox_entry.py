"""Execute one Python program in a sandbox, without root: `python -I -S sandbox_entry.py`, with a request on stdin.

The program is the only process of new namespaces (namespaces(7)). It sees the folders of the request, read-only, and an
empty `/tmp` in memory. It has no capability, no network, no environment, and limits of CPU time, memory, file size,
open files and processes. It runs as the user, or as nobody if that is root. The kernel is that of the machine.

This file needs the standard library alone and imports nothing of Polder, so that it starts in milliseconds.

Request: a JSON object with `program`, `folders`, `environment`, `cpu_seconds`, `wall_seconds`, `memory_bytes` and
`file_bytes`. Response on stdout: a JSON object with `passed`, whether the program ran to its end, or with `refused`,
the reason why there is no sandbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import secrets
import subprocess
import sys
from typing import Any

MOUNT_NAMESPACE = 0x00020000
NAMESPACES = MOUNT_NAMESPACE | 0x10000000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
"""Of mounts, users, processes, network, IPC and host name: CLONE_NEW… of sched.h."""
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
LOCKED_FLAGS = {"noexec": MS_NOEXEC, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
"""Which a remount without root has to keep."""
MNT_DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203}  # the C library has no function of this system call
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS = 1, 4, 28, 38
SECBIT_NOROOT_LOCKED = 3
SIGKILL = 9
ADDR_NO_RANDOMIZE = 0x0040000
NOBODY = 65534
OPEN_FILES = 16
TMP = "/tmp"
ROOT = "/sys"  # which every Linux has and no program here needs: the new root is mounted over it

# The program reads end-of-file, writes nowhere, and has passed if it ran to its end: sys.exit(0) before its tests is
# no pass. As in the published checks, its globals are empty, so that its `__name__` is not `__main__`.
HARNESS = """
import os, random, sys
token, program = sys.stdin.buffer.read().split(b"\\n", 1)
random.seed(0)
exec(compile(program, "<program>", "exec"), {})
os.write(int(sys.argv[1]), token)
"""

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> None:
    """Call a function of the C library.

    Raises:
        OSError: it failed.
    """
    if getattr(libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    call("mount", *texts[:3], ctypes.c_ulong(flags), texts[3])


def isolate(folders: list[str], file_bytes: int) -> None:
    """Enter new namespaces and leave the file system; afterwards this process has no rights outside of them.

    Root builds the file system before it becomes the user `nobody`, who may not read the directories it is built from.
    """
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    with open("/proc/self/uid_map", encoding="ascii") as file:
        is_root = os.geteuid() == 0 and file.read().split()[1] == "0"  # not the root of a container without root
    if is_root:
        call("unshare", MOUNT_NAMESPACE)
        build_root(folders, file_bytes)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self belongs to root
    user, group = os.geteuid(), os.getegid()
    call("unshare", NAMESPACES)
    for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        write(proc, f"self/{name}", content)
    # In a further user namespace a program would have capabilities, and so memory without a limit.
    write(proc, "sys/user/max_user_namespaces", "0")
    with contextlib.suppress(OSError):  # a kernel before 5.19 lets only root set it
        write(proc, "sys/kernel/shmmni", "0")
    with contextlib.suppress(OSError):
        write(proc, "self/oom_score_adj", "1000")  # a node without memory ends the program, not the evaluation
    if not is_root:
        build_root(folders, file_bytes)
    os.close(proc)


def write(folder: int, path: str, content: str) -> None:
    file = os.open(path, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(file, content.encode())
    finally:
        os.close(file)


def build_root(folders: list[str], file_bytes: int) -> None:
    """Replace the file system of this mount namespace by these directories, read-only, and an empty /tmp."""
    os.umask(0o022)
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    others = {fields[0] for fields in read_mountinfo()}
    mount("tmpfs", ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.mkdir(ROOT + TMP)
    mount("tmpfs", ROOT + TMP, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, f"size={file_bytes},nr_inodes=1k,mode=1777")
    for path in folders:
        os.makedirs(ROOT + path, exist_ok=True)
        mount(path, ROOT + path, None, MS_BIND | MS_REC)
    for fields in read_mountinfo():
        point = fields[4].decode("unicode_escape").encode("latin-1").decode("utf-8", "surrogateescape")
        if fields[0] not in others and point != ROOT + TMP:
            kept = sum(LOCKED_FLAGS.get(option, 0) for option in fields[5].decode().split(","))
            mount(None, point, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | kept)
    os.chdir(ROOT)
    call("syscall", ctypes.c_long(PIVOT_ROOT[os.uname().machine]), b".", b".")
    call("umount2", b".", MNT_DETACH)  # the old root, which is mounted over the new one


def read_mountinfo() -> list[list[bytes]]:
    """Return the fields of the mounts of this namespace (proc_pid_mountinfo(5)), oldest first."""
    with open("/proc/self/mountinfo", "rb") as file:
        return [line.split() for line in file]


def restrict(request: dict[str, Any]) -> None:
    """Set the limits of this process, and let exec take its capabilities."""
    call("prctl", PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    call("prctl", PR_SET_SECUREBITS, SECBIT_NOROOT_LOCKED, 0, 0, 0)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("personality", ctypes.c_ulong(ADDR_NO_RANDOMIZE))  # the order of a set may depend on addresses
    limits = {
        resource.RLIMIT_CPU: request["cpu_seconds"],
        resource.RLIMIT_AS: request["memory_bytes"],
        resource.RLIMIT_FSIZE: request["file_bytes"],
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_NPROC: 0,  # neither processes nor threads
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


def execute(request: dict[str, Any], nothing: int) -> bool:
    """Execute the program of a request, whose output goes to a descriptor; return whether it ran to its end."""
    token = secrets.token_hex(16).encode()
    reading, writing = os.pipe()
    try:
        subprocess.run(
            [sys.executable, "-s", "-S", "-B", "-c", HARNESS, str(writing)],
            input=token + b"\n" + request["program"].encode("utf-8", "surrogatepass"),
            stdout=nothing,
            stderr=nothing,
            cwd="/tmp",
            env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "PYTHONHASHSEED": "0", **request.get("environment", {})},
            pass_fds=[writing],
            preexec_fn=lambda: restrict(request),
            timeout=request["wall_seconds"],
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        return stream.read(len(token) + 1) == token


def main() -> None:
    request = json.load(sys.stdin)
    response: dict[str, Any]
    try:
        nothing = os.open("/dev/null", os.O_WRONLY)  # before this process leaves the file system
        isolate(request["folders"], request["file_bytes"])
        response = {"passed": execute(request, nothing)}
    except (OSError, KeyError, subprocess.SubprocessError) as error:
        response = {"refused": f"{type(error).__name__}: {error}"}
    print(json.dumps(response))


if __name__ == "__main__":
    main()
