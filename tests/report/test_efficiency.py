"""The report on Slurm jobs: requests and use, suggestions for oversized requests, no invented joules."""

from __future__ import annotations

from typing import Any

from pipeline.report.page import SECTIONS, SLURM
from tests.report.example import HOSTILE, Run
from tests.report.test_page import made, outline

GB = 10**9


def allocation(cause: str = "finished", **known: Any) -> dict[str, Any]:
    """Return an allocation of an hour on one node of 16 processors and 64 GB, three quarters of them used."""
    usual = {
        "state": {"finished": "COMPLETED", "memory": "FAILED", "requeued": "REQUEUED"}[cause],
        "cause": cause,
        "exit_code": 0 if cause == "finished" else 1,
        "signal": 0,
        "elapsed_seconds": 3600.0,
        "cpu_seconds": 43_200.0,
        "allocated_cpu_seconds": 57_600.0,
        "nodes": 1,
        "tres": {"cpu": "16", "mem": "64G", "node": "1"},
        "requested_memory_bytes": 64 * GB,
        "peak_memory_bytes": 48 * GB,
        "time_limit_seconds": 5000.0,
        "gpu_utilization": None,
    }
    return {**usual, **known}


def write_accounting(run: Run, job: str, comment: str | None, *allocations: dict[str, Any], **known: Any) -> None:
    """Write the accounting file of a job."""
    elapsed = sum(part["elapsed_seconds"] for part in allocations)
    total = {
        "allocations": len(allocations),
        "elapsed_seconds": elapsed,
        "cpu_seconds": sum(part["cpu_seconds"] for part in allocations),
        "node_seconds": elapsed,
        "gpu_seconds": elapsed * 4 * (job == "4711"),
        "billed_unit_seconds": known.get("billed"),
        "peak_memory_bytes": max(part["peak_memory_bytes"] for part in allocations),
        "slurm_energy_joules": known.get("slurm"),
        "ear_energy_joules": known.get("ear"),
    }
    content = {"job": job, "comment": comment, "cause": allocations[-1]["cause"], "allocations": allocations}
    shared = known.get("whole_nodes", True)
    cluster = {"cluster": known["cluster"]} if "cluster" in known else {}
    name = ".".join([*cluster.values(), job])
    content |= {"total": total, "whole_nodes": shared, "ear": None, **cluster}
    run.write(f"provenance/accounting/{name}.json", content)


def section(run: Run) -> str:
    """Return the text of the section on Slurm jobs."""
    return outline(made(run)["page"]).text.split("node hours")[1]


def test_run_without_slurm_has_no_efficiency_section(run_folder: Run) -> None:
    page = outline(made(run_folder)["page"])
    assert [attributes["id"] for attributes in page.all("section")] == [name for name, _ in SECTIONS]
    assert "allocation" not in page.text


def test_fitting_requests_get_no_suggestion(run_folder: Run) -> None:
    write_accounting(run_folder, "1", "rule_corpus_filter_wildcards_main_laws_0", allocation())
    idle = {"cpu_seconds": 3100.0, "allocated_cpu_seconds": 7200.0, "tres": {"cpu": "2"}}  # one would be too few
    write_accounting(run_folder, "2", "rule_pretrain_segment_wildcards_base_8", allocation(**idle))
    assert "No request was far off." in section(run_folder)


def test_billed_units_are_next_to_used_units(run_folder: Run) -> None:
    write_accounting(run_folder, "1", "rule_corpus_filter_wildcards_main_laws_0", allocation(), billed=16 * 3600.0)
    write_accounting(run_folder, "2", "rule_corpus_filter_wildcards_main_laws_1", allocation(), billed=16 * 3600.0)
    assert "corpus.filter 32.0 24.0 none 1.33" in section(run_folder)
    write_accounting(run_folder, "4711", None, allocation(), billed=768 * 3600.0)
    text = section(run_folder)
    assert "pretrain.segment 768 12.0 4.00 not of one kind" in text and "all jobs 800 36.0 4.00 not of one" in text
    write_accounting(run_folder, "2", "rule_corpus_filter_wildcards_main_laws_1", allocation())
    assert "corpus.filter not known 24.0 none not known" in section(run_folder)


