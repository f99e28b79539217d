"""Training on one GPU: speed, MFU, memory and power, at most eight minutes per command; not run on a GPU yet.

    PYTHONPATH=. python benchmarks/gpu.py mfu --preset llama3-1b [--compile] [--float8] [--recomputation full] …
    PYTHONPATH=. python benchmarks/gpu.py determinism --preset llama3-1b …
    PYTHONPATH=. python benchmarks/gpu.py peer --preset llama3-1b [--zero 1] …
    PYTHONPATH=. python benchmarks/gpu.py longest --preset llama3-8b
    PYTHONPATH=. python benchmarks/gpu.py strategies --preset llama3-1b

`mfu` trains with the native backend in bf16 on random tokens. `determinism` does so in turns with
deterministic kernels and with any, and prints the ratio. `peer` does so in turns with Hugging Face's
LlamaForCausalLM under DeepSpeed's ZeRO, same shape and batch, and prints the ratio. `strategies` is the energy per
token of every strategy that means something on one device, of its board alone. `longest` doubles the sequence until a
step does not fit, then tries half as much again as what did, with full recomputation and a feed-forward block in tiles.
There parameters and gradients are bf16 and the optimizer is SGD without momentum, 4 bytes of state for a parameter:
what a device holds where four share the 16 bytes of AdamW, which do not fit one device for 8 billion parameters.

Every training is a process of its own. Lines of JSON are appended to --results (benchmarks/results/gpu.jsonl): one of
each training as soon as it ends, so that a command that is stopped loses nothing, and one of the whole command. On a
CPU `--preset demo --sequence 64` shows that the commands work; MFU and power are unknown there.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.job.attempt import read_git_state
from pipeline.model.settings import Architecture
from pipeline.model.size import flops_per_token, parameter_count
from pipeline.pretrain.monitors.telemetry import peak_flops_per_second
from pipeline.pretrain.settings import SegmentSettings

ROOT = Path(__file__).parents[1]
TRAINING = Path(__file__).with_name("gpu_training.py")
VOCABULARY_SIZE, DEMO_VOCABULARY_SIZE = 128_256, 512
STRATEGIES = {
    "fsdp": ("no_shard", "full_shard"),
    "deepspeed": ("zero1", "zero2", "zero3", "zero2_offload_optimizer", "zero3_offload_optimizer", "zero3_offload_all"),
}
TOKENS_OF_A_TILE = 8192
ROUNDS = 2
RESULT = "result: "  # precedes the JSON of a training on its standard output
MEMORY = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}  # as of a training: pipeline.pretrain.processes.worker


class Session:
    """What a command asks of trainings, each in a process of its own, until its time is over."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.ends = options, time.monotonic() + options.budget_seconds
        self.architecture = Architecture.model_validate(
            {"preset": options.preset, **({"layers": options.layers} if options.layers else {})}
        )
        self.vocabulary_size = DEMO_VOCABULARY_SIZE if options.preset == "demo" else VOCABULARY_SIZE
        self.commit = options.commit or read_git_state()["commit"]
        self.machine: dict[str, Any] = {}

    def measure(self, side: str = "native", steps: int | None = None, **changes: Any) -> dict[str, Any]:
        """Train and return the outcome with speed, MFU and energy, or why there is none; keep it at once."""
        outcome = self._trained(side, steps, changes)
        self._append(training={"side": side, **changes}, outcome=outcome)
        return outcome

    def _trained(self, side: str, steps: int | None, changes: Mapping[str, Any]) -> dict[str, Any]:
        o = self.options
        training = {"sequence_length": o.sequence, "batch_size": o.batch, "micro_batch_size": o.micro_batch}
        training |= {"strategy": "no_shard", "precision": "bf16", "steps": 1, "learning_rate": 1e-4}
        training |= {"deterministic": not o.nondeterministic}
        if changes.get("backend") != "deepspeed":  # whose settings refuse them
            training |= {"recomputation": o.recomputation, "compile": o.compile, "cuda_graphs": o.cuda_graphs}
            training |= {"float8": o.float8}
        training |= changes
        values = {"seed": 1, "first_step": 0, "last_step": 1, "training": training}
        try:
            settings = SegmentSettings.model_validate({**values, "architecture": self.architecture})
        except ValueError as error:
            raise InputError(str(error)) from None
        asked = {"side": side, "zero": o.zero, "vocabulary_size": self.vocabulary_size, "steps": steps or o.steps}
        asked["warm_up"] = 0 if steps else o.warm_up
        asked["settings"] = settings.model_dump(mode="json")
        command = [sys.executable, str(TRAINING), json.dumps(asked)]
        left, environment = self.ends - time.monotonic(), {**MEMORY, **os.environ}
        try:
            ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=max(left, 1), env=environment)
        except subprocess.TimeoutExpired:
            return {"failed": "the time was over"}
        lines = [line for line in ran.stdout.splitlines() if line.startswith(RESULT)]  # libraries print there as well
        if ran.returncode or not lines:
            return {"failed": f"exit code {ran.returncode}, see the messages above"}
        outcome = json.loads(lines[-1].removeprefix(RESULT))
        self.machine = outcome.pop("machine")
        return {**outcome, **self._rates(outcome, settings)} if "seconds" in outcome else outcome

    def _rates(self, outcome: dict[str, Any], settings: SegmentSettings) -> dict[str, Any]:
        training = settings.training
        step = statistics.median(outcome["seconds"])
        speed = training.batch_size * training.sequence_length / step
        peak = peak_flops_per_second(self.machine["device"], "bf16")
        flops = flops_per_token(self.architecture, self.vocabulary_size, training.sequence_length)
        watts = outcome["watts"]
        return {
            "tokens_per_second": speed,
            "step_seconds_median": step,
            "model_flops_utilization": speed * flops / peak if peak else None,
            "joules_per_token": watts / speed if watts else None,
        }

    def keep(self, outcome: dict[str, Any]) -> None:
        """Append what a command found to the results and print it."""
        self._append(outcome=outcome)
        print(json.dumps({**self.machine, **outcome}, indent=1))

    def _append(self, **found: Any) -> None:
        options = {key: value for key, value in vars(self.options).items() if key not in ("results", "commit")}
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        model = {"parameters": parameter_count(self.architecture, self.vocabulary_size)}
        line = {"date": date, "commit": self.commit, **self.machine, "options": options, **model, **found}
        self.options.results.parent.mkdir(parents=True, exist_ok=True)
        with self.options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def mfu(session: Session) -> dict[str, Any]:
    """Return speed, MFU, memory and power of the native backend."""
    return session.measure()


