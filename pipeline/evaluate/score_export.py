"""Write the file of another tool with the scores of a checkpoint: the command `polder scores`."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Literal

import yaml

from pipeline.core.errors import InputError
from pipeline.evaluate.every_eval_ever import format_euroeval, format_every_eval_ever
from pipeline.evaluate.score_export_formats import Json, format_lm_eval, format_model_index, read_scores

Format = Literal["lm-eval", "every-eval-ever", "euroeval", "model-index"]


def write_scores(
    run: Path, model: str, step: int, kind: Format, output: Path | None = None, name: str | None = None
) -> tuple[Path, list[str]]:
    """Write the scores of a checkpoint in the format of a tool; return the file, and the scores that it cannot hold.

    Args:
        output: the file to write; by default the name that the tool gives it, in the working directory.
        name: of the model for others, such as NAMESPACE/NAME.

    Raises:
        InputError: the run has no such evaluation, or the file exists.
    """
    scores, left_out = read_scores(run, model, step, name), list[str]()
    if kind == "lm-eval":
        started = datetime.fromisoformat(scores.record.started).replace(tzinfo=None).isoformat().replace(":", "-")
        file, text = f"results_{started}.json", _dump(format_lm_eval(scores), 2)
    elif kind == "every-eval-ever":
        document, left_out = format_every_eval_ever(scores)
        file, text = "every-eval-ever.json", _dump(document, 2)
    elif kind == "euroeval":
        lines, left_out = format_euroeval(scores)
        file, text = "euroeval_benchmark_results.jsonl", "".join(map(_dump, lines))
    else:
        index = {"model-index": format_model_index(scores.name, scores.content)}
        file, text = "model-index.yaml", yaml.safe_dump(index, sort_keys=False, allow_unicode=True)
    path = output or Path(file)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise InputError(f"{path} exists: name another file with --output") from None
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): name another file with --output") from None
    return path, left_out


def _dump(content: Json, indent: int | None = None) -> str:
    return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
