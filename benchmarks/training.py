"""Tokens per second of CPU training, against Hugging Face's Trainer and a plain PyTorch loop.

    PYTHONPATH=. python benchmarks/training.py [--rounds 3] [--steps 25] [--shape small] [--precision bf16]

All sides train the same Llama from the same weights on the same batches with fp32 AdamW, clipping and learning rate;
the benchmark fails if their losses differ. In bf16 the peers use autocast, as Trainer does. Each side is a process
with two threads; sides alternate for several rounds, and the median step after the first five counts. The last two
rows are two processes of one thread each: the cost of sharding.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.corpus.documents import FINAL_SCHEMA, id_hash
from pipeline.pretrain.settings import SegmentSettings
from pipeline.tokens.sampler import Sampler
from pipeline.tokens.token_reader import TokenReader

WARM_UP_STEPS = 5
SEED, VOCABULARY_SIZE = 11, 8192
SHAPES = {
    "tiny": {"layers": 4, "width": 256, "heads": 4, "key_value_heads": 2},
    "small": {"layers": 8, "width": 512, "heads": 8, "key_value_heads": 4},
}
TRAINING = {"sequence_length": 256, "batch_size": 8, "minimum_learning_rate_fraction": 1.0, "learning_rate": 3e-4}
TWO = "torchrun --standalone --nproc-per-node=2"
ONE: dict[str, Any] = {"strategy": "no_shard", "micro_batch_size": 8, "threads": 2, "launch": ""}
OURS: dict[str, dict[str, Any]] = {
    "polder": ONE,
    "polder, compiled": {**ONE, "compile": True},
    "polder, no_shard, 2 processes": {"strategy": "no_shard", "micro_batch_size": 4, "threads": 1, "launch": TWO},
    "polder, full_shard, 2 processes": {"strategy": "full_shard", "micro_batch_size": 4, "threads": 1, "launch": TWO},
}
PEERS = ("trainer", "plain")
LOSSES_APART = {"fp32": 1e-3, "bf16": 5e-2}


def write_tokens(folder: Path) -> dict[str, Path]:
    """Write a token set of random words and return the inputs of pretrain.segment."""
    from pipeline.tokenizer import train
    from pipeline.tokenizer.settings import TrainSettings
    from pipeline.tokens import index, shard
    from pipeline.tokens.settings import IndexSettings, ShardSettings

    draw = np.random.default_rng(3)
    words = ["".join(chr(97 + letter) for letter in draw.integers(0, 26, size)) for size in draw.integers(3, 9, 9000)]
    rows = []
    for number in range(1000):
        name = f"words/{number}"
        row = {"id": name, "text": " ".join(draw.choice(words, size=400)), "language": "nl", "language_score": 1.0}
        rows.append(
            {
                **row,
                "source": "words",
                "license": "CC0-1.0",
                "flags": [],
                "cluster": name,
                "cluster_size": 1,
                "id_hash": id_hash(name),
            }
        )
    rows.sort(key=lambda row: (row["id_hash"], row["id"]))
    documents = folder / "documents.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=FINAL_SCHEMA), documents)
    paths = {"tokenizer": folder / "tokenizer.json", "configuration": folder / "tokenizer_config.json"}
    train.run(TrainSettings(vocabulary_size=VOCABULARY_SIZE, validation_fraction=0.01), documents=[documents], **paths)
    splits = {name: folder / f"{name}.arrow" for name in ("train", "validation")}
    shard_settings = ShardSettings(shard=0, shards=1, validation_fraction=0.01)
    shard.run(shard_settings, tokenizer=paths["tokenizer"], documents=[documents], **splits)
    paths["index"] = folder / "index.json"
    index.run(IndexSettings(shards=1), **{name: [path] for name, path in splits.items()}, index=paths["index"])
    return paths


def settings_of(options: argparse.Namespace, **training: Any) -> SegmentSettings:
    """Return the settings of one competitor."""
    chosen = {**TRAINING, "steps": options.steps, "checkpoint_every": 0, "micro_batch_size": 8, **training}
    chosen["precision"] = options.precision
    values = {"seed": SEED, "first_step": 0, "last_step": options.steps}
    return SegmentSettings.model_validate({**values, "architecture": SHAPES[options.shape], "training": chosen})


def ours(options: argparse.Namespace, name: str) -> None:
    """Train with pretrain.segment and print seconds and losses of the steps."""
    from pipeline.pretrain import segment
    from pipeline.pretrain.monitors import metrics

    chosen = dict(OURS[name])
    launch = str(chosen.pop("launch"))
    paths = {
        key: options.tokens / file for key, file in json.loads((options.tokens / "paths.json").read_text()).items()
    }
    with tempfile.TemporaryDirectory() as folder:
        places = {"milestone": Path(folder) / "milestone", "scratch": Path(folder) / "scratch", "previous": []}
        segment.run(settings_of(options, **chosen), **paths, **places, launch=launch)
        lines = [line for line in metrics.read_metrics(places["milestone"] / "metrics.jsonl") if "loss" in line]
    print(json.dumps({"seconds": [line["seconds"] for line in lines], "losses": [line["loss"] for line in lines]}))


def trainer(options: argparse.Namespace, sampler: Sampler) -> None:
    """Train with Hugging Face's Trainer and print seconds and losses of the steps."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    from pipeline.model.llama_network import huggingface_config, huggingface_name
    from pipeline.model.networks import initial_state

    settings = settings_of(options)
    shape = huggingface_config(settings.architecture, sampler.reader.vocabulary_size, sampler.sequence_length)
    model = LlamaForCausalLM(LlamaConfig.from_dict({**shape, "use_cache": False}))
    state = initial_state(settings.architecture, sampler.reader.vocabulary_size, SEED)
    model.load_state_dict({huggingface_name(name): tensor for name, tensor in state.items()})

    batch_size = max(sampler.batches.batch_sizes)

    class Sequences(torch.utils.data.Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return options.steps * batch_size

        def __getitem__(self, number: int) -> dict[str, Any]:
            step, place = divmod(number, batch_size)
            inputs_BT, targets_BT = sampler.read_batch(step, place, batch_size)
            return {"input_ids": inputs_BT[0], "labels": targets_BT[0], "shift_labels": targets_BT[0]}

    class Timed(Trainer):
        losses: list[float] = []

        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, *arguments: Any, **named: Any) -> Any:
            loss = super().compute_loss(*arguments, **named)
            self.losses.append(float(loss))
            return loss

    class Clock(TrainerCallback):
        ends: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.perf_counter())

    training = settings.training
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            bf16=options.precision == "bf16",
            max_steps=options.steps,
            per_device_train_batch_size=training.batch_size,
            learning_rate=training.learning_rate,
            lr_scheduler_type="constant",
            weight_decay=training.weight_decay,
            adam_beta1=training.beta1,
            adam_beta2=training.beta2,
            adam_epsilon=training.epsilon,
            max_grad_norm=training.gradient_clip,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        Timed(model=model, args=arguments, train_dataset=Sequences(), callbacks=[Clock()]).train()
    seconds = [0.0, *np.diff(Clock.ends).tolist()]
    print(json.dumps({"seconds": seconds, "losses": Timed.losses}))


