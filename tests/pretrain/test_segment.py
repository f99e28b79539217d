"""Training: every strategy and world size gives the same model, and an interruption leaves no trace."""

import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from pipeline.core.errors import InputError
from pipeline.plan.sharding_strategy_definitions import STRATEGIES
from pipeline.pretrain import segment
from pipeline.pretrain.checkpoints.checkpoint import CheckpointReader
from pipeline.pretrain.checkpoints.recovery import training_identity
from pipeline.pretrain.monitors import metrics
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokens.memory_mapped_shards import map_record_batches

pytestmark = pytest.mark.usefixtures("warm_processes")
Make = Callable[..., SegmentSettings]
Tokens = dict[str, Path]
TWO = "torchrun --standalone --nproc-per-node=2"


def train(settings: SegmentSettings, tokens: Tokens, folder: Path, launch: str = "", **other: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    places = {"milestone": folder / "milestone", "scratch": folder / "scratch", "previous": [], **other}
    return segment.run(settings, **tokens, **places, launch=launch)


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in metrics.read_metrics(folder / "milestone/metrics.jsonl") if "loss" in line]


def hashes(folder: Path) -> list[str]:
    files = sorted((folder / "milestone").glob("*.safetensors"))
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]


@pytest.fixture(scope="module")
def alone(settings: Make, tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of ten steps in one process."""
    folder = tmp_path_factory.mktemp("alone")
    train(settings(), tokens, folder)
    return folder


LONG = {"steps": 40, "checkpoint_every": 5}


def long_settings(settings: Make, strategy: str) -> SegmentSettings:
    return settings(last_step=40, backend=STRATEGIES[strategy].backend, strategy=strategy, **LONG)


@pytest.fixture(scope="module")
def undisturbed(settings: Make, tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return a function that gives the folder of forty steps with a strategy and a launch command, made once."""
    made: dict[tuple[str, str], Path] = {}

    def folder(strategy: str, launch: str) -> Path:
        key = strategy, launch
        if key not in made:
            made[key] = tmp_path_factory.mktemp(strategy)
            train(long_settings(settings, strategy), tokens, made[key], launch)
        return made[key]

    return folder


def trivial_losses(index: Path) -> dict[str, float]:
    """Return the held-out token losses by counts of training tokens and pairs, from the tables."""
    described = json.loads(index.read_text())
    rows: dict[str, list[list[int]]] = {"train": [], "validation": []}
    counts, pairs = Counter[int](), Counter[tuple[int, int]]()
    for split, result in rows.items():
        for entry in described[split]["shards"]:
            for batch in map_record_batches(index.parent / entry["path"])[1]:
                result += batch["tokens"].to_pylist()
                if split == "train":
                    row = [token for document in batch["tokens"].to_pylist() for token in document]
                    counts.update(row)
                    pairs.update(pairwise(row))
    total = sum(counts.values()) + described["vocabulary_size"]
    asked = [pair for row in rows["validation"] for pair in pairwise(row)]
    alone = [(counts[token] + 1) / total for _, token in asked]
    after = [0.7 * pairs[pair] / (counts[pair[0]] or 1) + 0.3 * p for pair, p in zip(asked, alone, strict=True)]
    losses = {"unigram_loss": alone, "bigram_loss": after}
    return {name: -sum(map(math.log, each)) / len(each) for name, each in losses.items()}


def run_of_the_page(folder: Path, index: Path, step: int, sequence_length: int) -> float:
    """Return the output of the code lines in docs/reference/metrics.md for a milestone, in a folder like a run's."""
    page = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"## Validation loss with plain Transformers.*?```python\n(.*?)```", page, re.DOTALL)
    run = folder / "run"
    for link, target in (
        ("tokens/main", index.parent),
        (f"models/base/milestones/{step}", folder / "milestone"),
    ):
        (run / link).parent.mkdir(parents=True, exist_ok=True)
        (run / link).symlink_to(target)
    lines = lines.replace('Path("results/demo")', repr(run).replace("PosixPath", "Path"))
    lines = lines.replace('"base", 120, "main", 128', f'"base", {step}, "main", {sequence_length}')
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_segment_reduces_the_loss_and_writes_a_complete_milestone(
    settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    chosen = settings(validation_every=5, peak_flops_per_second=1e9)
    began = time.time()
    counts = train(chosen, tokens, tmp_path)
    *lines, table = metrics.read_metrics(tmp_path / "milestone/metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 11))
    assert [line["step"] for line in lines if "validation_loss" in line] == [5, 10]
    assert losses(tmp_path)[-1] < losses(tmp_path)[0] - 0.5
    last = lines[-2]
    assert last["hardware_flops_utilization"] == last["model_flops_utilization"]
    assert last["memory_used_bytes"] > 1e7 and 0 <= last["data_stall_seconds"] <= last["seconds"]
    ends = [line["ended_unix_seconds"] for line in lines if "loss" in line]
    assert ends == sorted(ends) and began < ends[0] < ends[-1] < time.time(), "joules belong to a step"
    assert counts["device"] == "CPU" and counts["peak_flops_per_second"] == 1e9
    assert lines[-1]["validation_loss/source/words"] == pytest.approx(lines[-1]["validation_loss"])
    assert lines[-1]["validation_bits_per_byte/language/nl"] == pytest.approx(lines[-1]["validation_bits_per_byte"])
    assert last["tokens_seen"] == counts["tokens_seen"] == 10 * 4 * 32 and last["memory_bytes"] > 1e7
    assert last["model_flops_utilization"] > 0 and counts["world_size"] == 1 and counts["resumed_from"] is None
    index = json.loads(tokens["index"].read_text())["validation"]
    predicted = index["tokens"] - index["documents"]  # begin-of-text is never predicted
    nats_per_byte = lines[-1]["validation_loss"] * predicted / index["bytes"]
    seen = {"documents": index["documents"], "tokens": predicted, "bytes": index["bytes"]}
    seen |= {"of_documents": index["documents"], "of_tokens": predicted}
    trained_on = json.loads(tokens["index"].read_text())["train"]["tokens"]
    counted = {"counted_tokens": trained_on, "of_training_tokens": trained_on}
    expected = seen | counted | trivial_losses(tokens["index"])
    assert counts["validation"] == pytest.approx(expected, rel=1e-9)
    assert lines[-1]["validation_bits_per_byte"] == pytest.approx(nats_per_byte / 0.6931471805599453)
    documents = table["document_losses"]
    nats, sizes = sum(documents["nats"]), sum(documents["tokens"])
    assert len(documents["id_hash"]) == index["documents"] and sizes == predicted
    assert table["step"] == 10 and not any("document_losses" in line for line in lines)
    assert nats / sizes == pytest.approx(lines[-1]["validation_loss"], rel=1e-12), "of the last validation"
    printed = run_of_the_page(tmp_path, tokens["index"], step=10, sequence_length=32)
    assert printed == pytest.approx(lines[-1]["validation_loss"], abs=1e-5)
    state = json.loads((tmp_path / "milestone/state.json").read_text())
    assert state["step"] == 10 and state["files"]["rank-00000.safetensors"]["sha256"] == hashes(tmp_path)[0]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "milestone/huggingface")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "milestone/huggingface")) == model.config.vocab_size == 304
    assert model.config.eos_token_id == json.loads(tokens["index"].read_text())["end_of_text_id"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["full_shard", pytest.param("zero3", marks=pytest.mark.thorough)])
