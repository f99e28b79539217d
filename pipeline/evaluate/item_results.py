"""Items of a task with a model's answers: hashes of prompts, log-probabilities of the choices, right or wrong."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.errors import InputError
from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.evaluate.request_tokenizer import move_trailing_space
from pipeline.evaluate.score_intervals import ItemStatistics, corpus_metric_statistics_by_item, is_binary_metric
from pipeline.evaluate.text_metrics import GRADED

if TYPE_CHECKING:
    from lm_eval.api.task import Task

ScoreKey = tuple[str, str, str]
"""Suite, task and metric."""
ItemKey = tuple[str, str, int, str]
"""Suite, task, number of the item, and hash of its prompts: equal for two models that were asked the same."""
BITS, ANSWER_BITS = "bits_per_byte", "answer_bits_per_byte"
"""Of a text, and of the right answer of an item with choices."""
# After these comes a column for each metric that has a value per item.
SCHEMA = pa.schema(
    [
        ("suite", pa.string()),
        ("task", pa.string()),
        ("item", pa.int32()),
        ("prompt_sha256", pa.string()),
        ("cluster", pa.string()),
        ("part", pa.string()),
        ("written", pa.string()),
        ("bytes", pa.int64()),
        ("tokens", pa.list_(pa.int32())),
        ("log_probabilities", pa.list_(pa.float64())),
        ("unigram_log_probabilities", pa.list_(pa.float64())),
        ("answer", pa.int32()),
        ("right_answers", pa.list_(pa.int32())),
        (
            "statistics",
            pa.list_(
                pa.struct([("metric", pa.string()), ("aggregation", pa.string()), ("values", pa.list_(pa.float64()))])
            ),
        ),
    ]
)


@dataclass(frozen=True)
class TaskItem:
    """One question and the model's answer.

    Attributes:
        choices: the possible answers; empty for generated text.
        texts: (context, continuation) of each choice as the model reads them, or a text whose probability is asked.
        right: the indices of the right choices; empty for a task with an aim.
        log_probabilities: in nats, of each choice or of the text.
        correct: whether the answer is right, by binary metric.
        graded: the value of each graded metric.
        statistics: for each corpus-level metric, such as chrF.
        written: the generated text.
        cluster: what it shares with similar items, such as the text that it asks about.
        part: the part of the task that it belongs to, such as a kind of mistake.
        tokens: the number of the model's tokens of each choice.
        unigram: the log-probabilities of the choices by the frequencies of tokens in the training text.
    """

    number: int
    prompt_sha256: str
    choices: tuple[str, ...]
    texts: tuple[tuple[str, str], ...]
    right: frozenset[int]
    log_probabilities: tuple[float, ...]
    correct: dict[str, bool]
    written: str | None = None
    cluster: str | None = None
    part: str | None = None
    tokens: tuple[int, ...] = ()
    unigram: tuple[float, ...] = ()
    graded: dict[str, float] = field(default_factory=dict)
    statistics: dict[str, ItemStatistics] = field(default_factory=dict)

    @property
    def target_index(self) -> int | None:
        """The index of the text that should be likely: the only one, or the first right choice; None without any."""
        return min(self.right, default=None) if self.choices else (0 if self.texts else None)

    @property
    def target_bytes(self) -> int | None:
        """The length of that text in UTF-8; None without any."""
        return None if self.target_index is None else len(self.texts[self.target_index][1].encode())

    @property
    def target_log_probability(self) -> float:
        assert self.target_index is not None
        return self.log_probabilities[self.target_index]

    @property
    def predicted_index(self) -> int:
        """The choice with the greatest log-probability; the first of equal ones."""
        return max(range(len(self.choices)), key=lambda number: (self.log_probabilities[number], -number))


def join_metric_name(metric: str, kind: str) -> str:
    """Return the name of a metric of lm-eval with its filter of answers, as in `exact_match,strict-match`."""
    return metric if kind == "none" else f"{metric},{kind}"


def read_metadata_named_field(task: Task, kind: str, doc: dict[str, Any]) -> str | None:
    """Return the field of a line of data that the task's metadata names, such as `cluster` or `parts`.

    Raises:
        InputError: the line has no such field.
    """
    field = (task.config.metadata or {}).get(kind)
    if field is None:
        return None
    if field not in doc:
        raise InputError(f"task {task.config.task}: metadata.{kind} names the field {field!r}, which its data lack")
    return str(doc[field])


def read_target_first_choice_share(task: Task) -> float | None:
    """Return the share of first choices that a task aims at; None for a task with right answers.

    Raises:
        InputError: when it is no share.
    """
    aim = (task.config.metadata or {}).get("aim")
    if aim is not None and not (isinstance(aim, int | float) and 0 <= aim <= 1):
        raise InputError(f"task {task.config.task}: metadata: {{aim: {aim}}} is no share; write a number from 0 to 1")
    return aim


def _find_right_choices(task: Task, doc: Any, choices: Sequence[str]) -> frozenset[int]:
    target = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    targets = target if isinstance(target, list) else [target]
    written = [*map(normalize_nfc, choices)]
    named = [
        written.index(normalize_nfc(one)) if isinstance(one, str) and normalize_nfc(one) in written else one
        for one in targets
    ]
    return frozenset(number for number in named if isinstance(number, int) and 0 <= number < len(choices))


def hash_prompts(asked: Sequence[Sequence[Any]]) -> str:
    """Return the sha256 of all prompts with their choices and generation options, as a prompt may be empty."""
    return hashlib.sha256(json.dumps(asked, ensure_ascii=False, sort_keys=True).encode()).hexdigest()


def collect_items(task: Task, samples: Sequence[dict[str, Any]]) -> list[TaskItem]:
    """Return the items of a task from lm-eval's log, which has a sample of each item for each filter of answers.

    Raises:
        InputError: the data lack a field that the task's metadata names; a metric has the name of a column.
    """
    has_right_answers = read_target_first_choice_share(task) is None
    correct: dict[int, dict[str, bool]] = {}
    graded: dict[int, dict[str, float]] = {}
    statistics: dict[int, dict[str, ItemStatistics]] = {}
    for name, values in collect_metric_values(samples).items():
        if name in SCHEMA.names:
            raise InputError(
                f"task {task.config.task}: a metric is called {name}, as a column of items.parquet is: rename it"
            )
        if name in GRADED and all(isinstance(value, int | float) for value in values.values()):
            for number, value in values.items():
                graded.setdefault(number, {})[name] = float(value)
        elif has_right_answers and is_binary_metric([*values.values()]):
            for number, value in values.items():
                correct.setdefault(number, {})[name] = bool(value)
        elif added := corpus_metric_statistics_by_item(
            task.aggregation().get(name.partition(",")[0]), [*values.values()]
        ):
            for number, one in zip(values, added, strict=True):
                statistics.setdefault(number, {})[name] = one
    has_choices = task.OUTPUT_TYPE == "multiple_choice" and not callable(task.config.process_results)
    items: dict[int, TaskItem] = {}
    for sample in samples:
        number, doc = sample["doc_id"], sample["doc"]
        if number in items:
            continue
        choices = tuple(map(str, task.doc_to_choice(doc))) if has_choices else ()
        written = sample["resps"][0][0] if task.OUTPUT_TYPE == "generate_until" else None
        texts = tuple(move_trailing_space(str(one[0]), str(one[1])) for one in sample["arguments"][: len(choices)])
        log_probabilities = tuple(float(answer[0]) for answer in sample["filtered_resps"][: len(choices)])
        if task.OUTPUT_TYPE == "loglikelihood_rolling":
            texts = (("", str(sample["arguments"][0][0])),)
            log_probabilities = (float(sample["filtered_resps"][0]),)
        items[number] = TaskItem(
            number,
            hash_prompts(sample["arguments"]),
            choices,
            texts,
            _find_right_choices(task, doc, choices) if choices and has_right_answers else frozenset(),
            log_probabilities,
            correct.get(number, {}),
            None if written is None else str(written),
            read_metadata_named_field(task, "cluster", doc),
            read_metadata_named_field(task, "parts", doc),
            graded=graded.get(number, {}),
            statistics=statistics.get(number, {}),
        )
    return [*items.values()]


def collect_metric_values(samples: Sequence[dict[str, Any]]) -> dict[str, dict[int, Any]]:
    """Return lm-eval's logged values by metric and number of the item."""
    values: dict[str, dict[int, Any]] = {}
    for sample in samples:
        for metric in sample["metrics"]:
            values.setdefault(join_metric_name(metric, sample["filter"]), {})[sample["doc_id"]] = sample[metric]
    return values


