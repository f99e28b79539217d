"""Compute the scores of a checkpoint: lm-eval's metrics, their items, and the baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.core.errors import InputError
from pipeline.evaluate.checkpoint_and_baseline_answers import BaselineAnswers, score_rule_baselines
from pipeline.evaluate.item_results import (
    ANSWER_BITS,
    BITS,
    MeasuredTask,
    TaskItem,
    collect_items,
    collect_metric_values,
    read_target_first_choice_share,
)
from pipeline.evaluate.score_intervals import (
    ADDITIVE_AGGREGATIONS,
    UNBOUNDED,
    ScoreInterval,
    has_value,
    is_binary_metric,
    score_interval,
)
from pipeline.evaluate.settings import SuiteSettings
from pipeline.evaluate.task_failures import blame_task
from pipeline.evaluate.task_loader import failed_task_entry
from pipeline.evaluate.text_metrics import BOUNDS, UNTESTED, normalize_task_unicode
from pipeline.evaluate.trivial_baseline_tests import (
    SLOR,
    ChoiceScorer,
    add_verdicts,
    compare_bits_with_baselines,
    compare_corpus_metric_with_baselines,
    compare_with_baselines,
    find_model_constant_answer,
    has_mostly_truncated_prompts,
    normalize_choice_scores_by_length,
)
from pipeline.tokens.ngram_models import NgramModels, ScoredTokens

if TYPE_CHECKING:
    from lm_eval.api.task import Task

    from pipeline.evaluate.lm_eval_model import LmEvalModel

BASELINE_KEYS = ("chance_level", "baselines", "hardest_baseline", "p_value", "p_value_corrected", "verdict")


def seed_fewshot_sampling(task: Task, seed: int) -> None:
    """Make a task draw its few-shot examples by a seed; without a number of them it has none."""
    if task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=seed)


def run_lm_eval(
    model: LmEvalModel, suite: SuiteSettings, tasks: dict[str, Task], drawn: dict[str, list[int]], seed: int
) -> list[MeasuredTask]:
    """Let lm-eval evaluate the drawn examples of one suite; return its measurements by task."""
    from lm_eval import evaluator

    if not tasks:
        return []
    for task in tasks.values():
        seed_fewshot_sampling(task, seed)
        normalize_task_unicode(task)
    model.truncated.clear()
    results = evaluator.evaluate(
        lm=model,
        task_dict={"tasks": tasks, "groups": {}, "group_map": {}},
        samples=drawn,
        bootstrap_iters=0,  # lm-eval's bootstrap ignores clusters of items: the intervals are ours
        log_samples=True,
    )
    measured = []
    for name in sorted(tasks):
        samples = results["samples"][name]
        items = collect_items(tasks[name], samples)
        metadata = tasks[name].config.metadata or {}
        truncated = {sample["doc_id"] for sample in samples if model.is_truncated(sample["arguments"])}
        rows = []
        listed = [one["metric"] for one in tasks[name].config.metric_list or ()]
        collected = sorted(collect_metric_values(samples).items(), key=lambda entry: _metric_order(entry[0], listed))
        for key, values in collected:
            metric, _, kind = key.partition(",")
            of_task, named = results["results"][name], f"{metric},{kind or 'none'}"
            aim = read_target_first_choice_share(tasks[name]) if is_binary_metric([*values.values()]) else None
            aggregation, bounds = tasks[name].aggregation()[metric], BOUNDS.get(metric, UNBOUNDED)
            is_better = results["higher_is_better"][name][metric]
            rows.append(
                {
                    "task": name,
                    "suite": suite.name,
                    "language": metadata.get("language", suite.language),
                    "metric": key,
                    **_score_with_interval(items, values, aggregation, of_task[named], bounds, key),
                    "standard_error": _standard_error(aggregation, [*values.values()]),
                    "higher_is_better": is_better if aim is None and metric not in UNTESTED else None,
                    "signature": _metric_signature(metric),
                    "aim": aim,
                    "examples_truncated": len(truncated),
                }
            )
        examples = {sample["doc_id"]: sample["doc"] for sample in samples}
        trivial = score_rule_baselines(tasks[name], [examples[item.number] for item in items])
        measured.append(MeasuredTask(suite.name, name, rows, items, trivial))
    return measured


def _metric_order(key: str, listed: Sequence[str]) -> tuple[int, str]:
    """Return the position of a metric in the task's metric_list, behind which others are in order of their names."""
    metric = key.partition(",")[0]
    return (listed.index(metric) if metric in listed else len(listed)), key


