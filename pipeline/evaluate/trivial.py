"""What rules that understand nothing write, such as a copy of what is asked: baselines of what a model writes.

A task names them, `metadata: {trivial: {NAME: TEMPLATE}}`. A template sees the fields of the item, and as `next` those
of the item after it; of the last that is the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pipeline.core.errors import InputError
from pipeline.evaluate.corpus_level import statistics_of
from pipeline.evaluate.items import Trivial
from pipeline.evaluate.written import READABILITY

if TYPE_CHECKING:
    from lm_eval.api.task import Task

REFERENCE = "reference"


def answers(task: Task, examples: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Return by the name of a rule what it writes to each example.

    Raises:
        InputError: a template is none, or names a field that an example lacks.
    """
    templates = (task.config.metadata or {}).get("trivial", {})
    # A task is data: a template may read fields, and nothing else.
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    found: dict[str, list[str]] = {}
    try:
        for name, template in templates.items():
            written = environment.from_string(template)
            following = [*examples[1:], *examples[:1]]
            pairs = zip(examples, following, strict=True)
            found[str(name)] = [written.render(**example, next=after) for example, after in pairs]
    except (TemplateError, AttributeError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"task {task.config.task}: metadata.trivial does not fit its data ({error}); write "
            "{NAME: TEMPLATE}, with fields of the data, as {copy: '{{source}}'}"
        ) from None
    return found


def scored(task: Task, examples: Sequence[dict[str, Any]]) -> dict[str, Trivial]:
    """Return what each rule reaches, by the metrics of the task; of readability what the first reference does, too."""
    found = {name: _scored(task, examples, written) for name, written in answers(task, examples).items()}
    if any(metric in READABILITY for metric in task.aggregation()):
        reference = _scored(task, examples, [example["references"][0] for example in examples])
        scores = {metric: value for metric, value in reference.scores.items() if metric in READABILITY}
        found = {REFERENCE: Trivial({}, scores)} | found
    return found


def _scored(task: Task, examples: Sequence[dict[str, Any]], written: Sequence[str]) -> Trivial:
    pairs = zip(examples, written, strict=True)
    of_items = [task.process_results(example, [text]) for example, text in pairs]
    values = {metric: [one[metric] for one in of_items] for metric in of_items[0]}
    aggregations = task.aggregation()
    scores = {metric: float(aggregations[metric](each)) for metric, each in values.items()}
    numbers = {metric: each for metric, each in values.items() if all(isinstance(one, int | float) for one in each)}
    statistics = {metric: statistics_of(aggregations[metric], each) for metric, each in values.items()}
    return Trivial(
        numbers,
        {metric: value for metric, value in scores.items() if math.isfinite(value)},
        {metric: of_items for metric, of_items in statistics.items() if of_items},
    )