class RuleScores(NamedTuple):
    """The scores of a trivial rule by metric, with the values and the statistics of the items."""

    of_items: dict[str, list[float]]
    scores: dict[str, float]
    statistics: dict[str, list[ItemStatistics]] = {}


@dataclass(frozen=True)
class MeasuredTask:
    """lm-eval's measurement of a task: a row for each metric, the items, and the scores of trivial rules by name."""

    suite: str
    task: str
    rows: list[dict[str, Any]]
    items: list[TaskItem]
    trivial: dict[str, RuleScores] = field(default_factory=dict)


def write_items(path: Path, measured: Iterable[MeasuredTask]) -> None:
    """Write the items of all tasks as a Parquet file; a metric without a value for an item is null."""
    rows = [
        {
            "suite": one.suite,
            "task": one.task,
            "item": item.number,
            "prompt_sha256": item.prompt_sha256,
            "cluster": item.cluster,
            "part": item.part,
            "written": item.written,
            "bytes": item.target_bytes,
            "tokens": list(item.tokens),
            "log_probabilities": list(item.log_probabilities),
            "unigram_log_probabilities": list(item.unigram),
            "answer": item.predicted_index if item.choices else None,
            "right_answers": sorted(item.right),
            "statistics": [{"metric": name, **one._asdict()} for name, one in sorted(item.statistics.items())],
            **item.correct,
            **{metric: None if math.isnan(grade) else grade for metric, grade in item.graded.items()},
        }
        for one in measured
        for item in one.items
    ]
    metrics = sorted({name for row in rows for name in row.keys() - {*SCHEMA.names}})
    kinds = ((metric, pa.float64() if metric in GRADED else pa.bool_()) for metric in metrics)
    schema = pa.schema([*SCHEMA, *kinds])
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


