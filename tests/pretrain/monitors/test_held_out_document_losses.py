"""The losses of held-out documents: their ids, their maximum number, and refused files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.core.errors import InputError
from pipeline.core.output_lease import Lease
from pipeline.pretrain.monitors.held_out_document_losses import (
    MAX_DOCUMENTS,
    SCHEMA,
    read_document_losses,
    sample_documents,
    tabulate_document_losses,
    write_document_losses,
)
from pipeline.pretrain.monitors.metrics import MetricsLog, read_metrics
from pipeline.tokens.validation_reader import ValidationSet
from tests.tokens.test_validation_reader import by_hand


def groups(*sizes: int) -> Any:
    """Return the groups of documents in the order of a validation."""
    return SimpleNamespace(
        group_D=np.repeat(np.arange(len(sizes)), sizes), groups=[(f"source{n}", "nl") for n in range(len(sizes))]
    )


def test_source_of_a_document_is_named_where_strata_follow_the_language() -> None:
    held_out: Any = SimpleNamespace(
        group_D=np.array([0, 1, 1]),
        groups=[("s", "nl", "below 0.5"), ("t", "nl", "from 0.5")],
        **{name: np.arange(3) for name in ("id_hash_D", "bytes_D", "tokens_D")},
    )
    assert tabulate_document_losses(held_out, np.ones(3))["source"] == ["s", "t", "t"]


def test_each_row_belongs_to_its_document_in_the_shards(tokens: dict[str, Path], tmp_path: Path) -> None:
    held_out = ValidationSet(tokens["index"])
    loss_D = np.arange(len(held_out.tokens_D)) + 0.125
    columns = json.loads(json.dumps(tabulate_document_losses(held_out, loss_D)))
    write_document_losses(tmp_path / "losses", columns)
    rows = read_document_losses(tmp_path / "losses").to_pylist()
    expected = sorted(by_hand(tokens["index"]).values(), key=lambda row: row["id_hash"])
    keys = ("id_hash", "source", "bytes")
    assert [[row[key] for key in keys] for row in rows] == [[row[key] for key in keys] for row in expected]
    assert [row["tokens"] for row in rows] == [len(row["tokens"]) - 1 for row in expected]
    assert [row["nats"] for row in rows] == loss_D.tolist()


def test_document_sample_has_an_equal_share_of_each_source_and_language() -> None:
    assert sample_documents(groups(6, 0, 3, 1), 5).tolist() == [0, 1, 2, 6, 7, 9]
    assert sample_documents(groups(6, 3), 9).tolist() == list(range(9)), "all, if there are few"
    assert len(sample_documents(groups(1_000_000, 3, 500_000))) <= MAX_DOCUMENTS + 3
    few, many = (set(sample_documents(groups(1000, 200), most).tolist()) for most in (12, 120))
    assert few < many, "a smaller sample is a part of a larger one"


def test_skipped_validation_has_no_rows_and_a_foreign_file_is_refused(tmp_path: Path) -> None:
    write_document_losses(tmp_path / "losses", None)
    table = read_document_losses(tmp_path / "losses")
    assert len(table) == 0 and table.schema == SCHEMA
    (tmp_path / "other").write_text("no table")
    with pytest.raises(InputError, match="other is no table of losses by document"):
        read_document_losses(tmp_path / "other")


def test_metrics_contain_document_losses_only_for_their_last_step(tmp_path: Path) -> None:
    for last, expected in ((6, []), (4, [{"step": 4, "document_losses": {"nats": [4.5]}}])):
        owner = Lease(tmp_path / str(last))
        owner.claim()
        log = MetricsLog(owner, 0, last)
        for step in (2, 4):
            log.write_line({"step": step, "validation_loss": 1.0, "document_losses": {"nats": [step + 0.5]}})
        log.write_line({"step": last, "loss": 2.0, "seconds": 1.0})
        path = owner.folder / "metrics.jsonl"
        assert not any("document_losses" in line for line in read_metrics(path)), "while it trains"
        log.close()
        assert [line for line in read_metrics(path) if "document_losses" in line] == expected
        assert [line["step"] for line in read_metrics(path)][:3] == [2, 4, last]
