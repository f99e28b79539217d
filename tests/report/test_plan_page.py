"""The page of a plan has the plan's figures, draws fitting configurations, and runs no script."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.markup import content_security_hash
from pipeline.core.platform_files import load_platform
from pipeline.plan.estimate import estimate
from pipeline.plan.settings import EstimateSettings
from pipeline.report.plan_page import write_plan_page

TRAINING = {"precision": "bf16", "compile": True, "sequence_length": 4096, "batch_size": 1056, "micro_batch_size": 1}
TRAINING |= {"strategy": "full_shard", "steps": 104_000, "milestone_every": 5200}


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    models = {
        name: {"architecture": {"preset": preset}, "training": TRAINING, "vocabulary_size": 128_256}
        for name, preset in (("large", "gptnl-30b"), ("small", "llama3-8b"))
    }
    platform = {**load_platform("snellius"), "nodes": 22}
    return estimate(EstimateSettings.model_validate({"models": models, "platform": platform, "energy": {"pue": 1.19}}))


def write(folder: Path, plan: dict[str, Any], corpus: Any = "no text is here") -> str:
    memory = {"large": {"peak_bytes": 68_300_000_000, "loss_bytes": 2e9, "peak_in": "output, backward", "stage": 1}}
    write_plan_page(folder / "plan.html", "gptnl", plan, memory, corpus)
    return (folder / "plan.html").read_text("utf-8")


def cells(page: str, label: str) -> list[str]:
    row = re.search(rf'<th scope="row">{label}</th>(.*)</tr>', page)
    assert row, label
    return re.findall(r'<td class="n">(.*?)</td>', row[1])


def test_table_has_the_figures_of_the_plan(tmp_path: Path, plan: dict[str, Any]) -> None:
    page = write(tmp_path, plan)
    assert cells(page, "Parameters") == ["29.8 billion", "8.03 billion"]
    assert cells(page, "Nodes") == ["22", "22"] and cells(page, "Devices") == ["88", "88"]
    days = [f"{plan['models'][name]['seconds'] / 86_400:.3g} days" for name in ("large", "small")]
    assert cells(page, "Time") == days and float(days[0].split()[0]) > 30
    assert cells(page, "Memory of a device at its peak") == ["68.3 GB of 94 GB, 27% free", "unknown"]
    milestones = 20
    size = 29.82e9 * (16 * milestones + 4 + 3 * 12)  # bytes: two old and a new recovery checkpoint
    assert cells(page, "Disk for checkpoints and milestones")[0] == f"{size / 1e12:.3g} TB"
    assert '<th scope="row">Cost</th>' not in page and "validation</th>" not in page, (
        "no price is stated, and nothing is validated"
    )
    assert "Cannot estimate the corpus: no text is here" in page and "storage_bytes_per_second" in page


def test_node_counts_on_which_a_model_does_not_fit_are_not_drawn(plan: dict[str, Any]) -> None:
    nodes = {name: [row["nodes"] for row in rows] for name, rows in plan["scaling"].items()}
    assert nodes["large"][0] > 1, "16 bytes for each of 29.8 billion parameters are more than four devices have"
    assert {11, 22, 44, 66, 88} <= {*nodes["large"]} and 16 not in nodes["large"], "1,056 sequences are indivisible"
    (planned,) = (row for row in plan["scaling"]["large"] if row["nodes"] == 22)
    assert planned["seconds"] == plan["models"]["large"]["seconds"]
    hours = [row["device_hours"] for row in plan["scaling"]["large"]]
    assert hours[-1] >= hours[0], "more nodes communicate more"


def test_proposals_have_a_table_and_the_lines_to_write(tmp_path: Path, plan: dict[str, Any]) -> None:
    saved = dict.fromkeys(f"saved_{key}" for key in ("device_hours", "billed_core_hours", "billed_gpu_hours"))
    way = {"aim": "fastest", "write": {}, "lines": ["models:", "  large:"], "nodes": 22, "billed_gpu_hours": 55_000}
    way |= {"seconds": 86_400, "saved_seconds": 2 * 86_400, "facility_energy_joules": 3.6e9, **saved}
    way |= {"saved_facility_energy_joules": -3.6e9, "memory_bytes": 68_300_000_000, "memory_by": "trace"}
    page = write(tmp_path, plan | {"proposals": {"large": [way], "small": []}})
    proposed = cells(page, "fastest")
    assert proposed[0] == "1 days (2 days less)" and proposed[2] == "1 MWh (1 MWh more)"
    assert proposed[3] == "68.3 GB of 94 GB, 27% free, by trace" and "<pre>models:\n  large:</pre>" in page
    assert "Faster or cheaper" not in write(tmp_path, plan | {"proposals": {"large": []}})


def test_charts_have_a_line_for_each_model_and_nearby_sizes(tmp_path: Path, plan: dict[str, Any]) -> None:
    page = write(tmp_path, plan)
    assert page.count("<svg") == 3 and "large (planned)" in page and "llama3-70b" in page
    one = {name: rows[:1] for name, rows in plan["scaling"].items()}
    assert write(tmp_path, {**plan, "scaling": one}).count("<svg") == 1, "one number of nodes has no line"


def test_page_has_sizes_advice_memory_parts_and_every_figure_with_its_formula(
    tmp_path: Path, plan: dict[str, Any]
) -> None:
    page = write(tmp_path, plan)
    (eight,) = (row for row in plan["sizes"] if (row["model"], row["tokens_per_parameter"]) == ("llama3-8b", 200))
    assert cells(page, "llama3-8b, 200 per parameter")[:2] == ["1.61 trillion", f"{eight['seconds'] / 86_400:.3g} days"]
    assert eight["way"] in page and "1,875 Llama 3 8B" in page and "for their own tokenizers and English text" in page
    advice = {"advice": "the vocabulary size is 600; 640 would be faster", "gain": "little", "source": "a paper"}
    assert "Better shapes" not in page
    shapes = write(tmp_path, {**plan, "advice": {"large": [advice], "small": []}})
    assert "large: the vocabulary size is 600; 640 would be faster (gain: little; a paper)" in shapes
    assert cells(page, "loss") == ["2 GB"] and cells(page, "peak in") == ["output, backward of stage 1"]
    assert all(f"<code>{key}</code>" in page for key in plan["formulas"])
    nothing = [dict(row, way=None, **dict.fromkeys(("seconds", "device_hours"))) for row in plan["sizes"]]
    assert "fits with none of the settings that were tried" in write(tmp_path, {**plan, "sizes": nothing})


def test_forecast_table_has_each_step_with_intervals_or_a_reason(tmp_path: Path, plan: dict[str, Any]) -> None:
    known = {
        f"{end}{key}": value for key, value in (("joules", 7200), ("seconds", 120)) for end in ("", "low_", "high_")
    }
    runs = [{"folder": "results/small", "platform": "local", "known": "measured"}]
    steps = {"corpus.filter": known, "tokens.shard": {"refused": "all of one size"}}
    forecast = {"steps": steps, "chain": {"refused": "none for tokens.shard"}, "calibration": runs, "scope": "All."}
    page = write(tmp_path, {**plan, "forecast": {**forecast, "notes": ["Another machine."]}})
    assert cells(page, "corpus.filter") == ["2 Wh", "2 Wh to 2 Wh", "2 minutes", "2 minutes to 2 minutes"]
    assert '<td colspan="4">all of one size</td>' in page and "none for tokens.shard" in page
    assert "results/small (local; energy measured). All. Another machine." in page
    assert "name their folders in <code>energy.calibration</code>" in write(tmp_path, plan)


def test_page_text_is_escaped_and_runs_no_script(tmp_path: Path, plan: dict[str, Any]) -> None:
    page = write(tmp_path, {**plan, "not_run": {"<b>": "<script>alert(1)</script>"}})
    assert "<script" not in page and "&lt;script&gt;" in page and "default-src 'none'" in page
    assert not re.search(r"(?:src|href)=", page)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert f"style-src '{content_security_hash(style)}'" in page


def test_platform_without_figures_has_a_page_without_times(tmp_path: Path) -> None:
    models = {"one": {"architecture": {"preset": "demo"}, "training": {**TRAINING}, "vocabulary_size": 512}}
    settings = {"models": models, "platform": {"name": "local"}, "energy": {}}
    page = write(tmp_path, estimate(EstimateSettings.model_validate(settings)))
    assert "<svg" not in page and "Time</th>" not in page and "peak_flops_per_second" in page
