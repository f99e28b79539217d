"""A configuration in which every step has a job."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.configuration import Config, parse_configuration

UNIT_BYTES = 1_000_000


@pytest.fixture
def everything(tmp_path: Path) -> Config:
    """Return the micro run with sources, corpora and models of every kind."""
    (tmp_path / "large.jsonl").write_text('{"text": "een lange regel"}\n' * (UNIT_BYTES // 10))
    (tmp_path / "opt-out.txt").write_text("nergens.nl\n")
    (tmp_path / "hub").mkdir()
    for name in ("good.jsonl", "bad.jsonl", "hub/train.jsonl"):
        (tmp_path / name).write_text(f'{{"text": "{name}"}}\n')
    raw: dict[str, Any] = yaml.safe_load(Path("config/micro.yaml").read_text(encoding="utf-8"))
    raw["data"] = str(tmp_path)
    raw["run"] |= {"results": str(tmp_path / "results")}
    sources = {source["name"]: source for source in raw["sources"]}
    for name in ("nl_gids", "nl_brieven"):
        sources[name]["opt_out"] = f"{tmp_path}/opt-out.txt"
    known = {key: sources["nl_gids"][key] for key in ("language", "license", "rights")}
    raw["sources"] += [
        {"name": "large", "path": "{data}/large.jsonl", "unit_bytes": UNIT_BYTES, "units": 3, **known},
        {"name": "hub", "dataset": {"name": f"{tmp_path}/hub"}, **known},
    ]
    seeds = {"good": [{"path": "{data}/good.jsonl", "license": "CC0-1.0"}]}
    seeds["bad"] = [{**seeds["good"][0], "path": "{data}/bad.jsonl"}]
    (tmp_path / "hq.bin").write_text("")
    classifier = {"path": "{data}/hq.bin", "sha256": "0" * 64, "license": "CC0-1.0", "label": "__label__hq"}
    raw["interleaved"] = {"pages": {"sources": ["nl_gids"], "opt_out_images": "{data}/opt-out.txt"}}
    main = raw["corpus"]["main"]
    raw["corpus"] |= {
        "alike": main,
        "scored": {
            "decontamination": {"suites": ["dutch"]},
            "quality": {"nl": seeds, "en": seeds},
            "classifiers": {"hq": classifier},
            "perplexity": {"model": "base", "tokens": 64},
            "deduplication": {"jobs": 3},
        },
    }
    base = raw["models"]["base"]
    raw["models"] |= {
        "branch": copy.deepcopy(base),
        "longer": {**base, "pretrained": {"folder": "models/large", "license": "Apache-2.0"}},
    }
    raw["models"]["branch"]["training"] |= {"milestone_every": 3, "start": {"model": "base", "step": 4}}
    raw["evaluation"] = {"suites": ["dutch", "english", "safety"], "untrained": True}
    raw["experiments"] = {"again": {"base": "base", "seeds": [7, 8]}}
    return parse_configuration(raw)
