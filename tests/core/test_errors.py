"""Records and pages reveal nothing about the user."""

from pathlib import Path

import pytest

from pipeline.core.errors import anonymize_paths


@pytest.mark.parametrize(("user", "expected"), [("anna", "/data/USER/x, ~/y, z"), ("root", "/data/anna/x, ~/y, z")])
def test_home_folder_and_user_name_are_hidden(user: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", user)
    assert anonymize_paths(f"/data/anna/x, {Path.home()}/y, {Path.cwd()}/z") == expected
