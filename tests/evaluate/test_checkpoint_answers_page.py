"""A page shows prompts, answers and correct answers as text, and nothing else."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.entry_point import main
from pipeline.core.errors import InputError
from pipeline.evaluate.checkpoint_answers_page import write_item_page
from pipeline.evaluate.settings import Suite, SuitesSettings
from pipeline.evaluate.task_file_reader import list_suite_files
from tests.conftest import Project
from tests.evaluate.test_suites import CONFIG, evaluate

HOSTILE = "<script>alert('x')</script> & meer"


class Items(HTMLParser):
    """Collect class and text of each item, and the tags of the page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.articles: list[tuple[str, str]] = []
        self.tags: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "article":
            self.articles.append((str(dict(attrs)["class"]), ""))

    def handle_data(self, data: str) -> None:
        if self.articles:
            kind, text = self.articles.pop()
            self.articles.append((kind, f"{text} {' '.join(data.split())}"))


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """Questions with choices, pairs without a prompt, and a text to write."""
    folder = tmp_path / "mixed"
    shutil.copytree(CONFIG / "dutch", folder)
    rows = [{"question": f"{HOSTILE} {n}", "choices": ["een", "twee"], "answer": n % 2} for n in range(6)]
    (folder / "polder_nl_kennis.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs = [{"good": f"Zij loopt {n} meter.", "bad": f"Zij lopen loopt {n} meter."} for n in range(4)]
    (folder / "polder_nl_grammatica.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    shutil.copy(CONFIG / "use_cases" / "polder_nl_eenvoudig_voorbeelden.jsonl", folder)
    task = (CONFIG / "use_cases" / "polder_nl_eenvoudig.yaml").read_text(encoding="utf-8")
    (folder / "polder_nl_eenvoudig.yaml").write_text(task.replace("num_fewshot: 3", "num_fewshot: 1"), encoding="utf-8")
    lines = (CONFIG / "use_cases" / "polder_nl_eenvoudig.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "polder_nl_eenvoudig.jsonl").write_text("".join(lines[:3]), encoding="utf-8")
    return Suite(name="mixed", language="nl", folder=str(folder), limit=3)


def browsed(suite: Suite, answers: Path, page: Path) -> dict[str, int]:
    settings = SuitesSettings(model="base", step=7, suites=[suite])
    return write_item_page(page, settings, list_suite_files(suite), answers)


def test_prompts_and_answers_are_shown_as_text(milestone: Path, suite: Suite, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = evaluate(milestone, tmp_path / "x.json", suite)["tasks"]
    page = tmp_path / "items.html"
    assert browsed(suite, tmp_path / "x.parquet", page) == {"shown": 9, "altered": 0}
    items = Items(page)
    assert "script" not in items.tags and "<script>" not in page.read_text(encoding="utf-8")
    questions = [(kind, text) for kind, text in items.articles if HOSTILE in text]
    assert len(questions) == 3
    value = next(row["value"] for row in rows if (row["task"], row["metric"]) == ("polder_nl_kennis", "acc"))
    assert sum(kind == "right" for kind, _ in questions) == pytest.approx(3 * value)
    for kind, text in questions:
        assert ("✓ right" in text, "✗ wrong" in text) == (kind == "right", kind == "wrong")
        number = int(text.split(HOSTILE)[1].split()[0])
        right, other = ("een", "twee")[number % 2], ("een", "twee")[(number + 1) % 2]
        kinds = {choice: text.split(f" {choice} ")[1].split(" een ")[0].split(" twee ")[0] for choice in (right, other)}
        assert "right" in kinds[right].split()[:5] and f"Item {number + 1}:" in text
        assert ("taken" in kinds[right].split()[:6]) == (kind == "right")
    assert sum("Zij loopt" in text and "Zij lopen loopt" in text for _, text in items.articles) == 3
    assert sum("The model wrote" in text and "Expected" in text for _, text in items.articles) == 3


def test_edited_item_is_named_and_not_shown(milestone: Path, suite: Suite, tmp_path: Path) -> None:
    whole = suite.model_copy(update={"limit": None})
    evaluate(milestone, tmp_path / "x.json", whole)
    data = Path(str(suite.folder)) / "polder_nl_grammatica.jsonl"
    data.write_text(data.read_text().replace("lopen loopt 2", "wandelen loopt 2"))
    page = tmp_path / "items.html"
    counts = browsed(whole, tmp_path / "x.parquet", page)
    assert counts == {"shown": 12, "altered": 1}
    text = page.read_text(encoding="utf-8")
    assert "no longer what was asked: 3." in text and "wandelen" not in text
    data.with_name("polder_nl_kennis.jsonl").write_text("{broken\n")
    assert browsed(whole, tmp_path / "x.parquet", page) == {"shown": 6, "altered": 1}
    assert "Not shown: " in page.read_text(encoding="utf-8"), "an unreadable task does not affect others"
    data.write_text(data.read_text().splitlines()[0])
    assert browsed(whole, tmp_path / "x.parquet", page)["shown"] == 4, "deleted lines have no text"


@pytest.mark.slow
def test_command_reads_the_files_named_in_the_record(
    finished: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished.folder)
    steps = sorted(int(path.name) for path in finished.results.glob("evaluation/base/[0-9]*"))
    words = ["items", str(finished.results), "base", str(steps[-1]), "--output", str(tmp_path / "items.html")]
    assert main(words) == 0
    assert "0 with another text than what was asked" in capsys.readouterr().out
    assert len(Items(tmp_path / "items.html").articles) > 10
    assert main(["items", str(finished.results), "base", "7777"]) == 2
    assert f"no evaluation of base 7777: base {steps[0]}" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert "start from the project, or give --raw" in capsys.readouterr().err


def test_answers_of_another_suite_are_refused(milestone: Path, suite: Suite, tmp_path: Path) -> None:
    evaluate(milestone, tmp_path / "x.json", suite)
    other = suite.model_copy(update={"name": "another"})
    with pytest.raises(InputError, match=r"the task files have no item of .*x\.parquet"):
        browsed(other, tmp_path / "x.parquet", tmp_path / "items.html")
    assert not (tmp_path / "items.html").exists()