def _standard_error(aggregation: Callable[..., Any], values: Sequence[Any]) -> float | None:
    """Return lm-eval's standard error of a mean, which ignores clusters; None for other metrics."""
    from lm_eval.api.metrics import mean, mean_stderr

    if aggregation is not mean or len(values) < 2:
        return None
    error = float(mean_stderr(values))
    return error if math.isfinite(error) else None


def _metric_signature(metric: str) -> str | None:
    """Return sacreBLEU's signature of a metric, with the β of chrF that it leaves out, if that is not 2."""
    from sacrebleu import BLEU, CHRF

    kinds: dict[str, Callable[..., BLEU | CHRF]] = {
        "bleu": BLEU,
        "chrf": CHRF,
        "chrf3pp": partial(CHRF, word_order=2, beta=3),
    }
    if metric not in kinds:
        return None
    signature = str(kinds[metric](references=[["x"]]).get_signature())
    return f"{signature}|beta:3" if metric == "chrf3pp" else signature


def _score_with_interval(
    items: Sequence[TaskItem],
    values: dict[int, Any],
    mean: Callable[..., Any],
    value: float,
    bounds: tuple[float, float] = UNBOUNDED,
    metric: str = "",
) -> dict[str, Any]:
    """Return a score with its interval and its numbers of items and clusters, and the same for each part of the task.

    `examples` are the items for which the metric has a value.
    """
    known = [item for item in items if has_value(values[item.number])]
    examples = {"examples": len(known), "examples_without_value": len(items) - len(known)}
    if not math.isfinite(value):
        return {**ScoreInterval(0.0)._asdict(), "value": None, "clusters": None, "parts": [], **examples}

    def compute_interval_of_items(some: Sequence[TaskItem]) -> ScoreInterval:
        clusters = [item.number if item.cluster is None else item.cluster for item in some]
        statistics = [item.statistics[metric] for item in some if metric in item.statistics]
        return score_interval([values[item.number] for item in some], clusters, mean, value, bounds, statistics)

    parts: dict[str, list[TaskItem]] = {}
    if getattr(mean, "__name__", "") in ADDITIVE_AGGREGATIONS or metric in items[0].statistics:
        for item in items:
            if item.part is not None:
                parts.setdefault(item.part, []).append(item)
    whole = compute_interval_of_items(items)
    return {
        **whole._asdict(),
        "value": value,
        "clusters": len({item.cluster for item in known}) if items[0].cluster is not None else None,
        **examples,
        "parts": [
            {"part": part, "examples": len(parts[part]), **compute_interval_of_items(parts[part])._asdict()}
            for part in sorted(parts)
        ],
    }


def _ngram_model_tokens(item: TaskItem, choices: Sequence[ScoredTokens]) -> Sequence[ScoredTokens]:
    """Return the tokens that word models score: those of the model, with the contexts if choices differ in these."""
    if len(choices) < 2 or not _has_equal_endings(item):
        return choices
    return [(before[:1], [*before[1:], *tokens]) for before, tokens in choices]


def _log_probabilities(
    score: Callable[[ScoredTokens], float], of_task: dict[int, Sequence[ScoredTokens]], item: TaskItem
) -> list[float]:
    return [score(scored) for scored in of_task[item.number]]


def _slor_row(one: MeasuredTask) -> dict[str, Any] | None:
    """Return the SLOR score of a task whose choices are whole sentences; None for other tasks."""
    contexts = [context for item in one.items for context, _ in item.texts]
    if not one.items or not one.rows or any(contexts) or not all(item.right for item in one.items):
        return None
    for item in one.items:
        scores = normalize_choice_scores_by_length(item, SLOR, item.log_probabilities)
        item.correct[SLOR] = scores.index(max(scores)) in item.right
    values = {item.number: item.correct[SLOR] for item in one.items}
    count, value = len(values), sum(values.values()) / len(values)
    error = math.sqrt(value * (1 - value) / (count - 1)) if count > 1 else None
    own = {"metric": SLOR, "standard_error": error, "higher_is_better": True}
    return one.rows[0] | own | _score_with_interval(one.items, values, mean, value)


def _answer_bits_row(one: MeasuredTask) -> dict[str, Any] | None:
    """Return the bits per byte of the right answers, which improve before the answers are better than chance.

    None for tasks whose choices have equal endings, where words of every choice would be counted.
    """
    from lm_eval.api.metrics import bits_per_byte

    if not one.rows or any(not item.choices or not item.target_bytes or _has_equal_endings(item) for item in one.items):
        return None
    values = {item.number: (item.target_log_probability, item.target_bytes) for item in one.items}
    own = {"metric": ANSWER_BITS, "standard_error": None, "higher_is_better": False}
    return one.rows[0] | own | _score_with_interval(one.items, values, bits_per_byte, bits_per_byte([*values.values()]))


