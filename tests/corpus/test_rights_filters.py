"""A document is kept or removed by its own license; none gets a license that it does not have."""

from __future__ import annotations

import io
import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datatrove.data import Document
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.config.configuration import parse_configuration
from pipeline.core.errors import InputError
from pipeline.corpus.rights_filters import LicenseFilter, OptOutFilter
from pipeline.corpus.settings import Corpus
from pipeline.sources.settings import OptOut
from pipeline.workflow.steps import step_settings

ALLOWED = ["CC-BY-4.0", "CC-BY-SA-4.0", "LicenseRef-Public-Domain"]
OWN = {"license_key": "license", "allowed_licenses": ALLOWED}


def lines(texts: dict[str, str], fields: list[dict[str, Any]]) -> bytes:
    """Return a document of the same text for each row of fields."""
    rows = [{"id": str(number), "text": texts["nl_water"], **more} for number, more in enumerate(fields)]
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def licenses(chain: Any) -> dict[str, str]:
    return {row["id"].rpartition("/")[2]: row["license"] for row in chain.rows("s.filtered")}


def removed(chain: Any) -> dict[str, tuple[str, str | None]]:
    return {row["id"].rpartition("/")[2]: (row["reason"], row["value"]) for row in chain.rows("s.filter")}


def test_document_is_kept_or_removed_by_its_own_license(chain: Any, texts: dict[str, str]) -> None:
    chain.reading = OWN
    written = ["CC BY 4.0", "CC-BY-NC-ND-4.0", None, "", "permissive", ["cc-by-4.0", "cc-by-sa-4.0"], "Public Domain"]
    counts = chain.filter("s", {"x.jsonl": lines(texts, [{"license": value} for value in written] + [{}])})
    assert licenses(chain) == {"0": "CC-BY-4.0", "5": "CC-BY-4.0 AND CC-BY-SA-4.0", "6": "LicenseRef-Public-Domain"}
    assert removed(chain) == {
        "1": ("license_not_allowed", "CC-BY-NC-ND-4.0"),
        **{number: ("license_not_stated", None) for number in ("2", "3", "7")},
        "4": ("license_not_understood", "permissive"),
    }
    assert counts["documents_in"] == counts["documents_out"] + sum(counts["removed"].values()) == 8


def test_source_maps_license_words_and_missing_licenses(chain: Any, texts: dict[str, str]) -> None:
    names = {"": "CC-BY-SA-4.0", "permissive": "LicenseRef-Public-Domain", "cc-by": "CC-BY-NC-4.0"}
    chain.reading = {**OWN, "license_names": names}
    written = [{}, {"license": " "}, {"license": "Permissive"}, {"license": "CC-By"}]
    chain.filter("s", {"x.jsonl": lines(texts, written)})
    assert licenses(chain) == {"0": "CC-BY-SA-4.0", "1": "CC-BY-SA-4.0", "2": "LicenseRef-Public-Domain"}
    assert removed(chain) == {"3": ("license_not_allowed", "CC-By")}


ROWS = {
    "common pile": ({"license_key": "metadata.license"}, {"metadata": {"license": "CC BY 4.0", "url": "u"}}),
    "common corpus": ({"license_key": "license"}, {"license": "cc-by-4.0", "open_type": "Open Culture"}),
    "wikimedia": ({"license_key": "license"}, {"license": [{"identifier": "CC-BY-4.0", "name": "CC BY 4.0"}]}),
    "a name with a dot": ({"license_key": "dc.rights"}, {"dc.rights": "CC BY 4.0"}),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_licenses_are_read_from_every_record_format(chain: Any, texts: dict[str, str], kind: str, name: str) -> None:
    keys, row = ROWS[kind]
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([{"id": "0", "text": texts["nl_water"], **row}]), stream)
    chain.reading = {**OWN, **keys}
    chain.filter("s", {name: stream.getvalue() if name == "x.parquet" else lines(texts, [row])})
    assert licenses(chain) == {"0": "CC-BY-4.0"}


def test_parquet_file_without_the_license_field_states_no_license(chain: Any, texts: dict[str, str]) -> None:
    stream = io.BytesIO()
    pq.write_table(pa.table({"text": [texts["nl_water"]], "metadata": ["no fields"]}), stream)
    chain.reading = {**OWN, "license_key": "metadata.license"}
    chain.filter("s", {"x.parquet": stream.getvalue()})
    assert removed(chain) == {"0": ("license_not_stated", None)}


