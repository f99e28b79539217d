"""Third-party tools in environments of their own, and a signed run for them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core import attestation_log, signing_keys
from tests.conftest import ROOT, is_lacking
from tests.provenance.conftest import build

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def auditor() -> Run:
    """Runs a tool of `.venv-auditors`: `auditor(name, *arguments)`; without it the test skips, and fails under CI."""

    def run(name: str, *arguments: str | Path, folder: str | Path = "/") -> subprocess.CompletedProcess[str]:
        tool = ROOT / ".venv-auditors/bin" / name
        if not tool.exists():
            is_lacking(f"{tool.relative_to(ROOT)} is not installed: see tests/auditors/requirements.in")
        return subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=folder)

    return run


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of `POLDER_OTHER_RELEASE` that reaches no server: `verifier(name, *arguments)`; else skips."""
    if not (unpacked := os.environ.get("POLDER_OTHER_RELEASE")):  # also under CI: the mirror of packages may have none
        pytest.skip("POLDER_OTHER_RELEASE names no folder of `python -m tests.other_release FOLDER`")
    tools = f"{unpacked}/bin:{ROOT}/.venv-auditors/bin:{os.environ['PATH']}"
    home = str(tmp_path_factory.mktemp("home"))  # cosign keeps what it has downloaded there
    environment = {"PATH": tools, "HOME": home, "HTTPS_PROXY": "http://127.0.0.1:9"}

    def run(name: str, *arguments: str | Path, folder: str | Path = "/") -> subprocess.CompletedProcess[str]:
        words = ["env", name, *map(str, arguments)]  # which looks for it in the new PATH
        return subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder, env=environment)

    return run


@pytest.fixture(params=["p256", "ed25519"])
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """A finished run with a final model, and its signing key."""
    signing_keys.generate_key_pair(tmp_path / "key.pem", request.param)
    monkeypatch.setenv(attestation_log.SIGNING_KEY_VARIABLE, str(tmp_path / "key.pem"))
    run = build(tmp_path / "run")
    weights = {"models/own/final/model.safetensors": b"weights", "models/own/final/config.json": b"{}"}
    run.job("pretrain.export", {"model": "own"}, ["models/base/milestones/10/model.safetensors"], weights)
    return run.folder, tmp_path / "key.pem"
