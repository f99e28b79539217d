"""Settings contradicted by the raw text are found before the first job, by a sample."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import layout
from pipeline.config.configuration import Config, parse_configuration
from pipeline.workflow.preflight import find_problems, model_launch_commands

MICRO: dict[str, Any] = yaml.safe_load(Path("config/micro.yaml").read_text())


def changed(section: str, tmp_path: Path, **values: Any) -> Config:
    """Return the micro configuration with other values of a section, with results in an empty folder."""
    raw = copy.deepcopy(MICRO)
    raw["run"]["results"] = str(tmp_path)
    *path, last = [int(word) if word.isdecimal() else word for word in section.split(".")]
    part: Any = raw
    for word in (*path, last):
        part = part[word]
    part.update(values)
    return parse_configuration(raw)


def list_problems(config: Config) -> list[str]:
    return [*find_problems(config, model_launch_commands(config), slurm=False)]


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("tokenizer.main", "vocabulary_size", 600_000, ["tokenizer.main.vocabulary_size is 600,000", "2.4 MB"]),
        ("models.base.training", "sequence_length", 900_000, ["sequence_length is 900,000", "corpus main has about"]),
        ("models.base.training", "sequence_length", 6_400_000, ["sequence_length is 6,400,000"]),
    ],
)
def test_settings_that_need_more_text_are_refused(
    tmp_path: Path, section: str, key: str, value: int, words: list[str]
) -> None:
    (sentence,) = list_problems(changed(section, tmp_path, **{key: value}))
    assert all(word in sentence for word in words), sentence


def test_settings_that_the_text_satisfies_are_accepted(tmp_path: Path) -> None:
    for section, key, value in (("tokenizer.main", "vocabulary_size", 4000), ("models.base.training", "steps", 800)):
        assert list_problems(changed(section, tmp_path, **{key: value})) == []


@pytest.mark.parametrize(("license", "refused"), [("CC-BY-NC-4.0", True), ("CC0-1.0", False), (None, False)])
def test_license_contradicted_by_documents_is_found_in_a_sample(
    tmp_path: Path, license: str | None, refused: bool
) -> None:
    rows = [{"id": str(number), "text": "een tekst " * 20, "license": license} for number in range(300)]
    (tmp_path / "laws.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = changed("sources.1", tmp_path, path=str(tmp_path / "laws.jsonl"))
    sentences = list_problems(config)
    assert len(sentences) == refused
    if refused:
        assert "source nl_gids: license is CC0-1.0, but 100 of the first 100 documents state another" in sentences[0]
        manifest = layout.MANIFEST.path(config.run_directory, source="nl_gids")
        manifest.parent.mkdir(parents=True)
        manifest.write_text("{}")
        assert list_problems(config) == [], "the sources were read: the filter knows more than a sample"


def test_each_missing_file_is_named_with_its_folder(tmp_path: Path) -> None:
    raw = copy.deepcopy(MICRO)
    raw["sources"][1]["path"] = "nowhere/*.txt"
    raw["models"]["base"]["training"] |= {"float8": True, "compile": True, "precision": "bf16"}
    raw["evaluation"]["baselines"] = {"gpt": "config/corpus"}
    first, second, third = list_problems(parse_configuration(raw))
    assert first.startswith(f"source nl_gids: no file matches nowhere/*.txt in {Path.cwd()}: correct")
    assert second.startswith(f"evaluation.baselines.gpt: config/corpus in {Path.cwd()} needs config.json")
    assert third.startswith("models.base.training.float8 needs an NVIDIA GPU")