@pytest.mark.parametrize("field", ["license", "licence", "metadata.license"])
def test_conflicting_document_license_never_falls_back_to_the_source_license(
    new_chain: Any, texts: dict[str, str], field: str
) -> None:
    def row(value: str) -> dict[str, Any]:
        return {"metadata": {"license": value}} if "." in field else {field: value}

    chain = new_chain(Corpus(broken_share=0.5, deduplication={"exact": False, "minhash": False}))
    chain.filter("s", {"x.jsonl": lines(texts, [row("cc0"), row("CC-BY-NC-ND-4.0"), {}, row("")])})
    assert licenses(chain) == dict.fromkeys("023"), "they have the license of their source"
    chain.deduplicate(["s"])
    counted = chain.statistics(["s"])["licenses"]
    assert {name: sizes["documents"] for name, sizes in counted.items()} == {"CC0-1.0": 3}
    assert removed(chain) == {"1": ("license_differs", "CC-BY-NC-ND-4.0")}
    with pytest.raises(InputError, match=r"2 of 3 documents name another one, first t/x\.jsonl/0 .*set license_key"):
        chain.filter("t", {"x.jsonl": lines(texts, [row("MIT"), row("so-so"), {}])})
    assert not (chain.folder / "t.filtered").exists()


WRITTEN = st.sampled_from(["CC BY 4.0", "cc-by-sa-4.0", "CC-BY-NC-4.0", "permissive", "", None, "Public Domain", 7])


