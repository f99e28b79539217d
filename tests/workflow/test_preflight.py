"""Unworkable settings are reported at startup, in one sentence, by the configuration and the platform file."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.configuration import Config, parse_configuration
from pipeline.config.platforms import Platform
from pipeline.pretrain.settings import StartingMilestone
from pipeline.workflow import preflight
from tests.conftest import new_project

MICRO = yaml.safe_load(Path("config/micro.yaml").read_text())
GPUS: dict[str, Any] = {
    "name": "machine",
    "devices": 4,
    "launch": "srun --cpus-per-task=16",
    "memory_bytes_per_device": 80 * 2**30,
    "peak_flops_per_second": 1e15,
    "model_flops_utilization": 0.4,
    "partitions": {"gpu": {"name": "h100", "cpus": 64, "memory_megabytes": 720_000, "minutes": 1440, "gpus": 4}},
}
CORES: dict[str, Any] = {
    "name": "machine",
    "devices": 2,
    "launch": "torchrun --standalone --nproc-per-node=2",
    "partitions": {"cpu": {"name": "genoa", "cpus": 192, "memory_megabytes": 64_000, "minutes": 60}},
}
EIGHT = {"layers": 32, "width": 4096, "feed_forward_width": 14336, "heads": 32, "key_value_heads": 8}


def run(platform: dict[str, Any], nodes: int = 1, shape: dict[str, Any] | None = None, **training: Any) -> Config:
    raw = copy.deepcopy(MICRO)
    model = raw["models"]["base"]
    model["architecture"] = shape or model["architecture"]
    model["training"] |= training
    raw["run"]["name"] = "nowhere"
    return parse_configuration({**raw, "slurm": {"nodes": nodes}}).model_copy(
        update={"platform": Platform.model_validate(platform)}
    )


def list_messages(config: Config) -> list[str]:
    results = [*preflight.find_problems(config, preflight.model_launch_commands(config), slurm=True)]
    assert all("\n" not in sentence for sentence in results)
    return results


def test_workable_configuration_is_not_refused() -> None:
    for platform in (GPUS, CORES, {"name": "bare"}):
        config = run(platform, batch_size=16, precision="fp32")
        assert (
            list_messages(config) == []
            and [*preflight.find_hints(config, preflight.model_launch_commands(config))] == []
        )


def test_energy_policy_needs_slurm() -> None:
    config = run({**GPUS, "energy_policies": {"slow": "--gpu-freq=1200"}}, batch_size=16)
    base = config.models["base"]
    slow = base.model_copy(update={"training": base.training.model_copy(update={"energy_policy": "slow"})})
    config = config.model_copy(update={"models": {"base": slow}})
    launched = preflight.model_launch_commands(config)
    assert [*preflight.find_problems(config, launched, slurm=True)] == []
    (sentence,) = preflight.find_problems(config, launched, slurm=False)
    assert sentence.startswith("models.base.training.energy_policy slow needs options of sbatch")


@pytest.mark.parametrize(
    ("nodes", "training", "words"),
    [
        (3, {}, "models.base: training.batch_size 4 is not divisible by 12 processes times micro_batch_size 2: a ba"),
        (1, {"mesh": {"tensor": 8}}, "models.base: 4 processes are not divisible by training.mesh tensor 8"),
        (
            2,
            {"mesh": {"tensor": 8}, "batch_size": 16},
            "heads 4 is not divisible by training.mesh.tensor 8: 1",
        ),
        (
            1,
            {"mesh": {"pipeline": 4}, "batch_size": 16},
            "layers 2 are fewer than the stages of training.mesh",
        ),
    ],
)
def test_indivisible_batch_or_mesh_is_refused(nodes: int, training: dict[str, Any], words: str) -> None:
    (sentence,) = list_messages(run(GPUS, nodes, **training))
    assert words in sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"launch": None}, "devices is 4, but launch starts 1 process on a node"),
        ({"launch": "srun --ntasks-per-node=2"}, "devices is 4, but launch starts 2 processes on a node"),
        ({"launch": "torchrun --standalone --nproc-per-node=8"}, "devices is 4, but launch starts 8 processes"),
    ],
)
def test_launch_command_for_other_devices_than_the_node_has_is_refused(changes: dict[str, Any], words: str) -> None:
    assert words in list_messages(run({**GPUS, **changes}, batch_size=16))[0]
    assert [*preflight.find_problems(run({**GPUS, **changes}, batch_size=16), {}, slurm=False)] == []


def test_more_nodes_than_the_launch_command_uses_are_refused() -> None:
    assert (
        "slurm.nodes is 2, but platform machine starts trainings without srun" in list_messages(run(CORES, nodes=2))[0]
    )


def test_oversized_state_is_refused_with_a_fitting_strategy() -> None:
    config = run(GPUS, 2, EIGHT, batch_size=64, micro_batch_size=1, strategy="no_shard", precision="bf16")
    (sentence,) = list_messages(config)
    assert "alone take 104 GiB of a process, which has 80 GiB: strategy shard_optimizer with" in sentence
    unknown = run({**GPUS, "memory_bytes_per_device": None}, 2, EIGHT, batch_size=64, strategy="no_shard")
    assert list_messages(unknown) == []


def test_high_learning_rate_is_a_warning() -> None:
    hints = [[*preflight.find_hints(run({}, learning_rate=rate), {"base": None})] for rate in (0.05, 2)]
    assert hints[0] == [] and hints[1][0].startswith(
        "models.base.training.learning_rate is 2, and peak rates are usually"
    )


def test_memory_estimate_is_a_warning_and_not_a_refusal() -> None:
    config = run(GPUS, 2, EIGHT, batch_size=512, micro_batch_size=64, sequence_length=4096, precision="bf16", steps=2)
    assert list_messages(config) == []
    (hint,) = preflight.find_hints(config, preflight.model_launch_commands(config))
    assert hint.startswith("models.base takes ") and "by an estimate, which has 80 GiB: strategy full_shard" in hint


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (
            {},
            "precision and compile at the defaults for a CPU: write training: {precision: bf16, compile: true}, which",
        ),
        ({"precision": "fp32"}, "has compile at the defaults for a CPU: write training: {compile: true}, which"),
        (
            {"compile": False},
            "has precision at the defaults for a CPU: write training: {precision: bf16}, which",
        ),
        ({"precision": "bf16", "compile": True}, None),
        ({"precision": "bf16", "backend": "deepspeed", "strategy": "zero3"}, None),  # compiles nothing
    ],
)
def test_gpu_with_cpu_defaults_gets_a_hint(written: dict[str, Any], words: str | None) -> None:
    config = run({**GPUS, "device": "cuda"}, batch_size=16, **written)
    hints = [*preflight.find_hints(config, preflight.model_launch_commands(config))]
    assert len(hints) == (words is not None) and all(words in hint for hint in hints if words)
    assert not [*preflight.find_hints(run(CORES, batch_size=16), {"base": None})]


def test_disk_optimizer_without_a_node_disk_gets_a_hint() -> None:
    training = {"batch_size": 16, "backend": "deepspeed", "strategy": "zero3_optimizer_on_disk", "precision": "bf16"}
    config = run(GPUS, **training)
    (hint,) = preflight.find_hints(config, preflight.model_launch_commands(config))
    assert hint.startswith("models.base: strategy zero3_optimizer_on_disk keeps the optimizer's state on a disk of the")
    assert not [*preflight.find_hints(run({**GPUS, "node_disk": "$TMPDIR"}, **training), {"base": None})]


def test_cpu_training_must_fit_into_a_node() -> None:
    (sentence,) = list_messages(run(CORES, 1, EIGHT, strategy="full_shard"))
    assert "which has 29.9 GiB: no strategy of fsdp fits" in sentence


def test_training_longer_than_a_job_is_reported() -> None:
    config = run(GPUS, 2, EIGHT, batch_size=512, micro_batch_size=1, sequence_length=4096, precision="bf16", steps=5000)
    assert list_messages(config) == []
    base = config.models["base"]
    training = base.training.model_copy(update={"start": StartingMilestone(model="base", step=4000)})
    config.models["branch"] = base.model_copy(update={"training": training})  # its 1000 steps fit into a job
    (hint,) = preflight.find_hints(config, preflight.model_launch_commands(config))
    assert hint.startswith("models.base") and "hours by the plan on 8 processes: 2 jobs of h100 or more" in hint


def test_finished_training_needs_no_checks(tmp_path: Path) -> None:
    config = run(GPUS, 3)
    config = config.model_copy(update={"run": config.run.model_copy(update={"results": str(tmp_path)})})
    assert [*preflight.model_launch_commands(config)] == ["base"]
    (config.run_directory / "models/base/milestones/8").mkdir(parents=True)
    assert preflight.model_launch_commands(config) == {} and list_messages(config) == []


SEEDS = {"path": "no/seeds.jsonl", "license": "CC0-1.0"}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"language_model": {"path": "no/lid.bin", "sha256": "0" * 64}}, "language_model: there is no file no/lid.bin"),
        ({"harmful": {"word_lists": [{"name": "w", "path": "no/words.txt"}]}}, "harmful: there is no file no/words"),
        ({"quality": {"nl": {"good": [SEEDS], "bad": [SEEDS]}}}, "quality.nl: there is no file no/seeds.jsonl"),
    ],
)
def test_missing_configured_file_is_refused(section: dict[str, Any], words: str) -> None:
    raw = copy.deepcopy(MICRO)
    raw["corpus"] = {"main": {**raw.get("corpus", {}).get("main", {}), **section}}
    (sentence,) = list_messages(parse_configuration(raw))
    assert words in sentence


def test_missing_opt_out_list_is_refused() -> None:
    raw = copy.deepcopy(MICRO)
    raw["sources"][0]["opt_out"] = "no/list.txt"
    assert list_messages(parse_configuration(raw)) == [
        f"source {raw['sources'][0]['name']}: there is no opt_out list no/list.txt in {Path.cwd()}: "
        "correct its path or leave it out"
    ]


def test_invalid_grid_table_is_reported_but_a_missing_one_is_not(tmp_path: Path) -> None:
    table = tmp_path / "grid.csv"
    columns = {"path": str(table), "grams_per_kwh": "grams", "place": "Utopia", "source": "a table"}
    config = parse_configuration({**copy.deepcopy(MICRO), "energy": {"carbon_intensity_series": columns}})
    assert list_messages(config) == []
    table.write_text("time,grams\n2026-03-01T00:00Z,100\n2026-03-01T01:00Z,9999\n")
    (sentence,) = list_messages(config)
    assert sentence.startswith(f"energy.carbon_intensity_series: {table}, line 3: grams is 9,999, which is more than")
    table.write_text("time,grams\n2026-03-01T00:00Z,100\n2026-03-01T01:00Z,99\n")
    assert list_messages(config) == []


def test_invocation_is_refused_before_any_job_and_other_stages_run(tmp_path: Path) -> None:
    project = new_project(tmp_path / "polder")
    project.edit("config/micro.yaml", "batch_size: 4", "batch_size: 6")
    sentence = "models.base: training.batch_size 6 is not divisible by 2 processes times micro_batch_size 2: a ba"

    def start(*options: str) -> subprocess.CompletedProcess[str]:
        command = project.command(*options)
        return subprocess.run(
            command, cwd=project.folder, env=project.environment(), capture_output=True, text=True, timeout=300
        )

    refused = start()
    assert refused.returncode == 2 and f"error: config/micro.yaml, line 19: {sentence}" in refused.stderr
    assert not [*project.results.glob("provenance/attempts/*")]
    dry = start("--dry-run")
    assert dry.returncode == 2 and f": {sentence}" in dry.stderr
    assert start("plan").returncode == 0