class ItemAnswers(NamedTuple):
    """The content of an item table.

    Attributes:
        right: whether each answer is right, by binary metric.
        log_probabilities: of choices or of the text, in nats.
        likely: nats and bytes of texts and of right answers, by metric.
        clusters: what items share with similar ones.
        graded: values of graded metrics.
        statistics: of the items for corpus-level metrics.
    """

    right: dict[str, dict[ItemKey, bool]]
    log_probabilities: dict[ItemKey, tuple[float, ...]]
    likely: dict[str, dict[ItemKey, tuple[float, int]]]
    clusters: dict[ItemKey, str]
    graded: dict[str, dict[ItemKey, float]]
    statistics: dict[str, dict[ItemKey, ItemStatistics]] = {}


def read_item_answers(path: Path) -> ItemAnswers:
    """Read an item table.

    Raises:
        InputError: the file is none, or an item occurs twice.
    """
    try:
        table = pq.read_table(path)
        metrics = [name for name in table.schema.names if name not in SCHEMA.names]
        names = ["suite", "task", "item", "prompt_sha256", "bytes", "cluster", "log_probabilities", "right_answers"]
        names += [name for name in table.schema.names if name == "statistics"]  # older tables have none
        rows = table.select([*names, *metrics]).to_pylist()
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is no item table: {error}") from None
    answers = ItemAnswers({}, {}, {}, {}, {}, {})
    for row in rows:
        key = (row["suite"], row["task"], row["item"], row["prompt_sha256"])
        if key in answers.log_probabilities:
            raise InputError(f"{path}: item {key[2]} of the task {key[1]} occurs twice")
        answers.log_probabilities[key] = tuple(row["log_probabilities"] or ())
        if row["cluster"] is not None:
            answers.clusters[key] = row["cluster"]
        if row["bytes"]:
            metric, place = (ANSWER_BITS, row["right_answers"][0]) if row["right_answers"] else (BITS, 0)
            answers.likely.setdefault(metric, {})[key] = (row["log_probabilities"][place], row["bytes"])
        for metric in (metric for metric in metrics if row[metric] is not None):
            (answers.graded if metric in GRADED else answers.right).setdefault(metric, {})[key] = row[metric]
        for one in row.get("statistics") or ():
            statistics = ItemStatistics(one["aggregation"], tuple(one["values"]))
            answers.statistics.setdefault(one["metric"], {})[key] = statistics
    return answers
