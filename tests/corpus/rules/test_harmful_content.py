"""Word lists and classifiers flag documents, and remove them only on request; both are counted."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datatrove.data import Document

from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.corpus import filter
from pipeline.corpus.raw_file_quarantine import RawFiles
from pipeline.corpus.rules.harmful_content import HarmfulContentFilter, PhraseList
from pipeline.corpus.rules.settings import Harmful
from pipeline.corpus.settings import Corpus, FilterSettings
from pipeline.workflow.steps import step_settings

# Harmless words replace those of a real list.
LIST = "# placeholders\nbakker\nHET DEEG\nkrenten-brood  # with a hyphen\n\n"


@pytest.fixture
def bread(tmp_path: Path) -> Path:
    path = tmp_path / "bread.txt"
    path.write_text(LIST, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, classifier: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("model")
    words = {"bread": ["brood", "deeg", "bakker"], "other": ["molen", "water", "rivier"]}
    lines = [f"__label__{label} het {word} en de {word}" for label, labelled in words.items() for word in labelled]
    return classifier(folder / "bread.bin", lines * 50, dim=8, epoch=60, lr=0.3)


def flag(settings: dict[str, Any], files: list[Path], text: str, language: str = "nl") -> tuple[Any, Document, Any]:
    block = HarmfulContentFilter(Harmful.model_validate(settings), files)
    document = Document(text=text, id="x", metadata={"language": language})
    return block.filter(document), document, block.counts


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("De bakker en DE BAKKER.", 2),
        ("De bakkerij bakte.", 0),
        ("het\ndeeg, het (deeg) en het andere deeg", 2),
        ("krenten-brood is krenten brood, geen krentenbrood", 2),
        ("het", 0),
    ],
)
def test_whole_words_and_phrases_match_in_any_case(bread: Path, text: str, hits: int) -> None:
    _, document, _ = flag({"word_lists": [{"name": "b", "path": "", "minimum_hits": hits or 1}]}, [bread], text)
    assert document.metadata["flags"] == (["b"] if hits else [])
    _, document, _ = flag({"word_lists": [{"name": "b", "path": "", "minimum_hits": hits + 1}]}, [bread], text)
    assert document.metadata["flags"] == []


def test_accented_words_match_in_either_unicode_form(tmp_path: Path) -> None:
    for of_list in ("NFC", "NFD"):
        (tmp_path / of_list).write_text(unicodedata.normalize(of_list, "crème brûlée\n"), encoding="utf-8")
        for form in ("NFC", "NFD"):
            text = unicodedata.normalize(form, "Een Crème, brûlée toe.")
            _, document, _ = flag({"word_lists": [{"name": "b", "path": ""}]}, [tmp_path / of_list], text)
            assert document.metadata["flags"] == ["b"]


def test_share_of_words_flags_a_document_and_other_languages_are_ignored(bread: Path) -> None:
    entry = {"name": "b", "path": "", "minimum_hits": None, "minimum_share": 0.25, "remove": True}
    verdict, document, counts = flag({"word_lists": [entry]}, [bread], "de bakker werkt door")
    assert verdict == (False, "harmful") and document.metadata["filter_value"] == "b: 0.2500 of the words"
    assert counts == {"b": {"flagged": 1, "removed": 1}}
    assert flag({"word_lists": [entry]}, [bread], "de bakker werkt weer door")[0] is True
    assert flag({"word_lists": [entry | {"languages": ["en"]}]}, [bread], "bakker")[0] is True


def test_classifier_flags_from_its_threshold(model: Path) -> None:
    entry = {"name": "c", "path": "", "label": "__label__bread", "threshold": 0.5, "remove": True}
    verdict, document, _ = flag({"classifiers": [entry]}, [model], "de bakker\nen het deeg")
    assert verdict == (False, "harmful") and float(document.metadata["filter_value"].removeprefix("c: ")) > 0.9
    assert flag({"classifiers": [entry]}, [model], "de molen\nen het water")[0] is True


def test_flags_are_stored_and_counted_as_kept_or_removed(
    new_chain: Any, texts: dict[str, str], as_json_lines: Any, bread: Path
) -> None:
    counted = {}
    for remove in (False, True):
        entry = {"name": "bread", "path": "x/bread.txt", "remove": remove}
        chain = new_chain(Corpus.model_validate({"harmful": {"word_lists": [entry]}}), [bread])
        counts = chain.filter("s", {"x.jsonl": as_json_lines(texts)})
        chain.deduplicate(["s"])
        flags = {row["id"].split("/")[-1]: row["flags"] for row in chain.rows("s.final")}
        assert all(flags[name] == (["bread"] if name == "nl_bakker" else []) for name in flags)
        assert ("nl_bakker" in flags) != remove
        assert counts["removed"].get("harmful", 0) == int(remove)
        counted[remove] = chain.statistics(["s"])["flags"]
        reasons = {row["reason"]: row for row in chain.rows("s.filter")}
    assert counted[False] == {"bread": {"flagged": 1, "kept": 1, "removed": 0}}
    assert counted[True] == {"bread": {"flagged": 1, "kept": 0, "removed": 1}}
    assert reasons["harmful"]["value"] == "bread: 2 hits" and reasons["harmful"]["language"] == "nl"


def test_unused_flag_is_counted_as_zero(new_chain: Any, texts: dict[str, str], as_json_lines: Any, bread: Path) -> None:
    entry = {"name": "bread", "path": "bread.txt", "minimum_hits": 99}
    chain = new_chain(Corpus.model_validate({"harmful": {"word_lists": [entry]}}), [bread])
    chain.filter("s", {"x.jsonl": as_json_lines(texts)})
    chain.deduplicate(["s"])
    assert chain.statistics(["s"])["flags"] == {"bread": {"flagged": 0, "kept": 0, "removed": 0}}


def test_invalid_word_list_or_classifier_is_one_sentence(tmp_path: Path, model: Path) -> None:
    (tmp_path / "empty.txt").write_text("# nothing\n")
    (tmp_path / "bytes.bin").write_bytes(b"\xff\xfe")
    for name, words in (("empty.txt", "is empty"), ("bytes.bin", "cannot be read"), ("none", "cannot be read")):
        with pytest.raises(InputError, match=words):
            PhraseList(tmp_path / name)
    entry = {"name": "c", "path": "", "label": "__label__no"}
    with pytest.raises(InputError, match="has no label '__label__no': choose one of __label__bread, __label__other"):
        flag({"classifiers": [entry]}, [model], "x")
    with pytest.raises(InputError, match="does not load"):
        flag({"classifiers": [entry]}, [tmp_path / "bytes.bin"], "x")


def test_changed_list_changes_the_settings_and_a_moved_one_does_not(tmp_path: Path) -> None:
    def settings(path: Path) -> FilterSettings:
        rights = {"basis": "license", "holder": "someone"}
        source = {"name": "s", "path": "config/corpus/nl_gids.jsonl", "language": "nl", "license": "CC0-1.0"}
        corpus = {"main": {"harmful": {"word_lists": [{"name": "b", "path": str(path)}]}}}
        config = parse_configuration({"run": {"name": "x"}, "sources": [source | {"rights": rights}], "corpus": corpus})
        result = step_settings(config, "corpus.filter", {"corpus": "main", "source": "s", "unit": "0"})
        assert isinstance(result, FilterSettings)
        return result

    first, moved = tmp_path / "list.txt", tmp_path / "elsewhere" / "list.txt"
    moved.parent.mkdir()
    for path in (first, moved):
        path.write_text(LIST)
    before = settings(first)
    assert before == settings(moved) and str(tmp_path) not in json.dumps(before.model_dump())
    moved.write_text(LIST + "meel\n")
    assert settings(moved) != before
    with pytest.raises(InputError, match=r"corpus\.main\.harmful: there is no file .*nowhere\.txt, which b names"):
        settings(tmp_path / "nowhere.txt")


def test_invalid_harmful_content_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="'b' is used twice"):
        Harmful.model_validate({"word_lists": [{"name": "b", "path": "x"}, {"name": "b", "path": "y"}]})
    with pytest.raises(ValueError, match="'b' flags nothing"):
        Harmful.model_validate({"word_lists": [{"name": "b", "path": "x", "minimum_hits": None}]})


def test_filter_block_runs_in_a_datatrove_pipeline() -> None:
    settings = FilterSettings(source="s", languages={}, personal_data=Corpus().personal_data, broken_share=1)
    assert any(
        isinstance(block, HarmfulContentFilter) for block in filter.build_filter_pipeline(settings, RawFiles("s", []))
    )
