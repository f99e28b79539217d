"""The report in a real browser: injected data is inert, axe finds no serious problem, labels do not overlap."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import run_folder as run_folder
from tests.report.example import Run
from tests.report.test_page import made

AUDITORS = Path(__file__).resolve().parents[2] / ".venv-auditors" / "bin" / "python"
CHROMIUM = shutil.which("chromium")
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=http://127.0.0.1:9/x onerror=alert(1)>',
    "'-alert(1)-'",
    "</style><script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<svg/onload=alert(1)>",
    '" onmouseover="alert(1)" autofocus onfocus="alert(1)',
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% include 'x' %} %(run)s %s",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "<base href=http://127.0.0.1:9/><iframe srcdoc='<script>alert(1)</script>'>",
    "\u202e\u0000&lt;b&gt;",
)

pytestmark = pytest.mark.slow


def visited(page: Path, *searched: str) -> dict[str, Any]:
    """Return the browser's observations of a page; without a browser the test is skipped, or fails under CI."""
    if CHROMIUM is None or not AUDITORS.exists():
        reason = "chromium and .venv-auditors are needed: see tests/auditors/requirements.in"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    command = [AUDITORS, Path(__file__).with_name("browser.py"), CHROMIUM, page, page.with_suffix(".pdf"), *searched]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400)
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def hostile(run: Run) -> None:
    """Insert every attack into a source title, a file name, an error, a task, a host and a removal reason."""
    for number, attack in enumerate(HOSTILE):
        record = run.read("provenance/records/pretrain.segment.base.500.json")
        content = {**record, "instance": {"unit": attack}, "attempt": f"corpus.filter.20260301T0930.{number}.json"}
        run.attempt("x", content, "failed", error=attack, step=attack, host=attack)
        run.record(
            "corpus.filter",
            {"corpus": "main", "unit": str(number)},
            9,
            host=attack,
            command=["python", attack],
            outputs=[{"name": attack, "path": attack, "sha256": "0" * 64, "bytes": 1}],
        )
    for path in ("sources/laws/manifest.json", "sources/tales/manifest.json"):
        manifest = run.read(path)
        manifest["source"] |= {"language": HOSTILE[0], "license": HOSTILE[1]}
        manifest["source"]["rights"] |= {
            "holder": HOSTILE[3],
            "url": HOSTILE[7],
            "date": HOSTILE[4],
            "basis": HOSTILE[8],
        }
        for entry, attack in zip(manifest["units"]["0"]["files"], HOSTILE[4:], strict=False):
            entry["name"] = attack
        run.write(path, manifest)
    results = run.read("evaluation/base/500/results.json")
    results["tasks"] = [{**results["tasks"][0], "task": attack} for attack in HOSTILE]
    run.write("evaluation/base/500/results.json", results)
    run.write("provenance/signer.json", dict.fromkeys(("owner", "algorithm", "key_sha256", "timestamp"), HOSTILE[5]))


def test_page_with_hostile_text_executes_no_script_and_renders_readably(run_folder: Run) -> None:
    hostile(run_folder)
    for number in range(120):  # more than a table shows without unfolding
        run_folder.record("tokens.shard", {"tokens": "main", "shard": f"many{number}"}, 6)
    page: Path = made(run_folder, provider=HOSTILE[2], language="nl")["page"]
    jobs = page.with_name("jobs.html")
    for opened, observed in ((page, visited(page)), (jobs, visited(jobs, "many11"))):
        assert observed["requests"] == [opened.as_uri()] and observed["dialogs"] == [] and observed["console"] == []
        assert observed["axe"] == [] and observed["phone_axe"] == []
        assert observed["overlaps"] == [] and observed["phone_overlaps"] == []
        assert observed["phone_width"] == 390 and observed["empty_rows"] == []
        assert observed["shifted_cells"] == [] and observed["clipped_cells"] == [] and observed["wide_tables"] == []
        assert observed["first_focus"] == "A"
    assert observed["searches"] >= 1 and observed["found"].split() == ["11", "/", "121"], (
        "many11 and many110 to many119"
    )
    assert observed["rows_without_script"] > 121
    pages = len(re.findall(rb"/Type\s*/Page\b", page.with_suffix(".pdf").read_bytes()))
    assert 2 <= pages <= 15, "120 jobs and more are not printed"
