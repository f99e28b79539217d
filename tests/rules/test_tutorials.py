"""The tutorials on own text, on opt-outs and on a pretrained model are followed to the letter."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeline.config.configuration_file import load_configuration
from pipeline.model.huggingface import save_pretrained
from pipeline.model.networks import initial_state
from tests.architecture import ROOT
from tests.conftest import Project, new_project

TUTORIALS = ROOT / "docs/tutorials"


def block(page: str, begin: str) -> str:
    """Return the code block of a page that begins with a text."""
    blocks = re.findall(r"```\w+\n(.*?)```", (TUTORIALS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    result: str = next(one for one in blocks if one.startswith(begin))
    return result


@pytest.mark.thorough
def test_tutorial_trains_on_own_text_and_forgets_a_document(tmp_path: Path) -> None:
    project = new_project(tmp_path / "project")
    mine = project.path("data/mine")
    mine.mkdir(parents=True)
    for name in ("nl_encyclopedie.jsonl", "en_stories.jsonl"):
        (mine / name).write_bytes(project.path(f"config/corpus/{name}").read_bytes())
    project.path("config/mine.yaml").write_text(block("own-text.md", "run:"), encoding="utf-8")
    project.run(configuration="config/mine.yaml")
    opt_out = project.path("config/mine.opt-out.txt")
    opt_out.write_text(block("forget-a-document.md", "date:"), encoding="utf-8")
    line = "    path: data/mine/en_stories.jsonl\n"
    project.edit("config/mine.yaml", line, f"{line}    opt_out: config/mine.opt-out.txt\n")
    project.run(configuration="config/mine.yaml")
    forgotten = json.loads(project.path("results/mine/corpus/main/forgotten.json").read_text(encoding="utf-8"))
    assert forgotten["sources"]["stories_en"]["documents"] == 1 and forgotten["after"]["documents"] == 0
    assert project.call("verify", "results/mine").returncode == 0


@pytest.mark.thorough
def test_tutorial_continues_a_model_and_reports_whether_it_became_better(project: Project) -> None:
    path = project.path("config/dutch.yaml")
    path.write_text(block("dutch-model.md", "run:"), encoding="utf-8")
    shape, made = load_configuration(path).models["dutch"].architecture, project.results / "tokenizer/main"
    size = len(json.loads((made / "tokenizer.json").read_text())["model"]["vocab"])
    pretrained = project.path("results/demo/models/base/final")
    pretrained.parent.mkdir(parents=True)
    save_pretrained(
        initial_state(shape, size, 1),
        shape,
        size,
        128,
        tokenizer=made / "tokenizer.json",
        tokenizer_configuration=made / "tokenizer_config.json",
        folder=pretrained,
    )
    project.run(configuration="config/dutch.yaml")
    results = project.path("results/dutch")
    rows = json.loads((results / "evaluation/differences.json").read_text(encoding="utf-8"))["comparisons"]
    text = next(row for row in rows if row["task"] == "encyclopedia")
    assert text["b"]["step"] == 0 and text["better"] == "a", "the model of the test knew nothing"
    page = re.sub(r"<[^>]+>", "", (results / "report/index.html").read_text(encoding="utf-8"))
    first = page.partition("1. Summary")[0]
    assert "began with the weights of results/demo/models/base/final (license Apache-2.0)" in first
    assert "Validation loss of dutch on held-out text" in page and "No validation was recorded" not in page
