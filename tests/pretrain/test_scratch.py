"""Recovery checkpoints on the platform's scratch: their location, purges, and the files left at the end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.core.output_lease import Lease
from pipeline.job import versions
from pipeline.pretrain import segment
from pipeline.pretrain.checkpoints import recovery
from pipeline.pretrain.monitors import metrics
from pipeline.pretrain.settings import SegmentSettings
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import pretrain
from tests.pretrain.processes import chaos
from tests.pretrain.test_segment import start_apart

pytestmark = pytest.mark.usefixtures("warm_processes")
Make = Callable[..., SegmentSettings]
Tokens = dict[str, Path]


def train(settings: SegmentSettings, tokens: Tokens, folder: Path, large: Path | None) -> dict[str, Any]:
    places = {"milestone": folder / "milestone", "scratch": folder / "scratch", "previous": []}
    return segment.run(settings, **tokens, **places, launch="", recovery_folder=large)


@pytest.fixture(scope="module")
def whole(settings: Make, tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of an undisturbed segment."""
    folder = tmp_path_factory.mktemp("whole")
    train(settings(), tokens, folder, None)
    return chaos.result(folder)


@pytest.fixture
def begun(settings: Make, tokens: Tokens, tmp_path: Path) -> Path:
    """Return the folder of a segment with checkpoints in `large` and a missing milestone."""
    counts = train(settings(), tokens, tmp_path, tmp_path / "large/polder/run/tiny/10/code")
    assert counts["resumed_from"] is None
    shutil.rmtree(tmp_path / "milestone")
    return tmp_path


def large(folder: Path) -> Path:
    return folder / "large/polder/run/tiny/10/code"


def test_checkpoints_on_the_large_disk_are_found_through_the_scratch(begun: Path) -> None:
    assert sorted(path.name for path in large(begun).iterdir()) == ["6", "9"]
    assert sorted(path.parent.name for path in begun.glob("scratch/recovery/*/state.json")) == ["6", "9"]
    assert not list(large(begun).rglob("metrics.jsonl"))


@pytest.mark.parametrize("now", ["nowhere", "elsewhere", "there"])
def test_segment_keeps_the_scratch_folder_it_began_with(
    now: str, begun: Path, settings: Make, tokens: Tokens, whole: dict[str, Any]
) -> None:
    """Regardless of the current platform file and the variables on the node."""
    wanted = {"nowhere": None, "elsewhere": begun / "other", "there": large(begun)}[now]
    assert train(settings(), tokens, begun, wanted)["resumed_from"] == 9
    assert chaos.result(begun) == whole and not (begun / "other").exists()


