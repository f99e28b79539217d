"""A file's lineage reaches its raw data, their licences, and the commands and joules in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.ground.errors import InputError
from pipeline.provenance.trace import main, trace


def test_a_milestone_leads_back_to_sources_and_licences(finished: Path) -> None:
    lines = trace(finished, "models/base/milestones/10/model.safetensors")
    text = "\n".join(lines)
    stages = ["pretrain.segment", "tokens.shard", "corpus.filter (corpus=main, source=laws", "sources.manifest"]
    places = [text.index(f"made by {stage}") for stage in stages]
    assert places == sorted(places)
    assert "read data:wiki/0.jsonl" in text
    assert "licence CC-BY-SA-4.0" in text
    assert "command: python -m pipeline tokens shard" in text
    assert "energy: 100.5 J, estimated" in text
    assert "behind it: 6 job(s), 603 J" in text
    assert lines[-2:] == [
        "source laws: CC0-1.0, basis: public-domain, holder: Staat",
        "source wiki: CC-BY-SA-4.0, basis: licence, holder: Staat",
    ]


def test_each_step_back_is_indented_further_and_each_job_told_once(finished: Path) -> None:
    lines = trace(finished, "evaluation/base/10/results.json")
    depth = {line.split()[2]: len(line) - len(line.lstrip()) for line in lines if "made by" in line}
    assert depth["evaluate.suites"] < depth["pretrain.segment"] < depth["tokens.shard"] < depth["corpus.filter"]
    assert len([line for line in lines if line.strip().startswith("record:")]) == 7


def test_only_the_sources_of_the_file_are_named(finished: Path) -> None:
    text = "\n".join(trace(finished, "corpus/main/filtered/laws.0.parquet"))
    assert "source laws" in text
    assert "wiki" not in text


def test_a_path_from_the_working_folder_and_a_directory_are_found(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished.parent)
    assert main(["run", "run/tokens/main/train/0.arrow"]) == 0
    assert capsys.readouterr().out.startswith("tokens/main/train/0.arrow (sha256")
    assert "made by pretrain.segment (model=base, step=10)" in "\n".join(
        trace(Path("run"), "models/base/milestones/10")
    )


def test_a_file_that_nobody_made_is_a_sentence(finished: Path) -> None:
    with pytest.raises(InputError, match=r"where tokens/other\.arrow comes from"):
        trace(finished, "tokens/other.arrow")
