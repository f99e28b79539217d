"""`polder run` prints the Snakemake command and replaces itself by it, from any folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import snakemake_command as module
from pipeline.cli.snakemake_command import build_snakemake_command, find_cache_variable, find_project_folder
from pipeline.core.errors import InputError

ROOT = Path(__file__).parents[2]


def command(*words: str, profile: str = "local", dry_run: bool = False, data: str | None = None) -> str:
    return " ".join(build_snakemake_command(ROOT / "config/micro.yaml", words, profile, dry_run=dry_run, data=data))


def test_targets_precede_the_configuration_and_options_follow_it(tmp_path: Path) -> None:
    assert command() == "snakemake --profile local --configfile config/micro.yaml"
    given = command("corpus", "tokens", "--cores", "2", profile="slurm", dry_run=True, data=str(tmp_path))
    assert given == (
        f"snakemake corpus tokens -n --profile slurm --configfile config/micro.yaml --config data={tmp_path} --cores 2"
    )


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        ("pretrian", "did you mean 'pretrain'?"),
        ("corpus_fliter", "did you mean 'corpus_filter'?"),
        ("x", "choose one of"),
    ],
)
def test_unknown_target_error_shows_the_nearest(target: str, advice: str) -> None:
    assert command("corpus_filter", "all", "README.md", "results/x").startswith("snakemake corpus_filter all README.md")
    with pytest.raises(InputError, match=re.escape(f"there is no target {target!r}: {advice}")):
        command(target)


def test_unknown_profile_error_lists_available_profiles() -> None:
    with pytest.raises(InputError, match="there is no profile cluster: choose one of local, slurm"):
        command(profile="cluster")


def test_project_folder_is_found_from_inside_and_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_project_folder(ROOT / "config/tasks") == ROOT
    assert find_project_folder(tmp_path) == ROOT, "the checkout of this package"
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "site-packages/pipeline")
    with pytest.raises(InputError, match="there is no Snakefile of Polder in"):
        find_project_folder(tmp_path)


def test_run_from_another_folder_prints_its_command_and_returns_snakemakes_exit_code(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "pipeline", "run", str(ROOT / "config/micro.yaml"), "results/none", "-n"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, text=True, capture_output=True)
    assert done.stdout.startswith(f"cd {ROOT}\nsnakemake results/none -n --profile local --configfile config/micro.y")
    assert done.returncode == 1 and "MissingRuleException" in done.stdout + done.stderr


def test_snakemake_gets_a_cache_folder_where_the_home_folder_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "c")
    for writable in ({"HOME": folder}, {"HOME": "/dev/null", "XDG_CACHE_HOME": folder}):
        assert find_cache_variable(tmp_path, writable) == ""
    for closed in ({"HOME": "/dev/null"}, {"HOME": folder, "XDG_CACHE_HOME": "/dev/null"}):
        assert find_cache_variable(tmp_path, closed) == f"XDG_CACHE_HOME={tmp_path}/.snakemake/cache"
    monkeypatch.setattr(os.path, "expanduser", lambda path: "/dev/null")  # a shell without HOME: the user's home
    assert find_cache_variable(tmp_path, {}) == f"XDG_CACHE_HOME={tmp_path}/.snakemake/cache"
    words = [sys.executable, "-m", "pipeline", "run", str(ROOT / "config/micro.yaml"), "results/none", "-n"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/dev/null", "XDG_CACHE_HOME": ""}
    done = subprocess.run(words, cwd=ROOT, env=environment, text=True, capture_output=True)
    assert done.stdout.startswith(f"XDG_CACHE_HOME={ROOT}/.snakemake/cache snakemake results/none -n")
    assert "MissingRuleException" in done.stdout + done.stderr