def _has_equal_endings(item: TaskItem) -> bool:
    return len({text for _, text in item.texts}) == 1


def add_baselines(
    model: LmEvalModel, index: Path, measured: list[MeasuredTask], others: dict[str, BaselineAnswers]
) -> list[dict[str, Any]]:
    """Add baselines and a verdict to each score; remove the tasks that fail at that, and return their reasons.

    Args:
        model: the evaluated model.
        index: that of the tokens that it was trained on, from which the word models are counted.
        measured: its scores and items; tasks of sentences also get a SLOR score.
        others: the answers of other models by name.
    """
    asked = [
        {item.number: model.request_tokenizer.encode_pairs(item.texts) for item in one.items if item.texts}
        for one in measured
    ]
    tokens = [
        {item.number: _ngram_model_tokens(item, of_task[item.number]) for item in one.items if item.texts}
        for one, of_task in zip(measured, asked, strict=True)
    ]
    words = NgramModels(index, (scored for of_task in tokens for choices in of_task.values() for scored in choices))

    def add_baseline_comparisons(
        one: MeasuredTask, own: Mapping[int, Sequence[ScoredTokens]], of_task: dict[int, Sequence[ScoredTokens]]
    ) -> None:
        for place, item in enumerate(one.items):
            scored = own.get(item.number, [])
            lengths = tuple(len(tokens) for _, tokens in scored)
            one.items[place] = replace(item, tokens=lengths, unigram=tuple(map(words.score_unigram, scored)))
        one.rows.extend(row for row in (_slor_row(one), _answer_bits_row(one)) if row)
        models: dict[str, ChoiceScorer] = {
            name: partial(_log_probabilities, score, of_task)
            for name, score in (("unigram", words.score_unigram), ("bigram", words.score_bigram))
        }
        keys = [(one.suite, one.task, item.number, item.prompt_sha256) for item in one.items]
        for row in one.rows:
            row |= dict.fromkeys(BASELINE_KEYS) | {"constant_answer": find_model_constant_answer(one.items)}
            metric = row["metric"]
            if row["aim"] is not None:
                continue
            credits = {name: answers.credits(metric, one.items, keys) for name, answers in others.items()}
            if metric in one.items[0].correct or (metric in one.items[0].graded and metric not in UNTESTED):
                plain = metric.partition(",")[0]
                trivial = {
                    name: np.array(rule_scores.of_items[plain])
                    for name, rule_scores in one.trivial.items()
                    if plain in rule_scores.of_items
                }
                row |= compare_with_baselines(one.items, metric, models, credits | trivial)
                continue
            if metric in (BITS, ANSWER_BITS) and all(item.target_bytes for item in one.items):
                of_words = {
                    name: np.array([score(item)[item.target_index or 0] for item in one.items])
                    for name, score in models.items()
                }
                comparison = compare_bits_with_baselines(one.items, of_words | credits)
                # Wrong answers may have become likelier too: fewer bits of the right ones prove nothing.
                row |= comparison if metric == BITS else _untested_baselines(comparison["baselines"], row)
                continue
            if metric in one.items[0].statistics:
                of_models = {name: answers.corpus_metric_statistics(metric, keys) for name, answers in others.items()}
                plain = metric.partition(",")[0]
                of_rules = {n: each.statistics[plain] for n, each in one.trivial.items() if plain in each.statistics}
                row |= compare_corpus_metric_with_baselines(one.items, metric, {**of_models, **of_rules})
                continue
            scores = {name: answers.scores.get((one.suite, one.task, metric)) for name, answers in others.items()}
            scores |= {name: rule_scores.scores.get(metric) for name, rule_scores in one.trivial.items()}
            row |= _untested_baselines({name: score for name, score in scores.items() if score is not None}, row)

    failed = []
    for one, own, of_task in zip([*measured], asked, tokens, strict=True):
        try:
            with blame_task(one.task, "comparing it with baselines"):
                add_baseline_comparisons(one, own, of_task)
        except InputError as error:
            measured.remove(one)
            failed.append(failed_task_entry(one.suite, one.task, error))
    rows = [row for one in measured for row in one.rows]
    for row in rows:
        if has_mostly_truncated_prompts(row):  # the truncated prompts are another task
            row["p_value"] = None
    add_verdicts(rows)
    return failed


def _untested_baselines(values: dict[str, float], row: dict[str, Any]) -> dict[str, Any]:
    """Return the baselines of a score that is not tested against them, and the best of them if there is an order."""
    if not values:
        return {}
    if row["higher_is_better"] is None:
        return {"baselines": values}
    best = (max if row["higher_is_better"] else min)(values, key=values.__getitem__)
    return {"baselines": values, "hardest_baseline": best}
