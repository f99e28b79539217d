"""How a task compares texts: in one form of Unicode, whichever one a model writes, data hold or a pattern has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.core.normalization import all_composed

if TYPE_CHECKING:
    from lm_eval.api.task import Task

OF_TEXTS = ("loglikelihood", "loglikelihood_rolling")
"""Tasks that compare no texts: their bytes and words are counted in the text that the model reads."""


class _Composed:
    """A filter of answers that reads them, and the items, in the composed form."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.filter = make()

    def apply(self, resps: Sequence[Any], docs: Sequence[Any]) -> Any:
        return self.filter.apply(all_composed([*resps]), all_composed([*docs]))


def compare_composed(task: Task) -> None:
    """Make a task compare answers, references, choices and patterns in the composed form of Unicode (NFC)."""
    if task.OUTPUT_TYPE in OF_TEXTS:
        return
    process, filters = task.process_results, getattr(task, "_filters", [])
    task.process_results = lambda doc, results: process(all_composed(doc), all_composed(results))
    for settings in getattr(task, "_metric_fn_kwargs", {}).values():
        settings.update(all_composed(settings))
    if task.OUTPUT_TYPE == "generate_until":
        for ensemble in filters:
            made = [partial(make.func, *make.args, **all_composed(make.keywords)) for make in ensemble.filters]
            ensemble.filters = [partial(_Composed, make) for make in made]