def test_segment_begun_below_the_results_keeps_its_checkpoints_there(
    settings: Make, tokens: Tokens, tmp_path: Path, whole: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    train(settings(), tokens, tmp_path, None)
    shutil.rmtree(tmp_path / "milestone")
    assert train(settings(), tokens, tmp_path, large(tmp_path))["resumed_from"] == 9
    assert chaos.result(tmp_path) == whole and not large(tmp_path).exists()
    assert (
        f"recovery checkpoints stay in {tmp_path}/scratch/recovery, where this segment began" in capfd.readouterr().out
    )


PURGES: dict[str, tuple[Callable[[Path], None], int | None, str]] = {
    "all": (lambda path: shutil.rmtree(path.parents[3]), None, "is gone, as after a purge"),
    "the newest": (lambda path: shutil.rmtree(path / "9"), 6, "steps 7 to 10 are trained again"),
    "a file of the newest": (lambda path: (path / "9/rank-00000.safetensors").unlink(), 6, "safetensors is missing"),
    "every file": (lambda path: [file.unlink() for file in path.rglob("*.*")] and None, None, "steps 1 to 10 are"),
}


@pytest.mark.parametrize("purge", PURGES)
def test_purge_between_two_allocations_is_survived(
    purge: str,
    begun: Path,
    settings: Make,
    tokens: Tokens,
    whole: dict[str, Any],
    capfd: pytest.CaptureFixture[str],
) -> None:
    remove, expected, sentence = PURGES[purge]
    remove(large(begun))
    capfd.readouterr()
    assert train(settings(), tokens, begun, large(begun))["resumed_from"] == expected
    assert sentence in capfd.readouterr().err
    assert chaos.result(begun) == whole


def test_checkpoint_without_the_metrics_of_its_steps_is_not_used(
    begun: Path, settings: Make, tokens: Tokens, whole: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """If the results themselves are on a purged disk."""
    shutil.rmtree(begun / "scratch")
    assert train(settings(), tokens, begun, large(begun))["resumed_from"] is None
    warnings = capfd.readouterr().err
    for step in (9, 6):
        assert f"code/{step} is removed, because the metrics end at step 0, before its step {step}\n" in warnings
    assert chaos.result(begun) == whole


@pytest.mark.slow
def test_purge_during_a_training_loses_at_most_one_checkpoint(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    chosen = settings(last_step=60, steps=60)
    train(chosen, tokens, tmp_path / "whole", None)
    place, ended, purges = large(tmp_path / "purged"), threading.Event(), []

    def purge() -> None:
        while not ended.wait(0.05):
            if len(list(place.glob("[0-9]*"))) == 2 and len(purges) < 3:
                shutil.rmtree(tmp_path / "purged/large", ignore_errors=True)
                purges.append(time.monotonic())

    thread = threading.Thread(target=purge)
    thread.start()
    try:
        counts = train(chosen, tokens, tmp_path / "purged", place)
    finally:
        ended.set()
        thread.join()
    assert purges and counts["restarts"] == 0
    assert chaos.result(tmp_path / "purged") == chaos.result(tmp_path / "whole")


def test_superseded_training_stops_at_its_next_write(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    process = start_apart(settings(last_step=3000, steps=3000), tokens, tmp_path, "")
    path = tmp_path / "scratch/metrics.jsonl"
    deadline = time.monotonic() + 120
    while len(metrics.read_metrics(path)) < 5:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    later = Lease(tmp_path / "scratch")
    later.claim()
    message = process.communicate(timeout=60)[1].decode()
    assert process.returncode != 0
    assert f"Superseded: a later start of this step owns {tmp_path}/scratch" in message
    later.check()
    assert len(metrics.read_metrics(path)) < 3000 and not (tmp_path / "milestone").exists()


def test_unwritable_scratch_is_refused(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InputError, match=r"file/polder cannot be written \(Not a directory\): correct scratch in the plat"
    ):
        train(settings(), tokens, tmp_path, tmp_path / "file/polder")


@pytest.mark.parametrize(("keep_every", "left"), [(None, []), (3, ["6", "9"])])
def test_checkpoints_are_removed_after_the_segment_is_recorded(
    keep_every: int | None, left: list[str], begun: Path
) -> None:
    (large(begun) / "damaged-3").mkdir()
    recovery.remove_recovery_checkpoints(begun / "scratch", keep_every)
    assert sorted(path.name for path in begun.glob("large/polder/run/*/*/*/*")) == left
    assert (begun / "large").exists() and (begun / "large/polder/run").exists() == bool(left)
    assert (begun / "scratch/recovery").is_symlink() == bool(left)


def test_milestone_is_moved_to_the_results_and_scratch_is_removed(
    settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    """By the command line of the rule, with a variable that the job fills in."""
    run, module = tmp_path / "results/test", "pipeline.pretrain.segment"
    words = [sys.executable, "-m", "pipeline", "pretrain", "segment", "--settings", settings().model_dump_json()]
    words += ["--code", versions.code_version(module), "--environment", versions.environment_version(module, "cpu")]
    for name, path in tokens.items():
        words += ["--input", name, str(path)]
    words += ["--output", "milestone", str(run / "models/tiny/milestones/10")]
    words += ["--record", str(run / "provenance/records/segment.json"), "--scratch", str(run / "scratch/tiny/10/code")]
    words += ["--recovery", "$LARGE/polder/test-0/tiny/10/code"]
    environment = {**os.environ, "LARGE": str(tmp_path / "large")}
    (tmp_path / "large").mkdir()
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = json.loads((run / "provenance/records/segment.json").read_text())
    assert record["counts"]["failed_checkpoints"] == 0
    for entry in record["outputs"]:
        assert (run / entry["path"]).is_file() and not (run / entry["path"]).is_symlink()
    assert [path.relative_to(tmp_path / "large") for path in (tmp_path / "large").rglob("*")] == [Path("polder")]


def test_scratch_path_distinguishes_runs_with_equal_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {
        **yaml.safe_load(Path("config/micro.yaml").read_text()),
        "platform": "lumi",
        "slurm": {"account": "project_1"},
    }
    places = []
    for results in ("one", "other"):
        dag = Dag(parse_configuration({**raw, "run": {**raw["run"], "results": str(tmp_path / results)}}))
        wildcards = {"model": "base", "step": "4"}
        places.append(pretrain.recovery_folder(dag, wildcards))
        assert places[-1].endswith(pretrain.segment_scratch_folder(dag, wildcards).removeprefix(f"{dag.run}/scratch"))
    assert places[0] != places[1] and all(place.startswith("/scratch/project_1/polder/micro-") for place in places)
    assert pretrain.recovery_folder(Dag(parse_configuration(raw | {"platform": "local"})), wildcards) == ""
