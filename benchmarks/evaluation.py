"""Speed of evaluation requests, against lm-eval's own batching on the same tasks in the same run.

    python benchmarks/evaluation.py FOLDER DATA [EXAMPLES]

FOLDER is a milestone's `huggingface`; DATA holds `eval/*.jsonl.gz` and perhaps `mirror`. The requests are those of all
shipped suites that have their data there, loaded once. Polder, lm-eval with the same batch size, and lm-eval with
`batch_size: auto`, as oellm-eval starts it, answer them in turns, and the shortest time of each counts. It prints for
each kind of request the distance of each from the same model in 64 bits, and how many questions with choices have
another answer; at the end the overall ratios.
"""

from __future__ import annotations

import copy
import logging
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.evaluate.settings import KNOWN_SUITES, Suite, SuiteSettings
from pipeline.evaluate.suites import prepare_process
from pipeline.evaluate.task_file_reader import list_suite_files
from pipeline.evaluate.task_loader import find_task_sources

ROUNDS = 3
BATCH_SIZE = 16
CHECKED = 200  # requests whose log-probabilities are computed in 64 bits too


def requests(data: str, examples: int) -> dict[str, list[Any]]:
    """Return what lm-eval would ask of the drawn examples of all suites, by the kind of request."""
    results: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for known in KNOWN_SUITES.values():
            suite = Suite.model_validate({**known.model_dump(), "data": known.data and known.data.format(data=data)})
            try:
                files = [file.absolute() for file in list_suite_files(suite)]
            except InputError:
                print(f"without {suite.name}: no data")
                continue
            for source in find_task_sources(SuiteSettings.model_validate(suite.model_dump()), files, Path(scratch)):
                for name, task in source.load().items():
                    task.set_config(key="num_fewshot", value=task.get_config("num_fewshot") or 0)
                    count = len(task.eval_docs)
                    drawn = sorted(random.Random(name).sample(range(count), min(count, examples)))
                    task.build_all_requests(samples=drawn)
                    for instance in task.instances:
                        results.setdefault(instance.request_type, []).append(instance)
    return results


def seconds(model: Any, kind: str, asked: list[Any]) -> tuple[float, list[Any]]:
    """Return how long a model takes to answer, and its answers."""
    started = time.perf_counter()
    answers = getattr(model, kind)(asked, disable_tqdm=True)
    return time.perf_counter() - started, answers


def predictions(asked: list[Any], answers: list[Any]) -> dict[tuple[str, int], int]:
    """Return the likeliest choice of each question with several; the first of equal ones."""
    scores: dict[tuple[str, int], list[tuple[float, int]]] = {}
    for instance, (log_probability, _) in zip(asked, answers, strict=True):
        scores.setdefault((instance.task_name, instance.doc_id), []).append((-log_probability, instance.idx))
    return {key: min(choices)[1] for key, choices in scores.items() if len(choices) > 1}


def main(folder: str, data: str, examples: str = "200") -> int:
    """Print the comparison."""
    prepare_process(None, 42, deterministic=False)
    logging.disable(logging.WARNING)
    import torch
    from lm_eval.models.huggingface import HFLM

    from pipeline.evaluate.lm_eval_model import load_model

    ours = load_model(Path(folder), BATCH_SIZE)
    shared = {"tokenizer": ours.tokenizer, "backend": "causal", "batch_size": BATCH_SIZE}
    plain = HFLM(ours.model, softmax_dtype="float32", **shared)
    automatic = HFLM(ours.model, softmax_dtype="float32", **{**shared, "batch_size": "auto"})
    sides = {"lm-eval": plain, "lm-eval auto": automatic, "ours": ours}
    exact = HFLM(copy.deepcopy(ours.model).double(), softmax_dtype="float64", **shared)
    where = (
        f"{torch.cuda.get_device_name()}" if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    )
    print(f"{sum(one.numel() for one in ours.model.parameters()):,} parameters, {where}, batch size {BATCH_SIZE}")
    total = dict.fromkeys(sides, 0.0)
    for kind, all_asked in sorted(requests(data, int(examples)).items()):
        asked = [one for one in all_asked if len(ours.tok_encode(one.args[0])) + 128 < ours.max_length]
        best: dict[str, float] = {}
        answers: dict[str, list[Any]] = {}
        for _ in range(ROUNDS):
            for side, model in sides.items():
                taken, answers[side] = seconds(model, kind, asked)
                best[side] = min(taken, best.get(side, taken))
        if kind == "generate_until":
            same = sum(len({*texts}) == 1 for texts in zip(*answers.values(), strict=True))
            message = f"{same} of {len(asked)} texts are the same"
        else:
            drawn = random.Random(1).sample(range(len(asked)), min(CHECKED, len(asked)))
            right = getattr(exact, kind)([asked[number] for number in drawn], disable_tqdm=True)
            far = {
                side: max(abs(given[n][0] - one[0]) for n, one in zip(drawn, right, strict=True))
                for side, given in answers.items()
            }
            message = f"nats from 64 bits, at most: {', '.join(f'{side} {one:.1e}' for side, one in far.items())}"
            if kind == "loglikelihood":
                chosen = {side: predictions(asked, given) for side, given in answers.items()}
                for side in ("ours", "lm-eval auto"):
                    changed = sum(chosen[side][key] != choice for key, choice in chosen["lm-eval"].items())
                    message += f"; {changed} of {len(chosen[side]):,} predictions of {side} are not lm-eval's"
        times = ", ".join(f"{side} {taken:.2f} s" for side, taken in best.items())
        print(f"{kind}: {len(asked):,} requests, {times}; {message}")
        total = {side: total[side] + best[side] for side in total}
    for side in ("lm-eval", "lm-eval auto"):
        print(f"in all: {total[side] / total['ours']:.2f} times as fast as {side}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
