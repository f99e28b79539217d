"""A small run as its stages leave it: records, attempts and artefacts in the formats of the pipeline."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.report.settings import PageSettings

HOSTILE = '<script>alert("x")</script>|[a](javascript:alert(1))'


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def entry(name: str, path: str, size: int = 1000) -> dict[str, Any]:
    return {"name": name, "path": path, "sha256": sha(path), "bytes": size}


def energy(joules: float, *, measured: bool = False) -> dict[str, Any]:
    meters = [{"meter": "cpu_time_model", "joules": joules * 0.9, "measured": False, "model": "4 W per busy thread"},
              {"meter": "memory_model", "joules": joules * 0.1, "measured": False, "model": "0.375 W per GB"}]  # fmt: skip
    if measured:
        meters = [{"meter": "rapl", "joules": joules, "measured": True, "model": None}]
    return {"joules": joules, "measured": measured, "meters": meters}


def part(read: int, filtered: dict[str, int], duplicates: dict[str, int]) -> dict[str, Any]:
    kept = read - sum(filtered.values())
    out = kept - sum(duplicates.values())
    return {
        "documents_in": read,
        "bytes_in": read * 5000,
        "stages": [
            {"stage": "filter", "in": read, "kept": kept, "removed": filtered},
            {"stage": "deduplicate", "in": kept, "kept": out, "removed": duplicates},
        ],
        "documents_out": out,
        "bytes_out": out * 4800,
    }


@dataclass
class Run:
    """The folder of a run and the arguments for the step."""

    root: Path
    settings: PageSettings

    def write(self, path: str, content: Any) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return file

    def read(self, path: str) -> Any:
        return json.loads((self.root / path).read_text(encoding="utf-8"))

    def record(self, stage: str, instance: dict[str, str], hour: int, **fields: Any) -> None:
        name = ".".join([stage, *instance.values()])
        content = {
            "stage": stage,
            "instance": instance,
            "settings": {},
            "command": ["python", "-m", "pipeline", *stage.split("."), "--settings", '{"a": "<b>"}'],
            "inputs": [],
            "outputs": [],
            "code_version": sha(stage)[:16],
            "environment_version": sha("environment")[:16],
            "environment": {"python": "3.11.2", "lock": "cpu", "packages": {"torch": "2.9.0"}},
            "git": {"commit": sha("commit")[:40], "dirty": False},
            "host": "node1",
            "slurm": None,
            "started": f"2026-03-01T{hour:02d}:00:00.000+00:00",
            "ended": f"2026-03-01T{hour:02d}:20:30.000+00:00",
            "wall_seconds": 1230.0,
            "cpu_seconds": 2400.5,
            "peak_memory_bytes": 812_345_678,
            "energy": energy(9000.0),
            "launch": None,
            "counts": {},
            "attempt": f"{name}.20260301T{hour:02d}0000000.11.json",
            **fields,
        }
        self.write(f"provenance/records/{name}.json", content)
        self.attempt(name, content, "finished")

    def attempt(self, name: str, content: dict[str, Any], status: str, **fields: Any) -> None:
        keys = ("stage", "instance", "command", "host", "slurm", "started", "ended", "wall_seconds", "cpu_seconds",
                "energy")  # fmt: skip
        kept = {key: content[key] for key in keys}
        attempt = {**kept, "status": status, "error": None, "last_seen": content["ended"], **fields}
        self.write(f"provenance/attempts/{content['attempt']}", attempt)

    def arguments(self, output: str = "report") -> dict[str, Any]:
        folder = self.root / output
        folder.mkdir(exist_ok=True)

        def found(pattern: str) -> list[Path]:
            return sorted(self.root.glob(pattern))

        return {
            "records": found("provenance/records/*.json"),
            "statistics": found("corpus/*/statistics.json"),
            "fertility": found("tokenizer/*/fertility.json"),
            "metrics": found("models/*/metrics.jsonl"),
            "evaluation": found("evaluation/*/*/results.json"),
            "plan": self.root / "plan/plan.json",
            "manifests": found("sources/*/manifest.json"),
            "indexes": found("tokens/*/index.json"),
            "page": folder / "index.html",
            "model_card": folder / "model-card.md",
            "training_content_summary": folder / "training-content-summary.md",
        }


def metrics(steps: int) -> str:
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        lines.append(
            {"step": step, "tokens_seen": step * 4096, "loss": 2.2 + 5.5 * math.exp(-step / 120) + 0.05 * math.sin(step),
             "learning_rate": 3e-3 * min(step / 20, 0.5 + 0.5 * math.cos(math.pi * step / steps)),
             "gradient_norm": 1.0, "tokens_per_second": 5200 + 90 * math.sin(step / 7),
             "model_flops_utilization": None, "memory_bytes": 512_000_000, "seconds": 0.8}
        )  # fmt: skip
        if step % 50 == 0:
            loss = 2.35 + 5.5 * math.exp(-step / 120)
            lines.append({"step": step, "validation_loss": loss, "validation_bits_per_byte": loss / 3.1})
    return "\n".join(json.dumps(line) for line in lines) + "\n"


def task(name: str, value: float, error: float | None, chance: float | None, **fields: Any) -> dict[str, Any]:
    return {"task": name, "suite": "dutch", "language": "nl", "metric": "acc", "value": value, "standard_error": error,
            "chance_level": chance, "examples": 200, "higher_is_better": True, **fields}  # fmt: skip


@pytest.fixture
def run_folder(tmp_path: Path) -> Run:
    """Two sources, one of them with a hostile holder and address; one model; one killed and one failed attempt."""
    configuration = json.dumps({"run": {"name": "tiny", "seed": 42}, "note": "<b>bold</b>"}, indent=1)
    settings = PageSettings(run="tiny", seed=42, configuration=configuration, platform="local", pue=1.2,
                            pue_source="assumed", carbon_intensity_grams_per_kwh=267.622,
                            carbon_intensity_source="Netherlands", provider="Example & Co")  # fmt: skip
    run = Run(tmp_path / "results" / "tiny", settings)
    rights = {
        "laws": {"basis": "public-domain", "holder": "Kingdom of the Netherlands", "url": "https://wetten.overheid.nl/"},
        "tales": {"basis": "licence", "holder": HOSTILE, "url": "javascript:alert(1)"},
    }
    statistics = {
        "laws": part(1200, {"language": 14, "too_short": 120, "duplicate_lines": 31}, {"exact_duplicate": 9}),
        "tales": part(800, {"language": 200, "<img src=x>": 3}, {"exact_duplicate": 2, "near_duplicate": 40}),
    }
    for number, (source, described) in enumerate(rights.items()):
        files = [{"name": f"{source}-{n}.jsonl.gz", "bytes": 1_500_000, "sha256": sha(f"{source}{n}")} for n in (0, 1)]
        content = {"name": source, "language": ("nl", "en")[number], "license": ("CC0-1.0", "CC-BY-4.0")[number]}
        run.write(f"sources/{source}/manifest.json", {
            "source": {**content, "rights": described, "units": 1}, "bytes": 3_000_000, "files": 2,
            "units": {"0": {"sha256": sha(source), "files": files}},
        })  # fmt: skip
        print_ = f"sources/{source}/fingerprints/0.json"
        run.record("sources.fingerprint", {"source": source, "unit": "0"}, 1 + number, outputs=[entry("fp", print_)],
                   inputs=[entry("files", f"data:{file['name']}") for file in files])  # fmt: skip
        run.record("sources.manifest", {"source": source}, 3, inputs=[entry("fingerprints", print_)],
                   outputs=[entry("manifest", f"sources/{source}/manifest.json")])  # fmt: skip
        final = entry("final", f"corpus/main/final/{source}.0.parquet")
        run.record("corpus.finalise", {"corpus": "main", "source": source, "unit": "0"}, 5, outputs=[final])
    totals = part(2000, {"language": 214, "too_short": 120, "duplicate_lines": 31, "<img src=x>": 3},
                  {"exact_duplicate": 11, "near_duplicate": 40})  # fmt: skip
    described = {name: {"license": "CC0-1.0", "language": "nl", **counts} for name, counts in statistics.items()}
    run.write("corpus/main/statistics.json", {
        "corpus": "main", "sources": described, "totals": totals, "personal_data": {"email": 12, "iban": 0},
        "languages": {"en": {"documents": 555, "bytes": 2_664_000}, "nl": {"documents": 1026, "bytes": 4_924_800}},
    })  # fmt: skip
    language = {"documents": 50, "words": 10_000, "tokens": 15_000, "bytes": 60_000, "tokens_per_word": 1.5,
                "bytes_per_token": 4.0, "held_out": True}  # fmt: skip
    run.write("tokenizer/main/fertility.json", {
        "tokenizer_sha256": sha("tokenizer"), "vocabulary_size": 8192, "languages": {"nl": language, "en": language},
    })  # fmt: skip
    shares = {"documents": 790, "tokens": 800_000}
    run.write("tokens/main/index.json", {
        "tokenizer_sha256": sha("tokenizer"), "vocabulary_size": 8192, "dtype": "uint16", "shards": 1,
        "train": {"documents": 1500, "tokens": 1_540_000, "bytes": 7_200_000,
                  "shards": [{"path": "train/0.arrow", "documents": 1500, "tokens": 1_540_000}]},
        "validation": {"documents": 81, "tokens": 60_000, "bytes": 388_800,
                       "shards": [{"path": "validation/0.arrow", "documents": 81, "tokens": 60_000}]},
        "sources": {"laws": shares, "tales": shares}, "languages": {}, "licenses": {"CC0-1.0": shares},
    })  # fmt: skip
    run.record("tokens.shard", {"tokens": "main", "shard": "0"}, 6, outputs=[entry("train", "tokens/main/0.arrow")],
               inputs=[entry("documents", f"corpus/main/final/{source}.0.parquet") for source in rights])  # fmt: skip
    for step, hour in (("250", 7), ("500", 8)):
        run.record("pretrain.segment", {"model": "base", "step": step}, hour, counts={"parameters": 3_412_224},
                   energy=energy(120_000.0, measured=True), slurm={"slurm_job_id": "4711"},
                   settings={"architecture": {"layers": 4, "tie_embeddings": True},
                             "training": {"learning_rate": 3e-3, "steps": 500, "milestone_every": None}})  # fmt: skip
        run.write(f"evaluation/base/{step}/results.json", {
            "model": "base", "step": int(step), "lm_eval_version": "0.4.9",
            "tasks": [task("completion", 0.62, 0.03, 0.5), task("grammar", 0.55, 0.03, 0.5),
                      task("text", 1.31, None, None, metric="bits_per_byte", higher_is_better=False)],
        })  # fmt: skip
    run.write("models/base/metrics.jsonl", metrics(500))
    run.write("plan/plan.json", {
        "label": "estimated", "formulas": {"parameters": "weights of the model", "seconds": "FLOP / rate"},
        "platform": {"name": "local", "devices": 1, "peak_flops_per_second": None}, "energy": {"pue": 1.2},
        "models": {"base": {"parameters": 3_412_224, "seconds": None}}, "totals": {"parameters": 3_412_224},
    })  # fmt: skip
    lost = run.read("provenance/records/pretrain.segment.base.500.json")
    common = {"peak_memory_bytes": 1, "energy": energy(60_000.0, measured=True)}
    run.attempt("killed", {**lost, **common, "attempt": "pretrain.segment.base.500.20260301T0730.7.json"},
                "running", ended=None)  # fmt: skip
    run.attempt("failed", {**lost, "stage": "corpus.filter", "instance": {"corpus": "main"}, "energy": energy(500.0),
                           "attempt": "corpus.filter.main.20260301T0430.9.json"},
                "failed", error="InputError: <b>broken</b> line")  # fmt: skip
    return run
