"""`polder new` writes into a checkout, and prints the next commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from pipeline.cli.application import app
from pipeline.cli.entry_point import main

ROOT = Path(__file__).parents[2]
TEXT_OF_A_COLUMN = ["--text", "a.csv", "--text-key", "body", "--license", "CC0-1.0", "--holder", "me"]


def test_new_run_is_written_and_next_commands_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").touch()
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text")
    text = ["--text", "a.txt", "--text", "b.txt", "--language", "en", "--license", "CC0-1.0", "--holder", "me"]
    shown = CliRunner().invoke(app, ["new", "run", "own", *text])
    assert shown.stdout.splitlines() == [
        "wrote config/own.yaml",
        "Next:",
        "  polder plan config/own.yaml",
        "  polder run config/own.yaml --profile local",
    ]
    content = (tmp_path / "config/own.yaml").read_text()
    assert all(words in content for words in ('path: "a.txt"', 'path: "b.txt"', "language: en", "license: CC0-1.0"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--language", "xx"], "error: --language xx is no code of a language: write a code of ISO 639-1, such as nl"),
        (["--text", "a/*.txt"], "error: --text: no file matches a/*.txt in "),
        (["--text", "~/a.txt"], "error: --text: ~ is not expanded in ~/a.txt: write "),
        (
            ["--license", "CC-BY", "--text", "a.csv"],
            "error: configuration: sources.text_1.license: 'CC-BY' is no SPDX ",
        ),
        (
            ["--text", "a.csv"],
            "error: source text_1: a.csv has no column 'text' among its 2 (id, body): set --text-key to ",
        ),
        (
            ["--text", "a.jsonl"],
            "error: source text_1: no document with a field `text` that has text in a.jsonl (fields: body): "
            "add `--text-key body`\n",
        ),
        (["--text", "a.csv", "b.csv"], "error: Got unexpected extra argument(s) (b.csv): the shell has replaced a pat"),
    ],
)
def test_new_run_on_text_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Snakefile").touch()
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("id,body\n1,text\n")
    (tmp_path / "a.jsonl").write_text('{"body": "text"}\n')
    assert main(["new", "run", "own", "--license", "CC0-1.0", "--holder", "me", *words]) == 2
    assert capsys.readouterr().err.startswith(message) and not (tmp_path / "config").exists()
    assert main(["new", "run", "own", *TEXT_OF_A_COLUMN]) == 0
    assert '    text_key: "body"\n' in (tmp_path / "config/own.yaml").read_text()


def test_folder_without_a_checkout_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["new", "run", "own"], ["platform", "new", "own"]):
        assert main(words) == 2
        assert capsys.readouterr().err == f"error: {tmp_path} has no Snakefile: run this in your checkout of Polder\n"
    assert not [*tmp_path.iterdir()]


def test_platform_file_is_commented_out_where_slurm_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    template = tmp_path / "workflow/platforms/template.yaml"
    template.parent.mkdir(parents=True)
    shutil.copy("workflow/platforms/template.yaml", template)
    (tmp_path / "Snakefile").touch()
    (tmp_path / "slurm.conf").touch()  # without a file Slurm looks for a server of configurations, for a minute
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.chdir(tmp_path)
    assert main(["platform", "new", "dune"]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("Slurm does not answer here (scontrol") and "every key is a comment" in shown.err
    assert "Your accounts" not in shown.out
    written = yaml.safe_load(template.with_name("dune.yaml").read_text())
    assert written == {"name": "dune"}
