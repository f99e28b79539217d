"""The machines of the jobs: each kind once, the nodes of a training, images by hash, and only true lock versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.report.example import HOSTILE, Run
from tests.report.test_page import made, outline

CPU_NODE = {
    "architecture": "x86_64",
    "system": "Linux",
    "processors": 192,
    "cpu_model": "AMD EPYC 9654",
    "kernel": "5.14.0",
    "libc": "glibc 2.34",
    "gpus": [],
}
GPU_NODE = {
    **CPU_NODE,
    "driver": "NVIDIA 570.86.15",
    "driver_cuda": "12.8",
    "gpus": [{"name": "NVIDIA H100", "memory_bytes": 100_931_731_456}] * 4,
}


def recorded(run: Run, *, image: str | None = None) -> None:
    """Two filters on processors only, and a training over three nodes, one of another kind."""
    for number, host in enumerate(("tcn1", "tcn2")):
        run.record("corpus.filter", {"unit": str(number)}, 9, machine=CPU_NODE, host=host)
    counts = {
        "nodes": {"gcn1": GPU_NODE, "gcn2": GPU_NODE, "gcn3": {**GPU_NODE, "cpu_model": HOSTILE}},
        "torch": "2.13.0+cu128",
        "cuda": "12.8",
        "hip": None,
        "nccl": "2.27.3",
        "container": image and "torch.sif",
    }
    model = {"model": "base", "step": "500"}
    frozen = {"path": "provenance/frozen/2.json", "sha256": "0" * 64}
    run.record("pretrain.segment", model, 10, machine=CPU_NODE, counts=counts, frozen=frozen)
    if image:
        run.write("provenance/frozen/2.json", {"image": {"path": "/images/torch.sif", "sha256": image}})


def rows(page: Path, caption: str) -> list[str]:
    text = outline(page).text
    start = text.index(caption)
    return [row for row in text[start : start + 2500].split(".json") if "processors" in row]


def test_each_kind_of_machine_is_listed_once_with_hosts_and_jobs(run_folder: Run) -> None:
    recorded(run_folder)
    page = made(run_folder)["page"]
    table = rows(page, "Machines of the jobs")
    processors = next(row for row in table if "tcn1" in row)
    assert "AMD EPYC 9654, 192 processors none – Linux 5.14.0, glibc 2.34 none tcn1, tcn2 2" in processors
    training = next(row for row in table if "gcn1" in row)
    assert "4 × NVIDIA H100 (94 GiB) NVIDIA 570.86.15, CUDA 12.8" in training and "gcn1, gcn2 1" in training
    assert table.index(processors) < table.index(training), "the most used first"
    assert "gcn3" not in training and "<script>alert" not in page.read_text(encoding="utf-8")
    assert "torch 2.13.0+cu128 , cuda 12.8 , nccl 2.27.3" in " ".join(outline(page).text.split()).replace(",", " ,")


def test_image_has_the_hash_of_the_invocation_that_planned_the_job(run_folder: Run) -> None:
    recorded(run_folder, image="ab" * 32)
    arguments = made(run_folder)
    assert f"torch.sif, sha256 {'ab' * 32}" in outline(arguments["page"]).text
    assert f"torch.sif, sha256 {'ab' * 32}" in arguments["model_card"].read_text(encoding="utf-8")


def test_only_platform_specific_packages_are_listed(run_folder: Run) -> None:
    assert "All imported packages had the version" in outline(made(run_folder)["page"]).text
    environment: dict[str, Any] = {"python": "3.11.7", "lock": "rocm", "packages": {"torch": "2.13.0+rocm7"}}
    environment["other_than_lock"] = {"torch": "2.13.0"}
    run_folder.record("corpus.filter", {"unit": "0"}, 9, machine=CPU_NODE, environment=environment)
    arguments = made(run_folder)
    text = outline(arguments["page"]).text
    assert "torch 2.13.0+rocm7 2.13.0 1" in text and "All imported packages" not in text
    assert "torch 2.13.0+rocm7 (lock: 2.13.0)" in arguments["model_card"].read_text(encoding="utf-8")


def test_unqueryable_gpus_are_not_shown_as_none(run_folder: Run) -> None:
    silent = {**CPU_NODE, "gpus": None, "gpus_unknown": "NVML does not answer (Uninitialized)"}
    run_folder.record("corpus.filter", {"unit": "0"}, 9, machine=silent)
    assert "not known: NVML does not answer (Uninitialized)" in outline(made(run_folder)["page"]).text
