"""A Python that has imported the large libraries: each `python -m MODULE …` of a test is a fork of it.

A run of the rules starts some fifty processes, and they spend much of their CPU time on importing the same libraries.
A server imports them once: one for all of `make test`, or one per process of pytest. `python` is then its client
(`warm_client.py`): it sends its arguments, environment, folder and streams to the server, forwards signals, and ends
as the fork ended; when it is killed, so is the fork. The server imports nothing of `pipeline`, because each test's copy
of the project has its own. Tests that kill processes by id, or compare two runs, use the real Python.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from functools import cache
from pathlib import Path

LIBRARIES = (
    "psutil pydantic yaml jinja2 numpy pyarrow.parquet pyarrow.compute pyarrow.dataset numba scipy.stats pandas spacy "
    "tokenizers transformers torch torch.distributed.run torch._dynamo torch.nn.attention.varlen "
    "torch.distributed.tensor.parallel torch.distributed.fsdp torch.distributed.pipelining torch.utils.tensorboard "
    "datasets lm_eval.evaluator lm_eval.models.huggingface datatrove.executor.local datatrove.pipeline.readers "
    "datatrove.pipeline.filters datatrove.pipeline.dedup numba.typed phonenumbers stdnum.nl ftfy mlcroissant babel "
    "transformers.models.llama.modeling_llama transformers.models.auto.modeling_auto transformers.generation.utils "
    "faker snakemake.cli"
)
ON_CPUS = "deepspeed.runtime.zero.muon.muon_optimizer"  # the engine imports it; elsewhere each process has its device
CLIENT = Path(__file__).with_name("warm_client.py")
SERVER = "WARM_PYTHON"  # the variable that names the server's socket
SHARED = "WARM_PYTHON_SHARED"  # the variable that names the socket of a server for several processes of pytest
ACCOUNT = "WARM_PYTHON_ACCOUNT"  # the variable that names the file of the CPU seconds of a client's ended forks
SHOWN = "WARM_PYTHON_SHOWN"  # a variable as long as any environment: Linux shows a process's environment from there


def _receive(client: socket.socket) -> tuple[list[str], str, int, dict[str, str], list[int]]:
    size, streams, *_ = socket.recv_fds(client, 4, 3)
    request = b""
    while len(request) < int.from_bytes(size, "big"):
        request += client.recv(int.from_bytes(size, "big") - len(request))
    folder, umask, count, *rest = (os.fsdecode(part) for part in request.split(b"\0"))
    environment = dict(variable.split("=", 1) for variable in rest[int(count) :])
    return rest[: int(count)], folder, int(umask), environment, streams


def _show(environment: dict[str, str]) -> None:
    """Write the environment where Linux reads /proc/PID/environ: jobs find the processes of others by it."""
    import ctypes

    begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])
    block = b"".join(f"{name}={value}\0".encode() for name, value in environment.items())
    ctypes.memmove(begin, block[: end - begin].ljust(end - begin, b"\0"), end - begin)


def _become(words: list[str], folder: str, umask: int, environment: dict[str, str], streams: list[int]) -> None:
    """Turn this fork into the requested process, and run its module."""
    import inspect
    import runpy
    import threading

    import torch

    _die_with_parent()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    _show(environment)
    if words[0] == "-u":
        words = words[1:]
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    sys.executable = environment[f"{SERVER}_COMMAND"]
    sys.path[0] = folder
    sys.argv = words[1:]
    # torchrun queries some twenty times the module of each frame of its stack: without an answer here for those that
    # have none, Python searches all modules for each.
    for file in ("<frozen runpy>", __file__):
        inspect.modulesbyfile[os.path.abspath(file)] = "runpy"  # type: ignore[attr-defined]
    code: object = 0
    try:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else bool(code))  # freeing the imported modules would take 0.3 seconds


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def serve(path: str) -> None:
    """Fork for each client; return in the fork, when its module has ended."""
    import gc
    import importlib

    import numba
    from py3langid import langid

    _die_with_parent()
    for name in LIBRARIES.split():
        importlib.import_module(name)
    if sys.modules["torch"].version.cuda is None:
        os.environ["DS_ACCELERATOR"] = "cpu"
        importlib.import_module(ON_CPUS)
    numba.njit(lambda number: number)(1)  # the first compilation imports the rest of numba
    langid._load_model_file = cache(langid._load_model_file)
    langid._load_model_file(langid.MODEL_DIR / langid.MODEL_FILE)  # each filter would decompress it for 0.7 seconds
    # At its end a fork would free what these libraries hold, for a third of its CPU time, and print their statistics.
    for held in weakref.finalize._registry.values():  # type: ignore[attr-defined]
        held.atexit = False
    atexit.unregister(sys.modules["torch._dynamo.utils"].dump_compile_times)
    gc.freeze()  # else the first collection of each fork copies everything
    ready = selectors.DefaultSelector()
    forks: dict[socket.socket, tuple[int, str | None]] = {}
    seconds: dict[str, float] = {}
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen(64)
    os.rename(f"{path}.new", path)
    ready.register(listener, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in ready.select():
            file, client = key.fileobj, key.data
            if file is listener:
                client, _ = listener.accept()
                asked = _receive(client)
                if (number := os.fork()) == 0:
                    for one in [client, *(key.fileobj for key in ready.get_map().values())]:
                        one.close()
                    ready.close()
                    _become(*asked)
                for stream in asked[-1]:
                    os.close(stream)
                forks[client] = number, asked[3].get(ACCOUNT)
                ready.register(client, selectors.EVENT_READ)
                ready.register(os.fdopen(os.pidfd_open(number), "rb", 0), selectors.EVENT_READ, client)
            elif client is not None:  # the fork has ended
                with file:
                    ready.unregister(file)
                ready.unregister(client)
                number, account = forks.pop(client)
                _, status, usage = os.wait4(number, 0)
                if account:
                    seconds[account] = seconds.get(account, 0.0) + usage.ru_utime + usage.ru_stime
                    _write_account(account, seconds[account])
                with client, contextlib.suppress(OSError):
                    client.sendall(status.to_bytes(4, "big"))
            elif file in forks:  # a signal for the fork, or the client has died
                for number in file.recv(64) or [signal.SIGKILL]:
                    os.kill(forks[file][0], number)


def _write_account(path: str, seconds: float) -> None:
    """Write the sum in place and in one piece, unless the process that would read it has ended."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY)
        os.pwrite(file, b"%20.3f" % seconds, 0)
        os.close(file)