def determinism(session: Session) -> dict[str, Any]:
    """Return the same with deterministic kernels and with any, in turns, and the ratio of their best medians."""
    choices = {"deterministic": True, "any": False}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in choices}
    for _ in range(ROUNDS):
        for name, deterministic in choices.items():
            found[name].append(session.measure(deterministic=deterministic))
    return {**found, "ratio": _ratio(found["deterministic"], found["any"])}


def _ratio(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> float | None:
    """Return how the best tokens per second of two sides compare; None where one has none."""
    best = [max((one.get("tokens_per_second", 0.0) for one in side), default=0.0) for side in (ours, theirs)]
    return best[0] / best[1] if all(best) else None


def peer(session: Session) -> dict[str, Any]:
    """Return those of both sides, in turns, and the ratio of their best medians."""
    found: dict[str, list[dict[str, Any]]] = {"native": [], "huggingface": []}
    for _ in range(ROUNDS):
        for side, outcomes in found.items():
            outcomes.append(session.measure(side))
    return {**found, "ratio": _ratio(found["native"], found["huggingface"])}


def longest(session: Session) -> dict[str, Any]:
    """Return the longest sequence of which a step fits, and what was tried; `certain`: only memory was in the way.

    Each length takes one step, the first of its process: its seconds tell no speed.
    """
    tried: dict[int, dict[str, Any]] = {}

    def fits(length: int) -> bool:
        tiles = max(length // TOKENS_OF_A_TILE, 1)
        one = {"sequence_length": length, "batch_size": 1, "micro_batch_size": 1}
        tried[length] = session.measure(
            "small", 1, **one, recomputation="full", tiled_feed_forward=tiles, cuda_graphs=False, float8=False
        )
        return "seconds" in tried[length]

    length = found = session.options.sequence
    while length <= session.options.largest and fits(length):
        found, length = length, 2 * length
    if length in tried and found in tried and found != length and fits(found + found // 2):
        found += found // 2
    certain = any("out_of_memory" in one for one in tried.values()) and not any(
        "failed" in one for one in tried.values()
    )
    return {"longest": found if "seconds" in tried.get(found, {}) else None, "certain": certain, "tried": tried}


def strategies(session: Session) -> dict[str, Any]:
    """Return what every strategy does on one device; all shard over it alone, so that offloading is what differs."""
    pairs = [(backend, strategy) for backend, names in STRATEGIES.items() for strategy in names]
    return {strategy: session.measure(backend=backend, strategy=strategy) for backend, strategy in pairs}


def main() -> int:
    """Measure; return 2 where the settings contradict each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = {"mfu": mfu, "determinism": determinism, "peer": peer, "longest": longest, "strategies": strategies}
    parser.add_argument("command", choices=commands)
    parser.add_argument("--preset", default="llama3-1b")
    parser.add_argument("--layers", type=int, help="fewer than the preset's")
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4, help="sequences in a step")
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--recomputation", choices=("none", "selective", "full"), default="none")
    parser.add_argument("--compile", action="store_true", help="the blocks, of both sides")
    parser.add_argument("--cuda-graphs", action="store_true")
    parser.add_argument("--float8", action="store_true")
    parser.add_argument("--nondeterministic", action="store_true", help="let kernels add in any order")
    parser.add_argument("--zero", type=int, choices=(0, 1, 2, 3), default=1, help="stage of the peer")
    parser.add_argument("--largest", type=int, default=2**22, help="sequence that longest stops at")
    parser.add_argument("--warm-up", type=int, default=5, help="steps that do not count")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--budget-seconds", type=float, default=460)
    parser.add_argument("--commit", help="where there is no git repository")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "gpu.jsonl")
    options = parser.parse_args()
    session = Session(options)
    try:
        session.keep(commands[options.command](session))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
