"""The corpus stage's forecast by `polder plan`, against a finished run and the rates in its records.

    PYTHONPATH=. python benchmarks/corpus_plan.py CONFIG RUN [data=DATA]

The forecast uses the configuration and the raw files alone, with the benchmark's rates, as before a run.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from pipeline.config.configuration_file import load_configuration
from pipeline.core.job_records import load_records
from pipeline.forecast.corpus_size_and_time import BENCHMARK_RATES, fit_cpu_rates
from pipeline.slurm.corpus_estimate import CorpusPlan


def main() -> None:
    """Run what the command line asks for."""
    configuration, run, *changes = sys.argv[1:]
    planned = CorpusPlan(load_configuration(Path(configuration), **dict(change.split("=", 1) for change in changes)))
    planned.rates = BENCHMARK_RATES
    estimate = planned.plan()
    records = load_records(Path(run))
    jobs = Counter(record.step for record in records)
    seconds: Counter[str] = Counter()
    for record in records:
        seconds[record.step] += record.cpu_seconds
    for name, corpus in estimate["corpora"].items():
        read_in = [
            record for record in records if record.step == "corpus.statistics" and record.instance["corpus"] == name
        ]
        counts = read_in[0].counts
        print(f"corpus {name}: predicted, measured, measured / predicted")
        figures = {"documents": counts["documents_in"], "text_bytes": counts["bytes_in"]}
        for key, result in figures.items():
            print(f"  {key:28} {corpus[key]:14,} {result:14,} {result / corpus[key]:6.2f}")
        for folder, size in corpus["disk_bytes"].items():
            kind, _, tokens = folder.partition(" ")
            place = Path(run, "tokens", tokens) if tokens else Path(run, "corpus", name, kind)
            result = sum(path.stat().st_size for path in place.rglob("*.*") if path.suffix in (".parquet", ".arrow"))
            print(f"  {folder:28} {size:14,} {result:14,} {result / size:6.2f}")
        for step, one in {**estimate["sources"]["steps"], **corpus["steps"]}.items():
            low, high = (one.get(f"{end}_core_seconds", 0.0) for end in ("low", "high"))
            print(
                f"  {step:28} {one['jobs']:6,} of {jobs[step]:,} jobs {low:8.0f} to {high:.0f} s, {seconds[step]:.0f} s"
            )
    print("rates: start, least and most CPU seconds for a megabyte of text")
    for step, rate in fit_cpu_rates(records).items():
        print(f'    "{step}": Rate({rate.start_seconds:.2f}, {rate.low_seconds:.3f}, {rate.high_seconds:.3f}),')


if __name__ == "__main__":
    main()