def plain(options: argparse.Namespace, sampler: Sampler) -> None:
    """Train the same model in the shortest loop that does so, and print seconds and losses of the steps."""
    import torch
    from torch.nn.functional import cross_entropy

    from pipeline.model.llama_network import Llama
    from pipeline.model.networks import initial_state

    settings = settings_of(options)
    training = settings.training
    model = Llama(settings.architecture, sampler.reader.vocabulary_size)
    model.load_state_dict(initial_state(settings.architecture, sampler.reader.vocabulary_size, SEED))
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=training.learning_rate, betas=(training.beta1, training.beta2), eps=training.epsilon
    )
    seconds, losses = [], []
    for step in range(options.steps):
        began = time.perf_counter()
        inputs_BT, targets_BT = map(torch.from_numpy, sampler.read_batch(step))
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
            loss = cross_entropy(model(inputs_BT).flatten(0, 1), targets_BT.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"seconds": seconds, "losses": losses}))


def compete(options: argparse.Namespace, name: str) -> dict[str, list[float]]:
    """Run one competitor in a process of its own and return seconds and losses of its steps."""
    command = [sys.executable, __file__, "--only", name, "--tokens", str(options.tokens)]
    command += ["--steps", str(options.steps), "--shape", options.shape, "--precision", options.precision]
    environment = {**os.environ, "OMP_NUM_THREADS": "2" if name in PEERS else "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    """Print tokens per second and the ratios; return 1 where a loss differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--precision", choices=LOSSES_APART, default="fp32")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        if options.only in OURS:
            ours(options, options.only)
        else:
            reader = TokenReader(options.tokens / "index.json", "train")
            sampler = Sampler(reader, int(TRAINING["sequence_length"]), int(TRAINING["batch_size"]), SEED)
            {"trainer": trainer, "plain": plain}[options.only](options, sampler)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        options.tokens = Path(folder)
        paths = {name: path.name for name, path in write_tokens(options.tokens).items()}
        (options.tokens / "paths.json").write_text(json.dumps(paths))
        steps: dict[str, list[float]] = {name: [] for name in (*PEERS, *OURS)}
        losses: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for name in steps:
                result = compete(options, name)
                steps[name] += result["seconds"][WARM_UP_STEPS:]
                losses[name] = result["losses"]
    tokens = int(TRAINING["sequence_length"]) * int(TRAINING["batch_size"])
    speed = {name: tokens / statistics.median(seconds) for name, seconds in steps.items()}
    worst = 0.0
    for name, value in speed.items():
        apart = max(abs(a - b) for a, b in zip(losses[name], losses["plain"], strict=True))
        worst = max(worst, apart)
        print(
            f"{name:34}{value:10,.0f} tokens/s{value / speed['trainer']:8.2f} x trainer"
            f"{value / speed['plain']:8.2f} x plain   losses within {apart:.1e} of plain's"
        )
    sharded, whole = (speed[f"polder, {strategy}, 2 processes"] for strategy in ("full_shard", "no_shard"))
    print(f"full_shard / no_shard, two processes: {sharded / whole:.2f}")
    return int(worst > LOSSES_APART[options.precision])


if __name__ == "__main__":
    sys.exit(main())
