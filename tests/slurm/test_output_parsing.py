"""Output variants of Slurm sites are parsed: GPUs, nodes, sizes, times and states."""

from __future__ import annotations

import pytest

from pipeline.slurm.output_parsing import (
    count_gpus,
    list_hosts,
    parse_bytes,
    parse_minutes,
    parse_seconds,
    parse_state,
    parse_tres,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        # Printed by sacct 22.05 if AccountingStorageTRES names the types, some types, and the sum.
        ("billing=1,cpu=1,gres/gpu:a100=1,gres/gpu:a100_3g.20gb=1,mem=100M,node=1", 1),
        ("billing=1,cpu=1,gres/gpu:a100_3g.20gb=1,mem=100M,node=1", 0),
        ("billing=2,cpu=2,gres/gpu:a100=2,gres/gpu=4,mem=200M,node=2", 4),
        ("billing=1,cpu=1,gres/gpu:a100=1,gres/gpu=1,mem=100M,node=1", 1),
        ("billing=2,cpu=2,gres/gpu:a100=4,mem=4G,node=1", 4),
        ("gres/gpu:a100=2,gres/gpu:h100=2", 4),
        ("gres/gpu:a100=2,gres/gpu:h100=2,gres/gpu=4", 4),
        ("gres/gpu=4,energy=17,fs/disk=9,gres/gpumem=40G,gres/gpuutil=97,gres/shard=8,gres/shard:a100=8", 4),
        ("gres/gpumem=40G,gres/gpuutil=97,gres/shard=8,gres/mps=100,energy=12", 0),
        ("gres/gpu=3,gres/gpu:a100=1,gres/gpu:1g.10gb+me=2", 1),
        ("gres/gpu:nvidia_a100-sxm4-40gb_mig_1g.5gb=7", 0),
        ("gres/gpu:nvidia_a100-sxm4-40gb=4,gres/gpu:amigo=1", 5),
        ("billing=1,cpu=1,mem=100M,node=1", 0),
        ("gres/gpu:3090=2,gres/gpu:4090=1", 3),
        ("", 0),
        # Printed by squeue and sinfo, by scontrol, and as sbatch takes it.
        ("gres:gpu:a100:1", 1),
        ("gres/gpu:4", 4),
        ("gpu:a100:1,gpu:a100_3g.20gb:1", 1),
        ("gpu:a100:1(IDX:0),gpu:a100_3g.20gb:0(IDX:N/A)", 1),
        ("gpu:3(IDX:0,2-3)", 3),
        ("gpu:a100:4(S:0-1),gpu:h100:2(S:0,1)", 6),
        ("mem512,gpu:a100:4(S:0)", 4),
        ("Gres=gpu:a100:2(S:0-1)", 2),
        ("TresPerNode=gres:gpu:2", 2),
        ("CfgTRES=cpu=8,mem=16000M,billing=15,gres/gpu=2,gres/gpu:a100=1", 2),
        ("gpu:a100:no_consume:4", 4),
        ("gpu:3090:2(S:0)", 2),
        ("gpu", 1),
        ("gpu:a100", 1),
        ("shard:16,craynetwork:4", 0),
        ("N/A", 0),
        ("(null)", 0),
    ],
)
def test_gpus_are_counted_once_without_subtypes(text: str, number: int) -> None:
    assert count_gpus(text) == number


def test_resources_are_split_at_the_first_equals_sign() -> None:
    assert parse_tres("cpu=2,gres/gpu:a100=4,mem=4G") == {"cpu": "2", "gres/gpu:a100": "4", "mem": "4G"}
    assert parse_tres("") == {}


def test_node_lists_are_parsed_in_all_formats() -> None:  # test_image.py compares with what scontrol expands
    assert list_hosts("node[08-10,12]-ib") == ["node08-ib", "node09-ib", "node10-ib", "node12-ib"]
    assert list_hosts("a1,b[2-3].cluster") == ["a1", "b2.cluster", "b3.cluster"]
    assert [list_hosts(text) for text in ("None assigned", "(null)", "n/a", "Unknown", "")] == [[]] * 5


def test_times_are_parsed_in_all_formats() -> None:
    times = {"1-02:03:04": 93784, "02:03:04": 7384, "03:04.500": 184.5, "1-12": 129600, "2-01:30": 178200, "": 0}
    assert {text: parse_seconds(text) for text in times} == times
    words = ("UNLIMITED", "Partition_Limit", "INVALID", "NOT_SET", "n/a")
    assert [parse_seconds(word) for word in words] == [None] * len(words)
    limits = {"1-12:00:00": 2160, "00:30:00": 30, "5-00:00:00": 7200, "UNLIMITED": None, "90": 90, "10:59": 10}
    assert {text: parse_minutes(text) for text in limits} == limits


def test_sizes_are_parsed_in_all_formats() -> None:
    sizes = {"201872K": 201872 << 10, "1.5G": 3 << 29, "300M": 300 << 20, "0": 0, "2P": 2 << 50, "": None, "16?": None}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    assert parse_bytes("4096", "M") == parse_bytes("4G", "M") == 4 << 30
    assert [parse_bytes(text) for text in ("4000Mc", "4Gn", "1.2.3G")] == [None] * 3


def test_states_are_parsed_without_suffixes() -> None:
    states = {"CANCELLED by 1000": "CANCELLED", "CANCELLED+": "CANCELLED", "MIXED+PLANNED": "MIXED", "idle~": "idle"}
    assert {text: parse_state(text) for text in states} == states
    assert parse_state("NODE_FAIL") == "NODE_FAIL" and parse_state("") == ""
