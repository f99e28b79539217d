"""CPU milliseconds of reading a node's meters and adding up their energy, on files in Linux's layout.

    PYTHONPATH=. .venv/bin/python benchmarks/meter_reading.py [CALLS]

Four packages with their memory are read from a folder like /sys/class/powercap. Eight simulated boards answer at once,
so that the figure leaves out the driver's own time. The goal is at most 0.5 % of one core with a reading every two
seconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from pipeline.energy.gpu_meter import Gpu, GpuMeter
from pipeline.energy.meter_recorder import SAMPLE_SECONDS
from pipeline.energy.rapl_and_cray_meters import Rapl, find_rapl


class Board:
    """A GPU that has used 300 J more at each look."""

    def __init__(self) -> None:
        self.millijoules = 0

    def supports_get_total_energy_consumption(self) -> bool:
        """Return that it has a counter."""
        return True

    def get_total_energy_consumption(self) -> int:
        """Return millijoules."""
        self.millijoules += 300_000
        return self.millijoules

    def get_instant_power_usage(self) -> int:
        """Return milliwatts."""
        return 150_000

    def get_average_power_usage(self) -> int:
        """Return milliwatts."""
        return 150_000

    def get_power_management_limit(self) -> int:
        """Return milliwatts."""
        return 700_000


def powercap(folder: Path) -> Rapl:
    """Return the meter of a folder with four packages and their memory."""
    for package in range(4):
        for zone, name in ((f"intel-rapl:{package}", f"package-{package}"), (f"intel-rapl:{package}:0", "dram")):
            (folder / zone).mkdir()
            for file, text in (("name", name), ("max_energy_range_uj", "262143328850"), ("energy_uj", "1000000")):
                (folder / zone / file).write_text(f"{text}\n")
    meter = find_rapl(folder)
    assert isinstance(meter, Rapl)
    return meter


def main(arguments: list[str]) -> int:
    """Print CPU milliseconds of a look and a take, and the share of a core."""
    calls = int(arguments[0]) if arguments else 2000
    with tempfile.TemporaryDirectory() as folder:
        gpus: list[tuple[str, Gpu]] = [(f"GPU-{number}", Board()) for number in range(8)]
        meters = [powercap(Path(folder)), GpuMeter("nvml", gpus)]
        began = time.process_time()
        for call in range(calls):
            for meter in meters:
                meter.sample(SAMPLE_SECONDS * call + 1)
                meter.take_interval_readings(SAMPLE_SECONDS * call + 2)
        seconds = (time.process_time() - began) / calls
    print(f"{seconds * 1000:.3f} CPU ms of a look and a take = {seconds / SAMPLE_SECONDS:.4%} of one core")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
