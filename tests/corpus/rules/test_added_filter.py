"""The page that says how to add a filter is followed to the letter, and the filter does what the page says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.test_house import EDIT, ROOT, edited

PAGE = ROOT / "docs/howto/add-a-filter.md"
JUDGE = """
from datatrove.data import Document
from pipeline.corpus.rules.gopher import GopherQuality, ProseMeasures
from pipeline.corpus.rules.settings import Quality
from pipeline.corpus.removal_reasons import REASONS

rules = Quality(minimum_words=None, minimum_stop_words=0, capitals=0.3)
for text in ("DIT IS HEEL LUID geroepen.", "Dit is gewoon gezegd."):
    print(GopherQuality({"nl": rules}).filter(Document(text=text, id="", metadata={"language": "nl"})))
print(REASONS["filter"]["many_capitals"].keys)
"""


def test_a_filter_is_added_by_the_page_alone(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "pipeline", tmp_path / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    edits = [*EDIT.finditer(PAGE.read_text(encoding="utf-8"))]
    assert len(edits) == 3
    for edit in edits:
        path, content = edited(tmp_path, edit)
        path.write_text(content, encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", JUDGE], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[:2] == ["(False, 'many_capitals')", "True"], done.stderr
    assert "{language}.quality.capitals" in done.stdout, done.stdout
