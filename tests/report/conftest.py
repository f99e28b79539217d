"""A small run in the layout of its stages: records, attempts and artifacts in the formats of the pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.report import energy_accounting as account_of_energy
from pipeline.report.settings import PageSettings
from tests.report.account_example import make_accounting
from tests.report.example import HOSTILE, Run, entry, metrics, part, sha, task


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Two sources, one of them with a hostile holder and address; one model; a killed and a failed attempt."""
    monkeypatch.setattr(account_of_energy, "_compute_accounting", make_accounting)
    configuration = json.dumps({"run": {"name": "tiny", "seed": 42}, "note": "<b>bold</b>"}, indent=1)
    settings = PageSettings(
        run="tiny",
        seed=42,
        configuration=configuration,
        platform="local",
        pue=1.2,
        pue_source="assumed",
        carbon_intensity_grams_per_kwh=267.622,
        carbon_intensity_source="codecarbon",
        carbon_intensity_place="Netherlands",
        carbon_intensity_year=2023,
        water_liters_per_kwh=0.5,
        water_source="the site",
        electricity_euros_per_kwh=0.2,
        electricity_price_source="a bill",
        provider="Example & Co",
    )
    run = Run(tmp_path / "results" / "tiny", settings)
    rights = {
        "laws": {
            "basis": "public-domain",
            "holder": "Kingdom of the Netherlands",
            "url": "https://wetten.overheid.nl/",
        },
        "tales": {"basis": "license", "holder": HOSTILE, "url": "javascript:alert(1)"},
    }
    statistics = {
        "laws": part(1200, {"language": 14, "too_short": 120, "duplicate_lines": 31}, {"exact_duplicate": 9}),
        "tales": part(800, {"language": 200, "<img src=x>": 3}, {"exact_duplicate": 2, "near_duplicate": 40}),
    }
    for number, (source, described) in enumerate(rights.items()):
        files = [{"name": f"{source}-{n}.jsonl.gz", "bytes": 1_500_000, "sha256": sha(f"{source}{n}")} for n in (0, 1)]
        content = {"name": source, "language": ("nl", "en")[number], "license": ("CC0-1.0", "CC-BY-4.0")[number]}
        run.write(
            f"sources/{source}/manifest.json",
            {
                "source": {**content, "rights": described, "units": 1},
                "bytes": 3_000_000,
                "files": 2,
                "units": {"0": {"sha256": sha(source), "files": files}},
            },
        )
        fingerprint = f"sources/{source}/fingerprints/0.json"
        run.record(
            "sources.fingerprint",
            {"source": source, "unit": "0"},
            1 + number,
            outputs=[entry("fingerprint", fingerprint)],
            inputs=[entry("files", f"data:{file['name']}") for file in files],
        )
        run.record(
            "sources.manifest",
            {"source": source},
            3,
            inputs=[entry("fingerprints", fingerprint)],
            outputs=[entry("manifest", f"sources/{source}/manifest.json")],
        )
        final = entry("final", f"corpus/main/final/{source}.0.parquet")
        run.record("corpus.deduplicate", {"corpus": "main", "source": source, "unit": "0"}, 5, outputs=[final])
    totals = part(
        2000,
        {"language": 214, "too_short": 120, "duplicate_lines": 31, "<img src=x>": 3},
        {"exact_duplicate": 11, "near_duplicate": 40},
    )
    described = {name: {"license": "CC0-1.0", "language": "nl", **counts} for name, counts in statistics.items()}
    run.write(
        "corpus/main/statistics.json",
        {
            "corpus": "main",
            "sources": described,
            "totals": totals,
            "personal_data": {"email": 12, "iban": 0},
            "languages": {"en": {"documents": 555, "bytes": 2_664_000}, "nl": {"documents": 1026, "bytes": 4_924_800}},
        },
    )
    run.write("corpus/main/dataset.html", {})
    language = {
        "documents": 50,
        "words": 10_000,
        "tokens": 15_000,
        "bytes": 60_000,
        "tokens_per_word": 1.5,
        "bytes_per_token": 4.0,
        "whole_words": 6_200,
        "whole_word_share": 0.62,
        "renyi_efficiency": 0.41,
        "held_out": True,
    }
    run.write(
        "tokenizer/main/fertility.json",
        {
            "tokenizer_sha256": sha("tokenizer"),
            "vocabulary_size": 8192,
            "measured_bytes": 5_000_000,
            "renyi_efficiency": 0.43,
            "languages": {
                "nl": language,
                "en": {**language, "tokens": 12_000, "tokens_per_word": 1.2, "bytes_per_token": 5.0},
            },
            "parallel": None,
        },
    )
    shares = {"documents": 790, "tokens": 800_000}
    run.write(
        "tokens/main/index.json",
        {
            "tokenizer_sha256": sha("tokenizer"),
            "vocabulary_size": 8192,
            "dtype": "uint16",
            "shards": 1,
            "train": {
                "documents": 1500,
                "tokens": 1_540_000,
                "bytes": 7_200_000,
                "shards": [{"path": "train/0.arrow", "documents": 1500, "tokens": 1_540_000}],
            },
            "validation": {
                "documents": 81,
                "tokens": 60_000,
                "bytes": 388_800,
                "shards": [{"path": "validation/0.arrow", "documents": 81, "tokens": 60_000}],
            },
            "sources": {"laws": shares, "tales": shares},
            "languages": {},
            "licenses": {"CC0-1.0": shares},
        },
    )
    run.record(
        "tokens.shard",
        {"tokens": "main", "shard": "0"},
        6,
        outputs=[entry("train", "tokens/main/0.arrow")],
        inputs=[entry("documents", f"corpus/main/final/{source}.0.parquet") for source in rights],
    )
    for step, hour in (("250", 7), ("500", 8)):
        run.record(
            "pretrain.segment",
            {"model": "base", "step": step},
            hour,
            counts={
                "parameters": 3_412_224,
                "world_size": 4,
                "device": "NVIDIA H100 80GB HBM3",
                "peak_flops_per_second": 989.4e12,
                "deterministic": False,
                **(
                    {
                        "resumed_from": 260,
                        "restarts": 1,
                        "restart_reasons": ["rank 3 <died>"],
                        "skipped_data_steps": [17, 18],
                    }
                    if step == "500"
                    else {}
                ),
            },
            slurm={"slurm_job_id": "4711"},
            settings={
                "architecture": {"layers": 4, "tie_embeddings": True},
                "training": {"learning_rate": 3e-3, "steps": 500, "milestone_every": None, "strategy": "full_shard"},
            },
        )
        run.write(
            f"evaluation/base/{step}/results.json",
            {
                "model": "base",
                "step": int(step),
                "lm_eval_version": "0.4.9",
                "tasks": [
                    task("completion", 0.62, 0.03, 0.5),
                    task("grammar", 0.55, 0.03, 0.5, examples_too_long=3),
                    task("text", 1.31, None, None, metric="bits_per_byte", higher_is_better=False),
                ],
            },
        )
    run.write("models/base/metrics.jsonl", metrics(500))
    run.write(
        "plan/plan.json",
        {
            "label": "estimated",
            "formulas": {"parameters": "weights of the model", "seconds": "FLOP / rate"},
            "platform": {"name": "local", "devices": 1, "peak_flops_per_second": None},
            "energy": {"pue": 1.2},
            "models": {"base": {"parameters": 3_412_224, "seconds": None}},
            "totals": {"parameters": 3_412_224},
        },
    )
    lost = run.read("provenance/records/pretrain.segment.base.500.json")
    run.attempt(
        "killed",
        {**lost, "attempt": "pretrain.segment.base.500.20260301T0730.7.json"},
        "running",
        started="2026-03-01T07:30:00.000+00:00",
        last_seen="2026-03-01T07:50:30.000+00:00",
        ended=None,
    )
    run.attempt(
        "failed",
        {
            **lost,
            "step": "corpus.filter",
            "instance": {"corpus": "main"},
            "attempt": "corpus.filter.main.20260301T0430.9.json",
            "started": "2026-03-01T04:30:00.000+00:00",
            "ended": "2026-03-01T04:50:30.000+00:00",
        },
        "failed",
        error="InputError: <b>broken</b> line",
    )
    return run
