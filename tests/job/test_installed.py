"""Installed packages are read from their metadata and compared with the lock: versions at startup, files on demand."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.cli.application import main
from pipeline.core import platform_files
from pipeline.core.errors import InputError
from pipeline.job import environment_lock_comparison, installed, job_entry_point, reach, versions
from tests.job.test_job_execution import left, options

CACHED = (
    installed.metadata_folders,
    installed.find_distribution,
    installed.closure,
    installed.distribution_sha256,
    installed._read_lock,
)
CACHED += (installed.locked_version, reach.names_in)  # type: ignore[assignment]


def forget() -> None:
    for function in CACHED:
        function.cache_clear()


def install(site: Path, name: str, version: str, *requires: str, text: str = "x = 1\n", script: str = "#!/a\n") -> Path:
    """Write a distribution of one module and one script into a folder of modules, as pip does; return its metadata."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    (folder / "METADATA").write_text("\n".join(head) + "\n\nVersion: 0\n")
    (folder / "INSTALLER").write_text(script)
    module, bin = site / f"{name}.py", site.parent / "bin" / name
    module.write_text(text)
    bin.parent.mkdir(exist_ok=True)
    bin.write_text(script)
    rows = []
    for path in (module, folder / "METADATA", folder / "INSTALLER"):
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        rows.append(f"{path.relative_to(site)},sha256={digest},{path.stat().st_size}")
    digest = base64.urlsafe_b64encode(hashlib.sha256(bin.read_bytes()).digest()).rstrip(b"=").decode()
    rows += [f"../bin/{name},sha256={digest},9", f"{folder.name}/RECORD,,"]
    (folder / "RECORD").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of modules that is inspected alone, with a lock `toy` of the packages below."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    monkeypatch.setattr(installed, "LOCKS", tmp_path)
    (tmp_path / "toy.lock").write_text(
        "# toy\nalpha==1.0\nbeta==2.0 ; python_full_version < '3'\nbeta==3.0 ; python_full_version >= '3'\n"
        "gamma[extra]==4.0\nwindows==1.0 ; sys_platform == 'win32'\ntorch==2.13.0\n"
    )
    forget()
    yield folder
    forget()


def resolve_packages(*imports: str) -> installed.Closure:
    forget()
    return installed.closure(frozenset(imports), "toy")


def test_locked_packages_have_no_difference_and_other_markers_are_ignored(site: Path) -> None:
    install(site, "alpha", "1.0", "Beta>=1", "windows", "extra-one; extra == 'x'")
    install(site, "beta", "3.0")
    install(site, "torch", "2.13.0+cpu")
    closure = resolve_packages("alpha", "torch")
    assert closure.packages == {"alpha": "1.0", "beta": "3.0", "torch": "2.13.0+cpu"}
    assert closure.locked == {"alpha": "1.0", "beta": "3.0", "torch": "2.13.0"}
    assert closure.differences == ()


def test_changed_missing_and_unlocked_packages_are_reported(site: Path) -> None:
    install(site, "alpha", "1.1", "beta", "gamma", "delta ; sys_platform == 'win32'", "epsilon")
    install(site, "beta", "3.0")
    install(site, "delta", "1.0")
    install(site, "epsilon", "5.0")
    closure = resolve_packages("alpha")
    assert closure.packages == {"alpha": "1.1", "beta": "3.0", "epsilon": "5.0"}
    assert [tuple(one) for one in closure.differences] == [("alpha", "1.0", "1.1"), ("gamma", "4.0", None)]
    sentence = closure.differences[0].sentence("corpus.filter", "toy")
    assert "corpus.filter needs alpha 1.0 by envs/toy.lock, but 1.1 is installed: run `sh envs/setup.sh" in sentence


def test_local_version_part_is_another_environment(site: Path) -> None:
    install(site, "torch", "2.13.0+cpu")
    forget()
    before = versions.version_of(frozenset(["torch"]), "toy")
    (site / "torch-2.13.0+cpu.dist-info").rename(site / "torch-2.13.0+cu130.dist-info")
    metadata = site / "torch-2.13.0+cu130.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("+cpu", "+cu130"))
    forget()
    assert resolve_packages("torch").differences == ()
    assert versions.version_of(frozenset(["torch"]), "toy") != before


def test_hash_is_that_of_the_wheel_and_not_of_its_location(site: Path) -> None:
    def hash_of(**content: str) -> str | None:
        forget()
        folder = install(site, "alpha", "1.0", **content)
        hashed = installed.distribution_sha256("alpha")
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        return hashed

    first = hash_of()
    assert first == hash_of(script="#!/another/python\n") is not None
    assert first != hash_of(text="x = 2\n")


def test_platform_allows_its_listed_packages_but_no_missing_one(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform_files, "PLATFORMS", tmp_path)
    (tmp_path / "ngc.yaml").write_text("name: ngc\nown_versions: [Torch, gamma]\n")
    install(site, "torch", "2.12.0a0+nv26.5")
    forget()
    here = environment_lock_comparison.current_environment(frozenset(["torch"]), "toy")
    assert here.check_against_lock("pretrain.segment", "toy", "ngc") == {"torch": "2.13.0"}
    for platform in (None, "other"):
        (tmp_path / "other.yaml").write_text("name: other\n")
        with pytest.raises(InputError, match=r"torch 2\.13\.0 by .* 2\.12\.0a0\+nv26\.5 is installed"):
            here.check_against_lock("pretrain.segment", "toy", platform)
    forget()
    with pytest.raises(InputError, match=r"gamma 4\.0 by envs/toy\.lock, but it is not installed"):
        environment_lock_comparison.current_environment(frozenset(["gamma"]), "toy").check_against_lock(
            "x", "toy", "ngc"
        )


def test_deep_reports_changed_and_missing_files_and_editable_installs(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, version in (("alpha", "1.0"), ("beta", "3.0"), ("gamma", "4.0"), ("torch", "2.13.0")):
        folder = install(site, name, version)
    assert main(["environment", "--lock", "toy", "--deep"]) == 0
    (site / "alpha.py").write_text("x = 3\n")
    (site / "beta.py").unlink()
    (folder / "direct_url.json").write_text(json.dumps({"url": "file:///x", "dir_info": {"editable": True}}))
    forget()
    assert main(["environment", "--lock", "toy"]) == 0
    capsys.readouterr()
    assert main(["environment", "--lock", "toy", "--deep"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "alpha: alpha.py was changed after it was installed" and lines[1] == "beta: beta.py is gone"
    assert lines[2].startswith("torch is an editable install") and len(lines) == 3


def test_step_with_a_wrong_package_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, run = tmp_path / "laws.jsonl", tmp_path / "results/test"
    raw.write_text('{"text": "Artikel 1"}\n')
    words = options(run, raw)
    install(tmp_path / "site", "pydantic", "0.1")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    forget()
    try:
        with pytest.raises(InputError, match=r"fingerprint needs pydantic .*, but 0\.1 is installed: run `sh "):
            job_entry_point.main(words)
    finally:
        forget()
    assert left(run) == list((run / "provenance/attempts").glob("[!.]*.json"))
