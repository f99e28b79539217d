"""Read exported scores with Every Eval Ever's validator and converter, and with EuroEval's result class.

Run by the Python of the tests, with the folder of these packages: `read_scores.py FOLDER TOOL FILE`. It prints JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

import typing_extensions


def validate_document(file: Path) -> Any:
    """Return the errors that Every Eval Ever's validator finds, without those of a place in its repository."""
    validation = importlib.import_module("every_eval_ever.validator.validation_core")
    document = json.loads(file.read_text(encoding="utf-8"))
    wrong = [*validation.check_score_metadata(document), *validation.check_model_deployment(document)]
    return [*validation.validate_aggregate(file).errors, *wrong]


def convert_lm_eval(file: Path) -> Any:
    """Return what Every Eval Ever's converter reads in a results file of lm-eval."""
    adapter = importlib.import_module("every_eval_ever.converters.lm_eval.adapter").LMEvalAdapter()
    logs = adapter.transform_from_file(file, {"source_organization_name": "test"})
    return [json.loads(log.model_dump_json(exclude_none=True)) for log in logs]


def read_euroeval(file: Path) -> Any:
    """Return EuroEval's BenchmarkResult of each line, and what it would write itself.

    Its packages start the whole program when they are imported, which needs inference servers. Their modules are loaded
    without that; the three libraries that are missing then serve log messages and other tasks.
    """
    typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc]  # pydantic asks for it below Python 3.12
    for name in ("euroeval", "euroeval.metrics"):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(sys.argv[1], *name.split(".")))]
        sys.modules[name] = package
    for name, attributes in {"litellm": [], "termcolor": ["colored"], "demjson3": ["JSONDecodeError"]}.items():
        module = types.ModuleType(name)
        for attribute in attributes:
            setattr(module, attribute, ValueError)
        sys.modules.setdefault(name, module)
    results = importlib.import_module("euroeval.data_models").BenchmarkResult.from_jsonl(file)
    return [{"result": result.model_dump(), "written": result.to_eee_dict()} for result in results]


READERS = {"every-eval-ever": validate_document, "lm-eval": convert_lm_eval, "euroeval": read_euroeval}

if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    print(json.dumps(READERS[sys.argv[2]](Path(sys.argv[3]))))
