"""A document is removed by its source's metadata before its text is filtered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from datatrove.data import Document

from pipeline.config.configuration import parse_configuration
from pipeline.corpus.settings import FilterSettings
from pipeline.corpus.stated_language_and_url_filters import StatedLanguageFilter
from pipeline.workflow.steps import step_settings

SOURCE = {
    **{"name": "s", "path": "config/corpus/nl_gids.jsonl", "language": "nl", "license": "CC0-1.0"},
    "rights": {"basis": "license", "holder": "iemand"},
}


def filter_settings(**keys: Any) -> FilterSettings:
    config = parse_configuration({"run": {"name": "t"}, "sources": [{**SOURCE, **keys}]})
    settings = step_settings(config, "corpus.filter", {"source": "s", "corpus": next(iter(config.corpus))})
    assert isinstance(settings, FilterSettings)
    return settings


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def removed(chain: Any) -> dict[str, tuple[str, str | None]]:
    return {row["id"].rpartition("/")[2]: (row["reason"], row["value"]) for row in chain.rows("s.filter")}


@pytest.mark.parametrize(
    ("source", "stated", "kept"),
    [
        *(("nl", one, True) for one in ("nl", "nld", "nld_Latn", "nl-BE", "Dutch", "nld,eng", None, "und", "unknown")),
        *(("nl", one, False) for one in ("en", "eng_Latn", "English", "af", "eng,nld", "code:python", "Dutch-ish")),
        *(("el", one, True) for one in ("ell_Grek", "Greek")),
        ("en", "nl", False),
    ],
)
def test_language_is_compared_in_every_spelling(source: str, stated: str | None, kept: bool) -> None:
    document = Document(text="x", id="0", metadata={"own_language": stated})
    assert StatedLanguageFilter(source).filter(document) == (kept or (False, "language_differs"))
    assert kept or document.metadata["filter_value"] == stated


def test_document_in_a_language_not_listed_by_its_source_is_removed(chain: Any, texts: dict[str, str]) -> None:
    settings = filter_settings(layout="gptnl", license_key=None)
    assert settings.stated_language == "nl" and filter_settings().stated_language is None
    chain.reading = {"language_key": settings.language_key, "stated_language": settings.stated_language}
    rows = [
        {"id": "0", "text": texts["nl_water"], "language": "nl"},
        {"id": "1", "text": texts["nl_bakker"]},
        {"id": "2", "text": texts["en_garden"], "language": "en"},
        {"id": "3", "text": texts["en_lighthouse"]},
        {"id": "4", "text": texts["nl_fiets"], "language": "deu_Latn"},
    ]
    counts = chain.filter("s", {"x.jsonl": lines(*rows)})
    assert removed(chain) == {"2": ("language_differs", "en"), "4": ("language_differs", "deu_Latn")}
    assert {row["id"] for row in chain.rows("s.filtered")} == {f"s/x.jsonl/{number}" for number in (0, 1, 3)}
    assert counts["documents_in"] == counts["documents_out"] + sum(counts["removed"].values()) == 5


def test_source_without_the_key_has_unchanged_settings() -> None:
    assert not {"language_key", "stated_language"} & filter_settings().result_settings().keys()
