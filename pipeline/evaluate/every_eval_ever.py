"""Return the scores of a checkpoint in the schema of Every Eval Ever, and in EuroEval's lines, which follow it."""

from __future__ import annotations

import json

from pipeline.evaluate.instruction_checks import INSTRUCTION_METRICS, PROMPT_METRICS
from pipeline.evaluate.score_export_formats import (
    CheckpointScores,
    Json,
    external_metric,
    group_by_task,
    read_interval,
    read_protocol,
)

EEE_VERSION = "0.3.0"  # of the schema of Every Eval Ever
EUROEVAL_EEE_VERSION = "0.2.1"  # that EuroEval writes
INFINITY = "Infinity"
ROUNDING = 1e-9  # by which a sum of shares may exceed its bound
INTERVAL_METHOD = "Polder: docs/explanation/statistics.md"
STANDARD_ERROR_METHOD = "analytic, without clusters of items"
# Unit, least and largest score, by the name in results.
_SHARE, _POINTS = ("proportion", 0.0, 1.0), ("points", 0.0, 100.0)
UNITS: dict[str, tuple[str, float, float | str]] = {
    **dict.fromkeys(("acc", "acc_norm", "acc_slor", "exact_match", "f1", "rouge_l", "claims_found"), _SHARE),
    **dict.fromkeys(("squad_f1", "squad_em", "entity_f1", "entity_f1_no_misc"), _SHARE),
    **dict.fromkeys(("exact_answer", "citation", "abstention", "likelihood", "pass_at_1", "answers_found"), _SHARE),
    **dict.fromkeys((*PROMPT_METRICS, *INSTRUCTION_METRICS), _SHARE),
    **dict.fromkeys(("bleu", "chrf", "chrf3pp", "sari", "sari_13a"), _POINTS),
    **dict.fromkeys(("bits_per_byte", "answer_bits_per_byte"), ("bits per byte", 0.0, INFINITY)),
    **dict.fromkeys(("perplexity", "word_perplexity", "byte_perplexity"), ("perplexity", 1.0, INFINITY)),
    "mcc": ("correlation", -1.0, 1.0),
    "ter": ("points", 0.0, INFINITY),
}
EUROEVAL_METRICS = {"acc": "accuracy", "polder_squad_f1": "f1", "polder_squad_em": "em", "polder_chrf3pp": "chr_f3pp"}
"""EuroEval's names of metrics that it computes alike; others keep Polder's name."""


def format_every_eval_ever(scores: CheckpointScores) -> tuple[Json, list[str]]:
    """Return a document of Every Eval Ever's schema, and the scores that it cannot hold.

    Each score of the schema is better if it is higher, or if it is lower: those with an aim, and others without a
    better direction, are left out.
    """
    rows = [row for row in scores.rows if row["higher_is_better"] is not None]
    left_out = [f"{row['task']} {row['metric']}" for row in scores.rows if row["higher_is_better"] is None]
    details = {"lm_eval_version": scores.content["lm_eval_version"], **_source_details(scores)}
    document = _eee_document(scores, EEE_VERSION, [_eee_result(scores, row) for row in rows])
    version = scores.record.code_version
    document["eval_library"] = {"name": "polder", "version": version, "additional_details": details}
    return document, left_out


def _source_details(scores: CheckpointScores) -> dict[str, str]:
    commit = (scores.record.git or {}).get("commit")
    return {"commit": commit} if commit else {}


def _eee_document(scores: CheckpointScores, version: str, results: list[Json]) -> Json:
    ended = str(int(scores.record.ended_seconds))
    details = {"deployment_type": "self_deployed", "model_availability": "unknown"}
    if scores.parameters:
        details["num_parameters"] = str(scores.parameters)
    return {
        "schema_version": version,
        "evaluation_id": f"polder/{scores.name}/{ended}",
        "evaluation_timestamp": scores.record.started,
        "retrieved_timestamp": ended,
        "source_metadata": {
            "source_name": "Polder",
            "source_type": "evaluation_run",
            "source_organization_name": scores.provider or "not stated",
            "evaluator_relationship": "first_party" if scores.provider and scores.trained_from_scratch else "other",
        },
        "model_info": {
            "name": scores.name,
            "id": scores.name,
            **({"developer": scores.provider} if scores.provider else {}),
            **(
                {"inference_engine": {"name": "transformers", "version": transformers_version}}
                if (transformers_version := scores.packages.get("transformers"))
                else {}
            ),
            "additional_details": details,
        },
        "evaluation_results": results,
    }


def _eee_source(scores: CheckpointScores, row: Json) -> Json:
    protocol = read_protocol(row)
    data_set, revision = protocol.get("data_set"), None
    if data_set is None:
        return {"dataset_name": row["task"], "source_type": "other"}
    revision = scores.content.get("data_sets", {}).get(data_set)
    return {
        "dataset_name": row["task"],
        "source_type": "hf_dataset",
        "hf_repo": data_set,
        **({"hf_split": protocol["split"]} if protocol.get("split") else {}),
        "samples_number": protocol["examples_available"],
        **({"additional_details": {"revision": revision}} if revision else {}),
    }