def test_oversized_requests_get_a_suggestion(run_folder: Run) -> None:
    lazy = allocation(cpu_seconds=5760.0, peak_memory_bytes=2 * GB, time_limit_seconds=36_000.0)
    write_accounting(run_folder, "1", "rule_corpus_filter_wildcards_main_laws_0", lazy)
    write_accounting(run_folder, "2", "rule_tokenizer_train_wildcards_main", allocation(peak_memory_bytes=62 * GB))
    text = section(run_folder)
    assert "corpus.filter: 1.6 of 16 processors were busy: 2 would do." in text
    assert "corpus.filter: 2.00 GB of 64.0 GB memory were in use: 3 GB would do." in text
    assert "corpus.filter: the longest took 1 h 00 min of 10 h 00 min: with less it would start sooner." in text
    assert "tokenizer.train: 62.0 GB of 64.0 GB memory were in use: ask for more." in text


def test_stage_comes_from_the_attempts_if_slurm_keeps_no_comment(run_folder: Run) -> None:
    write_accounting(run_folder, "4711", None, allocation(gpu_utilization=0.2))
    text = section(run_folder)
    assert "pretrain.segment: the GPUs were busy 20 % of the time" in text
    assert "more jobs have no accounting data" not in text


def test_gpu_utilization_comes_from_the_training_if_slurm_has_none(run_folder: Run) -> None:
    write_accounting(run_folder, "4711", None, allocation())
    assert "98.0 %" in section(run_folder)


def test_lost_allocations_are_counted_and_listed(run_folder: Run) -> None:
    parts = allocation("requeued"), allocation("memory", exit_code=137), allocation()
    write_accounting(run_folder, "77", f"rule_corpus_filter_wildcards_{HOSTILE}", *parts)
    text = section(run_folder)
    assert "requeued (REQUEUED, exit 1:0), memory (FAILED, exit 137:0), finished (COMPLETED)" in text
    assert "memory 1, requeued 1" in text and "3 h 00 min" in text
    assert "1 more jobs have no accounting data" in text, "4711 has attempts, but no accounting file"


def test_unmeasured_joules_are_not_zero_and_neighbors_are_reported(run_folder: Run) -> None:
    write_accounting(run_folder, "1", "rule_corpus_filter_wildcards_main_laws_0", allocation())
    text = section(run_folder)
    assert "neither Slurm nor EAR has a reading" in text
    assert "0 Wh" not in text and "0 kWh" not in text
    write_accounting(run_folder, "1", "rule_corpus_filter", allocation(), ear=2_792_619.0, whole_nodes=False)
    text = section(run_folder)
    assert "not measured 0.776 kWh 0 yes: neighbors are among the joules" in text


def test_efficiency_section_is_last_and_numbered(run_folder: Run) -> None:
    write_accounting(run_folder, "1", "rule_corpus_filter", allocation())
    page = outline(made(run_folder)["page"])
    assert [attributes["id"] for attributes in page.all("section")][-1] == SLURM[0]
    assert f"{len(SECTIONS) + 1}. {SLURM[1]}" in page.text


def test_equal_job_numbers_on_two_clusters_are_two_jobs(run_folder: Run) -> None:
    for stage, cluster in (("corpus.filter", "snellius"), ("tokenizer.train", "lumi"), ("tokens.shard", "juwels")):
        slurm = {"slurm_job_id": "12", "slurm_cluster_name": cluster}
        run_folder.record(stage, {"corpus": f"on-{cluster}"}, hour=9, slurm=slurm)
    write_accounting(run_folder, "4711", None, allocation())  # of before clusters were recorded, as its attempts are
    write_accounting(run_folder, "12", None, allocation(), cluster="snellius")
    write_accounting(run_folder, "12", None, allocation(), cluster="lumi")
    assert len([*run_folder.root.glob("provenance/accounting/*.json")]) == 3
    text = section(run_folder)
    assert "corpus.filter 1" in text and "tokenizer.train 1" in text and "pretrain.segment 1" in text, "three jobs"
    assert "corpus.filter + tokenizer.train" not in text and "tokens.shard" not in text
    assert "1 more jobs have no accounting data" in text, "that of juwels"
