"""The client of the warm Python (`warm_python.py`): `python -m MODULE …` as a fork of its server.

Every process of a run begins with this file, so it imports only what is compiled into Python.
"""

from __future__ import annotations

import _signal as signal
import _socket as socket
import posix as os
import sys

MODULES = ("pipeline", "snakemake", "tests", "torch")  # of others the client becomes the real Python
WITH_PARENT = ("pipeline.pretrain.processes.worker", "tests.")  # they die with their parent, here with their client
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGURG)


def ask(words: list[str], path: bytes) -> int:
    """Let the server run `-m MODULE …`; return the exit code, or die of the fork's signal."""
    if words[words.index("-m") + 1].startswith(WITH_PARENT):
        from ctypes import CDLL

        CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    server = socket.socket(socket.AF_UNIX)
    server.connect(path)
    os.umask(umask := os.umask(0o77))
    variables = [name + b"=" + value for name, value in os.environ.items()]
    parts = [
        os.getcwdb(),
        b"%d" % umask,
        b"%d" % len(words),
        *(word.encode(errors="surrogateescape") for word in words),
        *variables,
    ]
    request = b"\0".join(parts)
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: server.sendall(bytes([number])))
    streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in (0, 1, 2))
    server.sendmsg([len(request).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    server.sendall(request)
    status = server.recv(4)
    if not status:
        return 1  # the server is gone
    code = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
    if code < 0:
        if -code in SIGNALS:  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def main(words: list[str]) -> int:
    """Ask the server that `WARM_PYTHON` names, or become the real Python."""
    module = words[words[:1] == ["-u"] :][:2]
    if module[:1] == ["-m"] and module[1].partition(".")[0] in MODULES and not os.environ.get(b"PYTHONPATH"):
        return ask(words, os.environ[b"WARM_PYTHON"])
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
