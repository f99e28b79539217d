"""Read the answers of checkpoints and baselines to the items of tasks, and compute the answers of simple rules."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.core.errors import InputError
from pipeline.evaluate.item_results import (
    ANSWER_BITS,
    BITS,
    ItemAnswers,
    ItemKey,
    RuleScores,
    TaskItem,
    read_item_answers,
)
from pipeline.evaluate.score_intervals import ItemStatistics, corpus_metric_statistics_by_item
from pipeline.evaluate.settings import ADOPTED, UNTRAINED
from pipeline.evaluate.simplification_metrics import READABILITY
from pipeline.evaluate.text_metrics import UNTESTED
from pipeline.evaluate.trivial_baseline_tests import SLOR, normalize_choice_scores_by_length, tie_averaged_credit

if TYPE_CHECKING:
    from lm_eval.api.task import Task


class EvaluatedCheckpoint(NamedTuple):
    """The answers of a checkpoint, by metric and item.

    Attributes:
        right: whether the answer is right.
        likely: nats and bytes of texts and of right answers.
        clusters: what an item shares with similar items.
        graded: the grade of the answer.
        statistics: for corpus-level metrics.
    """

    model: str
    step: int
    right: dict[str, dict[ItemKey, bool]]
    likely: dict[str, dict[ItemKey, tuple[float, int]]]
    clusters: dict[ItemKey, str]
    graded: dict[str, dict[ItemKey, float]] = {}
    statistics: dict[str, dict[ItemKey, ItemStatistics]] = {}


def read_checkpoint_answers(path: Path) -> EvaluatedCheckpoint:
    """Read the items of a checkpoint, `…/MODEL/STEP/items.parquet`.

    Raises:
        InputError: the file is no item table, or an item occurs twice.
    """
    return _read_answers(path, path.parent.parent.name, int(path.parent.name))


def read_imported_answers(path: Path) -> EvaluatedCheckpoint:
    """Read the items of the model that a training began with, `…/adopted-MODEL/items.parquet`, as its step 0.

    Raises:
        InputError: the file is no item table, or an item occurs twice.
    """
    return _read_answers(path, path.parent.name.removeprefix(f"{ADOPTED}-"), 0)


def _read_answers(path: Path, model: str, step: int) -> EvaluatedCheckpoint:
    answers = read_item_answers(path)
    graded = {metric: values for metric, values in answers.graded.items() if metric not in UNTESTED}
    return EvaluatedCheckpoint(model, step, answers.right, answers.likely, answers.clusters, graded, answers.statistics)


class BaselineAnswers(NamedTuple):
    """The answers of a model, and its scores by suite, task and metric."""

    answered: ItemAnswers
    scores: dict[tuple[str, str, str], float]

    def credits(self, metric: str, items: Sequence[TaskItem], keys: Sequence[ItemKey]) -> NDArray[np.float64]:
        """Return the values of a metric: 1 and 0 for right and wrong, nats for texts, NaN for unanswered items.

        SLOR subtracts the items' unigram log-probabilities, as for the compared model.
        """
        given = self.answered.log_probabilities
        if metric == SLOR:
            of_items = zip(items, keys, strict=True)
            values = {
                key: tie_averaged_credit(item, normalize_choice_scores_by_length(item, SLOR, given[key]))
                for item, key in of_items
                if key in given
            }
        elif metric in (BITS, ANSWER_BITS):
            values = {key: nats for key, (nats, _) in self.answered.likely.get(metric, {}).items()}
        else:
            numbers = self.answered.right.get(metric, {}) | self.answered.graded.get(metric, {})
            values = {key: float(value) for key, value in numbers.items()}
        return np.array([values.get(key, math.nan) for key in keys], dtype=np.float64)

    def corpus_metric_statistics(self, metric: str, keys: Sequence[ItemKey]) -> list[ItemStatistics | None]:
        """Return the statistics of each item for a corpus-level metric; None for unanswered items."""
        values = self.answered.statistics.get(metric, {})
        return [values.get(key) for key in keys]


def read_baseline_answers(files: Sequence[Path]) -> dict[str, BaselineAnswers]:
    """Read the baselines' `…/NAME/items.parquet` and `…/NAME/results.json`; return their answers by name.

    The untrained or the imported model has that name, as each model has one.

    Raises:
        InputError: a file is none of these.
    """
    baselines = {}
    for folder in sorted({file.parent for file in files}):
        kind = folder.name.partition("-")[0]
        name = kind if kind in (UNTRAINED, ADOPTED) else folder.name
        baselines[name] = BaselineAnswers(
            read_item_answers(folder / "items.parquet"), _read_baseline_scores(folder / "results.json")
        )
    return baselines


def _read_baseline_scores(results: Path) -> dict[tuple[str, str, str], float]:
    try:
        rows = json.loads(results.read_text(encoding="utf-8"))["tasks"]
        return {(row["suite"], row["task"], row["metric"]): row["value"] for row in rows if row["value"] is not None}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{results} has no scores ({error!r}): remove it, and it is made again") from None


# Trivial rules, such as a copy of the question, are baselines for generated text.
#
# A task defines them as `metadata: {trivial: {NAME: TEMPLATE}}`. A template sees the fields of the item, and in `next`
# those of the item after it; the first item follows the last.


REFERENCE_RULE = "reference"


def render_rule_answers(task: Task, examples: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Render the answers of each rule to all examples, by the rule's name.

    Raises:
        InputError: a template is invalid, or names a field that an example lacks.
    """
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    templates = (task.config.metadata or {}).get("trivial", {})
    # A task is data: a template may read fields, and nothing else.
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    answers: dict[str, list[str]] = {}
    try:
        for name, template in templates.items():
            written = environment.from_string(template)
            following = [*examples[1:], *examples[:1]]
            pairs = zip(examples, following, strict=True)
            answers[str(name)] = [written.render(**example, next=after) for example, after in pairs]
    except (TemplateError, AttributeError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"task {task.config.task}: metadata.trivial does not fit its data ({error}); write "
            "{NAME: TEMPLATE}, with fields of the data, as {copy: '{{source}}'}"
        ) from None
    return answers


def score_rule_baselines(task: Task, examples: Sequence[dict[str, Any]]) -> dict[str, RuleScores]:
    """Score each rule by the metrics of the task, and for readability the first reference, too."""
    scores_by_rule = {
        name: _score_rule(task, examples, written) for name, written in render_rule_answers(task, examples).items()
    }
    if any(metric in READABILITY for metric in task.aggregation()):
        reference = _score_rule(task, examples, [example["references"][0] for example in examples])
        scores = {metric: value for metric, value in reference.scores.items() if metric in READABILITY}
        scores_by_rule = {REFERENCE_RULE: RuleScores({}, scores)} | scores_by_rule
    return scores_by_rule


def _score_rule(task: Task, examples: Sequence[dict[str, Any]], written: Sequence[str]) -> RuleScores:
    pairs = zip(examples, written, strict=True)
    of_items = [task.process_results(example, [text]) for example, text in pairs]
    values = {metric: [one[metric] for one in of_items] for metric in of_items[0]}
    aggregations = task.aggregation()
    scores = {metric: float(aggregations[metric](each)) for metric, each in values.items()}
    numbers = {metric: each for metric, each in values.items() if all(isinstance(one, int | float) for one in each)}
    statistics = {
        metric: corpus_metric_statistics_by_item(aggregations[metric], each) for metric, each in values.items()
    }
    return RuleScores(
        numbers,
        {metric: value for metric, value in scores.items() if math.isfinite(value)},
        {metric: of_items for metric, of_items in statistics.items() if of_items},
    )
