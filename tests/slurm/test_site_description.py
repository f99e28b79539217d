"""A platform file is generated from Slurm's answers: nodes of many kinds, limits, GPUs, and unknowns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from pipeline.config.platforms import Platform
from pipeline.core.errors import InputError
from pipeline.scaffold.new_parts import platform_edits
from pipeline.scaffold.project_edits import NewFile
from pipeline.slurm import site_description
from pipeline.slurm.executor.slurm_commands import SubmissionAnswer

# Invented, in the form that Slurm 22.05 and 24.11 print.
PARTITIONS = """\
PartitionName=login AllowQos=ALL Default=NO MaxTime=1:00:00 OverSubscribe=NO State=UP MaxMemPerNode=UNLIMITED
PartitionName=standard Default=YES MaxTime=2-00:00:00 OverSubscribe=NO State=UP MaxMemPerNode=200000
PartitionName=huge Default=NO MaxTime=1-00:00:00 OverSubscribe=NO State=UP MaxMemPerNode=UNLIMITED
PartitionName=broken Default=NO MaxTime=1-00:00:00 OverSubscribe=NO State=DOWN MaxMemPerNode=UNLIMITED
PartitionName=accel Default=NO PriorityTier=9 MaxTime=1-12 OverSubscribe=EXCLUSIVE State=UP MaxMemPerNode=0
PartitionName=accel-small Default=NO MaxTime=UNLIMITED OverSubscribe=NO State=UP MaxMemPerNode=UNLIMITED
PartitionName=accel-closed Default=NO MaxTime=9-0 OverSubscribe=NO State=UP MaxMemPerNode=UNLIMITED
"""
NODES = """\
standard|256|240000|(null)|90|c[001-090]
standard|256+|1000000+|(null)|10|c[091-100]
huge|128|4000000|(null)|800|h[001-800]
broken|128|4000000|(null)|900|b[001-900]
accel|144|490000|gpu:h100:4(S:0-1)|60|g[01-60]
accel-small|144|490000|gpu:h100:4(S:0-1)|2|g[61-62]
accel-closed|144|490000|gpu:h100:4(S:0-1)|99|g[70-168]
"""
THREADED = "CPUTot=256 CPUEfctv=256 ThreadsPerCore=2 RealMemory=240000 MemSpecLimit=16000 Arch=x86_64 Gres=(null)"
GPUS = "CPUTot=144 CPUEfctv=128 ThreadsPerCore=1 RealMemory=490000 Arch=aarch64 Gres=gpu:h100:4(S:0-1)"
SHOWN = {"c001": THREADED, "h001": "CPUTot=128 RealMemory=4000000", "g01": GPUS, "g61": GPUS, "g70": GPUS}
CONFIGURATION = "AcctGatherEnergyType    = acct_gather_energy/ipmi\n"


def answer(*words: str) -> str:
    match words:
        case ("scontrol", "--oneliner", "show", "partition"):
            return PARTITIONS
        case ("scontrol", "--oneliner", "show", "node", name):
            return f"NodeName={name} {SHOWN[name]}"
        case ("sinfo", *_):
            return NODES
        case ("srun", "--help"):
            return "  --gres=list"
        case ("sacctmgr", *_, "qos", "name=part_short", "format=MaxWall"):
            return "12:00:00\n"
        case ("sacctmgr", *_, "qos", _, _):
            return "\n"
    assert words[0] == "sacctmgr"
    return "mine@h100||normal,long\nmine@cpu|standard|\nmine@h100||normal,long\n"


def judge(words: Sequence[str]) -> SubmissionAnswer:
    assert ("--gres=gpu:4" in words) == words[0].startswith("--partition=accel")
    if "--partition=accel-closed" in words:
        return SubmissionAnswer("refused", said="User's group not permitted to use this partition")
    if "--partition=huge" in words:
        return SubmissionAnswer("silent", said="sbatch has not answered")
    return SubmissionAnswer("taken")


@pytest.fixture(autouse=True)
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_description, "run_command", answer)
    monkeypatch.setattr(site_description, "ask_sbatch", judge)
    monkeypatch.setattr(site_description, "query_configuration", lambda: CONFIGURATION)


def written() -> str:
    edit = platform_edits("dune", site_description.describe_site("2026-11-28")).edits[0]
    assert isinstance(edit, NewFile) and edit.path == "workflow/platforms/dune.yaml"
    return edit.content


def test_platform_file_has_the_job_limits_and_is_valid() -> None:
    platform = Platform.model_validate(yaml.safe_load(written()))
    sizes = {
        kind: (one.name, one.cpus, one.memory_megabytes, one.minutes, one.gpus)
        for kind, one in platform.partitions.items()
    }
    assert sizes == {
        "cpu": ("standard", 256, 200_000, 2880, 0),
        "gpu": ("accel", 128, 490_000, 2160, 4),
        "evaluation": ("accel-small", 128, 490_000, 1440, 4),
    }
    whole = platform.partitions["gpu"].allocation
    assert whole and (whole.cpus, whole.memory_megabytes, whole.gpus) == (128, 490_000, 4)
    assert platform.partitions["cpu"].allocation is None and platform.partitions["evaluation"].allocation is None
    assert (platform.device, platform.devices, platform.energy_plugin, platform.ear) == ("cuda", 4, "ipmi", None)
    assert platform.launch == "srun --ntasks-per-node=4 --cpus-per-task=32"


def test_unselected_or_unknown_properties_are_comments() -> None:
    text = written()
    for words in (
        "# dune. Not run there yet.\nname: dune\n",
        "  # By sinfo and scontrol show partition, 2026-11-28.",
        "  # 100 nodes of 128 cores (x86_64) for jobs; 256 hardware threads, which are Slurm's CPUs.\n  cpu: {",
        "  # 2 nodes of 128 cores (aarch64) for jobs; GPUs of the type h100; no time limit: 1440 is a guess.\n  eval",
        "  # {name: huge, cpus: 128, memory_megabytes: 4000000, minutes: 1440}  # 800 nodes of 128 cores for jobs\n",
        "sbatch would refuse a job (User's group not permitted to use this partition)",
        "\n# peak_flops_per_second: ",
        "\n# scratch: /scratch/$USER\n",
        "\n# ear: --ear=on",
    ):
        assert words in text
    assert "broken" not in text and "login" not in text and "mine@" not in text
    assert "name: gpu," not in text  # the example of the template
    assert site_description.list_accounts() == ["mine@h100 (QOS normal,long)", "mine@cpu on standard"]


def test_numeric_partition_name_remains_a_string(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PARTITIONS", PARTITIONS.replace("PartitionName=standard", "PartitionName=24"))
    monkeypatch.setitem(globals(), "NODES", NODES.replace("standard|", "24|"))
    assert Platform.model_validate(yaml.safe_load(written())).partitions["cpu"].name == "24"


def test_memory_reserved_for_the_system_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHOWN, "c001", THREADED.replace("RealMemory=240000", "RealMemory=210000"))
    results = {one.name: one for one in site_description.list_partitions()}
    assert results["standard"].memory_megabytes == 194_000


@pytest.mark.parametrize(
    ("limits", "minutes"),
    [
        ("QoS=part_short MaxTime=UNLIMITED", 720),  # as on JUPITER
        ("QoS=part_short MaxTime=1:00:00", 60),
        ("QoS=part_free MaxTime=UNLIMITED", None),
        ("QoS=N/A MaxTime=1:00:00", 60),
    ],
)
def test_partition_qos_limits_its_time(limits: str, minutes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PARTITIONS", f"PartitionName=accel {limits} OverSubscribe=EXCLUSIVE State=UP\n")
    assert [one.minutes for one in site_description.list_partitions()] == [minutes]


def test_lower_priority_of_equal_partitions_is_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "NODES", NODES.replace("|2|g[61-62]", "|60|g[61-62]"))
    chosen = site_description.choose_partitions(site_description.list_partitions())
    assert chosen["gpu"].name == "accel-small" and "evaluation" not in chosen


def test_evaluation_uses_shared_nodes_only_where_jobs_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PARTITIONS", PARTITIONS.replace("PartitionName=accel-small", "PartitionName=gone"))
    chosen = site_description.choose_partitions(site_description.list_partitions())
    assert chosen["gpu"].name == "accel" and "evaluation" not in chosen


def test_machine_with_only_gpu_nodes_has_no_cpu_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus = "".join(line for line in PARTITIONS.splitlines(keepends=True) if "=accel" in line)
    monkeypatch.setitem(globals(), "PARTITIONS", with_gpus)
    assert "# All partitions have GPUs: name one here for CPU work as well." in written()
    assert yaml.safe_load(written())["partitions"].keys() == {"gpu", "evaluation"}


def test_ranks_get_cores_if_slurm_counts_hardware_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHOWN, "g01", GPUS.replace("ThreadsPerCore=1", "ThreadsPerCore=2"))
    launch = "srun --ntasks-per-node=4 --cpus-per-task=16 --threads-per-core=1"
    assert yaml.safe_load(written())["launch"] == launch


def test_slurm_without_energy_omits_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = "AcctGatherEnergyType    = (null)\n"
    monkeypatch.setattr(site_description, "query_configuration", lambda: configuration)
    assert "\n# energy_plugin: rapl\n" in written()


def test_partition_that_refuses_jobs_is_selected_only_as_a_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = SubmissionAnswer("refused", said="Invalid account")
    monkeypatch.setattr(site_description, "ask_sbatch", lambda words: refuse)
    chosen = site_description.choose_partitions(site_description.list_partitions())
    assert {kind: one.name for kind, one in chosen.items()} == {"cpu": "standard", "gpu": "accel-closed"}
    assert "# 99 nodes of 128 cores (aarch64) for jobs; GPUs of the type h100; sbatch would refuse a job" in written()


def test_sbatch_is_tested_with_the_given_account(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge_account(words: Sequence[str]) -> SubmissionAnswer:
        return SubmissionAnswer("taken") if "--account=mine@h100" in words else SubmissionAnswer("refused", said="who?")

    monkeypatch.setattr(site_description, "ask_sbatch", judge_account)
    for account, refusal in (("mine@h100", ""), (None, "who?")):
        assert {one.refusal for one in site_description.list_partitions(account)} == {refusal}


@pytest.mark.parametrize(
    ("gpu_type", "device"),
    [
        *(
            (name, "cuda")
            for name in (
                "a100",
                "h100",
                "gh200",
                "v100",
                "A100-SXM4-40GB",
                "nvidia_h100_80gb",
                "rtx6000",
                "l40s",
                "gb200",
                "p100",
                "k80",
                "tesla",
            )
        ),
        *((name, "rocm") for name in ("mi250", "MI300A", "mi100")),
        *((name, None) for name in ("", "loopback", "xpu", "max1550", "hl225", "data1", "npu910b")),
    ],
)
def test_device_follows_from_the_gpu_type(gpu_type: str, device: str | None) -> None:
    assert site_description.find_device_backend(gpu_type) == device


def test_unresponsive_slurm_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*words: str) -> str:
        raise InputError("slurm_load_partitions: Unable to contact slurm controller")

    monkeypatch.setattr(site_description, "run_command", fail)
    with pytest.raises(InputError, match="Unable to contact slurm controller"):
        site_description.describe_site("2026-11-28")
