"""A run is read from the given files in a fixed order, and truncated files are listed."""

from __future__ import annotations

import json

from pipeline.report.run_reader import RunReader
from tests.report.example import Run


def read(run: Run) -> RunReader:
    arguments = run.arguments()
    return RunReader(run.root, [*arguments["records"], *arguments["files"]][::-1])


def test_artifacts_of_selected_models_are_excluded_and_their_records_kept(run_folder: Run) -> None:
    for model in ("base", "cell"):
        run_folder.write(
            f"evaluation/{model}/samples.json", {"model": model, "samples": 1, "written": [], "held_out": 1}
        )
        run_folder.write(f"evaluation/{model}/500/items.parquet", "")
    run_folder.write("models/cell/metrics.jsonl", json.dumps({"step": 1}))
    run_folder.write("evaluation/cell/500/results.json", {"model": "cell", "step": 500, "tasks": []})
    run_folder.record("pretrain.segment", {"model": "cell", "step": "500"}, 9)
    everything = read(run_folder)
    kept = everything.exclude_models({"cell"})
    for reader, models in ((everything, ["base", "cell"]), (kept, ["base"])):
        assert [one.name for one in reader.metrics] == models
        assert [one.content["model"] for one in reader.samples] == models
        assert [path.parent.parent.name for path in reader.answers] == models
        assert list(dict.fromkeys(one.content["model"] for one in reader.evaluation)) == models
    assert kept.records == everything.records and everything.records_of("pretrain.segment", model="cell")


def test_missing_inputs_are_not_read_and_links_are_relative_to_the_report(run_folder: Run) -> None:
    files = [run_folder.root / "corpus/main/statistics.json"]
    run_folder.write("corpus/old/statistics.json", {"corpus": "old", "sources": {}, "totals": {}})
    reader = RunReader(run_folder.root, files)
    assert [one.link for one in reader.statistics] == ["../corpus/main/statistics.json"]
    assert reader.records == [] and reader.plan.content == {} and len(reader.attempts) > 5