_accounts: list[Path] = []


def cpu_seconds() -> float:
    """Return the CPU seconds of all ended forks of this process."""
    return sum(float(account.read_bytes()) for account in _accounts)


def _launch(path: Path) -> subprocess.Popen[bytes]:
    """Start a server, and wait until it listens."""
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    server = subprocess.Popen(
        [sys.executable, __file__, path],
        env={**kept, "PYTHONPATH": "", "PYTHONHASHSEED": "random", **offline, **one_thread, SHOWN: "x" * 120_000},
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert server.stdout and server.stdout.readline() == b"ready\n"
    return server


@cache
def start() -> tuple[str, dict[str, str]]:
    """Start a server, unless there is one for all; return its client, and variables that make it bash's `python`.

    They empty PYTHONPATH: with that of a shell each client would become a real Python, at three times the CPU time.
    """
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    client, functions, account = (folder / name for name in ("python", "functions", "account"))
    client.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {CLIENT} "$@"\n')
    client.chmod(0o755)
    functions.write_text(f'python() {{ {client} "$@"; }}\n')
    account.write_bytes(b"%20.3f" % 0)
    _accounts.append(account)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(os.environ.get(SHARED) or folder / "socket")
    if SHARED not in os.environ:
        server = _launch(path)
        atexit.register(server.wait)  # CPU accounting gets those of the server
        atexit.register(server.kill)
    for _ in range(6000):
        if path.exists():
            break
        time.sleep(0.1)  # `make test` starts it together with these tests
    else:
        raise TimeoutError(f"there is no warm Python at {path} after ten minutes: unset {SHARED}")
    return str(client), {
        SERVER: str(path),
        ACCOUNT: str(account),
        f"{SERVER}_COMMAND": str(client),
        "BASH_ENV": str(functions),
        "PYTHONPATH": "",
    }


if __name__ == "__main__":
    if sys.argv[1:]:
        serve(sys.argv[1])
    else:  # for all of `make test`
        _die_with_parent()
        sys.exit(_launch(Path(os.environ[SHARED])).wait())
