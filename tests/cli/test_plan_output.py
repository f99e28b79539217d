"""`polder plan`: errors first with exit code 2, then one screen; JSON for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from pipeline.cli.entry_point import main


def rows(lines: list[str]) -> int:
    """Return the rows that lines take on a terminal of 80 columns."""
    return sum(-(-max(len(line), 1) // 80) for line in lines)


def test_plan_of_two_models_fits_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "config/config.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert rows(lines) <= 24 and lines[0].split()[-2:] == ["base", "base_zero2"]
    assert any(line.startswith("unknown shares of training: validation (training.validation_tokens)") for line in lines)


def test_plan_output_fits_one_screen_and_its_page_shows_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "config/micro.yaml", "--html", str(tmp_path / "plan.html")]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert rows(lines) < 24 and printed.err == f"wrote {tmp_path}/plan.html\n"  # without --html, a line refers to it
    assert lines[0].split() == ["model", "(estimated)", "base"] and "69,280, 2,048" in lines[1]
    assert any(line.startswith("unknown: time") and "peak_flops_per_second" in line for line in lines)
    assert any("run `polder platform measure`" in line for line in lines)
    assert any(line.startswith("main ") and " 169 " in line for line in lines)
    assert "evaluation by finished runs: unknown; energy.calibration names no finished run" in lines
    page = (tmp_path / "plan.html").read_text("utf-8")
    parts = ("Evaluation by finished runs: unknown; ", "Compute plan of micro", "69,280", ">169<", ">corpus.filter<")
    assert [part for part in parts if part not in page] == []


def test_plan_of_a_model_on_many_gpus_fits_one_screen_and_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    raw |= {"platform": "snellius", "slurm": {"nodes": 22}}
    raw["run"]["environment"] = "cuda"
    training = {"sequence_length": 4096, "batch_size": 1056, "steps": 104_000, "precision": "bf16", "compile": True}
    training |= {"strategy": "full_shard", "micro_batch_size": 1, "learning_rate": 0.0002, "milestone_every": 26_000}
    raw["models"]["base"] = {"architecture": {"preset": "gptnl-30b"}, "training": training}
    raw["evaluation"] = {}
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(raw))
    assert main(["plan", str(tmp_path / "large.yaml")]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert rows([line.replace(f"{tmp_path}/", "") for line in lines]) <= 24
    cells = dict(re.split(r"  +", line, maxsplit=1) for line in lines[:9])
    memory = re.fullmatch(r"88 on 22 nodes; ([\d.]+) GB of 94 GB, (\d+)% free", cells["devices, memory of each"])
    assert int(memory[2]) == pytest.approx(100 * (1 - float(memory[1]) / 94), abs=1)
    assert cells["energy, carbon"].endswith(" t")
    days, low, high = map(float, re.findall(r"([\d.]+) days", cells["time (95 % interval)"]))
    hours, billed = re.fullmatch(r"([\d,]+) h, billed ([\d,]+) GPU hours", cells["device hours"]).groups()
    assert low < days < high and hours == billed
    assert float(hours.replace(",", "")) == pytest.approx(24 * 88 * days, rel=0.01)
    fewer, more, most = map(float, re.findall(r"([\d.]+) days", cells["time on 11, 44, 88 nodes"]))
    assert fewer > 1.8 * days > 1.8 * more > 1.8 * most
    fastest = next(line for line in lines if line.startswith("fastest "))
    proposed, saved = re.search(r"([\d.]+) days \(-(\d+)%\)", fastest).groups()
    assert float(proposed) == pytest.approx(days * (1 - int(saved) / 100), rel=0.02)
    written = next(line.removeprefix("fastest: ") for line in lines if line.startswith("fastest: "))
    assert yaml.safe_load(written)["strategy"] == "shard_optimizer"
    warned = re.search(r"takes about ([\d,]+) hours by the plan on 88 processes", printed.err)[1]
    assert float(warned.replace(",", "")) == pytest.approx(24 * days, rel=0.01)


@pytest.mark.parametrize("name", [None, "a_model_with_a_long_name_of_width_8"])
def test_plan_of_many_models_has_a_row_each_and_one_for_the_cells_of_an_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str | None
) -> None:
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    base = raw["models"]["base"]
    if name:
        shape = {"layers": 1, "heads": 1, "key_value_heads": 1, "width": 8}
        raw["models"][name] = {**base, "architecture": shape}
    else:
        raw["experiments"] = {"rates": {"base": "base", "vary": {"training.learning_rate": [0.001, 0.002, 0.004]}}}
    raw["evaluation"] = {}
    (tmp_path / "many.yaml").write_text(yaml.safe_dump(raw))
    assert main(["plan", str(tmp_path / "many.yaml")]) == 0
    lines = capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()
    assert rows(lines) <= 24 and re.split(r"  +", lines[0]) == ["model (estimated)", "parameters", "tokens", "memory"]
    table = {cells[0]: cells[1:] for cells in (re.split(r"  +", line) for line in lines[1:4])}
    parameters, tokens, memory = table["base"]
    assert [parameters, tokens] == ["69,280", "2,048"] and memory.endswith("MB")
    if name:
        assert table[name][1] == "2,048" and table["together"] == ["4,096"]
    else:
        assert table["rates, 3 cells"] == ["6,144"] and table["together"] == ["8,192"]


def test_configuration_errors_are_printed_first_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    raw["sources"][1]["path"] = "nowhere/*.txt"
    raw["models"]["base"]["training"] |= {"float8": True, "compile": True, "precision": "bf16"}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(raw))
    assert main(["plan", str(tmp_path / "wrong.yaml")]) == 2
    printed = capsys.readouterr()
    first, second = printed.err.splitlines()
    assert first.startswith(f"error: {tmp_path}/wrong.yaml, line ") and ": source nl_gids: no file" in first
    assert "models.base.training.float8" in second and printed.out == "", "nothing pushes the mistakes off the screen"
    assert main(["plan", str(tmp_path / "wrong.yaml"), "--json"]) == 2
    content = json.loads(capsys.readouterr().out)
    assert len(content["problems"]) == 2 and content["models"]["base"]["parameters"] == 69280


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"run: {name: a}\nsources: [\n  \xff]\n", "line 3, column 3: this is not UTF-8"),
        (b"run: {name: a\nsources: ]\n", "line 1, column 6 is not valid YAML: the bracket that opens here is not"),
        (b"run:\n\tname: a\n", "line 2, column 1 is not valid YAML: indent with spaces, not tabs"),
        (b"run: {name: 'a}\nb: 1\n", "line 1, column 13 is not valid YAML: the text in quotes that begins here has no"),
        (b"run: {name: a}}\n", "line 1, column 15 is not valid YAML: no bracket is open that this one could close"),
        (b"run:\n  name: a\n    seed: 1\n", "line 3, column 9 is not valid YAML: a key cannot begin here: indent it"),
        (b"a:\n   b:\n     c: 1\n    d: 2\n", "line 4, column 5 is not valid YAML: this line is not indented as"),
        (b"run: @mine\n", "line 1, column 6 is not valid YAML: put the value that begins here in quotes"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_invalid_yaml_error_has_file_line_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, content: bytes, words: str
) -> None:
    (tmp_path / "wrong.yaml").write_bytes(content)
    assert main([command, str(tmp_path / "wrong.yaml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}/wrong.yaml, ") and words in line


def test_plan_looks_for_files_where_a_run_does_and_prints_old_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = yaml.safe_load(Path("config/micro.yaml").read_text())
    raw["corpus"]["main"]["deduplication"] = {"buckets": 14}
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(raw))
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "old.yaml"]) == 0 and Path.cwd() == tmp_path
    place = f"{tmp_path}/old.yaml, line 8"
    printed = capsys.readouterr()
    assert f"warning: {place}: corpus.main.deduplication.buckets is called bands now" in printed.err
    assert printed.out.endswith("\nAll figures and advice: polder plan old.yaml --html plan.html\n")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "sources.1.path",
            "{data}/nl.jsonl",
            "its path {data}/nl.jsonl needs the folder: add --config data=FOLDER, or",
        ),
        (
            "models.base.pretrained",
            {"folder": "config/corpus", "license": "MIT"},
            "models.base.pretrained: config/corpus",
        ),
        (
            "evaluation.suites",
            [{"name": "x", "language": "nl", "folder": "nowhere"}],
            "evaluation.suites: suite x: there",
        ),
        (
            "corpus.main.decontamination",
            {"suites": ["dutsh"]},
            "decontamination.suites: there is no suite 'dutsh': did you mean 'dutch'",
        ),
        ("disclosure", {"license_evidence": {"nl_gids": "no.pdf"}}, "disclosure.license_evidence.nl_gids: there is no"),
    ],
)
def test_plan_refuses_what_a_run_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: object, words: str
) -> None:
    raw = part = yaml.safe_load(Path("config/micro.yaml").read_text())
    *path, last = key.split(".")
    for word in path:
        part = part[int(word) if word.isdecimal() else word]
    part[int(last) if last.isdecimal() else last] = value
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(raw))
    assert main(["plan", str(tmp_path / "wrong.yaml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}/wrong.yaml, line ") and words in line
