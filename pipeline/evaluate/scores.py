"""The scores of a checkpoint: what lm-eval measures, the items behind it, and what else reaches as much."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy import stats

from pipeline.evaluate.baselines import LEVEL, Scores, compared, constant_answer, judge
from pipeline.evaluate.items import METRICS, Item, aim_of, items_of
from pipeline.evaluate.settings import SuiteSettings
from pipeline.ground.errors import InputError
from pipeline.tokens.word_models import Scored, WordModels

if TYPE_CHECKING:
    from lm_eval.api.task import Task
    from lm_eval.models.huggingface import HFLM

BOOTSTRAP_ITERATIONS = 1000  # for metrics whose standard error has no closed form
COMPARED = ("chance_level", "baselines", "hardest_baseline", "p_value", "p_value_corrected", "verdict")


@dataclass(frozen=True)
class Measured:
    """What lm-eval measured of a task: a row per metric, and the items, if it has choices."""

    suite: str
    task: str
    rows: list[dict[str, Any]]
    items: list[Item]


def _check_answers(task: Task, drawn: Sequence[int]) -> None:
    """Raise InputError when the answer of an example is none of its choices."""
    if task.OUTPUT_TYPE != "multiple_choice":
        return
    for index in drawn:
        example = task.eval_docs[index]
        target, choices = task.doc_to_target(example), task.doc_to_choice(example)
        if isinstance(target, int) and not 0 <= target < len(choices):
            raise InputError(
                f"task {task.config.task}, line {index + 1} of its data: the answer {target} is not the index "
                f"of one of its {len(choices)} choices, which count from 0; mend the line"
            )


def measure(
    model: HFLM, suite: SuiteSettings, tasks: dict[str, Task], drawn: dict[str, list[int]], seed: int
) -> list[Measured]:
    """Return what lm-eval measures of the drawn examples of one suite, by task and metric.

    Raises:
        InputError: when the answer of an example is none of its choices.
    """
    from lm_eval import evaluator

    if not tasks:
        return []
    for name, task in tasks.items():
        _check_answers(task, drawn[name])
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=seed)
    found = evaluator.evaluate(
        lm=model,
        task_dict={"tasks": tasks, "groups": {}, "group_map": {}},
        samples=drawn,
        bootstrap_iters=BOOTSTRAP_ITERATIONS,
        log_samples=True,
    )
    measured = []
    for name in sorted(tasks):
        of_task = found["results"][name]
        metadata = tasks[name].config.metadata or {}
        rows = []
        for key in sorted(of_task):
            metric, _, kind = key.partition(",")
            if not kind or metric.endswith("_stderr"):
                continue
            error = of_task.get(f"{metric}_stderr,{kind}")
            aim = aim_of(tasks[name]) if metric in METRICS else None
            rows.append(
                {
                    "task": name,
                    "suite": suite.name,
                    "language": metadata.get("language", suite.language),
                    "metric": metric if kind == "none" else f"{metric},{kind}",
                    "value": of_task[key],
                    "standard_error": error if isinstance(error, float) and math.isfinite(error) else None,
                    "examples": len(drawn[name]),
                    "higher_is_better": found["higher_is_better"][name][metric] if aim is None else None,
                    "signature": _signature(metric),
                    **_distance(aim, of_task[key], len(drawn[name])),
                }
            )
        measured.append(Measured(suite.name, name, rows, items_of(tasks[name], found["samples"][name])))
    return measured


def _signature(metric: str) -> str | None:
    """Return how sacreBLEU computes a metric, in its own notation."""
    from sacrebleu import BLEU, CHRF

    kinds: dict[str, type[BLEU | CHRF]] = {"bleu": BLEU, "chrf": CHRF}
    return str(kinds[metric](references=[["x"]]).get_signature()) if metric in kinds else None


def _distance(aim: float | None, value: float, examples: int) -> dict[str, float | None]:
    """Return how far a share is above its aim, with the exact 95 % interval.

    It is that of Clopper and Pearson, Biometrika 26 (1934).
    """
    if aim is None:
        return dict.fromkeys(("aim", "distance", "distance_low", "distance_high"))
    share = stats.binomtest(round(value * examples), examples).proportion_ci(1 - LEVEL)
    return {
        "aim": aim,
        "distance": value - aim,
        "distance_low": float(share.low) - aim,
        "distance_high": float(share.high) - aim,
    }


def _scored(model: HFLM, item: Item) -> list[Scored]:
    """Return the tokens of each choice after those of its context, as lm-eval gives them to a model.

    Where choices differ in what comes before, and end alike, all of it is scored.
    """
    is_before = len({text for _, text in item.texts}) == 1
    scored: list[Scored] = []
    for context, text in (("", before + after) if is_before else (before, after) for before, after in item.texts):
        if context:
            scored.append(model._encode_pair(context, text))
        else:
            scored.append(([model.prefix_token_id], model.tok_encode(text)))
    return scored


def _log_probabilities(score: Callable[[Scored], float], of_task: dict[int, list[Scored]], item: Item) -> list[float]:
    return [score(scored) for scored in of_task[item.number]]


def add_baselines(model: HFLM, index: Path, measured: Sequence[Measured]) -> None:
    """Add to each score with choices what else reaches as much on its items, and to all of them a verdict.

    `index` is that of the tokens that the model was trained on, in which the word models count.
    """
    tokens = [{item.number: _scored(model, item) for item in one.items} for one in measured]
    words = WordModels(index, (scored for of_task in tokens for choices in of_task.values() for scored in choices))
    for one, of_task in zip(measured, tokens, strict=True):
        models: dict[str, Scores] = {
            name: partial(_log_probabilities, score, of_task)
            for name, score in (("unigram", words.unigram), ("bigram", words.bigram))
        }
        for row in one.rows:
            row |= dict.fromkeys(COMPARED) | {"constant_answer": constant_answer(one.items)}
            if one.items and row["metric"] in one.items[0].correct:
                row |= compared(one.items, row["metric"], models)
    judge([row for one in measured for row in one.rows])
