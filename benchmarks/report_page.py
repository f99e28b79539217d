"""Seconds, memory and size of the report of a run of 10,000 jobs, and seconds to open it.

    PYTHONPATH=. .venv/bin/python benchmarks/report_page.py RUN [--jobs 10000] [--lost 2000]

RUN is the folder of a finished run, such as results/demo; the benchmark works on a copy and removes it. It repeats the
records, attempts and readings of unit steps over time up to that many jobs, and adds that many failed attempts.
Chromium opens the page three times with the Python of `.venv-auditors`, from the request until two frames are drawn
after the load event; the longest time counts.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline import layout
from pipeline.report.page import run
from pipeline.report.settings import PageSettings

UNIT_STEPS = ("corpus.filter", "corpus.signatures", "corpus.deduplicate", "corpus.decontaminate")
OPEN = """
import sys, time
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    for _ in range(3):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        started = time.perf_counter()
        page.goto(sys.argv[1])
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        print(time.perf_counter() - started)
        page.close()
"""


def later(moment: str, seconds: float) -> str:
    """Return a moment of a record, so many seconds later."""
    return (datetime.fromisoformat(moment) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


class Repeated:
    """A job of a finished run that is done again and again."""

    def __init__(self, root: Path, path: Path) -> None:
        self.provenance = root / "provenance"
        self.record = json.loads(path.read_text())
        name = self.record["attempt"]
        self.attempt = json.loads((self.provenance / "attempts" / name).read_text())
        readings = sorted((self.provenance / "readings").glob(f"{name.removesuffix('.json')}@*.jsonl"))
        self.node = readings[0].name.partition("@")[2]
        self.readings = [json.loads(line) for line in readings[0].read_text().splitlines()]

    def again(self, number: int, *, fails: bool) -> None:
        """Write the files of one more job, or those of an attempt that failed."""
        seconds = number * (self.record["wall_seconds"] + 1)
        instance = {**self.record["instance"], "unit": f"{number}"}
        stem = f"{self.record['step']}.{'.'.join(instance.values())}.{number}"
        moments = {key: later(self.record[key], seconds) for key in ("started", "ended")}
        attempt = {**self.attempt, **moments, "instance": instance, "last_seen": moments["ended"]}
        if fails:
            attempt |= {"status": "failed", "error": f"InputError: line {number} is no JSON: mend it"}
        (self.provenance / "attempts" / f"{stem}.json").write_text(json.dumps(attempt))
        lines = [
            {**line, "started": line["started"] + seconds, "ended": line["ended"] + seconds} for line in self.readings
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.provenance / "readings" / f"{stem}@{self.node}").write_text(text)
        if fails:
            return
        outputs = [{**entry, "path": f"{entry['path']}.{number}"} for entry in self.record["outputs"]]
        record = {**self.record, **moments, "instance": instance, "outputs": outputs, "attempt": f"{stem}.json"}
        (self.provenance / "records" / f"{stem}.json").write_text(json.dumps(record))


def arguments(root: Path) -> dict[str, Any]:
    """Return the inputs and outputs of the step in the folder of a run."""

    report = root / "report"
    names = (
        *("plan/plan.json", "sources/*/manifest.json", "corpus/*/statistics.json"),
        *("corpus/*/dataset.json", "corpus/*/forgotten.json", "tokenizer/*/fertility.json", "tokens/*/index.json"),
        *("models/*/metrics.jsonl", "evaluation/*/*/results.json", "evaluation/*/samples.json", "report/remains.json"),
    )
    return {
        "records": [*layout.UNIT_RECORDS.glob(root), *layout.RECORD.glob(root)],
        "files": [path for name in names for path in sorted(root.glob(name))],
        "carbon_intensity": [],
        "page": report / "index.html",
        "model_card": report / "model-card.md",
        "papers": report / "papers",
        "energy": report / "energy.json",
        "figures": report / "figures.json",
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--lost", type=int, default=2_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "results" / options.run.name
        shutil.copytree(options.run, root, ignore=shutil.ignore_patterns("scratch", "milestones", "*.safetensors"))
        records = root / "provenance" / "records"
        settings = PageSettings(**json.loads((records / "report.page.json").read_text())["settings"])
        jobs = [Repeated(root, path) for step in UNIT_STEPS for path in sorted(records.glob(f"{step}.*.json"))[:1]]
        missing = options.jobs - len([*records.glob("*.json")])
        for number in range(1, missing + options.lost + 1):
            jobs[number % len(jobs)].again(number, fails=number > missing)
        given = arguments(root)
        recorded, attempts = (len([*(root / "provenance" / name).iterdir()]) for name in ("records", "attempts"))
        started = time.process_time()
        run(settings, **given)
        seconds = time.process_time() - started
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        size = given["page"].stat().st_size
        command = [".venv-auditors/bin/python", "-c", OPEN, given["page"].as_uri()]
        opened = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    print(f"{recorded:,} records, {attempts:,} attempts: made in {seconds:.1f} CPU seconds,")
    print(f"at most {memory:,.0f} MiB; {size / 1e6:.1f} MB, opened in {max(map(float, opened)):.2f} s at most of three")


if __name__ == "__main__":
    main()
