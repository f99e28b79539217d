"""The first tutorial and the one on opt-outs are followed to the letter."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.architecture import ROOT
from tests.conftest import new_project

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