@settings(max_examples=settings.default.max_examples // 20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(WRITTEN, min_size=1, max_size=9))
def test_documents_add_up_and_each_license_is_counted(
    new_chain: Any, texts: dict[str, str], written: list[Any]
) -> None:
    chain = new_chain(Corpus(deduplication={"exact": False, "minhash": False}))
    chain.reading = OWN
    chain.filter("s", {"x.jsonl": lines(texts, [{"license": value} for value in written])})
    chain.deduplicate(["s"])
    statistics = chain.statistics(["s"])
    source = statistics["sources"]["s"]
    meant = {"CC BY 4.0": "CC-BY-4.0", "cc-by-sa-4.0": "CC-BY-SA-4.0", "Public Domain": "LicenseRef-Public-Domain"}
    kept = Counter(meant[value] for value in written if value in meant)
    assert {license: sizes["documents"] for license, sizes in source["licenses"].items()} == kept
    assert sum(sizes["bytes"] for sizes in source["licenses"].values()) == source["bytes_out"]
    assert statistics["licenses"] == source["licenses"]
    refused = Counter(str(value or "") for value in written if value not in meant)
    assert dict(source["refused_licenses"]) == refused
    assert len(written) == kept.total() + refused.total()
    assert not set(licenses(chain).values()) - set(ALLOWED)


def test_most_frequent_unknown_license_words_are_reported(chain: Any, texts: dict[str, str]) -> None:
    written = ["vrij"] * 3 + [f"eigen {number:02d}" for number in range(22)] + ["cc-by-4.0"]
    chain.reading = OWN
    chain.filter("s", {"x.jsonl": lines(texts, [{"license": value} for value in written])})
    chain.deduplicate(["s"])
    refused = chain.statistics(["s"])["sources"]["s"]["refused_licenses"]
    assert refused[0] == ["vrij", 3] and refused[-1] == [None, 3] and len(refused) == 21
    assert sum(number for _, number in refused) == 25


def configured(**source: Any) -> dict[str, Any]:
    described = {"name": "s", "path": "config/corpus/nl_gids.jsonl", "language": "nl", "license": "CC-BY-4.0"}
    described["rights"] = {"basis": "public-domain", "holder": "iemand"}
    return {"run": {"name": "r"}, "sources": [{**described, **source}]}


def of_filter(raw: dict[str, Any]) -> Any:
    return step_settings(parse_configuration(raw), "corpus.filter", {"corpus": "main", "source": "s", "unit": "0"})


def test_allowed_licenses_come_from_the_run_or_the_source() -> None:
    assert of_filter(configured()).allowed_licenses == []
    mixed = configured(license="CC-BY-4.0 AND CC-BY-NC-4.0", license_key="l", license_names={"PD ": "CC0-1.0"})
    assert of_filter(mixed).allowed_licenses == ["CC-BY-4.0", "CC-BY-NC-4.0", "CC0-1.0"]
    assert of_filter(mixed).license_names == {"pd": "CC0-1.0"}
    assert of_filter({**mixed, "allowed_licenses": ["MIT"]}).allowed_licenses == ["MIT"]
    with pytest.raises(InputError, match="license_names needs license_key"):
        parse_configuration(configured(license_names={"x": "MIT"}))
    with pytest.raises(InputError, match="is no SPDX license"):
        parse_configuration(configured(license_key="l", license_names={"x": "so-so"}))


def test_samples_of_documents_with_own_licenses_are_checked_individually(new_chain: Any, texts: dict[str, str]) -> None:
    raw = configured(license_key="license") | {"corpus": {"main": {"keep_removed": True}}}
    settings = of_filter(raw)
    assert (
        settings.samples
        and "CC-BY-4.0" in settings.own_sample_licenses
        and "CC-BY-NC-4.0" not in settings.own_sample_licenses
    )
    again: Any = step_settings(
        parse_configuration(raw), "corpus.deduplicate", {"corpus": "main", "source": "s", "unit": "0"}
    )
    assert again.samples and again.own_sample_licenses == settings.own_sample_licenses
    chain = new_chain(Corpus())
    allowed = [*ALLOWED, "CC-BY-NC-4.0"]
    chosen = {"keep_removed": True, "samples": True, "own_sample_licenses": ALLOWED}
    chain.reading = {**OWN, "allowed_licenses": allowed, **chosen}
    short = [{"text": f"Te kort {n}.", "license": own} for n, own in enumerate(["cc-by-4.0", "cc-by-nc-4.0", "MIT"])]
    chain.filter("s", {"x.jsonl": lines(texts, short)})
    samples = json.loads(pq.read_metadata(chain.folder / "s.filter").metadata[b"polder"])["samples"]
    assert [(sample["id"], sample["license"]) for sample in samples] == [("s/x.jsonl/0", "CC-BY-4.0")]


def test_reordered_license_expression_is_equal() -> None:
    settings: Any = SimpleNamespace(license_key=None, license_names={})
    for written, expected in (("Apache-2.0 OR MIT", True), ("MIT AND Apache-2.0", (False, "license_differs"))):
        document = Document(text="x", id="0", metadata={"own_license": written})
        assert LicenseFilter(settings, "MIT OR Apache-2.0").filter(document) == expected
        with pytest.raises(RuntimeError, match="0 states a license"):
            LicenseFilter(settings, None).filter(document)


def test_page_that_reserves_rights_is_removed_unless_the_source_overrides(chain: Any, texts: dict[str, str]) -> None:
    def page(meta: str) -> bytes:
        return f"<html><head>{meta}</head><body><article><p>{texts['nl_water']}</p></article></body></html>".encode()

    tag = '<meta name="tdm-reservation" content="{}">'
    files = {"open.html": page(""), "no.html": page(tag.format(1)), "yes.html": page(tag.format(0))}
    counts = chain.filter("s", files)
    (row,) = chain.rows("s.filter")
    assert (row["id"], row["reason"]) == ("s/no.html/0", "reserved_by_page")
    assert row["value"] == "meta tdm-reservation: 1" and counts["removed"] == {"reserved_by_page": 1}
    chain.reading = {"page_reservations": False}
    assert chain.filter("s", files)["documents_out"] == 3
    assert of_filter(configured()).page_reservations
    assert not of_filter(configured(page_reservations=False)).page_reservations


def test_page_statement_overrides_the_tdmrep_of_its_host() -> None:
    rules = {"host": "a.nl", "url": "https://a.nl/.well-known/tdmrep.json", "sha256": "0", "rules": '[["/", 1]]'}
    listed = OptOutFilter(OptOut(reservations=[{"file": "tdmrep.json", **rules}]))

    def entries(stated: str | None) -> list[str]:
        metadata = {"url": "https://a.nl/1", "reservation": stated}
        return [*listed.matching_entries(Document(text="x", id="1", metadata=metadata))]

    assert entries(None) == entries("meta robots: noai") == ["tdmrep.json a.nl: /"]
    assert entries("header tdm-reservation: 0") == []
