"""Nothing stops a training: bad batches, dead, stopped and hung processes, a full disk, Slurm's signals."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGTERM, SIGUSR1
from typing import Any

import pytest

from pipeline.core.errors import EXIT_TEMPORARY_FAILURE, Stopped
from pipeline.core.output_lease import Lease
from pipeline.pretrain import segment
from pipeline.pretrain.monitors import metrics
from pipeline.pretrain.monitors.watchdog import list_hung_stack_files
from pipeline.pretrain.processes import supervisor
from pipeline.pretrain.processes.launch_command import build_command
from pipeline.pretrain.settings import SegmentSettings
from tests.conftest import is_lacking
from tests.pretrain.processes import chaos

pytestmark = pytest.mark.usefixtures("warm_processes")
Make = Callable[..., SegmentSettings]
Tokens = dict[str, Path]
ROOT = Path(__file__).parents[3]
TWO = "torchrun --standalone --nproc-per-node=2"


def train(settings: SegmentSettings, tokens: Tokens, folder: Path, launch: str = "", **other: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    places = {"milestone": folder / "milestone", "scratch": folder / "scratch", "previous": [], **other}
    return segment.run(settings, **tokens, **places, launch=launch)


def drawn(folder: Path) -> list[int]:
    return [line["data_step"] for line in metrics.read_metrics(folder / "milestone/metrics.jsonl") if "loss" in line]


def test_slurm_warning_before_startup_ends_as_stopped(
    settings: Make, tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = tmp_path / "bin/srun"
    srun.parent.mkdir()
    srun.write_text(f"#!/bin/sh\nexit {128 + SIGUSR1}\n")  # as srun ends if its tasks die of that signal
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(srun.parent), prepend=":")
    with pytest.raises(Stopped, match=r"as asked \(Slurm's warning came before the processes had started\)"):
        train(settings(last_step=4), tokens, tmp_path / "run", launch="srun --ntasks=2")


SPIKES = {"window": 8, "loss_deviations": 0.5, "gradient_norm_deviations": 0}


@pytest.mark.slow
def test_continued_training_skips_the_same_batches(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    training = {"steps": 30, "stability": SPIKES}
    counts = train(settings(last_step=30, **training), tokens, tmp_path / "whole")
    skipped = counts["skipped_data_steps"]
    assert skipped and all(reason.startswith("loss ") for reason in counts["skip_reasons"])
    assert sorted([*drawn(tmp_path / "whole"), *skipped]) == list(range(30 + len(skipped)))
    first = train(settings(last_step=24, **training), tokens, tmp_path / "first")
    previous = [tmp_path / "first/milestone"]
    second = train(settings(first_step=24, last_step=30, **training), tokens, tmp_path / "second", previous=previous)
    assert first["skipped_data_steps"] + second["skipped_data_steps"] == skipped
    assert chaos.result(tmp_path / "second")["files"] == chaos.result(tmp_path / "whole")["files"]


@pytest.mark.slow
def test_rewind_equals_a_training_without_those_batches(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    rewinding = {"window": 8, "loss_deviations": 0, "gradient_norm_deviations": 10, "bad_step": "rewind"}
    chosen = settings(last_step=30, steps=30, stability=rewinding, checkpoint_every=10)
    counts = train(chosen, tokens, tmp_path / "rewound")
    rewinds = json.loads((tmp_path / "rewound/scratch/rewinds.json").read_text())
    left_out = [number for entry in rewinds["entries"] for number in entry["data_steps"]]
    assert counts["restarts"] == len(rewinds["entries"]) > 0
    assert sorted(counts["skipped_data_steps"]) == sorted(left_out)
    assert not set(drawn(tmp_path / "rewound")) & set(left_out) and len(drawn(tmp_path / "rewound")) == 30
    (tmp_path / "known/scratch").mkdir(parents=True)
    shutil.copy(tmp_path / "rewound/scratch/rewinds.json", tmp_path / "known/scratch")
    assert train(chosen, tokens, tmp_path / "known")["restarts"] == 0
    assert chaos.result(tmp_path / "known") == chaos.result(tmp_path / "rewound")


@pytest.mark.slow
def test_rejected_step_changes_nothing(settings: Make, tmp_path: Path) -> None:
    cases = [("fsdp", "full_shard", "fp32"), ("fsdp", "no_shard", "bf16"), ("deepspeed", "zero0", "fp32")]
    cases += [("deepspeed", *rest) for rest in (("zero1", "fp32"), ("zero2", "bf16"))]
    cases += [("deepspeed", "zero3", precision) for precision in ("fp32", "bf16")]
    made = {
        f"{strategy} {precision}": settings(backend=backend, strategy=strategy, precision=precision)
        for backend, strategy, precision in cases
    }
    experts = {"preset": "qwen3-moe", "feed_forward_width": 64, "experts": 4, "experts_per_token": 2}
    made |= {
        "muon": settings(optimizer="muon"),
        "not fused": settings(fused_optimizer=False),
        "experts": settings(architecture=experts, mesh={"expert": 2}),
    }
    given = {"cases": {name: chosen.model_dump(mode="json") for name, chosen in made.items()}}
    (tmp_path / "given").write_text(json.dumps({**given, "found": str(tmp_path / "found")}))
    words = build_command(TWO, "tests.pretrain.refusals", [str(tmp_path / "given")])
    subprocess.run(words, cwd=ROOT, check=True)
    result = json.loads((tmp_path / "found").read_text())
    assert result == {name: {"same": True, "finite": [False, True] * 4} for name in made}


@pytest.mark.thorough  # a hang is detected by the clock, and a busy machine hangs
def test_training_killed_five_times_loses_nothing(tokens: Tokens, tmp_path: Path) -> None:
    chosen = chaos.small(40, "full_shard", 8.0)  # more than the faults need, because a step is seen late
    chaos.Training(chosen, tokens, tmp_path / "undisturbed", TWO).finish()
    planned = [
        chaos.Blow("rank", SIGKILL, 6, 0.0),
        chaos.Blow("segment", SIGTERM, 1, 0.001),
        chaos.Blow("launcher", SIGUSR1, 2, 0.0),
        chaos.Blow("rank", SIGSTOP, 3, 0.001),
        chaos.Blow("segment", SIGKILL, 2, 0.0),
    ]
    fallen, _, codes = chaos.storm(chosen, tokens, tmp_path / "storm", planned)
    assert fallen.total() == 5 and codes == {EXIT_TEMPORARY_FAILURE: 1, -SIGKILL: 1}
    messages = (tmp_path / "storm/messages").read_text()
    assert "did not answer: restarting" in messages  # the stopped one
    assert "no progress for 8 s" in messages and "exit code" in messages and "was asked to stop" in messages
    assert "Thread 0x" in messages and list((tmp_path / "storm/scratch/logs").iterdir())
    whole, result = (chaos.result(tmp_path / name) for name in ("undisturbed", "storm"))
    assert result == whole and result["data_steps"] == list(range(40))


@pytest.mark.slow
def test_training_without_progress_gives_up_and_refusals_are_not_retried(
    settings: Make, tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "WORKER", "this")  # Python's own poem: it ends without an outcome
    with pytest.raises(RuntimeError, match="exit code 0 before it was done 2 times without progress"):
        train(settings(stability={"restarts": 1}), tokens, tmp_path / "died")
    monkeypatch.undo()
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    owner = Lease(tmp_path)
    owner.claim()
    arguments = supervisor.WorkerArguments(
        settings=settings(),
        paths={"scratch": tmp_path, "index": broken, "milestone": tmp_path / "0"},
        identity="",
        launcher="none",
        platform="local",
        world_size=1,
        stop_file=tmp_path / "stop",
        number=owner.number,
    )
    outcome = supervisor._run_processes(arguments, owner, None)
    assert outcome["status"] == "refused" and str(broken) in outcome["error"]


WATCHED = """
import ctypes, faulthandler, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
from pipeline.pretrain.monitors import watchdog
now, looks = 0.0, []
def monotonic():
    if threading.current_thread() is not threading.main_thread():
        looks.append(now)
    return now
