"""The published data set opens offline in third-party tools, and shows only permitted parts of removed texts."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import mlcroissant
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from datatrove.data import Document
from markdown_it import MarkdownIt

from pipeline.config.configuration import parse_configuration
from pipeline.core.display_text import is_invisible
from pipeline.core.errors import InputError
from pipeline.corpus import deduplicate, publish
from pipeline.corpus import filter as filter_step
from pipeline.corpus.data_set.document_counts import DocumentCounts
from pipeline.corpus.removed_documents import SAMPLE_CHARACTERS, RemovedTexts
from pipeline.corpus.settings import Corpus, DeduplicateSettings, FilterSettings, PublishSettings
from pipeline.workflow.steps import step_settings

HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)> | `a` [b](javascript:c) {{ 7 * 7 }}'
OUTPUTS = {
    "sources": "sources.parquet",
    "card": "README.md",
    "croissant": "croissant.json",
    "dataset": "dataset.json",
    "page": "dataset.html",
}


class Published:
    """A corpus of two sources, in the layout of a run."""

    def __init__(self, chain: Any, texts: dict[str, str], *, keep_removed: bool = True) -> None:
        self.chain, self.keep_removed = chain, keep_removed
        self.folder = chain.folder / "corpus"
        self.private = chain.folder / "private"
        (self.folder / "final").mkdir(parents=True)
        one = {**texts, "hostile": f"{HOSTILE} mail jan@voorbeeld.nl", "long": "Kort verhaal. " * 200}
        two = {"copy": texts["nl_water"], "bare": "te kort", "mail": f"bel of mail piet@voorbeeld.nl {texts['af']}"}
        for source, documents in (("een", one), ("twee", two)):
            lines = [json.dumps({"id": name, "text": text}) for name, text in documents.items()]
            self.filter(source, "".join(f"{line}\n" for line in lines).encode())
        chain.deduplicate(["een", "twee"])
        for source in ("een", "twee"):
            self.deduplicate(source)
        chain.decontaminate(["een", "twee"], {})
        for source in ("een", "twee"):
            (self.folder / "final" / f"{source}.0.parquet").write_bytes((chain.folder / f"{source}.final").read_bytes())
        chain.statistics(["een", "twee"])
        self.final = sorted((self.folder / "final").iterdir())
        names = [f"{s}.{stage}" for s in ("een", "twee") for stage in ("filter", "deduplicate", "decontaminate")]
        self.removed = [chain.folder / name for name in names]

    def filter(self, source: str, raw: bytes) -> dict[str, Any]:
        self.chain.filter(source, {"x.jsonl": raw})
        corpus = Corpus()
        settings = FilterSettings(
            source=source,
            languages=corpus.languages,
            personal_data=corpus.personal_data,
            broken_share=0.05,
            keep_removed=self.keep_removed,
            samples=self.keep_removed,
        )
        return filter_step.run(
            settings,
            unit=self.chain.folder / f"{source}.units/0.json",
            files=[self.chain.folder / "raw" / source / "x.jsonl"],
            documents=self.chain.folder / f"{source}.filtered",
            removed=self.chain.folder / f"{source}.filter",
            private=self.private / f"filter.{source}.parquet",
        )

    def deduplicate(self, source: str) -> dict[str, Any]:
        return deduplicate.run(
            DeduplicateSettings(keep_removed=self.keep_removed, samples=self.keep_removed),
            documents=self.chain.folder / f"{source}.filtered",
            duplicates=self.chain.folder / "duplicates" / f"{source}.0.parquet",
            deduplicated=self.chain.folder / f"{source}.deduplicated",
            removed=self.chain.folder / f"{source}.deduplicate",
            private=self.private / f"deduplicate.{source}.parquet",
        )

    def settings(self, **rights: str) -> PublishSettings:
        described = {"basis": "license", "holder": "Iemand", "url": "https://voorbeeld.nl/", **rights}
        return PublishSettings.model_validate(
            {
                "run": "proef",
                "corpus": "main",
                "provider": None,
                "contact": None,
                "stated": {"intended_use": "onderzoek </script>", "removal": "schrijf ons"},
                "keep_removed": self.keep_removed,
                "filters": Corpus().model_dump(mode="json", include={"languages", "deduplication"}),
                "sources": [
                    {"name": name, "language": "nl", "genre": genre, "license": "CC0-1.0", "rights": described}
                    | ({} if genre else {"sampled_genre": "web"})
                    for name, genre in (("een", "laws"), ("twee", None))
                ],
            }
        )

    def publish(
        self, folder: Path | None = None, *, backwards: bool = False, before: str = "", **rights: str
    ) -> dict[str, Any]:
        order = -1 if backwards else 1
        return publish.run(
            self.settings(**rights),
            statistics=self.chain.folder / "statistics.json",
            removed=self.removed[::order],
            final=self.final[::order],
            **{name: (folder or self.folder) / f"{before}{file}" for name, file in OUTPUTS.items()},
        )

    def read(self, name: str) -> str:
        return (self.folder / OUTPUTS[name]).read_text(encoding="utf-8")


@pytest.fixture
def published(chain: Any, texts: dict[str, str]) -> Published:
    return Published(chain, texts)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_hugging_face_loader_opens_the_data_set_offline(published: Published, offline: None, tmp_path: Path) -> None:
    published.publish()
    expected = {row["id"] for path in published.final for row in pq.read_table(path).to_pylist()}
    (published.folder / "final" / "old.0.parquet").write_bytes(published.final[0].read_bytes())
    opened = datasets.load_dataset(str(published.folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(opened) == len(expected) and set(opened["id"]) == expected
    front = yaml.safe_load(published.read("card").split("---\n")[1])
    assert (front["license"], front["language"], front["size_categories"]) == (["cc0-1.0"], ["en", "nl"], ["n<1K"])
    sources = datasets.load_dataset(str(published.folder), "sources", split="train", cache_dir=str(tmp_path / "cache"))
    licenses = {row["source"]: row["license"] for row in sources}
    assert set(opened["license"]) == {None} and licenses == dict.fromkeys(("een", "twee"), "CC0-1.0")
    assert set(opened["source"]) <= licenses.keys() and sources[0]["holder"] == "Iemand"


def test_croissant_metadata_validates_and_reads_the_documents(published: Published, offline: None) -> None:
    published.publish()
    opened = mlcroissant.Dataset(jsonld=published.folder / "croissant.json")
    assert not opened.metadata.ctx.issues.errors
    content = json.loads(published.read("croissant"))
    assert content["conformsTo"] == "http://mlcommons.org/croissant/1.1"
    assert content["license"] == "https://spdx.org/licenses/CC0-1.0"
    assert content["rai:dataUseCases"] == "onderzoek </script>"
    assert content["rai:dataReleaseMaintenancePlan"] == "schrijf ons"
    assert "rai:dataLimitations" not in content, "unstated values are absent"
    hashes = {entry["contentUrl"]: entry["sha256"] for entry in content["distribution"] if "sha256" in entry}
    for path in published.final:
        assert hashes[f"final/{path.name}"] == hashlib.sha256(path.read_bytes()).hexdigest()
    texts = {row["text"] for path in published.final for row in pq.read_table(path).to_pylist()}
    assert {record["documents/text"].decode() for record in opened.records("documents")} == texts
    assert {record["sources/license"] for record in opened.records("sources")} == {b"CC0-1.0"}
    fields = {field["@id"]: field for record_set in content["recordSet"] for field in record_set["field"]}
    assert fields["documents/source"]["references"] == {"field": {"@id": "sources/source"}}
    assert hashes["sources.parquet"] == hashlib.sha256((published.folder / "sources.parquet").read_bytes()).hexdigest()


def test_published_bytes_do_not_depend_on_the_partial_file_name(published: Published) -> None:
    published.publish()
    published.publish(before=".partial-host.1-")
    for file in OUTPUTS.values():
        assert (published.folder / f".partial-host.1-{file}").read_bytes() == (published.folder / file).read_bytes(), (
            file
        )


def test_counts_add_up_by_source_language_license_and_year(published: Published) -> None:
    dates = ["2019-05-01", None, "onbekend", "2020"]
    for path in published.final:
        table = pq.read_table(path)
        column = pa.array([dates[row % 4] for row in range(table.num_rows)], pa.string())
        pq.write_table(table.set_column(table.schema.get_field_index("date"), "date", column), path)
    published.publish()
    data = json.loads(published.read("dataset"))
    documents = data["totals"]["documents_out"]
    for group in ("sources", "languages", "licenses", "years"):
        assert sum(part["documents"] for part in data[group].values()) == documents
        assert sum(part["bytes"] for part in data[group].values()) == data["totals"]["bytes_out"]
    laws = {key: data["sources"]["een"][key] for key in ("documents", "bytes")}
    assert data["genres"] == {"laws": laws} and laws["documents"] > 0  # a source without a genre is in no group
    assert [data["sources"][name]["genre_by_sample"] for name in ("een", "twee")] == [None, "web"]
    assert "By genre" in published.read("page") and "| genre | laws |" in published.read("card")
    for kind in ("lengths", "scores"):
        assert sum(number for bins in data[kind].values() for _, number in bins) == documents
    assert list(data["years"]) == ["2019", "2020", "not stated"]
    assert data["duplicates"] == [{"removed": "twee", "kept": "een", "documents": 1}]
    assert 'class="heat-4"' in published.read("page")


def test_text_from_data_is_not_interpreted_as_markup(published: Published) -> None:
    published.publish(holder=f"{HOSTILE} a\u202eb\x1b[2K", contact=f"{HOSTILE}\u2066", url="javascript:alert(1)")
    page, card = published.read("page"), published.read("card")
    assert not any(map(is_invisible, page + card)) and "a\\u202eb\\x1b[2K" in page
    assert "&lt;script&gt;" in page and "{{ 7 * 7 }}" in page
    tags = set(re.findall(r"<([a-z]+)", page))
    assert not tags & {"script", "img", "link", "iframe", "object", "embed"}
    assert not re.search(r"<[^>]* (on\w+|src)=|url\(|@import", page)
    assert all(
        address.startswith(("#", "README", "dataset", "croissant")) for address in re.findall(r'href="(.*?)"', page)
    )
    assert "<script" not in card and "<img" not in card and "](javascript" not in card.replace("\\](", "")
    parsed = MarkdownIt("commonmark").enable("table").parse(card)
    assert not [token for token in parsed if token.type == "inline" and token.content.startswith("|")]
    assert sum(token.type == "table_open" for token in parsed) == 3
    for table in re.findall(r"(?:^\|.*\n)+", card, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


def test_published_bytes_do_not_depend_on_file_order_or_process(published: Published, tmp_path: Path) -> None:
    published.publish()
    other = tmp_path / "other"
    other.mkdir()
    published.publish(other, backwards=True)
    inputs = {"removed": published.removed, "final": published.final}
    code = (
        "import sys, json; from pathlib import Path; from pipeline.corpus import publish; a = json.loads(sys.argv[1]);"
        "s = publish.PublishSettings.model_validate(a.pop('settings'));"
        "publish.run(s, **{k: [Path(p) for p in v] if isinstance(v, list) else Path(v) for k, v in a.items()})"
    )
    third = tmp_path / "third"
    third.mkdir()
    arguments = {name: [str(path) for path in paths] for name, paths in inputs.items()} | {
        "settings": published.settings().model_dump(),
        "statistics": str(published.chain.folder / "statistics.json"),
        **{name: str(third / file) for name, file in OUTPUTS.items()},
    }
    subprocess.run([sys.executable, "-c", code, json.dumps(arguments)], check=True, capture_output=True)
    for file in OUTPUTS.values():
        expected = (published.folder / file).read_bytes()
        assert (other / file).read_bytes() == expected and (third / file).read_bytes() == expected


def test_removed_texts_are_private_masked_and_sampled(published: Published) -> None:
    published.publish()
    kept = [row for path in sorted(published.private.iterdir()) for row in pq.read_table(path).to_pylist()]
    removed = [row for path in published.removed for row in pq.read_table(path).to_pylist()]
    assert sorted(str({**row, "text": 0}) for row in kept) == sorted(str({**row, "text": 0}) for row in removed)
    texts = {row["id"].rpartition("/")[2]: row["text"] for row in kept}
    assert "<EMAIL>" in texts["mail"] and not any("@voorbeeld" in text for text in texts.values())
    assert texts["copy"] and len(texts["long"]) > SAMPLE_CHARACTERS
    assert {path.stat().st_mode & 0o777 for path in published.private.iterdir()} == {0o600}
    assert published.private.stat().st_mode & 0o777 == 0o700
    samples = json.loads(published.read("dataset"))["samples"]
    assert {sample["reason"] for sample in samples} == {row["reason"] for row in removed}
    assert max(len(sample["text"]) for sample in samples) == SAMPLE_CHARACTERS
    assert {sample["license"] for sample in samples} == {"CC0-1.0"}, "that of their source"
    assert "@voorbeeld" not in published.read("page")


def test_removed_texts_are_not_stored_without_keep_removed(
    published: Published, chain: Any, texts: dict[str, str]
) -> None:
    assert len(list(published.private.iterdir())) == 4
    published.keep_removed = False
    raw = (chain.folder / "raw" / "een" / "x.jsonl").read_bytes()
    published.filter("een", raw)
    for source in ("een", "twee"):
        published.deduplicate(source)
    assert [path.name for path in published.private.iterdir()] == ["filter.twee.parquet"]
    assert b"samples" not in (chain.folder / "een.filter").read_bytes()
    published.publish()
    assert "Samples were not kept" in published.read("page")
    assert json.loads(published.read("dataset"))["samples"] is None


@pytest.mark.parametrize("reason", ["opt_out", "harmful"])
def test_reserved_harmful_and_flagged_texts_are_not_stored(reason: str, tmp_path: Path) -> None:
    texts = RemovedTexts(tmp_path / "private" / "a.parquet", samples=True)
    row = {"id": "a/b/1", "source": "a", "stage": "filter", "value": None, "bytes": 5}
    texts.add({**row, "reason": reason}, Document(text="geheim", id="a/b/1"))
    texts.add({**row, "reason": "language"}, Document(text="geheim", id="a/b/2", metadata={"flags": ["violence"]}))
    texts.add({**row, "reason": "harmless"}, Document(text="gewoon", id="a/b/3"))
    assert texts.close()["rows"] == 3
    assert pq.read_table(tmp_path / "private" / "a.parquet")["text"].to_pylist() == [None, None, "gewoon"]
    assert [sample["text"] for sample in texts.samples()] == ["gewoon"]


def test_private_file_has_only_texts_if_the_license_forbids_samples(tmp_path: Path) -> None:
    texts = RemovedTexts(tmp_path / "private" / "a.parquet", samples=False)
    row = {"id": "a/b/1", "source": "a", "stage": "filter", "reason": "r", "value": None, "bytes": 5}
    texts.add(row, Document(text="gewoon", id="a/b/1"))
    assert texts.close()["rows"] == 1 and texts.samples() == []
    assert pq.read_table(tmp_path / "private" / "a.parquet")["text"].to_pylist() == ["gewoon"]


def test_samples_have_the_least_hashes_in_any_order() -> None:
    rows = [
        {"id": f"a/b/{n}", "source": "a", "stage": "s", "reason": "r", "value": None, "bytes": 1} for n in range(40)
    ]
    results = []
    for order in (1, -1):
        texts = RemovedTexts(None, samples=True)
        for row in rows[::order]:
            texts.add(row, Document(text="x" * 1000, id=row["id"]))
        results.append(texts.samples())
        assert texts.close() == {}, "no private file is written"
    assert results[0] == results[1] and len(results[0]) == 3
    assert {len(sample["text"]) for sample in results[0]} == {SAMPLE_CHARACTERS}


@pytest.mark.parametrize(
    ("license", "basis", "keep", "shown"),
    [
        ("CC-BY-4.0", "license", True, True),
        ("CC-BY-4.0", "license", False, False),
        ("CC-BY-NC-4.0", "license", True, False),
        ("LicenseRef-Agreement", "opt-in-agreement", True, False),
        ("LicenseRef-Laws", "public-domain", True, True),
        ("MIT OR Apache-2.0", "license", True, True),
        ("MIT OR CC-BY-NC-4.0", "license", True, True),
        ("MIT AND CC-BY-NC-4.0", "license", True, False),
    ],
)
def test_samples_are_written_only_if_the_license_allows_it(license: str, basis: str, keep: bool, shown: bool) -> None:
    source = {
        "name": "s",
        "path": "config/corpus/nl_gids.jsonl",
        "language": "nl",
        "license": license,
        "rights": {"basis": basis, "holder": "iemand"},
    }
    config = parse_configuration(
        {"run": {"name": "r"}, "sources": [source], "corpus": {"main": {"keep_removed": keep}}}
    )
    for stage in ("corpus.filter", "corpus.deduplicate"):
        settings: Any = step_settings(config, stage, {"corpus": "main", "source": "s", "unit": "0"})
        assert settings.samples is shown and settings.keep_removed is keep


def test_data_set_contains_provider_statements() -> None:
    source = {"name": "s", "path": "config/corpus/nl_gids.jsonl", "language": "nl", "license": "CC0-1.0"}
    source["rights"] = {"basis": "public-domain", "holder": "iemand"}
    stated = {"intended_use": {"nl": "onderzoek", "en": "research"}, "limitations": "none known", "removal": ""}
    config = parse_configuration(
        {"run": {"name": "r"}, "sources": [source], "disclosure": stated | {"legal_basis": "a law"}}
    )
    settings: Any = step_settings(config, "corpus.publish", {"corpus": "main"})
    assert settings.stated == {"intended_use": "research", "limitations": "none known"}


def test_statistics_of_other_files_are_refused(published: Published) -> None:
    published.final = published.final[1:]
    with pytest.raises(InputError, match=r"statistics\.json counts .* run corpus\.statistics again"):
        published.publish()


def test_domains_are_counted_by_source_and_the_largest_tenth_is_listed() -> None:
    names = [f"d{number}.nl" for number in range(11)]
    addresses = [f"https://www.{name}/a?b=d99.nl" for name in names] + ["HTTP://user@D3.NL:80/x", None, "no address"]
    texts = [f"{'x' * (number + 1)}" for number in range(11)] + ["y" * 20, "z", "z"]
    rows = {"text": texts, "url": addresses, "source": ["web"] * 12 + ["web", "laws"]}
    columns = {"language": ["nl"] * 14, "language_score": [1.0] * 14, "license": ["CC0-1.0"] * 14}
    counts, halves = DocumentCounts({}), pa.RecordBatch.from_pydict({**rows, **columns})
    for batch in (halves.slice(0, 5), halves.slice(5)):
        counts.count_batch(batch)
    # Eleven domains, of which a tenth rounded up is two: d3.nl with 4 + 20 bytes in two documents, d10.nl with 11.
    assert counts.largest_domains() == {"web": {"domains": 11, "largest": [("d3.nl", 2, 24), ("d10.nl", 1, 11)]}}
    counts = DocumentCounts({})
    counts.count_batch(halves.drop_columns(["url"]))
    assert counts.largest_domains() == {}
