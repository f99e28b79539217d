"""Training on one GPU: speed, MFU, memory and energy, at most eight minutes per command; not run on a GPU yet.

    PYTHONPATH=. python benchmarks/gpu.py table
    PYTHONPATH=. python benchmarks/gpu.py mfu --preset llama3-1b [--compile] [--float8] [--recomputation full] …
    PYTHONPATH=. python benchmarks/gpu.py {determinism,peer,longest,strategies,checkpoint} --preset llama3-1b …

`table` measures the rows of TABLE that the results lack at this commit, the most useful first, until the time is over:
run it again until all are there. It prints the last of each, of this commit where there is one, with --planned next to
the MFU and the memory that `polder plan` expects of one H100.

`mfu` trains with the native backend in bf16 on random tokens. `determinism` does so in turns with deterministic
kernels and with any, and prints the ratio. `peer` does so in turns with a plain loop over Hugging Face's
LlamaForCausalLM in autocast, same shape and batch, and prints the ratio. `strategies` is the energy per token of every
strategy that means something on one device, of its board alone. `checkpoint` is the wait of a training for a
checkpoint. `longest` doubles the sequence until a step does not fit, then tries 1.5 times the longest that did, with
full recomputation and a feed-forward block in tiles. There parameters and gradients are bf16 and the optimizer is SGD
without momentum, 4 bytes of state for a parameter: what a device holds where four share the 16 bytes of AdamW, which
do not fit one device for 8 billion parameters.

Every training is a process of its own. Lines of JSON are appended to --results (benchmarks/results/gpu.jsonl): one of
each training as soon as it ends, so that a command that is stopped loses nothing, and one of the whole command. On a
CPU `--preset demo --sequence 64` shows that the commands work, and `table --rehearsal` that the table does; MFU and
power are unknown there.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.errors import InputError
from pipeline.job.attempt import read_git_state
from pipeline.model.settings import Architecture
from pipeline.model.size_and_cost import flops_per_token, parameter_count
from pipeline.pretrain.monitors.memory_estimate import TraceRequest, trace_memory
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
RESULT = "result: "  # precedes the JSON of a training on its standard output
MEMORY = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}  # as of a training: pipeline.pretrain.processes.worker


class Row(NamedTuple):
    """A command of the table.

    Attributes:
        seconds: its expected time on an H100; it starts only where as much is left.
    """

    name: str
    seconds: int
    command: str


FAST = "--compile --nondeterministic"
TABLE = (
    Row("1B and a plain loop", 330, f"peer --preset llama3-1b {FAST} --batch 8 --micro-batch 4"),
    Row("3B", 120, f"mfu --preset llama3-3b {FAST} --recomputation selective --batch 8"),
    Row("8B layers", 120, f"mfu --preset llama3-8b --layers 8 {FAST} --sequence 8192 --batch 4 --micro-batch 2"),
    Row("8B layers, float8", 120, f"mfu --preset llama3-8b --layers 8 {FAST} --float8 --sequence 8192 --batch 4"),
    Row("1B, document masks", 120, f"mfu --preset llama3-1b {FAST} --batch 8 --micro-batch 4 --documents 600"),
    Row("1B, determinism", 180, "determinism --preset llama3-1b --compile --batch 8 --micro-batch 4 --rounds 1"),
    Row("1B, checkpoint", 150, f"checkpoint --preset llama3-1b {FAST} --batch 8 --micro-batch 4"),
    Row("8B, longest sequence", 300, "longest --preset llama3-8b --sequence 32768"),
    Row("experts", 150, f"mfu --preset qwen3-30b-a3b --layers 4 {FAST} --batch 8"),
    Row("1B, strategies", 400, "strategies --preset llama3-1b --batch 8 --micro-batch 4"),
)
"""In the order of their use; the shapes with few layers leave room for the 16 bytes of AdamW on 80 GB."""
TINY = {"layers": 2, "width": 64, "feed_forward_width": 128, "heads": 4, "key_value_heads": 2}
REHEARSAL = "--rehearsal --sequence 32 --largest 64 --batch 2 --micro-batch 1 --warm-up 1 --steps 2"
TIME_OVER, CRASHED = "the time was over", "exit code"
PLATFORM = "snellius"
"""Its file has the rates of an H100 by which a plan expects speeds."""
WHOLE_SLICE = 0.9
"""Share of a slice's time. A row that gets as much is not measured again, even if its last training did not end."""