watchdog.time = SimpleNamespace(monotonic=monotonic, sleep=lambda seconds: None)
dog = watchdog.Watchdog(Path(sys.argv[1]), "token", "0", 2.0)
while len(looks) < 3:
    now += 1.5  # of the two seconds
    dog.beat()
    time.sleep(0.01)
"""
HANGS = {
    "now += 9; time.sleep(600)": 70,
    "ctypes.PyDLL(None).sleep(600)": 1,  # holds the interpreter: no thread runs
}


@pytest.mark.parametrize("statement", HANGS)
def test_hung_process_dumps_its_stacks_and_ends(statement: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", WATCHED + statement, str(tmp_path)]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, timeout=120).returncode == HANGS[statement]
    (path,) = (tmp_path / "logs").glob("stacks-*")
    assert "most recent call first" in path.read_text() and 'File "<string>"' in path.read_text()


STOPPED = """
cancel = faulthandler.cancel_dump_traceback_later
faulthandler.cancel_dump_traceback_later = lambda: print("no dump will come") or cancel()
dog.stop()
print([thread.name for thread in threading.enumerate()])
"""


def test_stopped_watchdog_leaves_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WATCHED + STOPPED, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "no dump will come\n['MainThread']\n"), done.stderr
    assert not list((tmp_path / "logs").iterdir())


def test_stack_dump_of_an_exiting_process_is_ignored(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "stacks-1-0.txt").symlink_to(tmp_path / "gone")  # listed but missing
    (logs / "stacks-1-1.txt").touch()
    (logs / "stacks-1-2.txt").write_text("a stack")
    assert list_hung_stack_files(tmp_path, "1") == [logs / "stacks-1-2.txt"]


FULL_DISK = """
import json, shutil, sys
from pathlib import Path
from pipeline.core.errors import DiskFull
from pipeline.pretrain import segment
from pipeline.pretrain.settings import SegmentSettings
given = json.loads(sys.argv[1])
disk, out = Path(given["disk"]), Path(given["out"])
def run(scratch, milestone):
    paths = {name: Path(path) for name, path in given["tokens"].items()}
    chosen = SegmentSettings.model_validate(given["settings"])
    return segment.run(chosen, previous=[], launch="", scratch=scratch, milestone=milestone, **paths)
