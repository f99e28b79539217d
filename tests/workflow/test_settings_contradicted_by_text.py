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
from pipeline.workflow.preflight import find_hints, find_problems, model_launch_commands

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


def make_lines(number: int, broken: int = 0, key: str = "text") -> bytes:
    good = json.dumps({"id": "a", key: "een tekst " * 20}).encode() + b"\n"
    return (b"{" + good) * broken + good * (number - broken)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", make_lines(30, key="content"), "(fields: id, content): set `text_key: content`"),
        (
            "a.jsonl",
            make_lines(300, key="content"),
            "source nl_gids: no document with a field `text` that has text in ",
        ),
        ("a.jsonl", b"", "a.jsonl is empty: write text into it, or leave the source out"),
        ("a.txt", "één".encode("latin-1"), "1 of the 1 records of {file} cannot be read, such as nl_gids/a.txt/1 (inv"),
        ("a.txt", "één".encode("latin-1"), "(invalid_utf8): save it as UTF-8, as with iconv -f latin1 -t utf-8, or"),
        (
            "a.jsonl",
            make_lines(40, 20),
            "20 of the 40 records of {file} cannot be read, such as nl_gids/a.jsonl/1 (brok",
        ),
        (
            "a.csv",
            b"id,body\n1,tekst\n",
            "source nl_gids: {file} has no column 'text' among its 2 (id, body): set text_key",
        ),
        (
            "a.jsonl",
            make_lines(300, 20),
            "hint: source nl_gids: 20 of the first 100 records of {file} cannot be read, ",
        ),
    ],
)
def test_text_that_a_run_could_not_read_is_reported_before_it(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    config = changed("sources.1", tmp_path, path=str(tmp_path / name))
    sentences = list_problems(config) or [f"hint: {hint}" for hint in find_hints(config, {})]
    assert len(sentences) == 1 and words.format(file=tmp_path / name) in sentences[0], sentences


def test_source_that_was_read_or_that_may_be_damaged_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(make_lines(40, 20))
    lenient = changed("sources.1", tmp_path, path=str(tmp_path / "a.jsonl"), damaged_share=1)
    assert list_problems(lenient) == [] and len([*find_hints(lenient, {})]) == 1
    (tmp_path / "b.jsonl.gz").write_bytes(b"\x1f\x8b\x08broken")
    assert list_problems(changed("sources.1", tmp_path, path=str(tmp_path / "b.jsonl.gz"))) == []
    config = changed("sources.1", tmp_path, path=str(tmp_path / "a.jsonl"), language="Dutch")
    assert len(list_problems(config)) == 2
    manifest = layout.MANIFEST.path(config.run_directory, source="nl_gids")
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    assert list_problems(config) == []
    manifest.write_text('{"source": {"language": "nl"}}')
    (problem,) = list_problems(config)
    assert problem.endswith("sources.nl_gids.language: 'Dutch' is no code of a language: write nl")


@pytest.mark.parametrize(("language", "likely"), [("nl", None), ("de", "nl"), ("en", "nl"), ("fy", None)])
def test_text_of_another_language_than_stated_is_mentioned(tmp_path: Path, language: str, likely: str | None) -> None:
    text = "De man die in het huis van zijn moeder woont is niet de eerste die dat zegt."
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": str(n), "text": text}) + "\n" for n in range(9)))
    config = changed("sources.1", tmp_path, path=str(tmp_path / "a.jsonl"), language=language)
    hints = [hint for hint in find_hints(config, {}) if "language is" in hint]
    assert len(hints) == (likely is not None) and all(f"write `language: {likely}`" in hint for hint in hints)
    own = changed("sources.1", tmp_path, path=str(tmp_path / "a.jsonl"), language=language, language_key="taal")
    assert not [hint for hint in find_hints(own, {}) if "language is" in hint]


@pytest.mark.parametrize(
    ("language", "advice"),
    [
        *(("Dutch", "write nl"), ("nl-NL", "write nl"), ("NL", "write nl"), ("nld", "write nl")),
        *(("klingon", "write tlh"), ("xx", "write a code of ISO 639-1, such as nl or en"), ("fy", None), ("zea", None)),
        *(("lim", "write li"), ("qqq", "write a code of ISO 639-1, such as nl or en")),
        ("iw", "write a code of ISO 639-1, such as nl or en"),
    ],
)
def test_language_must_be_a_code_as_documents_use_it(tmp_path: Path, language: str, advice: str | None) -> None:
    expected = [f"sources.nl_gids.language: {language!r} is no code of a language: {advice}"] if advice else []
    assert list_problems(changed("sources.1", tmp_path, language=language)) == expected


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("~/nl.jsonl", f"source nl_gids: ~ is not expanded in ~/nl.jsonl: write {Path.home()}/nl.jsonl"),
        ("config/corpus", "config/corpus is a folder, and a path needs files: write config/corpus/*.jsonl"),
        (
            "config/corpus/en_guide.jsonl.gz",
            "source en_guide: it reads the same path config/corpus/en_guide.jsonl.gz as",
        ),
    ],
)
def test_path_that_is_no_pattern_of_files_or_occurs_twice(tmp_path: Path, path: str, words: str) -> None:
    config = changed("sources.1", tmp_path, path=path)
    *_, sentence = list_problems(config) or find_hints(config, {})
    assert words in sentence


def test_folder_of_the_data_is_asked_for_once(tmp_path: Path) -> None:
    raw = copy.deepcopy(MICRO)
    for source in raw["sources"]:
        source["path"] = "{data}/x.jsonl"
    (sentence,) = list_problems(parse_configuration(raw))
    assert sentence.startswith("source nl_brieven: its path") and sentence.endswith("; 2 more sources need it")


def test_suite_without_the_folder_of_the_data_is_named_once_in_a_sentence(tmp_path: Path) -> None:
    problems = list_problems(changed("evaluation", tmp_path, suites=["reasoning_open"]))
    assert problems and all(problem.count("evaluation.suites") <= 1 for problem in problems)
