"""Run `runs RESULTS --mlflow STORE` without a network, and print as JSON what MLflow reads; in `.venv-auditors`.

`keep_in_mlflow.py ROOT RESULTS STORE [BYTES]`: a number limits the file size, as a full disk does.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
from typing import Any

root, results, store = sys.argv[1:4]
os.environ.clear()  # MLflow detects a test by it, and reports nothing anyway
sys.dont_write_bytecode = True
sys.path.insert(0, root)
asked: list[str] = []


def refuse(*where: Any, **_: Any) -> None:
    asked.append(str(where))
    raise OSError("there is no network")


socket.getaddrinfo = socket.socket.connect = refuse  # type: ignore[assignment, method-assign]
if sys.argv[4:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
before = set(sys.modules)
from pipeline.cli.entry_point import main  # noqa: E402
from pipeline.experiment import mlflow_export  # noqa: E402, F401  # the command imports it later, with MLflow

files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in set(sys.modules) - before}
needed = {name.partition(".")[0] for name, file in files.items() if "site-packages" in file}

with contextlib.redirect_stdout(sys.stderr):
    code = main(["runs", results, "--mlflow", store])
read: dict[str, list[dict[str, Any]]] = {}
if os.path.isdir(store):
    from mlflow import MlflowClient

    client = MlflowClient(f"file:{store}")
    for experiment in client.search_experiments():
        read[experiment.name] = [
            {
                **{key: getattr(run.info, key) for key in ("run_id", "run_name", "status", "start_time", "end_time")},
                "tags": run.data.tags,
                "params": run.data.params,
                "metrics": {
                    key: [
                        [one.step, one.value, one.timestamp] for one in client.get_metric_history(run.info.run_id, key)
                    ]
                    for key in run.data.metrics
                },
            }
            for run in client.search_runs([experiment.experiment_id])
        ]
print(json.dumps({"code": code, "asked": asked, "needed": sorted(needed), "read": read}))
