"""Filtering keeps prose in the languages of the corpus, records why the rest is removed, and loses nothing."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ftfy
import pyarrow.parquet as pq
import pytest
from datatrove.data import Document
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.writers import JsonlWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.corpus import filter
from pipeline.corpus.documents import DOCUMENT_SCHEMA, REMOVED_SCHEMA, read_file_metadata
from pipeline.corpus.filter import build_filter_pipeline
from pipeline.corpus.raw_file_quarantine import RawFiles
from pipeline.corpus.rules.presets import DUTCH
from pipeline.corpus.settings import Corpus, FilterSettings, Normalization
from pipeline.corpus.text.language_identification import LanguageFilter
from pipeline.corpus.text.text_cleaning import TextCleaner


def test_filter_keeps_configured_languages(
    chain: Any, texts: dict[str, str], as_json_lines: Callable[..., bytes]
) -> None:
    counts = chain.filter("s", {"x.jsonl": as_json_lines(texts)})
    kept = {row["id"].split("/")[-1]: row for row in chain.rows("s.filtered")}
    assert set(kept) == {name for name in texts if name[:3] in ("nl_", "en_")}
    assert all(row["language"] == name[:2] and row["language_score"] > 0.9 for name, row in kept.items())
    assert all(row["text"] == texts[name] and row["license"] is None for name, row in kept.items())
    removed = {row["id"].split("/")[-1]: row for row in chain.rows("s.filter")}
    assert {name: row["value"].split()[0] for name, row in removed.items()} == {"af": "af", "fy": "fy", "de": "de"}
    assert removed["af"] == {
        "id": "s/x.jsonl/af",
        "source": "s",
        "stage": "filter",
        "reason": "language",
        "value": removed["af"]["value"],
        "bytes": len(texts["af"].encode()),
        "language": "af",
    }
    assert counts["removed"] == {"language": 3} and counts["documents_out"] == 5


def test_corpus_may_include_other_languages(new_chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    frisian = {"quality": {"stop_words": ["de", "it", "en", "fan"]}}
    chain = new_chain(Corpus.model_validate({"languages": {"fy": frisian}}))
    chain.filter("s", {"x.jsonl": as_json_lines(texts)})
    assert [row["language"] for row in chain.rows("s.filtered")] == ["fy"]
    with pytest.raises(InputError, match=r"corpus\.languages: qq cannot be identified"):
        LanguageFilter({"qq": 0.5}).filter(Document(text="tekst", id="1"))


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ("cafÃ© in ItaliÃ«", "café in Italië"),
        ("e\u0301e\u0301n", "één"),
        ("regel\r\ntweede\u2028derde", "regel\ntweede\nderde"),
        ("a &lt; b &amp; c", "a < b & c"),
        ("<p>a &amp; b</p>", "<p>a &amp; b</p>"),
        ("“aanhaling” en ‘enkel’", "“aanhaling” en ‘enkel’"),
        ("bel\x07letje", "belletje"),
    ],
)
def test_normalize_text(text: str, repaired: str) -> None:
    assert TextCleaner().format(text) == repaired


PIECES = [
    *(
        "cafÃ©",
        "â€™",
        "&amp;",
        "&",
        "&#39;",
        "&amp",
        "<b>",
        "é",
        "“",
        "\x92",
        "ﬁ",
        "\u200b",
        "Ŀ",
        " ",
        "a",
        "\n",
        "\t",
        "Â ",
    ),
    *("ÃƒÂ©", "œ", "…", "é̈", "\ufeff", "\x1b[1m", "ｘ", "\xad", "Ã", "‚Äô", "3°"),
]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_normalization_repairs_each_line(text: str) -> None:
    config = ftfy.TextFixerConfig(uncurl_quotes=False, unescape_html="<" not in text)
    lines = [ftfy.fix_text(line, config) for line in text.split("\n")]
    assert TextCleaner(Normalization(white_space="keep")).format(text) == "\n".join(lines)


@given(st.text(st.characters(codec="ascii", exclude_characters="&<\x0b\x1c\x1d\x1e\x1f"), max_size=60))
def test_normalization_skips_only_text_that_ftfy_leaves_unchanged(text: str) -> None:
    assert TextCleaner(Normalization(white_space="keep")).format(text) == ftfy.fix_text(text, uncurl_quotes=False)


LINES = st.sampled_from(["nl_water", "nl_bakker", "en_garden", "af", "short", "blank", "broken", "empty", "latin"])


@settings(max_examples=settings.default.max_examples // 20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LINES, min_size=1, max_size=12))
def test_kept_and_removed_add_up_to_the_input(new_chain: Any, texts: dict[str, str], names: list[str]) -> None:
    special = {"blank": b"", "broken": b"{", "empty": b'{"text": ""}', "latin": b'"\xe9"'}
    lines = [special.get(name) or json.dumps({"text": texts.get(name, "Te kort.")}).encode() for name in names]
    lines = [b"" if name == "blank" else line for name, line in zip(names, lines, strict=True)]
    documents = len(names) - names.count("blank")
    chain = new_chain(Corpus(broken_share=1.0))
    if documents == 0:
        chain.filter("s", {"x.jsonl": b"\n".join(lines) + b"\n"})
        chain.deduplicate(["s"])
        with pytest.raises(InputError, match="source s is empty"):
            chain.statistics(["s"])
        return
    counts = chain.filter("s", {"x.jsonl": b"\n".join(lines)})
    kept, removed = chain.rows("s.filtered"), chain.rows("s.filter")
    assert counts["documents_in"] == documents == len(kept) + len(removed)
    assert counts["documents_out"] == len(kept) and sum(counts["removed"].values()) == len(removed)
    assert len({row["id"] for row in kept + removed}) == documents
    metadata = read_file_metadata(chain.folder / "s.filtered")
    assert (metadata["documents_in"], metadata["bytes_in"]) == (documents, counts["bytes_in"])
    good = {"nl_water", "nl_bakker", "en_garden"}
    assert len(kept) == sum(name in good for name in names)
    chain.deduplicate(["s"])
    stages = chain.statistics(["s"])["totals"]["stages"]
    assert all(stage["in"] == stage["kept"] + sum(stage["removed"].values()) for stage in stages)
    assert stages[1]["kept"] == len(good & set(names))


def test_source_without_kept_documents_makes_valid_files(chain: Any) -> None:
    counts = chain.filter("s", {"x.jsonl": b'{"text": "Te kort om te blijven."}'})
    assert counts["documents_out"] == 0
    assert pq.read_schema(chain.folder / "s.filtered").equals(DOCUMENT_SCHEMA)
    assert pq.read_schema(chain.folder / "s.filter").equals(REMOVED_SCHEMA)
    chain.deduplicate(["s"])
    assert chain.rows("s.final") == []
    assert chain.statistics(["s"])["sources"]["s"]["documents_out"] == 0


def test_file_order_does_not_change_the_bytes(new_chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    files = {f"{name}.jsonl": as_json_lines({"1": text, "2": "kort"}) for name, text in texts.items()}
    one, other = new_chain(), new_chain()
    one.filter("s", files)
    other.filter("s", dict(reversed(files.items())))
    for name in ("s.filtered", "s.filter"):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()


def test_file_missing_from_the_manifest_is_refused(chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    content = as_json_lines(texts)
    chain.filter("s", {"x.jsonl": content})
    (chain.folder / "raw/s/x.jsonl").write_bytes(content.replace(b"e", b"E", 1))
    rules = Corpus()
    unit = FilterSettings(
        source="s",
        languages=rules.languages,
        personal_data=rules.personal_data,
        broken_share=0.05,
    )
    paths = {"unit": chain.folder / "s.units/0.json", "files": [chain.folder / "raw/s/x.jsonl"]}
    with pytest.raises(InputError, match=r"source s, unit 0: .*s/x.jsonl has other bytes than the manifest"):
        filter.run(unit, **paths, model=[], documents=chain.folder / "out", removed=chain.folder / "gone")
    assert not (chain.folder / "out").exists()


def test_combining_marks_per_letter_are_limited_to_thirty() -> None:
    text = "Een a" + "\u0301\u0316" * 200_000 + " en een é."
    repaired = TextCleaner().format(text)
    assert (
        repaired.startswith("Een á")
        and repaired.endswith(" en een é.")
        and len(repaired) == len("Een á en een é.") + 29
    )
    assert TextCleaner().format(repaired) == repaired


def test_personal_data_is_masked_and_counted(chain: Any, texts: dict[str, str], as_json_lines: Any) -> None:
    letter = texts["nl_water"] + " Schrijf naar jan@voorbeeld.nl of piet@voorbeeld.nl."
    counts = chain.filter("s", {"x.jsonl": as_json_lines({"1": letter})})
    assert counts["personal_data"] == {"email": 2}
    assert chain.rows("s.filtered")[0]["text"].endswith("Schrijf naar <EMAIL> of <EMAIL>.")
    chain.deduplicate(["s"])
    assert chain.statistics(["s"])["personal_data"] == {"email": 2}


def test_filter_blocks_run_in_any_datatrove_pipeline(texts: dict[str, str], as_json_lines: Any) -> None:
    rules = Corpus()
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "x.jsonl")
        raw.write_bytes(as_json_lines(texts))
        unit = FilterSettings(
            source="s",
            languages={"nl": DUTCH},
            personal_data=rules.personal_data,
            broken_share=0.05,
        )
        writer = JsonlWriter(f"{folder}/out", compression=None)
        LocalPipelineExecutor(
            [*build_filter_pipeline(unit, RawFiles("s", [("x.jsonl", raw)])), writer],
            logging_dir=f"{folder}/logs",
            workers=1,
        ).run()
        lines = Path(folder, "out/00000.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [
        f"s/x.jsonl/nl_{name}" for name in ("water", "bakker", "fiets")
    ]


def test_record_counts_encoding_detection_methods(new_chain: Any, texts: dict[str, str]) -> None:
    def page(text: str, encoding: str, head: str = "") -> bytes:
        body = "".join(f"<p>{sentence}</p>" for sentence in text.replace(". ", ".\n").split("\n"))
        return f"<html><head>{head}</head><body><article>{body}</article></body></html>".encode(encoding)

    chain = new_chain(Corpus())
    files = {
        "bom.html": page(f"{texts['nl_water']} Één café.", "utf-16"),
        "meta.html": page(f"{texts['nl_bakker']} Één café.", "cp1252", "<meta charset=iso-8859-1>"),
        "guess.html": page(f"{texts['nl_fiets']} Één café.", "cp1252"),
        "utf8.html": page(f"{texts['en_garden']} Één café.", "utf-8"),
        "wrong.html": page(f"{texts['en_lighthouse']} Één café.", "utf-8") + b"<p>\xe9</p>",
    }
    counts = chain.filter("s", files)
    assert counts["encodings"] == {"bom": 1, "errors": 1, "guess": 2, "meta": 1, "utf8": 1}
    assert counts["documents_out"] == 5
    assert all("Één café." in row["text"] for row in chain.rows("s.filtered"))
    assert "encodings" not in chain.filter("t", {"x.txt": texts["nl_water"].encode()})
