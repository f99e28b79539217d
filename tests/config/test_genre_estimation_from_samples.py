"""A source without a genre is sampled once per run; a corpus without a preset keeps the default of its start."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cli.entry_point import main
from pipeline.config.configuration import Config, parse_configuration
from pipeline.config.genre_estimation_from_samples import add_estimated_genres, sample_texts
from pipeline.core.errors import InputError
from pipeline.corpus.rules.presets import GENRES, PRESETS
from pipeline.job.invocation_snapshots import read_newest_snapshot, write_snapshot
from pipeline.workflow.job_parameters import Dag
from pipeline.workflow.settings_contradicted_by_text import describe_estimated_genres
from pipeline.workflow.startup import Startup
from pipeline.workflow.steps import step_settings
from tests.corpus.text.test_source_genre_estimate import TEXTS

MICRO: dict[str, Any] = yaml.safe_load(Path("config/micro.yaml").read_text())


def write_source(path: Path, text: str, documents: int = 30) -> None:
    rows = (json.dumps({"id": str(number), "text": text}) + "\n" for number in range(documents))
    path.write_text("".join(rows), encoding="utf-8")


def configure(tmp_path: Path, corpus: Any = None, **source: Any) -> Config:
    """Return a run on one source, `wetten`, with results in the folder of the test."""
    raw = copy.deepcopy(MICRO)
    raw["run"]["results"] = str(tmp_path)
    entry = {"name": "wetten", "path": str(tmp_path / "wetten.jsonl"), "language": "nl", "license": "CC0-1.0"}
    raw["sources"] = [entry | {"rights": {"basis": "public-domain", "holder": "nobody"}} | source]
    raw["corpus"] = {"main": corpus or {}}
    return parse_configuration(raw)


def filter_rules(config: Config) -> Any:
    unit = next(iter(config.unit_files("wetten")))
    settings: Any = step_settings(config, "corpus.filter", {"corpus": "main", "source": "wetten", "unit": unit})
    return settings.languages


def start(config: Config) -> dict[str, Any]:
    """Write the snapshot that an invocation writes, and return it."""
    write_snapshot(config.run_directory, Dag(config).build_snapshot_content())
    return read_newest_snapshot(config.run_directory) or {}


def test_source_keeps_the_filter_rules_of_its_sampled_genre(tmp_path: Path) -> None:
    file = tmp_path / "wetten.jsonl"
    write_source(file, TEXTS["laws"])
    config = configure(tmp_path)
    assert filter_rules(config) == GENRES["laws"]
    (output,) = describe_estimated_genres(config)
    assert output.startswith("source wetten: 30 of 30 sampled documents have the genre laws")
    assert not [*tmp_path.glob("micro/**/*")], "nothing is written before a run begins"
    snapshot = start(config)
    assert snapshot["genres"]["wetten"]["genre"] == "laws"
    assert "genre" not in snapshot["configuration"]["sources"][0], "not stated by the user"
    assert add_estimated_genres(snapshot) == snapshot["configuration"] | {"genres": {"wetten": "laws"}}
    assert add_estimated_genres({"configuration": {"run": {}}}) == {"run": {}, "genres": {}}
    write_source(file, TEXTS["drama"])
    assert filter_rules(configure(tmp_path)) == GENRES["laws"]
    assert not [*describe_estimated_genres(configure(tmp_path), snapshot["genres"])]
    stated = configure(tmp_path, genre="drama")
    assert filter_rules(stated) == GENRES["drama"] and "genres" not in start(stated)
    assert filter_rules(configure(tmp_path)) == GENRES["drama"], "sampled again"


def test_source_without_text_is_sampled_again_later(tmp_path: Path) -> None:
    (tmp_path / "wetten.jsonl").write_text('{"tekst": "een"}\n')
    config = configure(tmp_path)
    assert start(config)["genres"]["wetten"] == config.estimated_genres()["wetten"].model_dump(mode="json")
    assert config.genre("wetten") == "web"
    write_source(tmp_path / "wetten.jsonl", TEXTS["laws"])
    config = configure(tmp_path)
    assert filter_rules(config) == GENRES["laws"]
    sentences: list[str] = []
    startup = Startup(["all"], is_main_process=True, warn=sentences.append)
    startup.take_snapshot(Dag(config), lambda last: {})
    assert "have the genre laws" in sentences[0]


def test_documents_removed_by_their_metadata_are_not_sampled(tmp_path: Path) -> None:
    rows = [{"text": text, "lang": language} for text, language in (("een", "Dutch"), ("un", "French"), ("twee", None))]
    (tmp_path / "wetten.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for keys, texts in (({}, ["een", "un", "twee"]), ({"language_key": "lang"}, ["een", "twee"])):
        assert sample_texts(configure(tmp_path, **keys).source_units("wetten")) == texts
    tags = {"a": "", "b": "<meta name='robots' content='noai'>", "c": "<meta name='tdm-reservation' content='0'>"}
    for name, tag in tags.items():
        words = f"<p>{name} {'Dit is een alinea met genoeg woorden om de hoofdtekst van de pagina te zijn. ' * 8}</p>"
        page = f"<html><head><title>t</title>{tag}</head><body><article>{words * 2}</article></body></html>"
        (tmp_path / f"{name}.html").write_text(page)
    for setting, sampled in ((True, "ac"), (False, "abc")):
        config = configure(tmp_path, path=str(tmp_path / "*.html"), page_reservations=setting)
        assert "".join(text[0] for text in sample_texts(config.source_units("wetten"))) == sampled


def test_first_invocation_and_every_dry_run_show_the_sampled_genre(tmp_path: Path) -> None:
    write_source(tmp_path / "wetten.jsonl", TEXTS["laws"])

    def list_messages(*words: str) -> list[str]:
        sentences: list[str] = []
        startup = Startup([*words], is_main_process=True, warn=sentences.append)
        dag = Dag(configure(tmp_path))
        snapshot = startup.take_snapshot(dag, lambda last: {})
        if startup.executes:
            write_snapshot(dag.config.run_directory, snapshot)
        return sentences

    assert [len(list_messages(word)) for word in ("-n", "-n", "all", "all", "-n")] == [1, 1, 1, 0, 0]


def test_plan_shows_sampled_genres(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_source(tmp_path / "wetten.jsonl", TEXTS["laws"], documents=400)
    raw = configure(tmp_path).dump_explicit_settings() | {"tokenizer": {"main": {"vocabulary_size": 300}}, "models": {}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert main(["plan", str(tmp_path / "run.yaml")]) == 0
    assert "source wetten: 100 of 100 sampled documents have the genre laws" in capsys.readouterr().out
    assert main(["plan", str(tmp_path / "run.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["genres"]["wetten"]["genre"] == "laws"
    assert not [*tmp_path.glob("micro/**/*")]


def test_data_set_distinguishes_stated_and_sampled_genres(tmp_path: Path) -> None:
    write_source(tmp_path / "wetten.jsonl", TEXTS["laws"])
    for source, sampled in (({}, "laws"), ({"genre": "laws"}, None)):
        settings: Any = step_settings(configure(tmp_path, **source), "corpus.publish", {"corpus": "main"})
        assert settings.filters["genres"].keys() == {"laws"}
        assert (settings.sources[0].genre, settings.sources[0].sampled_genre) == (source.get("genre"), sampled)


def test_explicit_preset_disables_genre_sampling(tmp_path: Path) -> None:
    write_source(tmp_path / "wetten.jsonl", TEXTS["laws"])
    config = configure(tmp_path, {"preset": "standard"})
    assert config.estimated_genres() == {} and config.genre("wetten") is None
    assert filter_rules(config) == PRESETS["standard"]
    assert "genres" not in start(config)


@pytest.mark.parametrize("corpus", [{}, {"languages": {"nl": {"quality": {"minimum_words": 7}}, "en": None}}, None])
def test_existing_run_keeps_the_older_default_preset(tmp_path: Path, corpus: Any) -> None:
    write_source(tmp_path / "wetten.jsonl", TEXTS["laws"])
    old = Dag(configure(tmp_path, {**(corpus or {}), "preset": "standard"})).build_snapshot_content()
    sections = old["configuration"]["corpus"]["main"]
    sections.pop("preset")
    if not corpus:
        sections.clear()
    write_snapshot(tmp_path / "micro", old)
    config = configure(tmp_path, corpus)
    rules = filter_rules(configure(tmp_path, {**(corpus or {}), "preset": "standard"}))
    assert filter_rules(config) == rules
    (output,) = describe_estimated_genres(config)
    assert "write preset: standard to state it, or preset: genre" in output
    assert start(config) == old, "no setting of the run changes and nothing is written"
    assert filter_rules(configure(tmp_path, {**(corpus or {}), "preset": "genre"}))["nl"].words == "lexical"
    assert filter_rules(configure(tmp_path, {"preset": "genre"})) == GENRES["laws"]


def test_existing_run_without_corpus_section_keeps_the_older_default_preset(tmp_path: Path) -> None:
    raw = copy.deepcopy(MICRO) | {"run": {"name": "old", "results": str(tmp_path)}}
    del raw["corpus"]
    write_snapshot(tmp_path / "old", {"configuration": {"run": raw["run"]}})
    config = parse_configuration(raw)
    assert config.corpus["main"].preset == "standard" and "corpus" not in config.dump_explicit_settings()
    assert (
        parse_configuration(raw | {"run": {"name": "new", "results": str(tmp_path)}}).corpus["main"].preset == "genre"
    )


def test_run_of_this_version_drops_a_removed_preset(tmp_path: Path) -> None:
    write_source(tmp_path / "wetten.jsonl", TEXTS["laws"])
    start(configure(tmp_path, {"preset": "standard"}))
    assert filter_rules(configure(tmp_path)) == GENRES["laws"]
    assert start(configure(tmp_path))["configuration"]["corpus"]["main"] == {"preset": "genre"}
    assert filter_rules(configure(tmp_path)) == GENRES["laws"]


def test_damaged_snapshot_gives_no_genre(tmp_path: Path) -> None:
    write_source(tmp_path / "wetten.jsonl", TEXTS["laws"])
    for content in ({"genres": {"wetten": {"genre": "poems"}}}, {"genres": 3}, {"configuration": {"corpus": 3}}):
        write_snapshot(tmp_path / "micro", content)
        assert configure(tmp_path).genre("wetten") == "laws"


def test_sample_is_spread_over_files_and_documents(tmp_path: Path) -> None:
    for number in range(120):
        write_source(tmp_path / f"{number:03}.jsonl", str(number), 5)
    several = configure(tmp_path, path=str(tmp_path / "*.jsonl")).source_units("wetten")
    numbers = [int(text) for text in sample_texts(several)]
    assert len(numbers) == 100 and len({*numbers}) == 40 and numbers == sorted(numbers) and max(numbers) == 117
    with gzip.open(tmp_path / "wetten.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"text": str(number)}) + "\n" for number in range(1000))
    one = configure(tmp_path, path=str(tmp_path / "wetten.jsonl.gz")).source_units("wetten")
    assert [int(text) for text in sample_texts(one)] == [*range(0, 1000, 10)]


def test_sampled_bytes_are_divided_over_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read in blocks, so the bytes are not exact."""
    monkeypatch.setattr("pipeline.config.genre_estimation_from_samples.SAMPLED_BYTES", 1_600_000)
    monkeypatch.setattr("pipeline.config.genre_estimation_from_samples.SAMPLED_DOCUMENTS", 10_000)
    for number in range(4):
        write_source(tmp_path / f"{number}.jsonl", "een tekst van een molen " * 80, 1500)
    one, four = (configure(tmp_path, path=str(tmp_path / name)).source_units("wetten") for name in ("0.*", "*.jsonl"))
    read = len(sample_texts(one))
    assert read < 1400 and len(sample_texts(four)) < 2 * read