class Session:
    """What a command asks of trainings, each in a process of its own, until its time is over."""

    def __init__(self, options: argparse.Namespace, row: str | None = None) -> None:
        self.options, self.ends = options, time.monotonic() + options.budget_seconds
        self.row = row
        shape = {"preset": options.preset, **({"layers": options.layers} if options.layers else {})}
        if options.rehearsal:
            shape |= {**TINY, **({"experts": 4, "experts_per_token": 2} if "qwen3" in options.preset else {})}
        self.architecture = Architecture.model_validate(shape)
        small = options.rehearsal or options.preset == "demo"
        self.vocabulary_size = DEMO_VOCABULARY_SIZE if small else VOCABULARY_SIZE
        self.commit = options.commit or read_git_state()["commit"]
        self.machine: dict[str, Any] = {}

    def measure(self, side: str = "native", steps: int | None = None, **changes: Any) -> dict[str, Any]:
        """Train and return the outcome with speed, MFU and energy, or why there is none; keep it at once."""
        outcome = self._train(side, steps, changes)
        self._append(training={"side": side, **changes}, outcome=outcome)
        return outcome

    def settings(self, changes: Mapping[str, Any]) -> SegmentSettings:
        """Return the settings of a training with some that differ from the options.

        Raises:
            InputError: they contradict each other.
        """
        o = self.options
        training = {"sequence_length": o.sequence, "batch_size": o.batch, "micro_batch_size": o.micro_batch}
        training |= {"strategy": "no_shard", "precision": "bf16", "steps": 1, "learning_rate": 1e-4}
        training |= {"deterministic": not o.nondeterministic}
        if changes.get("backend") != "deepspeed":  # whose settings refuse them
            training |= {"recomputation": o.recomputation, "compile": o.compile, "float8": o.float8}
        training |= changes
        if o.documents:
            training |= {"sampling": {"mask_documents": True}}
        values = {"seed": 1, "first_step": 0, "last_step": 1, "training": training}
        try:
            return SegmentSettings.model_validate({**values, "architecture": self.architecture})
        except ValueError as error:
            raise InputError(str(error)) from None

    def _train(self, side: str, steps: int | None, changes: Mapping[str, Any]) -> dict[str, Any]:
        settings = self.settings(changes)
        asked = {"side": side, "vocabulary_size": self.vocabulary_size, "steps": steps or self.options.steps}
        asked["documents"] = self.options.documents
        asked["warm_up"] = 0 if steps else self.options.warm_up
        asked["settings"] = settings.model_dump(mode="json")
        command = [sys.executable, str(TRAINING), json.dumps(asked)]
        left, environment = self.ends - time.monotonic(), {**MEMORY, **os.environ}
        try:
            ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=max(left, 1), env=environment)
        except subprocess.TimeoutExpired:
            return {"failed": TIME_OVER}
        lines = [line for line in ran.stdout.splitlines() if line.startswith(RESULT)]  # libraries print there as well
        if ran.returncode or not lines:
            return {"failed": f"{CRASHED} {ran.returncode}, see the messages above"}
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
        cut = self.options.layers and not self.options.rehearsal
        whole = Architecture.model_validate({"preset": self.options.preset}) if cut else None
        of_all = flops_per_token(whole, self.vocabulary_size, training.sequence_length) if whole else flops
        return {
            "tokens_per_second": speed,
            "tokens_per_second_of_all_layers": speed * flops / of_all,
            "step_seconds_median": step,
            "model_flops_utilization": speed * flops / peak if peak else None,
            "joules_per_token": watts / speed if watts else None,
        }

    def keep(self, outcome: dict[str, Any]) -> None:
        """Append the outcome of a command to the results."""
        self._append(outcome=outcome)

    def _append(self, **fields: Any) -> None:
        options = {key: value for key, value in vars(self.options).items() if key not in ("results", "commit")}
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        model = {"parameters": parameter_count(self.architecture, self.vocabulary_size)}
        line = {"date": date, "commit": self.commit, "row": self.row, **self.machine, "options": options}
        line |= {**model, **fields}
        self.options.results.parent.mkdir(parents=True, exist_ok=True)
        with self.options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def mfu(session: Session) -> dict[str, Any]:
    """Return speed, MFU, memory and power of the native backend."""
    return session.measure()


def determinism(session: Session) -> dict[str, Any]:
    """Return the same with deterministic kernels and with any, in turns, and the ratio of their best medians."""
    choices = {"deterministic": True, "any": False}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in choices}
    for _ in range(session.options.rounds):
        for name, deterministic in choices.items():
            results[name].append(session.measure(deterministic=deterministic))
    return {**results, "ratio": _ratio(results["deterministic"], results["any"])}


