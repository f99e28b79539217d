"""Write a page of the items that a checkpoint answered: question, answer, right answer, and the scores of the choices.

The results of a run have hashes of prompts and no texts, so that a run never publishes a benchmark. The texts are read
from the task files again; an item whose hash no longer matches is listed without its text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

from pipeline.core import markup
from pipeline.core.errors import InputError
from pipeline.evaluate.item_results import SCHEMA, hash_prompts
from pipeline.evaluate.lm_eval_scoring import seed_fewshot_sampling
from pipeline.evaluate.settings import SuitesSettings
from pipeline.evaluate.task_failures import blame_task
from pipeline.evaluate.task_loader import find_task_sources

if TYPE_CHECKING:
    from lm_eval.api.task import Task

TEMPLATE, STYLESHEET = "items.html.jinja", "items.css"


class ShownTask(NamedTuple):
    """The items of one task on the page.

    Attributes:
        metric: the one that decides whether items are right; None for a task without right answers.
        altered: the numbers of items whose text has changed.
    """

    suite: str
    task: str
    metric: str | None
    items: list[dict[str, Any]]
    altered: list[int]


def write_item_page(path: Path, settings: SuitesSettings, given: Sequence[Path], answers: Path) -> dict[str, int]:
    """Write the page of a checkpoint; return the numbers of shown items and of items whose text has changed.

    Args:
        path: the page.
        settings: those of the checkpoint's evaluation.
        given: the files that its suites were read from.
        answers: its item table.

    Raises:
        InputError: the text of no item is available.
    """
    import datasets

    rows = pq.read_table(answers).to_pylist()
    shown: list[ShownTask] = []
    not_read: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        datasets.config.HF_DATASETS_CACHE = Path(scratch) / "cache"
        for suite in settings.suites:
            of_suite = [row for row in rows if row["suite"] == suite.name]
            files = [file.absolute() for file in given]
            for source in find_task_sources(suite, files, Path(scratch)) if of_suite else ():
                try:
                    with blame_task(source.name, "loading it"):
                        loaded = sorted(source.load().items())
                except InputError as error:
                    not_read.append(str(error))
                    continue
                for name, task in loaded:
                    of_task = [row for row in of_suite if row["task"] == name]
                    if of_task:
                        shown.append(_collect_shown_items(task, of_task, settings.seed))
    counts = {"shown": sum(len(one.items) for one in shown), "altered": sum(len(one.altered) for one in shown)}
    if not counts["shown"]:
        reason = not_read[0] if not_read else "give those of the evaluation"
        raise InputError(f"the task files have no item of {answers}: {reason}")
    css = markup.read_style_sheet(Path(__file__).parent / STYLESHEET)
    content = {
        "model": settings.model,
        "step": settings.step,
        "tasks": shown,
        "not_read": not_read,
        "css": css,
        "css_hash": markup.content_security_hash(css),
    }
    environment = markup.template_environment(Path(__file__).parent, {}, html=True)
    path.write_text(environment.get_template(TEMPLATE).render(content), encoding="utf-8", newline="\n")
    return counts


def _requests_by_item(task: Task, numbers: list[int], seed: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield lm-eval's requests for each item: a tuple for each choice."""
    seed_fewshot_sampling(task, seed)
    task.build_all_requests(samples=numbers)
    asked: dict[int, list[tuple[Any, ...]]] = {}
    for instance in task.instances:
        asked.setdefault(instance.doc_id, []).append(instance.args)
    yield from (asked[place] for place in range(len(numbers)))


def _collect_shown_items(task: Task, rows: list[dict[str, Any]], seed: int) -> ShownTask:
    rows = sorted((row for row in rows if row["item"] < len(task.eval_docs)), key=lambda row: row["item"])
    metrics = [name for name in rows[0] if name not in SCHEMA.names and rows[0][name] is not None]
    binary = [name for name in metrics if isinstance(rows[0][name], bool)]
    items, altered = [], []
    for row, asked in zip(rows, _requests_by_item(task, [row["item"] for row in rows], seed), strict=True):
        if hash_prompts(asked) != row["prompt_sha256"]:
            altered.append(row["item"])
            continue
        doc = task.eval_docs[row["item"]]
        choices = _list_choices(row, asked) if row["answer"] is not None else []
        is_common = len({one["before"] for one in choices}) == 1
        items.append(
            {
                "row": row,
                "prompt": str(asked[0][0]) if is_common or not choices else "",
                "choices": choices,
                "is_common": is_common,
                "target": None if row["log_probabilities"] else str(task.doc_to_target(doc)),
                "is_right": row[binary[0]] if binary else None,
                "metrics": {name: row[name] for name in metrics},
            }
        )
    return ShownTask(rows[0]["suite"], rows[0]["task"], binary[0] if binary else None, items, altered)


def _list_choices(row: dict[str, Any], asked: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return the choices of an item, each with its log-probability in nats, in all and per character."""
    unigram = row["unigram_log_probabilities"] or [None] * len(row["log_probabilities"])
    return [
        {
            "before": str(before),
            "text": str(text),
            "log_probability": of_model,
            "a_character": of_model / max(len(text), 1),
            "unigram": of_unigram,
            "is_answer": number == row["answer"],
            "is_right": number in row["right_answers"],
        }
        for number, ((before, text), of_model, of_unigram) in enumerate(
            zip(asked, row["log_probabilities"], unigram, strict=False)
        )
    ]