def test_corpus_added_to_an_older_run_gets_the_current_default(tmp_path: Path) -> None:
    write_source(tmp_path / "wetten.jsonl", TEXTS["laws"])
    write_snapshot(tmp_path / "micro", {"configuration": {"corpus": {"other": {}}}})
    assert (
        configure(tmp_path).corpora_with_older_default() == [] and filter_rules(configure(tmp_path)) == GENRES["laws"]
    )


def test_genre_overrides_need_no_preset(tmp_path: Path) -> None:
    write_source(tmp_path / "wetten.jsonl", TEXTS["laws"])
    rules = filter_rules(configure(tmp_path, {"genres": {"laws": {"nl": {"quality": {"minimum_words": 3}}}}}))
    assert (rules["nl"].quality.minimum_words, rules["nl"].words) == (3, "lexical") and rules["en"] == GENRES["laws"][
        "en"
    ]


def test_unreadable_text_gets_the_most_permissive_genre(tmp_path: Path) -> None:
    config = configure(tmp_path, path=str(tmp_path / "nothing" / "*.jsonl"))
    assert sample_texts(config.source_units("wetten")) == []
    assert config.genre("wetten") == "web"
    (tmp_path / "wetten.jsonl.gz").write_bytes(gzip.compress(b'{"text": "een"}\n' * 2000)[:-9])
    assert set(sample_texts(configure(tmp_path, path=f"{tmp_path}/*.gz").source_units("wetten"))) <= {"een"}
    with pytest.raises(InputError, match="preset"):
        configure(tmp_path, {"preset": "poems"})
