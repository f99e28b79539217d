"""Read exported scores with Every Eval Ever's validator and converter, and EuroEval's result class; run EuroEval.

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

import library_metrics
import substitute_engine
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


def run_euroeval(file: Path) -> Any:
    """Return what EuroEval's first iteration asks, extracts and scores with a base model, by the name of the data set.

    EuroEval's class of models in vLLM runs, with Transformers in place of vLLM. Left out are METEOR, which downloads
    WordNet, and metrics that Polder does not have: macro-F1 and chrF4++.

    Args:
        file: the folder of the `model`, and the `rows` of each data set by split.
    """
    from datasets import Dataset, DatasetDict, disable_progress_bars

    disable_progress_bars()
    content = json.loads(file.read_text(encoding="utf-8"))
    kind = import_euroeval("data_models").DatasetConfig
    modules = [import_euroeval(f"dataset_configs.{language}") for language in ("dutch", "english")]
    configs = {one.name: one for module in modules for one in vars(module).values() if isinstance(one, kind)}
    model = load_euroeval_model(content["model"], configs["scala-nl"], file.parent)
    results = {}
    for name, splits in content["rows"].items():
        config = model.update_dataset_config(configs[name]).dataset_config
        task = config.task
        task.metrics = [metric for metric in task.metrics if metric.name not in ("meteor", "macro_f1", "chr_f4pp")]
        rows = DatasetDict({split: Dataset.from_list(rows) for split, rows in splits.items()})
        prepared = model.prepare_dataset(DatasetDict(rows), task, 0)["test"]
        results[name] = iterate_euroeval(model, prepared)
        if task.name == "named-entity-recognition":
            model._model.is_constrained = False
            results[name]["unconstrained"] = iterate_euroeval(model, prepared)
            model._model.is_constrained = True
        if task.name == "simplification":
            (sari,), references = task.metrics, [row["target_text"] for row in splits["test"]]
            given = (references, rows["test"], config, model.benchmark_config)
            results[name]["sari_of_documents"] = sari(results[name]["predictions"], *given)
    return results


def iterate_euroeval(model: Any, rows: Any) -> dict[str, Any]:
    """Return the prompts of an iteration, what EuroEval extracts from the answers, and its scores.

    For named entities also the scores that the same metrics give to tags in capitals.
    """
    generation, config, settings = import_euroeval("generation"), model.dataset_config, model.benchmark_config
    model._model.prompts.clear()
    cache = generation.ModelCache(
        Path(settings.cache_dir), f"{config.name}.json", config.max_generated_tokens, False, False, False
    )
    with mock.patch.object(generation, "_compute_final_scores", wraps=generation._compute_final_scores) as last:
        scores = generation.generate_single_iteration(rows, model, config, settings, cache)
    cache.remove()
    tags, labels = last.call_args.kwargs["all_preds"], last.call_args.kwargs["ground_truth"]
    total = import_euroeval("scores").log_scores(config.name, config.task.metrics, [scores], "", "", None)["total"]
    texts = rows["text"]  # of equal ones EuroEval asks the first, and appends the others to its answers
    order = sorted(range(len(texts)), key=lambda place: texts[place] in texts[:place])
    predictions = [tags[order.index(place)] for place in range(len(texts))]
    result = {"prompts": [*model._model.prompts], "predictions": predictions, "scores": total}
    if config.task.name == "named-entity-recognition":
        without = import_euroeval("task_group_utils.token_classification")._build_no_misc_variants(tags, labels)
        sides = {"micro_f1": (tags, labels), "micro_f1_no_misc": without}
        result["scores_of_capitals"] = {}
        for metric in config.task.metrics:
            written, real = ([[*map(str.upper, row)] for row in side] for side in sides[metric.name])
            result["scores_of_capitals"][metric.name] = metric(written, real, rows, config, settings)
    return result


def load_euroeval_model(folder: str, config: Any, scratch: Path) -> Any:
    """Return EuroEval's model of a folder."""
    import evaluate
    import torch
    from transformers import AutoConfig

    substitute_engine.install()
    evaluate.load = library_metrics.load
    import_euroeval("metrics.huggingface").ensure_nltk_packages = lambda _: None  # a download for METEOR
    own = sys.modules["euroeval.benchmark_modules"] = types.ModuleType("euroeval.benchmark_modules")
    own.__path__ = [str(Path(sys.argv[1], "euroeval/benchmark_modules"))]  # its __init__ imports all kinds of models
    encoders = sys.modules["euroeval.benchmark_modules.hf"] = types.ModuleType("euroeval.benchmark_modules.hf")
    base = import_euroeval("benchmark_modules.base").BenchmarkModule
    encoders.HuggingFaceEncoderModel = type("HuggingFaceEncoderModel", (base,), {})  # type: ignore[attr-defined]
    encoders.load_hf_model_config = lambda model_id, **_: AutoConfig.from_pretrained(model_id)
    module, enums = import_euroeval("benchmark_modules.vllm"), import_euroeval("enums")
    module.load_model = lambda **_: substitute_engine.LLM(folder)
    module.internet_connection_available = lambda: False
    model = import_euroeval("data_models").ModelConfig(
        **dict(model_id=folder, revision="main", param=None, task="text-generation", languages=[], merge=False),
        **dict(fresh=False, model_cache_dir=str(scratch), adapter_base_model_id=None),
        inference_backend=enums.InferenceBackend.VLLM,
        model_type=enums.ModelType.GENERATIVE,
    )
    off = ("use_bits_per_character", "progress_bar", "debug", "run_with_cli", "trust_remote_code")
    settings = dict.fromkeys(off, False) | dict.fromkeys(("generative_type", "api_key", "attention_backend"))
    settings |= {"few_shot": True, "verbose": True, "cache_dir": str(scratch), "device": torch.device("cpu")}
    module.VLLMModel.__abstractmethods__ = frozenset()
    return module.VLLMModel(model, config, types.SimpleNamespace(**settings), log_metadata=False)


def mark_entities(file: Path) -> Any:
    """Return the tags that EuroEval reads from written answers about `conll-nl`.

    The file has the tokens of each item, and the answers.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    marking = import_euroeval("task_group_utils.token_classification")
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
        libraries = ("litellm", "termcolor", "langdetect", "cyrtranslit", "lettucedetect", "Levenshtein", "sacremoses")
        sys.modules |= {library: mock.MagicMock() for library in libraries}
        json_reader = types.SimpleNamespace(decode=lambda txt: json.loads(txt), JSONDecodeError=ValueError)
        sys.modules["demjson3"] = json_reader  # type: ignore[assignment]
    return importlib.import_module(f"euroeval.{name}")


READERS = {
    "every-eval-ever": validate_document,
    "lm-eval": convert_lm_eval,
    "euroeval": read_euroeval,
    "euroeval-scores": run_euroeval,
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