def _ratio(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> float | None:
    """Return how the best tokens per second of two sides compare; None where one has none."""
    best = [max((one.get("tokens_per_second", 0.0) for one in side), default=0.0) for side in (ours, theirs)]
    return best[0] / best[1] if all(best) else None


def peer(session: Session) -> dict[str, Any]:
    """Return those of both sides, in turns, and the ratio of their best medians."""
    results: dict[str, list[dict[str, Any]]] = {"native": [], "huggingface": []}
    for _ in range(session.options.rounds):
        for side, outcomes in results.items():
            outcomes.append(session.measure(side))
    return {**results, "ratio": _ratio(results["native"], results["huggingface"])}


def longest(session: Session) -> dict[str, Any]:
    """Return the longest sequence of which a step fits, and what was tried; `certain`: only memory was in the way.

    Each length takes one step, the first of its process, so its seconds are no measure of speed.
    """
    tried: dict[int, dict[str, Any]] = {}

    def fits(length: int) -> bool:
        tiles = max(length // TOKENS_OF_A_TILE, 1)
        one = {"sequence_length": length, "batch_size": 1, "micro_batch_size": 1}
        tried[length] = session.measure("small", 1, **one, recomputation="full", tiled_feed_forward=tiles, float8=False)
        return "seconds" in tried[length]

    length = result = session.options.sequence
    while length <= session.options.largest and fits(length):
        result, length = length, 2 * length
    if length in tried and result in tried and result != length and fits(result + result // 2):
        result += result // 2
    certain = any("out_of_memory" in one for one in tried.values()) and not any(
        "failed" in one for one in tried.values()
    )
    return {"longest": result if "seconds" in tried.get(result, {}) else None, "certain": certain, "tried": tried}


def checkpoint(session: Session) -> dict[str, Any]:
    """Return the seconds that a training waits for a checkpoint, written while it goes on and before it goes on."""
    return session.measure("checkpoint")


def strategies(session: Session) -> dict[str, Any]:
    """Return what every strategy does on one device; all shard over it alone, so that offloading is what differs."""
    pairs = [(backend, strategy) for backend, names in STRATEGIES.items() for strategy in names]
    return {strategy: session.measure(backend=backend, strategy=strategy) for backend, strategy in pairs}


COMMANDS: dict[str, Callable[[Session], dict[str, Any]]] = {
    command.__name__: command for command in (mfu, determinism, peer, longest, strategies, checkpoint)
}


def read_rows(results: Path, *, rehearsal: bool) -> list[dict[str, Any]]:
    """Return the lines of rows of the table, of rehearsals or of real ones, without those of single trainings."""
    lines = map(json.loads, results.read_text("utf-8").splitlines()) if results.exists() else ()
    rows = (line for line in lines if line.get("row") and "training" not in line)
    return [line for line in rows if line["options"]["rehearsal"] == rehearsal]


def is_measured(line: Mapping[str, Any], slice_seconds: float) -> bool:
    """Return whether a row ran to its end or for a whole slice, and a training of it gave a speed or an answer."""
    outcome = json.dumps(line["outcome"])
    if TIME_OVER in outcome:
        return bool(line["options"]["budget_seconds"] > WHOLE_SLICE * slice_seconds)
    return CRASHED not in outcome or "tokens_per_second" in outcome


def choose_rows(lines: Sequence[Mapping[str, Any]], commit: str | None) -> dict[str, Mapping[str, Any]]:
    """Return the last line of each row, of this commit where it has one."""
    chosen = {line["row"]: line for line in lines}
    return chosen | {line["row"]: line for line in lines if line["commit"] == commit}


def measure_table(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Measure the rows that the results lack while the time lasts, and print all of the table."""
    commit, ends = options.commit or read_git_state()["commit"], time.monotonic() + options.budget_seconds
    shared = ["--results", str(options.results), *(["--commit", commit] if commit else [])]
    shared += shlex.split(REHEARSAL) if options.rehearsal else []
    rows = {row: parser.parse_args([*shlex.split(row.command), *shared]) for row in TABLE}
    lines = [line for line in read_rows(options.results, rehearsal=options.rehearsal) if line["commit"] == commit]
    done = {line["row"] for line in lines if is_measured(line, options.budget_seconds)}
    crashed = {line["row"] for line in lines if CRASHED in json.dumps(line["outcome"])} - done
    for row, asked in sorted(rows.items(), key=lambda one: one[0].name in crashed):  # those come last
        asked.budget_seconds = ends - time.monotonic()
        if row.name in done or asked.budget_seconds <= min(row.seconds, WHOLE_SLICE * options.budget_seconds):
            continue
        session = Session(asked, row.name)
        session.keep(COMMANDS[asked.command](session))
    lines = read_rows(options.results, rehearsal=options.rehearsal)
    print("| | tokens/s | of all layers | MFU | planned | GiB | planned | W | mJ/token | more |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|---|")
    chosen = choose_rows(lines, commit)
    for row, asked in rows.items():
        if row.name in chosen or options.planned:
            session, planned = Session(asked), {}
            if options.planned and asked.command != "longest":
                planned = {"planned_utilization": plan_utilization(session), "planned_bytes": plan_memory(session)}
            print(format_row(row.name, chosen.get(row.name), planned, commit))
    done = {line["row"] for line in lines if line["commit"] == commit and is_measured(line, options.budget_seconds)}
    if left := [row.name for row in rows if row.name not in done]:
        print(f"{len(left)} left: run the same command again for {'; '.join(left)}")


def plan_utilization(session: Session) -> float | None:
    """Return the MFU that `polder plan` expects of one H100; None where it has none."""
    from pipeline.config.platforms import load_platform_settings  # a machine that only measures needs none of them
    from pipeline.plan.settings import ModelPlan, PlatformPlan
    from pipeline.plan.training_time import estimate_training_time

    platform = PlatformPlan.model_validate(load_platform_settings(PLATFORM).model_dump())
    share: float | None = estimate_training_time(ModelPlan.model_validate(_plan_request(session)), platform, 1)[
        "utilization_share"
    ]
    return share


def plan_memory(session: Session) -> int | None:
    """Return the bytes of a device that `polder plan` expects; None where its trace fails."""
    try:
        return trace_memory(TraceRequest(**_plan_request(session), processes=1, per_node=1)).peak_bytes
    except InputError as error:
        print(error, file=sys.stderr)
        return None


def _plan_request(session: Session) -> dict[str, Any]:
    training = session.settings({}).training
    return {"training": training, "architecture": session.architecture, "vocabulary_size": session.vocabulary_size}


def format_row(
    name: str, line: Mapping[str, Any] | None, planned: Mapping[str, float | None], commit: str | None
) -> str:
    """Format a line of the table, with the fastest training of a command that has several.

    Args:
        line: that of the results; None where there is none yet.
        commit: the current one; another one is named.
    """
    outcome: Mapping[str, Any] = line["outcome"] if line else {}
    several = [one for group in ("native", "any", "deterministic") for one in outcome.get(group, ())]
    best = max(several or [outcome], key=lambda one: one.get("tokens_per_second", 0.0))
    figures = {
        "tokens_per_second": (1, ",.0f"),
        "tokens_per_second_of_all_layers": (1, ",.0f"),
        "model_flops_utilization": (1, ".1%"),
        "planned_utilization": (1, ".1%"),
        "peak_memory_bytes": (2**-30, ".1f"),
        "planned_bytes": (2**-30, ".1f"),
        "watts": (1, ".0f"),
        "joules_per_token": (1e3, ".2f"),
    }
    values = {**best, **planned}
    cells = [format(values[key] * unit, form) if values.get(key) else "" for key, (unit, form) in figures.items()]
    kept = ("ratio", "longest", "certain", "synchronous_seconds", "stall_seconds", "failed", "out_of_memory")
    more = {key: outcome.get(key, best.get(key)) for key in kept if outcome.get(key, best.get(key)) is not None}
    words = [f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in more.items()]
    words += [
        f"{key} {one['joules_per_token'] * 1e3:.2f} mJ/token"
        for key, one in outcome.items()
        if isinstance(one, dict) and one.get("joules_per_token")
    ]
    words += [str(line.get("device", ""))] if line else ["not measured"]
    words += [f"at {str(line['commit'])[:8]}"] if line and line["commit"] != commit else []
    return f"| {name} | {' | '.join(cells)} | {', '.join(filter(None, words))} |"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("table", *COMMANDS))
    parser.add_argument("--preset", default="llama3-1b")
    parser.add_argument("--layers", type=int, help="fewer than the preset's")
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4, help="sequences in a step")
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--recomputation", choices=("none", "selective", "full"), default="none")
    parser.add_argument("--compile", action="store_true", help="the blocks, of both sides")
    parser.add_argument("--float8", action="store_true")
    parser.add_argument("--documents", type=int, help="tokens of each document: none attends to another")
    parser.add_argument("--nondeterministic", action="store_true", help="let kernels add in any order")
    parser.add_argument("--largest", type=int, default=2**22, help="sequence that longest stops at")
    parser.add_argument("--rounds", type=int, default=2, help="of commands that measure in turns")
    parser.add_argument("--warm-up", type=int, default=5, help="steps that do not count")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--budget-seconds", type=float, default=460)
    parser.add_argument("--planned", action="store_true", help="plan MFU and memory of each row of the table")
    parser.add_argument("--rehearsal", action="store_true", help="tiny shapes instead, for a CPU")
    parser.add_argument("--commit", help="where there is no git repository")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results" / "gpu.jsonl")
    return parser


def main() -> int:
    """Measure; return 2 where the settings contradict each other."""
    parser = make_parser()
    options = parser.parse_args()
    try:
        if options.command == "table":
            measure_table(parser, options)
        else:
            session = Session(options)
            outcome = COMMANDS[options.command](session)
            session.keep(outcome)
            print(json.dumps({**session.machine, **outcome}, indent=1))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