counts = run(disk / "a", out / "milestone")
kept = {path.name: sorted(file.name for file in path.iterdir()) for path in (disk / "a/recovery").iterdir()}
shutil.rmtree(disk / "a")
try:
    run(disk / "b", disk / "milestone")
except DiskFull as error:
    (out / "found").write_text(json.dumps({"counts": counts, "kept": kept, "error": str(error)}))
"""


@pytest.mark.slow
def test_full_disk_loses_new_checkpoints_but_not_the_old_one_or_the_training(
    settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    """A checkpoint takes 540 kB and requires 16 MiB more: the file system has space for one, not for two."""
    disk = tmp_path / "disk"
    disk.mkdir()
    given = {"disk": str(disk), "out": str(tmp_path), "tokens": {name: str(path) for name, path in tokens.items()}}
    given["settings"] = settings().model_dump(mode="json")
    mount = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
    script = f'mount -t tmpfs -o size=17300k none {disk} || exit 99; exec "$@"'
    words = [*mount, script, "sh", sys.executable, "-c", FULL_DISK, json.dumps(given)]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        is_lacking("there is no unshare")
    if done.returncode == 99 or "unshare:" in done.stderr:
        is_lacking("no file system can be mounted here")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "found").read_text())
    assert result["kept"] == {"3": ["rank-00000.safetensors", "state.json"]}
    assert result["counts"]["failed_checkpoints"] == 2 and result["counts"]["steps"] == 10
    assert done.stderr.count("free space there; earlier checkpoints are intact; the training continues without it") == 4
    assert result["error"].endswith("free space there; earlier checkpoints are intact; start again then")
