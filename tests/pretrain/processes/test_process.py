"""The exit message of a training process."""

import json
from pathlib import Path

import pytest

from pipeline.pretrain.processes.trainer import _write_outcome


def test_full_disk_at_process_exit_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = tmp_path / "outcome.json"
    (tmp_path / "outcome.json-0").symlink_to("/dev/full")
    _write_outcome(outcome, 0, {"status": "finished"})
    assert "disk" in capsys.readouterr().err and not outcome.exists()
    _write_outcome(outcome, 1, {"status": "finished"})
    assert json.loads(outcome.read_text()) == {"status": "finished"}
    with pytest.raises(NotADirectoryError):
        _write_outcome(outcome / "below", 0, {})
