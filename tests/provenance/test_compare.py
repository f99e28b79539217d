"""Comparison tells what differs and nothing that differs anyway."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.provenance.compare import compare, main


def test_times_hosts_and_energy_are_no_difference(
    build_run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    a = build_run("a").folder
    b = build_run("b").folder
    for path in (b / "provenance/records").glob("*.json"):
        record = json.loads(path.read_text())
        energy = {"joules": 1.0, "measured": True, "meters": []}
        record |= {"host": "node2", "started": "2027", "wall_seconds": 1.0, "energy": energy, "launch": "srun"}
        path.write_text(json.dumps(record))
    assert compare(a, b) == []
    assert main([str(a), str(b)]) == 0
    assert "are the same" in capsys.readouterr().out


def test_changed_settings_code_environment_data_and_results_are_told_by_stage(build_run: Callable[..., Any]) -> None:
    a = build_run("a").folder
    b = build_run(
        "b",
        loss=4.0,
        settings={"seed": 43, "optimizer": {"learning_rate": 0.001}},
        code_version="new",
        environment={"python": "3.12.1", "lock": "cpu", "packages": {"pyarrow": "26.0.1"}},
    ).folder
    lines = compare(a, b)
    segment = lines[lines.index("pretrain.segment") + 1 : lines.index("results")]
    text = "\n".join(segment)
    assert "settings seed: 42 → 43  [model=base, step=10]" in text
    assert "settings optimizer.learning_rate: nothing → 0.001" in text
    assert "→ new" in text
    assert 'environment python: "3.11.7" → "3.12.1"' in text
    assert "output models/base/milestones/10/model.safetensors" in text
    results = lines[lines.index("results") + 1 :]
    assert "  base/last loss: 3.5 → 4.0" in results
    assert "  base/10/blimp_nl/nl/acc: 0.286 → 0.25" in results
    assert "corpus.filter" not in lines
    assert not [line for line in lines if "metrics.jsonl" in line]


def test_a_difference_that_jobs_share_is_told_once(build_run: Callable[..., Any]) -> None:
    a, b = build_run("a").folder, build_run("b").folder
    for path in (b / "provenance/records").glob("corpus.filter.*.json"):
        path.write_text(path.read_text().replace('"seed": 42\n', '"seed": 7\n'))
    lines = [line for line in compare(a, b) if "seed" in line]
    assert len(lines) == 1
    assert "source=laws" in lines[0]
    assert "source=wiki" in lines[0]


def test_a_job_that_only_one_run_has_is_told(build_run: Callable[..., Any]) -> None:
    a, b = build_run("a"), build_run("b")
    b.job("tokens.shard", {"tokens": "main", "shard": "1"}, [], {"tokens/main/train/1.arrow": b"x"})
    assert compare(a.folder, b.folder) == ["tokens.shard", f"  only in {b.folder}  [shard=1, tokens=main]"]
    assert main([str(a.folder), str(b.folder)]) == 1
