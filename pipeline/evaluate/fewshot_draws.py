"""Choose the few-shot examples of a task that others define, from the rows of its data set."""

from __future__ import annotations

import hashlib
import random
from itertools import cycle
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from pipeline.core.errors import InputError
from pipeline.core.settings import Settings

if TYPE_CHECKING:
    from datasets import Dataset
    from lm_eval.api.task import Task

Row = dict[str, Any]
HASH_DIGITS = 16
SHORT_CHARACTERS = (512, 1024, 2048, 4096, 8192)


class ListedExamples(Settings):
    """The rows that have these values in the fields, in this order; without a unique field by a hash of several.

    A hash names an example without a copy of its text.
    """

    fields: list[str] = Field(min_length=1)
    values: list[str] = Field(default=[], description="of the field")
    sha256: list[str] = Field(default=[], description="the first 16 digits, of the fields joined by line feeds")


class ShuffledExamples(Settings):
    """Rows that are shuffled by a seed, as EuroEval draws them for an iteration.

    It shuffles the rows, keeps those below the least of 512, 1,024, … characters that leaves enough of them, shuffles
    these by the same seed, takes the first one of each label in turn, each text once, and shuffles what it took.
    """

    seed: int = Field(description="4242 for the first iteration")
    text: str = Field(description="the field of which the length counts, and that differs between examples")
    labels: list[str] = Field(default=[], description="values of the field `label`, in turn")
    tags: bool = Field(default=False, description="`labels` is a list of tags in a row, in which a label occurs")
    short: bool = Field(default=True, description="take short rows alone")


def choose_examples(task: Task) -> None:
    """Replace the few-shot examples of a task by those that `metadata.examples` names.

    Raises:
        InputError: it names no such draw, or rows that the data set lacks.
    """
    draw = (task.config.metadata or {}).get("examples")
    if draw is None:
        return
    name, shots = task.config.task, int(task.get_config("num_fewshot") or 0)
    kind: type[ListedExamples | ShuffledExamples] = ListedExamples if "fields" in draw else ShuffledExamples
    try:
        examples = kind.model_validate(draw)
    except ValidationError as error:
        problem = error.errors()[0]
        raise InputError(f"task {name}: metadata.examples: {problem['loc']}: {problem['msg']}") from None
    rows = task.fewshot_docs()
    if isinstance(examples, ListedExamples):
        fewshot_examples = _take_listed(examples, rows, name)[:shots]
    else:
        fewshot_examples = _draw_shuffled(examples, rows, shots)
    if len(fewshot_examples) < shots:
        raise InputError(
            f"task {name}: its data have {len(fewshot_examples)} few-shot examples of {shots}: mirror them again"
        )
    task.sampler.replace_df(fewshot_examples)


def _take_listed(examples: ListedExamples, rows: Dataset, task: str) -> list[Row]:
    columns = [map(str, rows[field]) for field in examples.fields]
    values = ["\n".join(parts) for parts in zip(*columns, strict=True)]
    if examples.sha256:
        values = [hashlib.sha256(value.encode()).hexdigest()[:HASH_DIGITS] for value in values]
    places = {value: place for place, value in reversed([*enumerate(values)])}  # the first of equal rows
    wanted = examples.sha256 or examples.values
    if missing := [value for value in wanted if value not in places]:
        raise InputError(
            f"task {task}: its data have no few-shot example of {' and '.join(examples.fields)} {missing[0]}: mirror "
            "the revision of the data set that its protocol was made for"
        )
    return [dict(rows[places[value]]) for value in wanted]


def _draw_shuffled(examples: ShuffledExamples, rows: Dataset, shots: int) -> list[Row]:
    left = rows.shuffle(seed=examples.seed)
    if examples.short:
        lengths = [len(text) for text in left[examples.text]]
        limit = next(
            (limit for limit in SHORT_CHARACTERS if sum(n < limit for n in lengths) >= shots), max(lengths) + 1
        )
        left = left.select([place for place, n in enumerate(lengths) if n < limit]).shuffle(seed=examples.seed)
    texts = [*map(str, left[examples.text])]
    if examples.tags:
        labels = [{str(tag).lower() for tag in tags} for tags in left["labels"]]
    else:
        labels = [{str(label).lower()} for label in left["label"]] if examples.labels else [{""}] * len(texts)
    taken: list[int] = []
    used: set[str] = set()
    turns = cycle(label.lower() for label in examples.labels or [""])
    for _ in range(len(texts) * max(1, len(examples.labels))):
        if len(taken) == shots:
            break
        label = next(turns)
        free = (place for place, text in enumerate(texts) if label in labels[place] and text not in used)
        if (place := next(free, None)) is None:
            continue
        taken.append(place)
        used.add(texts[place])
    drawn_rows = [dict(left[place]) for place in taken]
    random.Random(examples.seed).shuffle(drawn_rows)
    return drawn_rows
