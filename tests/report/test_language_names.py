"""The languages of what was read stand on the page by their names, those of removed documents too."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.report.language_names import name_of
from tests.report.test_page import made, outline


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("nl", "Gronings Limburgs Zeeuws Fries Afrikaans Schots Nederlands Engels"),
        ("en", "Gronings Limburgish Zeelandic Western_Frisian Afrikaans Scots Dutch English"),
    ],
)
def test_languages_are_named_in_the_language_of_the_page(page: str, names: str) -> None:
    codes = ["gos", "li", "zea", "fy", "af", "sco", "nl", "en"]
    expected = [f"{name.replace('_', ' ')} ({code})" for name, code in zip(names.split(), codes, strict=True)]
    assert [name_of(code, page) for code in codes] == expected and name_of("xqq", page) == "xqq"


def test_what_the_model_said_of_all_documents_is_told(run_folder: Any) -> None:
    content = run_folder.read("corpus/main/statistics.json")
    read = {
        "nl": {"documents": 1030, "bytes": 700, "mixed_documents": 4},
        "<b>": {"documents": 2, "bytes": 300, "mixed_documents": 0},
    }
    content["identified"] = {
        "model": "glotlid.bin",
        "minimum_scores": {"nl": [0.4, 0.689], "en": [0.65]},
        "languages": read,
    }
    run_folder.write("corpus/main/statistics.json", content)
    text = outline(made(run_folder)["page"]).text
    assert "What glotlid.bin said of the documents that came to it" in text
    assert "Least scores: en 0.65, nl 0.4 / 0.689" in text
    assert "Dutch (nl) 1,030 700 70.00 % 4 1,026" in text and "<b> 2 300 30.00 % 0 0" in text
    text = outline(made(run_folder, language="nl")["page"]).text
    assert "Nederlands (nl) 1,030 700 70.00 %" in text and "Laagste scores: en 0.65" in text