def test_two_processes_equal_one(strategy: str, undisturbed: Callable[[str, str], Path]) -> None:
    """The whole segment of both backends; all strategies are compared in test_parity."""
    one, two = undisturbed("full_shard", ""), undisturbed(strategy, TWO)
    assert losses(two)[:10] == pytest.approx(losses(one)[:10], abs=1e-5)
    expected, result = (CheckpointReader(folder / "milestone") for folder in (one, two))
    assert expected.shapes == result.shapes
    for key in expected.shapes:
        assert (result.read(key) - expected.read(key)).norm() < 0.02 * expected.read(key).norm(), key


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "strategy"), [("fsdp", "full_shard"), ("deepspeed", "zero1"), ("fsdp", "no_shard")]
)
def test_bf16_stays_close_to_fp32(
    backend: str, strategy: str, settings: Make, tokens: Tokens, tmp_path: Path, alone: Path
) -> None:
    train(settings(backend=backend, strategy=strategy, precision="bf16"), tokens, tmp_path)
    assert losses(tmp_path) == pytest.approx(losses(alone), abs=0.03)
    assert losses(tmp_path) != pytest.approx(losses(alone), abs=1e-6)


def start_apart(settings: SegmentSettings, tokens: Tokens, folder: Path, launch: str) -> subprocess.Popen[bytes]:
    """Start a segment as a separate process that a test can kill."""
    program = (
        "import sys, json; from pathlib import Path; from pipeline.pretrain import segment;"
        "from pipeline.pretrain.settings import SegmentSettings; a = json.loads(sys.argv[1]);"
        "segment.run(SegmentSettings.model_validate(a['settings']), previous=[], launch=a['launch'],"
        " **{n: Path(p) for n, p in a['paths'].items()})"
    )
    folder.mkdir(exist_ok=True)
    paths = {**tokens, "milestone": folder / "milestone", "scratch": folder / "scratch"}
    arguments = {"settings": settings.model_dump(mode="json"), "launch": launch}
    text = json.dumps({**arguments, "paths": {name: str(path) for name, path in paths.items()}})
    return subprocess.Popen([sys.executable, "-c", program, text], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def wait_for_step(folder: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    path = folder / "scratch/metrics.jsonl"
    while not any(line["step"] >= step for line in metrics.read_metrics(path)):
        assert time.monotonic() < deadline and process.poll() is None, "it ended too early"
        time.sleep(0.01)


def workers_of(folder: Path) -> list[int]:
    """Return the processes with this folder in their command line."""
    results = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if b"pipeline.pretrain.processes.worker" in words and str(folder).encode() in words:
            results.append(int(path.parent.name))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["full_shard", pytest.param("zero3", marks=pytest.mark.thorough)])
def test_killed_and_resumed_segment_gives_the_same_bytes(
    strategy: str, settings: Make, tokens: Tokens, tmp_path: Path, undisturbed: Callable[[str, str], Path]
) -> None:
    chosen = long_settings(settings, strategy)
    process = start_apart(chosen, tokens, tmp_path, TWO)
    wait_for_step(tmp_path, random.Random(strategy).randrange(11, 30), process)
    assert len(workers_of(tmp_path)) >= 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    path = tmp_path / "scratch/metrics.jsonl"
    reached, deadline = metrics.read_metrics(path)[-1]["step"], time.monotonic() + 60
    while workers_of(tmp_path):
        assert time.monotonic() < deadline, "processes outlive the run"
        time.sleep(0.05)
    process.communicate()
    assert metrics.read_metrics(path)[-1]["step"] <= reached + 2, "they outlived it and continued training"
    counts = train(chosen, tokens, tmp_path, TWO)
    assert counts["resumed_from"] % 5 == 0 and counts["resumed_from"] >= 5
    whole = undisturbed(strategy, TWO)
    assert hashes(tmp_path) == hashes(whole)
    assert losses(tmp_path) == losses(whole)
    assert sorted(path.name for path in (tmp_path / "scratch/recovery").iterdir()) == ["30", "35"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "launch"), [pytest.param(signal.SIGTERM, TWO, marks=pytest.mark.thorough), (signal.SIGUSR1, "")]
)
def test_signal_ends_in_a_checkpoint(
    number: signal.Signals, launch: str, settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    chosen = settings(last_step=120, steps=120, checkpoint_every=0)
    process = start_apart(chosen, tokens, tmp_path / "run", launch)
    wait_for_step(tmp_path / "run", 10, process)
    process.send_signal(number)
    message = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 1 and "Stopped: as asked by a signal after step" in message
    assert "with a recovery checkpoint of step" in message
    (recovery,) = (tmp_path / "run/scratch/recovery").iterdir()
    assert 10 <= int(recovery.name) < 120
    counts = train(chosen, tokens, tmp_path / "run", launch)
    assert counts["resumed_from"] == int(recovery.name) and counts["steps"] == 120


def test_two_segments_equal_one(settings: Make, tokens: Tokens, tmp_path: Path, alone: Path) -> None:
    train(settings(last_step=6, validation_every=4), tokens, tmp_path / "first")
    previous = [tmp_path / "first/milestone"]
    train(settings(first_step=6, validation_every=4), tokens, tmp_path / "second", previous=previous)
    ends = [metrics.read_metrics(tmp_path / name / "milestone/metrics.jsonl")[-1] for name in ("first", "second")]
    assert ["document_losses" in line for line in ends] == [False, True], "earlier validations are not of it"
    assert losses(tmp_path / "first") + losses(tmp_path / "second") == losses(alone)
    assert hashes(tmp_path / "second") == hashes(alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [
        {"precision": "bf16", "strategy": "full_shard"},
        {"precision": "bf16", "strategy": "no_shard", "mesh": {"tensor": 2}},
        {"precision": "bf16", "strategy": "no_shard", "mesh": {"pipeline": 2}, "schedule": "wsd"},
        {"strategy": "no_shard", "mesh": {"context": 2}, "deterministic": False},
    ],
    ids=lambda training: "-".join([training.get("precision", "fp32"), *training.get("mesh", {"full_shard": 2})]),
)
def test_half_precision_mesh_resumes_with_the_same_bytes(
    training: dict[str, Any], settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    counts = train(settings(**training), tokens, tmp_path, TWO)
    assert counts["deterministic"] == training.get("deterministic", True)
    whole = hashes(tmp_path), losses(tmp_path)
    shutil.rmtree(tmp_path / "milestone")
    shutil.rmtree(tmp_path / "scratch/recovery/9")  # so that more than one step is repeated
    again = train(settings(**training), tokens, tmp_path, TWO)
    assert again["resumed_from"] == 6 and again["resumed_layout"]["world_size"] == 2
    assert (hashes(tmp_path), losses(tmp_path)) == whole


@pytest.mark.slow
def test_stopped_segment_continues_under_another_strategy(
    settings: Make, tokens: Tokens, tmp_path: Path, alone: Path
) -> None:
    train(settings(), tokens, tmp_path)
    shutil.rmtree(tmp_path / "milestone")
    other = settings(backend="deepspeed", strategy="zero2", keep_checkpoints=5)
    counts = train(other, tokens, tmp_path, TWO)
    assert counts["resumed_from"] == 9
    assert counts["resumed_layout"] == {"backend": "fsdp", "strategy": "full_shard", "world_size": 1}
    assert losses(tmp_path) == pytest.approx(losses(alone), abs=1e-5)


@pytest.mark.slow
def test_milestone_moves_to_the_other_backend(settings: Make, tokens: Tokens, tmp_path: Path, alone: Path) -> None:
    train(settings(last_step=6), tokens, tmp_path / "first")
    other = settings(first_step=6, backend="deepspeed", strategy="zero3")
    train(other, tokens, tmp_path / "second", TWO, previous=[tmp_path / "first/milestone"])
    assert losses(tmp_path / "second") == pytest.approx(losses(alone)[6:], abs=1e-4)


@pytest.mark.slow
def test_tied_embeddings_train_and_resume(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    tied = {"tie_embeddings": True}
    train(settings(architecture=tied), tokens, tmp_path / "whole")
    train(settings(last_step=5, architecture=tied), tokens, tmp_path / "first")
    previous = [tmp_path / "first/milestone"]
    train(settings(first_step=5, architecture=tied), tokens, tmp_path / "second", previous=previous)
    assert hashes(tmp_path / "second") == hashes(tmp_path / "whole")
    assert "model.output.weight" not in CheckpointReader(tmp_path / "whole/milestone").shapes


@pytest.mark.slow
def test_qwen3_with_muon_resumes_bitwise_and_in_two_processes(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    def chosen(**changes: Any) -> SegmentSettings:
        shape = {"preset": "qwen3", "head_width": 16}
        return settings(architecture=shape, optimizer="muon", z_loss=1e-3, decay_embedding=False, **changes)

    train(chosen(), tokens, tmp_path / "whole")
    train(chosen(last_step=5), tokens, tmp_path / "first")
    previous = [tmp_path / "first/milestone"]
    train(chosen(first_step=5), tokens, tmp_path / "second", previous=previous)
    assert hashes(tmp_path / "second") == hashes(tmp_path / "whole")
    train(chosen(first_step=5), tokens, tmp_path / "two", TWO, previous=previous)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "whole")[5:], abs=1e-5)
    assert losses(tmp_path / "whole")[-1] < losses(tmp_path / "whole")[0] - 0.3
    assert isinstance(AutoModelForCausalLM.from_pretrained(tmp_path / "two/milestone/huggingface"), Qwen3ForCausalLM)


def test_diverging_loss_stops_with_advice(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    chosen = settings(learning_rate=1e30, warmup_steps=0, gradient_clip=0)
    with pytest.raises(RuntimeError, match=r"of step .* lower learning_rate"):
        train(chosen, tokens, tmp_path)
    assert not (tmp_path / "milestone").exists()


@pytest.mark.parametrize(
    ("training", "launch", "message"),
    [
        ({"batch_size": 6}, "torchrun --nproc-per-node=4", "batch_size 6 is not divisible by 4 processes"),
        ({"sequence_length": 10**6}, "", "sequence_length 1000000"),
        ({}, "torchrun --nproc-per-node=auto", "--nproc-per-node"),
        ({}, "torchrun '--nproc-per-node=2", "torchrun '.* is not a command line .*: close its quotes"),
        ({"mesh": {"tensor": 2}}, "torchrun --nproc-per-node=3", "3 processes are not divisible by training.mesh"),
    ],
)
def test_unworkable_settings_are_refused_before_training(
    training: dict[str, Any], launch: str, message: str, settings: Make, tokens: Tokens, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        train(settings(**training), tokens, tmp_path, launch)
    assert not (tmp_path / "scratch").exists()


def test_shard_altered_after_indexing_is_refused(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    copied = shutil.copytree(tokens["index"].parent, tmp_path / "tokens")
    whole = (copied / "train.arrow").read_bytes()
    place = whole.index(b"words/all/")
    (copied / "train.arrow").write_bytes(whole[:place] + b"wards" + whole[place + 5 :])
    with pytest.raises(InputError, match=r"train\.arrow has other bytes than .*index\.json says: it was altered"):
        train(settings(), {**tokens, "index": copied / "index.json"}, tmp_path / "run")
    assert not (tmp_path / "run/scratch").exists()


def test_segment_with_other_tokens_than_before_is_refused(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    read = hashlib.sha256(tokens["index"].read_bytes()).hexdigest()
    others = settings().model_copy(update={"index_sha256": "0" * 64})
    with pytest.raises(InputError, match=r"index\.json differs from the tokens that this .* up to step 0: undo"):
        train(others, tokens, tmp_path)
    same = settings().model_copy(update={"index_sha256": read})
    with pytest.raises(InputError, match="launch: mpi-run cannot be started"):  # the messages after this are inspected
        train(same, tokens, tmp_path, "mpi-run -n 1")


def test_execution_settings_do_not_invalidate_recovery_checkpoints(settings: Make, tokens: Tokens) -> None:
    restarted = settings().model_copy(update={"index_sha256": "0" * 64, "energy_options": "--gpu-freq=1200"})
    assert training_identity(restarted, tokens["index"], None) == training_identity(settings(), tokens["index"], None)
    assert training_identity(settings(learning_rate=0.1), tokens["index"], None) != training_identity(
        settings(), tokens["index"], None
    )


def test_missing_launch_command_is_refused(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="launch: mpi-run cannot be started"):
        train(settings(), tokens, tmp_path, "mpi-run -n 1")


def test_missing_gpu_on_a_gpu_platform_is_refused(settings: Make, tokens: Tokens, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match="platform snellius has cuda devices, but"):
        train(settings(), tokens, tmp_path, platform="snellius")
    assert not (tmp_path / "milestone").exists()


def test_missing_or_wrong_previous_milestone_is_refused(
    settings: Make, tokens: Tokens, tmp_path: Path, alone: Path
) -> None:
    with pytest.raises(InputError, match="needs one milestone as previous, not 0"):
        train(settings(first_step=5), tokens, tmp_path)
    with pytest.raises(InputError, match="is of step 10, not 5"):
        train(settings(first_step=5), tokens, tmp_path, previous=[alone / "milestone"])
    last = {"first_step": 10, "last_step": 12, "steps": 12}
    with pytest.raises(InputError, match=r"of another shape: .* in it and .* in the configuration"):
        train(settings(**last, architecture={"width": 64}), tokens, tmp_path, previous=[alone / "milestone"])
    altered = shutil.copytree(alone / "milestone", tmp_path / "altered")
    for content in ("[1]", '{"step": '):
        (altered / "state.json").write_text(content)
        with pytest.raises(InputError, match=r"altered is no milestone"):
            train(settings(**last), tokens, tmp_path, previous=[altered])
    shutil.copy(alone / "milestone/state.json", altered)
    content = bytearray((altered / "rank-00000.safetensors").read_bytes())
    content[-1] ^= 1
    (altered / "rank-00000.safetensors").write_bytes(content)
    with pytest.raises(
        InputError, match=r"rank-00000.safetensors was altered .*: remove .*/altered, and the run trains"
    ):
        train(settings(**last), tokens, tmp_path, previous=[altered])
    with pytest.raises(InputError, match="another tokenizer"):
        train(settings(), {**tokens, "tokenizer": tokens["configuration"]}, tmp_path)


def test_broken_or_foreign_recovery_is_not_used(settings: Make, tokens: Tokens, tmp_path: Path, alone: Path) -> None:
    for name, change in (("3", "foreign"), ("6", "short"), ("9", "empty")):
        folder = tmp_path / "scratch/recovery" / name
        folder.mkdir(parents=True)
        if change == "empty":
            continue
        state = json.loads((alone / "scratch/recovery/9/state.json").read_text())
        for file in state["files"]:
            content = (alone / "scratch/recovery/9" / file).read_bytes()
            (folder / file).write_bytes(content[:-1] if change == "short" else content)
        state["identity"] = "0" * 64 if change == "foreign" else state["identity"]
        (folder / "state.json").write_text(json.dumps(state))
    chosen = settings()
    counts = train(chosen, tokens, tmp_path)
    assert counts["resumed_from"] is None and hashes(tmp_path) == hashes(alone)


def test_recovery_continues_under_another_strategy_with_equal_hyperparameters(
    settings: Make, tokens: Tokens, tmp_path: Path, alone: Path
) -> None:
    changed = {"strategy": "no_shard", "micro_batch_size": 2, "stability": {"hang_seconds": 900}}
    for name, training, step in (("same", changed, 9), ("other", {"learning_rate": 0.02}, None)):
        shutil.copytree(alone / "scratch", tmp_path / name / "scratch")
        counts = train(settings(**training), tokens, tmp_path / name)
        assert counts["resumed_from"] == step
    assert losses(tmp_path / "same")[-1] == pytest.approx(losses(alone)[-1], abs=1e-6)


def test_no_process_remains(tmp_path: Path) -> None:
    assert not [pid for pid in workers_of(tmp_path.parent) if pid != os.getpid()]
