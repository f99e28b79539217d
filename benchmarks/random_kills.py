"""Kill processes of a training at random, and check that nothing is lost.

    PYTHONPATH=. python benchmarks/random_kills.py TOKENS TOKENIZER FOLDER [--kills 100] [--seed 1] [--strategy NAME]

TOKENS and TOKENIZER are folders of a finished run (results/RUN/tokens/NAME, results/RUN/tokenizer/NAME). FOLDER gets
two trainings of a small model: one undisturbed, and one whose rank, torchrun or segment process is killed, stopped or
asked to end again and again. A segment process that ends is started again, as a scheduler would.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGTERM, SIGURG, SIGUSR1

from tests.pretrain.processes.chaos import LAUNCH, Blow, Training, result, small, storm


def blows(seed: int, number: int) -> list[Blow]:
    """Return a list that follows from its seed; one in five falls while the processes start or soon after."""
    draw = random.Random(seed)
    choices = [("rank", n) for n in (SIGKILL, SIGTERM, SIGUSR1, SIGURG, SIGSTOP)]
    choices += [(victim, n) for victim in ("launcher", "segment") for n in (SIGKILL, SIGTERM, SIGUSR1)]
    made = []
    for _ in range(number):
        victim, sent = draw.choice(choices)
        steps = draw.randrange(1, 9) if draw.random() < 0.8 else 0
        made.append(Blow(victim, sent, steps, draw.random() * (0.3 if steps else 10.0)))
    return made


def main() -> int:
    """Run both trainings and print what happened; return 1 where they differ."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tokens", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strategy", default="full_shard")
    parser.add_argument("--hang-seconds", type=float, default=10.0)
    options = parser.parse_args()
    tokens = {
        "index": options.tokens / "index.json",
        "tokenizer": options.tokenizer / "tokenizer.json",
        "configuration": options.tokenizer / "tokenizer_config.json",
    }
    planned = blows(options.seed, options.kills)
    steps = sum(blow.steps for blow in planned) + 5 * options.kills
    settings = small(steps, options.strategy, options.hang_seconds)
    Training(settings, tokens, options.folder / "undisturbed", LAUNCH).finish()
    began = time.monotonic()
    fallen, counts, codes = storm(settings, tokens, options.folder / "storm", planned)
    whole, results = (result(options.folder / name) for name in ("undisturbed", "storm"))
    print(f"{fallen.total()} blows in {time.monotonic() - began:.0f} s: {dict(sorted(fallen.items()))}")
    print(f"the segment's process ended {codes.total()} times: {dict(codes)}")
    print(f"in its last life it started the training again {counts['restarts']} times")
    print(f"steps {len(results['steps'])} of {steps}, {len(set(results['data_steps']))} different batches")
    print("equal: " + ", ".join(f"{key} {whole[key] == results[key]}" for key in whole))
    return int(whole != results or results["data_steps"] != list(range(steps)))


if __name__ == "__main__":
    sys.exit(main())