def _eee_result(scores: CheckpointScores, row: Json, name: str = "", factor: float = 1.0) -> Json:
    protocol, unit_and_bounds = read_protocol(row), _find_unit(row)
    metric = external_metric(row["metric"])
    config: Json = {"metric_name": metric, "lower_is_better": row["higher_is_better"] is False}
    if unit_and_bounds:
        unit, least, most = unit_and_bounds
        config |= {
            "metric_unit": "percent" if factor != 1 else unit,
            "score_type": "continuous",
            "min_score": least * factor,
            "max_score": most if isinstance(most, str) else most * factor,
        }
    if row["signature"]:
        config["additional_details"] = {"signature": row["signature"]}
    uncertainty: Json = {"num_samples": row["examples"]}
    if row["standard_error"] is not None:
        error = {"value": row["standard_error"] * factor, "method": STANDARD_ERROR_METHOD}
        uncertainty["standard_error"] = error
    if ends := read_interval(row):
        low, high = ends
        uncertainty["confidence_interval"] = {
            "lower": low * factor,
            "upper": high * factor,
            "confidence_level": 0.95,
            "method": INTERVAL_METHOD,
        }
    details = {
        "suite": row["suite"],
        "language": row["language"],
        "examples_truncated": str(row["examples_truncated"]),
        "examples_too_long": str(row["examples_too_long"]),
        "verdict": row.get("verdict"),
        "chance_level": None if row.get("chance_level") is None else str(row["chance_level"] * factor),
    }
    result: Json = {
        "evaluation_result_id": f"{row['suite']}/{row['task']}/{metric}",
        "evaluation_name": name or row["task"],
        "source_data": _eee_source(scores, row),
        "metric_config": config,
        "score_details": {
            "score": row["value"] * factor,
            "details": {key: value for key, value in details.items() if value is not None},
            "uncertainty": uncertainty,
        },
    }
    if protocol:
        described = {"num_fewshot": str(protocol["num_fewshot"]), "protocol_sha256": protocol["sha256"]}
        if protocol["version"] is not None:
            described["protocol_version"] = str(protocol["version"])
        result["generation_config"] = {"additional_details": described}
    return result


def format_euroeval(scores: CheckpointScores) -> tuple[list[Json], list[str]]:
    """Return the lines of euroeval_benchmark_results.jsonl, one a task, and the scores that they cannot hold.

    EuroEval's lines follow Every Eval Ever's schema with details of its own. It counts shares and correlations in
    percent, and its half width of an interval is read from both ends. Its own version and its ten iterations are not
    here: Polder asks once, and draws its intervals from the items.
    """
    lines, left_out = [], []
    for task, rows in group_by_task(scores.rows).items():
        kept = [row for row in rows if row["higher_is_better"] is not None]
        left_out += [f"{task} {row['metric']}" for row in rows if row["higher_is_better"] is None]
        if not kept:
            continue
        euroeval = read_protocol(rows[0]).get("euroeval") or {}
        data_set = str(euroeval.get("dataset", task))
        results = [_eee_result(scores, row, _euroeval_metric(row), _percent(row)) for row in kept]
        for result in results:
            result["source_data"]["dataset_name"] = data_set
        line = _eee_document(scores, EUROEVAL_EEE_VERSION, results)
        line["evaluation_id"] = f"{data_set}/{scores.name}/{line['retrieved_timestamp']}"
        line["model_info"]["additional_details"] |= {
            **({"num_model_parameters": str(scores.parameters)} if scores.parameters else {}),
            **(
                {"max_sequence_length": str(max_length)}
                if (max_length := scores.config.get("max_position_embeddings"))
                else {}
            ),
            **(
                {"vocabulary_size": str(vocabulary_size)}
                if (vocabulary_size := scores.config.get("vocab_size"))
                else {}
            ),
            "merge": "false",
            "generative": "true",
            "generative_type": "base",
        }
        line["eval_library"] = {
            "name": "polder",
            "version": "unknown",  # EuroEval takes this for its own version
            "additional_details": {
                "polder_code_version": scores.record.code_version,
                "dataset": data_set,
                "task": str(euroeval.get("task", rows[0]["suite"])),
                "languages": json.dumps([part.strip() for part in rows[0]["language"].split(",")]),
                **(
                    {"few_shot": str(read_protocol(rows[0])["num_fewshot"] > 0).lower()}
                    if read_protocol(rows[0])
                    else {}
                ),
                "validation_split": "false",
                "raw_results": "[]",
                **{
                    f"{name}_version": each for name in ("transformers", "torch") if (each := scores.packages.get(name))
                },
                **_source_details(scores),
            },
        }
        lines.append(line)
    return lines, left_out


def _find_unit(row: Json) -> tuple[str, float, float | str] | None:
    """Return unit and bounds of a score; None if its metric is another one of that name, by its value.

    An interval may exceed the bounds, as that of a mean of few values near 0 does.
    """
    unit = UNITS.get(row["metric"].partition(",")[0])
    if unit is None or not unit[1] - ROUNDING <= row["value"] <= float(unit[2]) + ROUNDING:
        return None
    return unit


def _percent(row: Json) -> float:
    unit_and_bounds = _find_unit(row)
    return 100.0 if unit_and_bounds and unit_and_bounds[0] in ("proportion", "correlation") else 1.0


def _euroeval_metric(row: Json) -> str:
    metric = external_metric(row["metric"])
    return f"test_{EUROEVAL_METRICS.get(metric, metric)}"
