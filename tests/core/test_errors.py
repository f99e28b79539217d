"""What records and pages say of the person who runs Polder: nothing."""

from pathlib import Path

import pytest

from pipeline.core.errors import anonymize_paths


@pytest.mark.parametrize(("user", "expected"), [("anna", "/data/USER/x, ~/y, z"), ("root", "/data/anna/x, ~/y, z")])
def test_home_and_user_are_not_named(user: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", user)
    assert anonymize_paths(f"/data/anna/x, {Path.home()}/y, {Path.cwd()}/z") == expected
