"""Read exported scores with Every Eval Ever's validator and converter, and with EuroEval's result class and prompts.

Run by the Python of the tests, with the folder of these packages: `read_scores.py FOLDER`. Each line of its input is a
JSON list of a tool and a file; it answers with a line of JSON, the result or, after an exception, its text.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
import types
import typing
from pathlib import Path
from typing import Any
from unittest import mock

import typing_extensions


def validate_document(file: Path) -> Any:
    """Return the errors of Every Eval Ever's validator, except those about a location in its repository.

    The validator accepts any version of the schema.
    """
    validation = importlib.import_module("every_eval_ever.validator.validation_core")
    document = json.loads(file.read_text(encoding="utf-8"))
    wrong = [*validation.check_score_metadata(document), *validation.check_model_deployment(document)]
    if document["schema_version"] != importlib.import_module("every_eval_ever.schema").get_schema_version():
        wrong.append("the version is not that of the schema")
    return [*validation.validate_aggregate(file).errors, *wrong]


def convert_lm_eval(file: Path) -> Any:
    """Return the results that Every Eval Ever's converter reads from an lm-eval file."""
    adapter = importlib.import_module("every_eval_ever.converters.lm_eval.adapter").LMEvalAdapter()
    logs = adapter.transform_from_file(file, {"source_organization_name": "test"})
    return [json.loads(log.model_dump_json(exclude_none=True)) for log in logs]


def read_euroeval(file: Path) -> Any:
    """Return EuroEval's BenchmarkResult of each line, and the line that EuroEval would write."""
    results = import_euroeval("data_models").BenchmarkResult.from_jsonl(file)
    return [{"result": result.model_dump(), "written": result.to_eee_dict()} for result in results]


def write_euroeval_prompts(file: Path) -> Any:
    """Return the prompts of EuroEval's first iteration for a base model, by the name of the data set.

    The file has the rows of each data set, by split.
    """
    from datasets import Dataset, DatasetDict, disable_progress_bars

    disable_progress_bars()
    generation, kind = import_euroeval("generation_utils"), import_euroeval("data_models").DatasetConfig
    modules = [import_euroeval(f"dataset_configs.{language}") for language in ("dutch", "english")]
    configs = {one.name: one for module in modules for one in vars(module).values() if isinstance(one, kind)}
    base = import_euroeval("enums").GenerativeType.BASE
    prompts = {}
    for name, splits in json.loads(file.read_text(encoding="utf-8")).items():
        rows = DatasetDict({split: Dataset.from_list(rows) for split, rows in splits.items()})
        shots = generation.extract_few_shot_examples(rows, configs[name], None, 0)
        asked = generation.apply_prompt(rows["test"][:], shots, None, configs[name], base, True, None)
        prompts[name] = asked["text"]
    return prompts


def mark_entities(file: Path) -> Any:
    """Return the tags that EuroEval reads from written answers about `conll-nl`.

    The file has the tokens of each item, and the answers.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    marking = import_euroeval("task_group_utils.token_classification")
    sys.modules["demjson3"].decode = lambda txt: json.loads(txt)  # type: ignore[attr-defined]
    sys.modules["demjson3"].JSONDecodeError = ValueError  # type: ignore[attr-defined]
    output = types.SimpleNamespace(sequences=content["answers"], failed_instances=[])
    config = import_euroeval("dataset_configs.dutch").CONLL_NL_CONFIG
    return marking.extract_labels_from_generation({"tokens": content["tokens"]}, output, config)


def import_euroeval(name: str) -> Any:
    """Import a module of EuroEval.

    Importing the package starts the whole program, which needs inference servers: its modules are imported
    without it. The missing libraries serve log messages and other tasks; they are empty.
    """
    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc]  # pydantic asks for it below Python 3.12
    if "euroeval" not in sys.modules:
        sys.modules["euroeval"] = types.ModuleType("euroeval")
        sys.modules["euroeval"].__path__ = [str(Path(sys.argv[1], "euroeval"))]
        for library in ("litellm", "termcolor", "demjson3", "langdetect", "cyrtranslit", "lettucedetect"):
            sys.modules[library] = mock.MagicMock()
    return importlib.import_module(f"euroeval.{name}")


READERS = {
    "every-eval-ever": validate_document,
    "lm-eval": convert_lm_eval,
    "euroeval": read_euroeval,
    "euroeval-prompts": write_euroeval_prompts,
    "euroeval-entities": mark_entities,
}

if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    answers, sys.stdout = sys.stdout, sys.stderr  # what the tools print is no answer
    for line in sys.stdin:
        tool, file = json.loads(line)
        try:
            answer = {"result": READERS[tool](Path(file))}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
