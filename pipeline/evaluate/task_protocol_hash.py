"""The protocol of a task: how and of which items it is asked and how it is scored, with a hash of these."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lm_eval.api.task import Task

NOT_HASHED = ("custom_dataset", "dataset_kwargs")  # how the rows are read: the rows themselves are hashed
MEMORY_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def describe_protocol(task: Task, asked: Sequence[int], seed: int) -> dict[str, Any]:
    """Return the protocol of a loaded task, before its texts are normalized.

    The hash does not cover the code of Polder's own metrics, what a shipped function calls, the version of lm-eval, and
    how many prompts are truncated: the record and `results.json` have these.

    Args:
        task: the task, with its examples.
        asked: the indices of the items that are asked.
        seed: draws the few-shot examples, unless the task takes the first ones.

    Returns:
        `version` of the task's file, `num_fewshot`, `output_type`, `data_set` with its `configuration` and `split` if
        it has an address, `examples_available`, and `sha256` of the task's configuration with the text of its
        functions, all rows, the positions of the items that are asked, and the few-shot examples with their seed.
    """
    config = {key: value for key, value in task.dump_config().items() if key not in NOT_HASHED}
    for name in ("process_results", "process_docs"):
        if getattr(getattr(task.config, name), "__module__", "").startswith("pipeline."):
            del config[name]  # its text would change with the layout of this package's code
    shots = int(task.get_config("num_fewshot") or 0)
    rows: dict[str, Any] = {"asked": [*asked], "available": _hash_rows(task.eval_docs)}
    if shots:
        rows["shown"] = _hash_rows(task.sampler.df)
        if task.get_config("fewshot_config").sampler != "first_n":
            rows["seed"] = str(seed)
    text = MEMORY_ADDRESS.sub("", json.dumps([config, rows], sort_keys=True, ensure_ascii=False, default=str))
    path = str(config.get("dataset_path") or "")
    return {
        "version": (config.get("metadata") or {}).get("version"),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "num_fewshot": shots,
        "output_type": task.OUTPUT_TYPE,
        "data_set": path if path.count("/") == 1 else None,
        "configuration": config.get("dataset_name"),
        "split": config.get("test_split") or config.get("validation_split"),
        "examples_available": len(task.eval_docs),
        **({"euroeval": named} if (named := (config.get("metadata") or {}).get("euroeval")) else {}),
    }


def _hash_rows(rows: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode() + b"\n")
    return digest.hexdigest()
