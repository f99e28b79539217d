"""Asynchronous writing: the kept checkpoints, a full disk, and the checkpoint used for recovery."""

import json
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from pipeline.core.errors import InputError
from pipeline.pretrain.checkpoints import checkpoint, recovery
from pipeline.pretrain.checkpoints.checkpoint import CheckpointError, CheckpointReader, check_model_shape
from pipeline.pretrain.checkpoints.saver import Saver
from pipeline.pretrain.checkpoints.shard_layout import TensorShard, list_local_shards
from pipeline.pretrain.settings import SegmentSettings

Make = Callable[..., SegmentSettings]


class Numbers:
    """A state of one tensor instead of a model's."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(50_000, 10)

    def state_shards(self) -> list[TensorShard]:
        return list(list_local_shards("model.numbers", self.tensor))

    def optimizer_step_count(self) -> int:
        return int(self.tensor[0, 0])


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def saver(settings: Make, tmp_path: Path) -> Saver:
    numbers: Any = Numbers()
    return Saver(numbers, settings(keep_every=3), "mine", tmp_path / "recovery")


def numbers(saver: Saver) -> Tensor:
    (piece,) = saver.backend.state_shards()
    return piece.tensor


def save(saver: Saver, *steps: int) -> None:
    for step in steps:
        numbers(saver).fill_(step)
        saver.save(step, {})
        saver.wait_until_copied()
        numbers(saver).fill_(-1)  # the training continues
    saver.wait()


def names(saver: Saver) -> list[str]:
    return sorted(path.name for path in saver.folder.iterdir())


def test_newest_two_and_every_third_checkpoint_are_kept_unchanged(saver: Saver) -> None:
    save(saver, *range(1, 9))
    assert names(saver) == ["3", "6", "7", "8"]
    for step in (3, 6, 7, 8):
        reader = CheckpointReader(saver.folder / str(step))
        assert (reader.read("model.numbers") == step).all() and reader.state["optimizer_step"] == step


def test_full_disk_is_detected_before_writing(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    save(saver, 1)
    usage = shutil.disk_usage(saver.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10**6))
    with pytest.raises(CheckpointError, match=r"has 0.00 GB free and a checkpoint takes 0.02 GB: free space there"):
        saver.save(2, {})
    assert names(saver) == ["1"] and recovery.find_damage(saver.folder / "1") is None
    monkeypatch.undo()
    save(saver, 2)
    assert names(saver) == ["1", "2"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_disk_that_fills_while_writing_keeps_the_previous_checkpoint(saver: Saver) -> None:
    save(saver, 1)
    with files_of_at_most(10**6):
        saver.save(2, {})
        with pytest.raises(CheckpointError, match=r"step 2 was not written \(.*\); earlier ones are intact"):
            saver.wait()
    assert names(saver) == ["1"] and not saver.failed
    save(saver, 2)
    assert names(saver) == ["1", "2"]


def test_leftovers_of_a_killed_process_are_removed(saver: Saver) -> None:
    save(saver, 1)
    (saver.folder / ".partial-2").mkdir()
    Saver(saver.backend, saver.settings, "mine", saver.folder)
    assert names(saver) == ["1"]


def alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: alter(folder / "rank-00000.safetensors"), "rank-00000.safetensors was altered"),
        (lambda folder: (folder / "rank-00000.safetensors").unlink(), "rank-00000.safetensors is missing"),
        (lambda folder: (folder / "rank-00000.safetensors").write_bytes(b"1"), "has 1 of "),
        (lambda folder: (folder / "state.json").write_text("{"), "state.json is missing or torn"),
        (lambda folder: (folder / "state.json").unlink(), "state.json is missing or torn"),
    ],
)
def test_damaged_checkpoint_is_set_aside_and_the_previous_one_used(
    damage: Callable[[Path], None], message: str, saver: Saver, capsys: pytest.CaptureFixture[str]
) -> None:
    save(saver, 1, 2)
    damage(saver.folder / "2")
    assert recovery.select_newest_valid(saver.folder, "mine", 2) == saver.folder / "1"
    warning = capsys.readouterr().err
    assert (
        warning.startswith(f"warning: {saver.folder}/2/")
        and message in warning
        and "the previous one is used" in warning
    )
    assert names(saver) == ["1", "damaged-2"]


def test_checkpoint_of_another_training_is_removed_with_a_warning(
    saver: Saver, capsys: pytest.CaptureFixture[str]
) -> None:
    save(saver, 1)
    assert recovery.select_newest_valid(saver.folder, "other", 1) is None
    assert f"warning: {saver.folder}/1 belongs to other settings" in capsys.readouterr().err and not names(saver)


def test_checkpoint_of_another_shape_is_refused_by_name(saver: Saver, settings: Make, tmp_path: Path) -> None:
    save(saver, 1)
    with pytest.raises(InputError, match=r"blocks.0.attention.key.weight is none in it and \(16, 32\) in the conf"):
        check_model_shape(saver.folder / "1", settings().architecture, 304)


def test_checkpoint_with_a_gap_is_not_read(saver: Saver) -> None:
    save(saver, 1)
    path = saver.folder / "1/state.json"
    state = json.loads(path.read_text())
    state["files"]["rank-00000.safetensors"]["pieces"] = {}
    path.write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match=r"has 0 of 500000 elements of model\.numbers"):
        CheckpointReader(saver.folder / "1").read("model.numbers")


def test_optimizer_step_does_not_wait_for_the_file(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    stepped, write, waited = threading.Event(), checkpoint.write_tensors, []
    monkeypatch.setattr(checkpoint, "write_tensors", lambda *given: (waited.append(stepped.wait(60)), write(*given))[1])
    tensor = numbers(saver).fill_(2)
    tensor.grad = torch.ones_like(tensor)
    saver.save(1, {})
    torch.optim.SGD([tensor], lr=1.0).step()
    stepped.set()
    saver.wait()
    assert waited == [True] and (CheckpointReader(saver.folder / "1").read("model.numbers") == 2).all()


def test_disk_state_is_written_in_place_and_the_optimizer_waits(
    settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: Any = Numbers()
    chosen = settings(backend="deepspeed", strategy="zero3_optimizer_on_disk")
    saver = Saver(state, chosen, "mine", tmp_path / "recovery")
    assert not saver._buffer.numel()  # there is no memory for it
    write = checkpoint.write_tensors
    monkeypatch.setattr(checkpoint, "write_tensors", lambda *given: (time.sleep(0.3), write(*given))[1])
    tensor = numbers(saver).fill_(2)
    tensor.grad = torch.ones_like(tensor)
    optimizer = torch.optim.SGD([tensor], lr=1.0)
    optimizer.step()
    saver.save(1, {})
    optimizer.step()
    saver.wait()
    assert (tensor == 0).all() and (CheckpointReader(saver.folder / "1").read("model.numbers") == 1).all()


def test_optimizer_step_waits_for_the_state_copy(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = saver._copy_to_host
    monkeypatch.setattr(saver, "_copy_to_host", lambda *given: (time.sleep(0.3), copy(*given))[1])
    tensor = numbers(saver).fill_(2)
    tensor.grad = torch.ones_like(tensor)
    optimizer = torch.optim.SGD([tensor], lr=1.0)
    optimizer.step()  # the first one takes seconds of imports
    saver.save(1, {})
    optimizer.step()
    saver.wait()
    assert (tensor == 0).all() and (CheckpointReader(saver.folder / "1").read("model.numbers") == 1).all()
