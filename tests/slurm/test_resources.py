"""Slurm requests of the rules follow from the platform, the input size and the attempt, within limits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from pipeline.config import platforms
from pipeline.config.configuration import parse_configuration
from pipeline.config.platforms import Platform
from pipeline.config.sections import Slurm
from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.slurm import resources
from pipeline.slurm.executor.job_requests import RequestGrowth
from pipeline.slurm.executor.slurm_commands import sbatch_options
from pipeline.slurm.resources import StepResources
from pipeline.slurm.site_checks import slurm_options_for_whole_node
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.steps import STEPS, step_settings

GPUS = {
    "name": "machine",
    "devices": 4,
    "launch": "srun --cpus-per-task=16",
    "peak_flops_per_second": 1e15,
    "partitions": {
        "cpu": {"name": "genoa", "cpus": 192, "memory_megabytes": 300_000, "minutes": 90},
        "gpu": {"name": "gpu_h100", "cpus": 64, "memory_megabytes": 720_000, "minutes": 7200, "gpus": 4},
    },
}
SEGMENT = {"model": "base", "step": "8"}
ASKING = [name for name, step in STEPS.items() if step.need is not None]


def requests(platform: dict[str, Any], **slurm: Any) -> StepResources:
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    config = parse_configuration(raw).model_copy(
        update={"platform": Platform.model_validate(platform), "slurm": Slurm.model_validate(slurm)}
    )
    return StepResources(config, Dag(config))


def test_training_has_one_task_per_device_of_each_node() -> None:
    asked = requests(GPUS, nodes=3)("pretrain.segment")
    assert (asked["nodes"], asked["tasks"], asked["mpi"], asked["gres"]) == (3, 12, "srun", "gpu:4")
    assert asked["tasks_per_gpu"] == 0 and asked["cpus_per_task"] == 16 and asked["slurm_partition"] == "gpu_h100"
    options = "--requeue --signal=USR1@300 --open-mode=append --ntasks-per-node=4"
    assert asked["slurm_extra"](SEGMENT) == options
    launch = asked["launch"](SEGMENT)
    assert launch.startswith("srun --export=ALL --nodes=3 --ntasks=12 ") and launch.endswith(" --cpus-per-task=16")
    assert asked["mem_mb"](SEGMENT, attempt=1) == 720_000


def test_training_has_its_full_time_before_the_warning() -> None:
    early, late = (requests(GPUS, warning_seconds=seconds)("pretrain.segment") for seconds in (3600, 60))
    assert early["runtime"](SEGMENT, attempt=1) == late["runtime"](SEGMENT, attempt=1) + 59


def test_single_task_uses_no_srun_and_another_signal() -> None:
    asked = requests({**GPUS, "devices": 1, "partitions": {}})("pretrain.segment")
    assert asked["launch"](SEGMENT) == "" and "mpi" not in asked and "tasks" not in asked
    assert asked["slurm_extra"](SEGMENT).startswith("--requeue --signal=URG@300 ")


def test_every_job_is_measured_on_platforms_with_ear() -> None:
    made = requests({**GPUS, "ear": "--ear=on"})
    assert made("corpus.filter")["slurm_extra"].endswith(" --ear=on")
    assert made("pretrain.segment")["slurm_extra"](SEGMENT).endswith(" --ear=on")


def test_training_requests_its_energy_policy_instead_of_monitoring() -> None:
    policies = {"min_energy": "--ear=on --ear-policy=min_energy", "slow": "--gpu-freq=1200"}
    platform = {**GPUS, "ear": "--ear=on --ear-policy=monitoring", "energy_policies": policies}
    result = requests(platform)
    base = result.config.models["base"]
    slow = base.model_copy(update={"training": base.training.model_copy(update={"energy_policy": "slow"})})
    config = result.config.model_copy(update={"models": {"base": base, "slow": slow}})
    made = StepResources(config, Dag(config))
    asked = made("pretrain.segment")["slurm_extra"]
    assert asked(SEGMENT).endswith(" --ear=on --ear-policy=monitoring")
    assert asked({**SEGMENT, "model": "slow"}).endswith("--open-mode=append --ntasks-per-node=4 --gpu-freq=1200")
    assert made("corpus.filter")["slurm_extra"].endswith(" --ear=on --ear-policy=monitoring")
    settings = step_settings(config, "pretrain.segment", {**SEGMENT, "model": "slow"}).non_result_settings()
    assert settings["energy_options"] == "--gpu-freq=1200", "the record has the meaning of the name"
    assert "energy_options" not in step_settings(config, "pretrain.segment", SEGMENT).non_result_settings()


def test_unsupported_energy_policy_is_refused() -> None:
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    raw["models"]["base"]["training"]["energy_policy"] = "slow"
    with pytest.raises(
        InputError, match=r"base\.training\.energy_policy 'slow': the platform local has none \(energy_p"
    ):
        parse_configuration(raw)


BATCH = {"corpus": "main", "source": "nl_gids", "batch": "0"}
UNIT_BYTES = 155_000_000  # 1,620 MB of memory


def with_units(made: StepResources, units: int) -> StepResources:
    """Let every batch have the given number of units."""
    made._batch_bytes = lambda source, batch: [UNIT_BYTES] * units
    return made


def allocated(cpus: int, memory_megabytes: int, node_cpus: int = 192, nodes: int = 8) -> dict[str, Any]:
    smallest = {"cpus": cpus, "memory_megabytes": memory_megabytes}
    size = {"cpus": node_cpus, "memory_megabytes": nodes * memory_megabytes, "minutes": 90}
    return {"name": "machine", "partitions": {"cpu": {"name": "genoa", **size, "allocation": smallest}}}


def test_requests_grow_with_input_and_cause_up_to_the_partition_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_units(requests(GPUS), 1)
    asked = made("corpus.filter")
    assert [asked["runtime"](BATCH, attempt=n) for n in (1, 2)] == [67, 67], "an attempt alone is not a cause"
    causes = {1: RequestGrowth(), 2: RequestGrowth(memory=2), 3: RequestGrowth(memory=2, time=2)}
    monkeypatch.setattr(resources, "compute_request_growth", lambda rule, wildcards, attempt: causes[attempt])
    assert [asked["runtime"](BATCH, attempt=n) for n in causes] == [67, 67, 90]
    assert [asked["mem_mb"](BATCH, attempt=n) for n in causes] == [1620, 3240, 3240]
    monkeypatch.setattr(made, "input_part_bytes", lambda scope, wildcards: [200_000_000])
    assert made("tokenizer.train")["mem_mb"]({"tokenizer": "main"}, attempt=1) == 4200
    monkeypatch.setattr(made, "input_part_bytes", lambda scope, wildcards: [10**12])
    assert made("tokenizer.train")["mem_mb"]({"tokenizer": "main"}, attempt=1) == 5000, "not more than its sample"


def test_evaluation_on_whole_nodes_has_a_process_per_device() -> None:
    asked = requests(GPUS, evaluation_nodes=2)("evaluate.suites")
    assert (asked["nodes"], asked["tasks"], asked["mpi"], asked["gres"]) == (2, 8, "srun", "gpu:4")
    assert asked["slurm_extra"] == "--requeue --ntasks-per-node=4" and asked["slurm_partition"] == "gpu_h100"
    launch = asked["launch"](SEGMENT)
    assert (
        launch.startswith("srun --export=ALL --nodes=2 --ntasks=8 ") and "evaluate.suites.base.8.rank-%t.log" in launch
    )
    assert asked["mem_mb"](SEGMENT, attempt=1) == 720_000
    alone = requests(GPUS, evaluation_nodes=2)("evaluate.baselines")
    assert alone["gres"] == "gpu:1" and "tasks" not in alone and alone["launch"] == ""


def test_evaluation_on_shared_nodes_has_one_device() -> None:
    alone = requests(GPUS)("evaluate.suites")
    assert (alone["slurm_partition"], alone["cpus_per_task"], alone["gres"]) == ("gpu_h100", 16, "gpu:1")
    shared = {"name": "small-g", "cpus": 56, "memory_megabytes": 480_000, "minutes": 60, "gpus": 8}
    asked = requests({**GPUS, "partitions": {**GPUS["partitions"], "evaluation": shared}})("evaluate.suites")
    assert (asked["slurm_partition"], asked["cpus_per_task"], asked["gres"]) == ("small-g", 7, "gpu:1")
    assert asked["mem_mb"](SEGMENT, attempt=1) == 60_000 and asked["runtime"](SEGMENT, attempt=1) == 60


def test_baseline_requests_the_memory_of_its_model(tmp_path: Path) -> None:
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    raw["evaluation"] = {"baselines": {"peer": str(tmp_path)}}
    for name, size in (("config.json", 0), ("model.safetensors", 50_000_000)):
        (tmp_path / name).write_bytes(bytes(size))
    config = parse_configuration(raw)
    memory = StepResources(config, Dag(config))("evaluate.baselines")["mem_mb"]
    peer, untrained = (memory({"baseline": name}, attempt=1) for name in ("peer", "untrained-base"))
    assert untrained == StepResources(config, Dag(config))("evaluate.suites")["mem_mb"](SEGMENT, attempt=1)
    assert peer - untrained == pytest.approx(200, abs=2), "twice its weights in 32 bits, stored in 16"


def test_samples_request_memory_for_the_model_weights() -> None:
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    raw["models"]["base"]["architecture"] |= {"width": 2048, "layers": 16, "heads": 16, "key_value_heads": 16}
    config = parse_configuration(raw).model_copy(update={"platform": Platform.model_validate(GPUS)})
    small, large = requests(GPUS), StepResources(config, Dag(config))
    assert small("evaluate.samples")["mem_mb"]({"model": "base"}, attempt=1) == 2000
    # Of a layer 4 × 2048² of attention and 3 × 2048 × 5632 of the feed-forward, about 51 million; 8 bytes of each.
    assert large("evaluate.samples")["mem_mb"]({"model": "base"}, attempt=1) == pytest.approx(2000 + 16 * 411, rel=0.05)


def test_model_that_generates_more_has_more_time() -> None:
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    raw["models"]["base"]["architecture"] |= {"width": 2048, "layers": 16, "heads": 16, "key_value_heads": 16}
    raw["models"]["base"]["training"]["sequence_length"] = 128
    silent = parse_configuration(raw).model_copy(update={"platform": Platform.model_validate(GPUS)})
    raw["evaluation"]["memorization"] = {"prompts": 100}
    asked = parse_configuration(raw).model_copy(update={"platform": Platform.model_validate(GPUS)})
    before, now = (
        StepResources(config, Dag(config))("evaluate.samples")["runtime"]({"model": "base"}, attempt=1)
        for config in (silent, asked)
    )
    # 320 texts in 20 batches of 50 tokens, each of which reads 4 bytes of 822 million parameters, at 5 GB/s.
    assert now - before == pytest.approx(20 * 50 * 4 * 822e6 / 5e9 / 60, abs=1)
    prompts = json.loads(Path("pipeline/evaluate/prompts.json").read_text())
    assert sum(len(texts) for kind in prompts.values() for texts in kind.values()) == resources.FIXED_PROMPTS


def test_training_requests_nodes_with_a_disk() -> None:
    asked = requests({**GPUS, "node_disk": "$TMPDIR", "node_disk_constraint": "scratch-node"})
    assert asked("pretrain.segment")["constraint"] == "scratch-node"
    assert "constraint" not in asked("evaluate.suites") and "constraint" not in requests(GPUS)("pretrain.segment")


def test_each_request_states_the_memory_per_core_if_memory_follows_cores() -> None:
    partitions = {kind: dict(entry) for kind, entry in GPUS["partitions"].items()}
    partitions["cpu"] |= {"allocation": {"cpus": 2, "memory_megabytes": 5001}, "memory_follows_cpus": True}
    asked = requests({**GPUS, "partitions": partitions})
    assert asked("corpus.filter")["cpu_mem_mb"] == 2500 and "cpu_mem_mb" not in asked("pretrain.segment")
    site = Platform.model_validate({**GPUS, "partitions": partitions}).partitions
    assert slurm_options_for_whole_node(site["cpu"], 8000) == ["--partition=genoa", "--cpus-per-task=4"]
    assert slurm_options_for_whole_node(site["cpu"]) == ["--partition=genoa", "--cpus-per-task=1"]
    assert slurm_options_for_whole_node(site["gpu"], 8000)[-2:] == ["--mem=8000", f"--cpus-per-task={site['gpu'].cpus}"]
    assert slurm_options_for_whole_node(None, 8000) == ["--mem=8000", "--cpus-per-task=1"]
    partitions["gpu"] |= {"allocation": {"cpus": 16, "memory_megabytes": 1000}, "memory_follows_cpus": True}
    launches = [
        requests({**GPUS, "partitions": some})("pretrain.segment")["launch"]
        for some in (partitions, GPUS["partitions"])
    ]
    assert [" --mem=0 " in launch(SEGMENT) for launch in launches] == [True, False]
    own = {**GPUS, "partitions": partitions, "launch": f"{GPUS['launch']} --mem-per-cpu=1G"}
    assert "--mem=0" not in requests(own)("pretrain.segment")["launch"](SEGMENT), "srun takes one of them"
    partitions["cpu"]["memory_follows_cpus"] = False
    assert "cpu_mem_mb" not in requests({**GPUS, "partitions": partitions})("corpus.filter")
    partitions["cpu"] = {**partitions["cpu"], "memory_follows_cpus": True}
    partitions["cpu"].pop("allocation")
    with pytest.raises(ValidationError, match="memory_follows_cpus needs allocation"):
        requests({**GPUS, "partitions": partitions})


def test_run_options_override_the_platform_options_of_a_partition() -> None:
    partitions = {kind: dict(entry) for kind, entry in GPUS["partitions"].items()}
    partitions["gpu"] |= {"constraint": "h100", "qos": "site", "options": ["--exclude=gcn7"]}
    own = {
        "gpu": {"account": "ajs@h100", "qos": "long"},
        "cpu": {"reservation": "course", "options": ["--comment-x=a b"]},
    }
    asked = requests({**GPUS, "partitions": partitions, "node_disk_constraint": "disk"}, account="ajs", partitions=own)
    training, suites, corpus = (asked(step) for step in ("pretrain.segment", "evaluate.suites", "corpus.filter"))
    assert {key: training.get(key) for key in ("slurm_account", "qos", "constraint", "reservation")} == {
        "slurm_account": "ajs@h100",
        "qos": "long",
        "constraint": "h100&disk",
        "reservation": None,
    }
    assert training["slurm_extra"](SEGMENT).endswith(" --exclude=gcn7")
    assert suites["constraint"] == "h100" and suites["qos"] == "long" and suites["slurm_account"] == "ajs@h100"
    assert corpus["slurm_account"] == "ajs" and corpus["reservation"] == "course" and "qos" not in corpus
    assert sbatch_options(corpus)[-2:] == ["--requeue", "--comment-x=a b"]
    assert "--account=ajs" in sbatch_options(corpus) and "--reservation=course" in sbatch_options(corpus)
    assert "slurm_account" not in requests(GPUS)("corpus.filter")


@pytest.mark.parametrize(
    ("partitions", "words"),
    [
        ({"evaluation": {"qos": "long"}}, "machine has no partition evaluation, its jobs go to gpu: write slurm.part"),
        ({"gpu": {"options": ["-x gcn7"]}}, "'-x gcn7' is not an option of sbatch in its long form"),
        ({"gpu": {"options": ["--mem=5"]}}, "--mem=5: leave it out, because Polder sets it for each job"),
        ({"gpu": {"options": ["--qos=long"]}}, "--qos=long: write it as the key qos"),
        ({"gpu": {"account": "a b"}}, "account"),
        ({"gpu": {"Qos": "long"}}, "Qos"),
    ],
)
def test_impossible_options_are_refused(
    partitions: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform_files, "PLATFORMS", tmp_path)
    (tmp_path / "machine.yaml").write_text(yaml.safe_dump(GPUS))
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    with pytest.raises(InputError, match=re.escape(words)):
        parse_configuration({**raw, "platform": "machine", "slurm": {"partitions": partitions}})


@pytest.mark.parametrize(
    ("platform", "units", "cores"),
    [
        (allocated(24, 43008), 96, 24),
        (allocated(24, 43008), 192, 48),
        (allocated(24, 43008), 30, 24),
        (allocated(24, 43008), 8, 8),  # the rest of the allocation is for others
        (allocated(48, 88000, node_cpus=48, nodes=1), 96, 48),
        (allocated(48, 88000, node_cpus=48, nodes=1), 1000, 48),
        (allocated(1, 2000, node_cpus=128, nodes=112), 96, 24),
        (allocated(24, 24 * 800), 96, 11),  # memory for no more, within the bill of 24 cores
        (GPUS, 96, 24),
        (GPUS, 1, 1),
        ({"name": "machine"}, 96, 1),
    ],
)
def test_batch_requests_resources_for_its_units_and_fills_the_billed_allocation(
    platform: dict[str, Any], units: int, cores: int
) -> None:
    asked = with_units(requests(platform), units)("corpus.filter")
    assert asked["cpus_per_task"](BATCH, attempt=1) == cores
    assert asked["mem_mb"](BATCH, attempt=1) == cores * 1620
    minutes = 60 + max(units * UNIT_BYTES // cores, UNIT_BYTES) // 20_000_000
    assert asked["runtime"](BATCH, attempt=1) == (min(minutes, 90) if "partitions" in platform else minutes)


def test_batch_that_ran_out_of_memory_runs_fewer_units_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resources, "compute_request_growth", lambda rule, wildcards, attempt: RequestGrowth(memory=2 ** (attempt - 1))
    )
    asked = with_units(requests(allocated(48, 88000, node_cpus=48, nodes=1)), 96)("corpus.filter")
    assert [asked["cpus_per_task"](BATCH, attempt=n) for n in (1, 2, 3)] == [48, 27, 13]
    assert all(asked["mem_mb"](BATCH, attempt=n) <= 88000 for n in (1, 2, 3))


def test_library_threads_fill_the_smallest_allocation() -> None:
    assert [requests(p)("tokenizer.train")["cpus_per_task"] for p in (GPUS, allocated(24, 43008))] == [8, 24]
    assert requests(allocated(1, 2000))("tokenizer.train")["cpus_per_task"] == 8
    shard = {"tokens": "main", "shard": "0"}  # of two
    asked = [requests(p)("tokens.shard")["cpus_per_task"] for p in (GPUS, allocated(12, 43008), allocated(24, 43008))]
    assert [cores(shard, attempt=1) for cores in asked] == [1, 6, 8]


def test_jobs_record_the_smallest_shareable_allocation() -> None:
    small = requests(allocated(24, 43008))
    for stage in ASKING:
        assert (small(stage)["allocation_cpus"], small(stage)["allocation_mem_mb"]) == (24, 43008)
        assert "allocation_cpus" not in requests(GPUS)(stage)


@pytest.mark.parametrize(
    "name", ["snellius", "juwels-booster", "lumi", "leonardo", "marenostrum5", "jean-zay", "jupiter", "alps"]
)
def test_no_request_exceeds_a_node_of_the_described_platforms(name: str) -> None:
    platform = platforms.load_platform_settings(name)
    made = with_units(requests(platform.model_dump(exclude_unset=True)), 1000)
    partition = platform.partitions["cpu"]
    assert partition.allocation is not None
    everything = {**BATCH, "tokenizer": "main", "tokens": "main", "shard": "0", "file": "1", "model": "base"}
    for stage in ASKING:
        asked = made(stage)
        if stage == "sources.split":
            continue  # there is no large file
        cores = asked["cpus_per_task"]
        cores = cores(everything, attempt=1) if callable(cores) else cores
        assert cores <= partition.cpus and asked["mem_mb"](everything, attempt=1) <= partition.memory_megabytes


def test_every_rule_has_a_request_and_a_changed_section_reruns_nothing() -> None:
    one, other = requests(GPUS), requests(GPUS, nodes=9, queue=3, account="x")
    assert one.config.dump_explicit_settings() == other.config.dump_explicit_settings()
    assert step_settings(one.config, "pretrain.segment", SEGMENT) == step_settings(
        other.config, "pretrain.segment", SEGMENT
    )
    for stage in ASKING:
        assert one(stage)["slurm_partition"] == "genoa"
