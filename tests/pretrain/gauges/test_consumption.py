"""The joules of steps add up to what the meters say; nothing is made up where there are none."""

import json
import time
from pathlib import Path

import pytest

from pipeline.pretrain.gauges.consumption import Consumption, published


def test_the_joules_of_steps_add_up_to_the_meters(tmp_path: Path) -> None:
    began = time.time()
    path = tmp_path / "energy.json"

    def read() -> dict[str, object]:
        return {"joules": 40 * (time.time() - began), "measured": False}

    with published(read, path, every_seconds=0.05):
        consumption = Consumption(path)
        assert consumption.take() is None
        started = time.time() - began
        steps = []
        for _ in range(20):
            time.sleep(0.03)
            consumption.refresh()
            steps.append(consumption.take())
        ended = time.time() - began
    assert all(step is not None and step[0] >= 0 and step[1] is False for step in steps)
    assert sum(step[0] for step in steps if step) == pytest.approx(40 * (ended - started), rel=0.25)
    assert not path.exists()


def test_a_meter_that_stands_still_takes_nothing_back(tmp_path: Path) -> None:
    path = tmp_path / "energy.json"
    consumption = Consumption(path)
    assert consumption.take() is None
    for joules, watts in ((100.0, 50.0), (100.0, 0.0), (101.0, 0.0), (160.0, 0.0)):
        content = {"at_seconds": time.time(), "joules": joules, "watts": watts, "measured": True}
        path.write_text(json.dumps(content))
        consumption.refresh()
        if watts:
            consumption.take()
            time.sleep(0.2)
        taken = consumption.take()
        assert taken is not None and taken[0] >= 0 and taken[1] is True
    assert taken[0] == pytest.approx(50, abs=5)


def test_without_meters_there_is_no_file_and_no_energy(tmp_path: Path) -> None:
    path = tmp_path / "energy.json"
    path.write_text('{"joules": 5}')
    with published(None, path):
        consumption = Consumption(path)
        assert not path.exists() and consumption.take() is None and consumption.take() is None
