"""The protocol hash depends on requests and scoring, and not on the layout of Polder's code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from datasets import Dataset
from lm_eval.api.task import ConfigurableTask

from pipeline.evaluate.task_protocol_hash import describe_protocol


def hash_of(process_results: Callable[..., Any] | None, asked: Sequence[int] = (0, 1), module: str = "shipped") -> str:
    rows = Dataset.from_list([{"text": f"Zin {number}", "end": " over vis"} for number in range(3)])
    config: dict[str, Any] = {"task": "t", "output_type": "generate_until", "test_split": "test"}
    config |= {"doc_to_text": "{{text}}", "doc_to_target": "{{end}}", "custom_dataset": lambda **_: {"test": rows}}
    if process_results:
        process_results.__module__ = module
        config["process_results"] = process_results
    task = ConfigurableTask(config=config | {"metric_list": [{"metric": "bleu"}]})
    return str(describe_protocol(task, asked, 1)["sha256"])


def lower(fields: dict[str, Any], results: list[str]) -> dict[str, Any]:
    return {"bleu": (fields["end"].lower(), results[0].lower())}


def upper(fields: dict[str, Any], results: list[str]) -> dict[str, Any]:
    return {"bleu": (fields["end"].upper(), results[0].upper())}


def test_scoring_function_of_a_shipped_task_changes_the_protocol_hash() -> None:
    assert hash_of(lower) == hash_of(lower)
    assert len({hash_of(lower), hash_of(upper), hash_of(None)}) == 3
    own = [hash_of(function, module="pipeline.evaluate.task_loader") for function in (lower, upper)]
    assert own[0] == own[1] == hash_of(None)


def test_selected_items_change_the_protocol_hash() -> None:
    assert len({hash_of(None, asked) for asked in ((0, 1), (0, 2), (0, 1, 2))}) == 3
