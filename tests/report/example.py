"""The parts of a small run: records, attempts, metrics and counts in the form of the stages."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.report.settings import PageSettings

HOSTILE = '<script>alert("x")</script>|[a](javascript:alert(1))'


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def entry(name: str, path: str, size: int = 1000) -> dict[str, Any]:
    return {"name": name, "path": path, "sha256": sha(path), "bytes": size}


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


# Each segment of 250 steps of 4 s begins a minute after its job, at 7 and at 8 o'clock.
FIRST_STEP = datetime(2026, 3, 1, 7, 1, tzinfo=UTC).timestamp()


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
            "step": stage,
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
            "launch": None,
            "counts": {},
            "attempt": f"{name}.20260301T{hour:02d}0000000.11.json",
            **fields,
        }
        self.write(f"provenance/records/{name}.json", content)
        self.attempt(name, content, "finished")

    def attempt(self, name: str, content: dict[str, Any], status: str, **fields: Any) -> None:
        keys = (
            "step",
            "instance",
            "command",
            "host",
            "slurm",
            "started",
            "ended",
            "wall_seconds",
            "cpu_seconds",
        )
        kept = {key: content[key] for key in keys}
        attempt = {**kept, "status": status, "error": None, "last_seen": content["ended"], **fields}
        self.write(f"provenance/attempts/{content['attempt']}", attempt)

    def arguments(self, output: str = "report", without: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the arguments of the step; the files of the run's folders in `without` are not read."""
        folder = self.root / output
        folder.mkdir(exist_ok=True)
        patterns = (
            *("plan/plan.json", "sources/*/manifest.json", "report/remains.json"),
            *("corpus/*/statistics.json", "corpus/*/dataset.json", "corpus/*/later_suites.json"),
            *("corpus/*/forgotten.json", "tokenizer/*/fertility.json", "tokens/*/index.json"),
            *(
                "models/*/metrics.jsonl",
                "models/*/document_losses.parquet",
                "evaluation/*/*/results.json",
                "evaluation/*/*/items.parquet",
            ),
            *("evaluation/*/samples.json", "evaluation/differences.json"),
        )
        return {
            "records": sorted(self.root.glob("provenance/records/*.json")),
            "files": [
                path
                for pattern in patterns
                if not pattern.startswith(without)
                for path in sorted(self.root.glob(pattern))
            ],
            "carbon_intensity": sorted(self.root.glob("grid.csv")),
            "page": folder / "index.html",
            "jobs": folder / "jobs.html",
            "model_card": folder / "model-card.md",
            "papers": folder / "papers",
            "energy": folder / "energy.json",
            "figures": folder / "figures.json",
        }


def metrics(steps: int) -> str:
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        lines.append(
            {
                "step": step,
                "tokens_seen": step * 4096,
                "loss": 2.2 + 5.5 * math.exp(-step / 120) + 0.05 * math.sin(step),
                "learning_rate": 3e-3 * min(step / 20, 0.5 + 0.5 * math.cos(math.pi * step / steps)),
                "gradient_norm": 1.0 + 2 * math.exp(-step / 40),
                "tokens_per_second": 5200 + 90 * math.sin(step / 7),
                "model_flops_utilization": 0.41 + 0.01 * math.sin(step / 9),
                "hardware_flops_utilization": 0.53 + 0.01 * math.sin(step / 9),
                "device_utilization": 0.98,
                "device_utilization_least": 0.95,
                "memory_bytes": 512_000_000,
                "memory_used_bytes": 480_000_000,
                "data_stall_seconds": 0.0004,
                "seconds": 4.0,
                "ended_unix_seconds": FIRST_STEP + 4.0 * step + (3600 - 1000) * (step > 250),
            }
        )
        if step % 50 == 0:
            loss = 2.35 + 5.5 * math.exp(-step / 120)
            line = {"step": step, "validation_loss": loss, "validation_bits_per_byte": loss / 3.1}
            for column, names in {"language": ("en", "nl"), "source": ("laws", "tales", HOSTILE)}.items():
                for number, name in enumerate(names):
                    line[f"validation_loss/{column}/{name}"] = loss + 0.2 * number
                    line[f"validation_bits_per_byte/{column}/{name}"] = (loss + 0.2 * number) / 3.1
            lines.append(line)
    return "\n".join(json.dumps(line) for line in lines) + "\n"


def task(name: str, value: float, error: float | None, chance: float | None, **fields: Any) -> dict[str, Any]:
    return {
        "task": name,
        "suite": "dutch",
        "language": "nl",
        "metric": "acc",
        "value": value,
        "standard_error": error,
        "low": None if error is None else value - 2 * error,
        "high": None if error is None else value + 2 * error,
        "clusters": None,
        "parts": [],
        "chance_level": chance,
        "baselines": None if chance is None else {"chance": chance, "unigram": chance + 0.04},
        "hardest_baseline": None if chance is None else "unigram",
        "p_value_corrected": None if chance is None else 0.01 if value > 0.6 else 0.4,
        "verdict": None if chance is None else "better" if value > 0.6 else "not better",
        "constant_answer": None,
        "examples": 200,
        "examples_too_long": 0,
        "higher_is_better": True,
        **fields,
    }
