"""The papers contain statements of records and provider, in both languages and all formats, and list missing ones."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.settings import Pretrained
from pipeline.energy.attribution.node_power_by_component import ESTIMATED, SHARED
from pipeline.energy.power_model import GENERIC
from pipeline.report import energy_accounting
from pipeline.report.papers.facts import find_middle_length, find_title
from pipeline.report.papers.write import DOCUMENT_NAMES
from pipeline.report.settings import Crawler, Disclosure, SourceDescription
from tests.report.account_example import make_accounting
from tests.report.example import HOSTILE, Run
from tests.report.test_forgetting import PROOF
from tests.report.test_page import made
from tests.report.test_translator import dutch_catalogue

DUTCH = dutch_catalogue()


def written(run_folder: Run, **disclosed: Any) -> Path:
    folder: Path = made(run_folder, disclosure=Disclosure.model_validate(disclosed))["papers"]
    return folder


def paper(folder: Path, name: str, language: str = "en") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"{name}.{language}.json").read_text(encoding="utf-8"))
    return content


def answer(folder: Path, name: str, title: str, language: str = "en") -> dict[str, Any]:
    parts = paper(folder, name, language)["sections"]
    (result,) = [point for part in parts for point in part["points"] if point["title"] == title]
    computed_answer: dict[str, Any] = result["answer"]
    return computed_answer


def table(folder: Path, name: str, title: str) -> list[list[str]]:
    (result,) = [
        table for part in paper(folder, name)["sections"] for table in part["tables"] if table["title"] == title
    ]
    rows: list[list[str]] = result["rows"]
    return rows


def test_energy_method_names_each_meter_once_in_the_language_of_the_paper(
    run_folder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_meters(*given: Any) -> dict[str, Any]:
        content, model = make_accounting(*given), f"{ESTIMATED}: {GENERIC.source}"
        content["model"] |= {"source": GENERIC.source}
        content["total"]["meters"] = [model, f"{model}; {SHARED}"]
        return content

    monkeypatch.setattr(energy_accounting, "_compute_accounting", without_meters)
    folder = written(run_folder)
    english = answer(folder, "technical-documentation", "How the energy is known")["text"]
    assert english == "; ".join([ESTIMATED, SHARED, GENERIC.source])
    dutch = answer(folder, "technical-documentation", DUTCH["How the energy is known"], "nl")["text"]
    assert dutch == "; ".join([DUTCH[ESTIMATED], DUTCH[SHARED], DUTCH[GENERIC.source]])


def test_each_paper_exists_in_every_language_and_format(run_folder: Run) -> None:
    folder = written(run_folder)
    expected = {
        f"{name}.{language}.{kind}"
        for name in DOCUMENT_NAMES
        for language in ("en", "nl")
        for kind in ("html", "json", "md")
    }
    assert {path.name for path in folder.iterdir()} == expected | {"spdx.json", "cyclonedx.json"}
    for name in DOCUMENT_NAMES:
        english, dutch = paper(folder, name), paper(folder, name, "nl")
        assert [len(part["points"]) for part in english["sections"]] == [
            len(part["points"]) for part in dutch["sections"]
        ]
        assert english["not_stated"] == dutch["not_stated"] and english["title"] != dutch["title"]
        for part in english["sections"]:
            numbers = [f"{part['number']}.{place}" for place in range(1, len(part["points"]) + 1)]
            assert [point["number"] for point in part["points"]] == numbers
        for language, content in (("en", english), ("nl", dutch)):
            page = (folder / f"{name}.{language}.html").read_text(encoding="utf-8")
            assert f'<html lang="{language}">' in page
            assert page.count("<dt>") == content["points"] and page.count('class="open"') == len(content["not_stated"])


def test_text_from_data_and_provider_is_escaped_on_every_page(run_folder: Run) -> None:
    folder = written(
        run_folder, intended_use=HOSTILE, removal="<img src=x onerror=alert(1)>", content_types="{name} {0}"
    )
    for path in folder.glob("*.html"):
        page = path.read_text(encoding="utf-8")
        assert "<script" not in page and "<img" not in page and 'javascript:alert(1)"' not in page
        assert "default-src 'none'" in page and "unsafe-inline" not in page
    assert answer(folder, "training-content-summary", "Kinds of text")["text"] == "{name} {0}"


def test_figures_equal_the_records(run_folder: Run) -> None:
    folder, name = written(run_folder), "model-documentation-form"
    # 500 steps of 4096 tokens; 6 × 3,412,224 × 2,048,000 operations, of 10^23; two segments of 1230 s.
    compute = answer(folder, name, "Amount of computation")["text"]
    assert "4.19e+13 floating-point operations: 6 × parameters × 2,048,000 tokens" in compute
    assert "(5.59e+13 with 8 in place of 6" in compute and "this is 1 / 2,400,000,000 of that" in compute
    dutch = answer(folder, name, "Hoeveelheid rekenwerk", "nl")["text"]
    assert "4,19e+13" in dutch and "2.048.000 gelezen tokens" in dutch and "1 / 2.400.000.000" in dutch
    time = answer(folder, name, "Training time")
    assert "2026-03-01 07:00 to 2026-03-01 08:20 (UTC), 0:41:00" in time["text"]
    assert "on 4 × NVIDIA H100 80GB HBM3; lost attempts of this training: 1" in time["text"]
    assert time["origin"] == ["provenance/records/pretrain.segment.base.*.json", "provenance/attempts/"]
    assert (
        "3,412,224 parameters (in the class 1 to 500 million)" in answer(folder, name, "Number of parameters")["text"]
    )
    assert "13.6 MB in 32 bits, 6.82 MB in 16 bits" in answer(folder, name, "Hardware that is required")["text"]
    amount = "less than 1 billion tokens (a token is a word or a part of one); token set main: 1,540,000"
    assert amount in answer(folder, name, "Number of data points")["text"]


def test_learning_rate_of_another_width_is_shown_with_its_divisor(run_folder: Run) -> None:
    title, form = "Design of the training and what it optimises", "model-documentation-form"
    assert "maximal update" not in answer(written(run_folder), form, title)["text"]
    for step in ("250", "500"):
        name = f"provenance/records/pretrain.segment.base.{step}.json"
        record = run_folder.read(name)
        record["settings"]["architecture"] |= {"width": 1024, "base_width": 256}
        run_folder.write(name, record)
    text = answer(written(run_folder), form, title)["text"]
    assert "learning rate 0.003" in text
    assert text.endswith(
        "learning rate for width 256, divided by 1,024 / 256 for matrices (maximal update parametrization, Yang et al. "
        "2022)"
    )


def test_pretrained_base_model_is_named_with_its_license(run_folder: Run) -> None:
    title, form = "Depends on another model", "model-documentation-form"
    assert "training began with random numbers" in answer(written(run_folder), form, title)["text"]
    taken = Pretrained(folder="{data}/models/<b>Large</b>", license="Apache-2.0", url="https://example.org/large")
    run_folder.settings = run_folder.settings.model_copy(update={"pretrained": {"base": taken}})
    folder = written(run_folder)
    assert answer(folder, form, title)["text"].endswith(
        "on models/<b>Large</b>, license Apache-2.0: training began with its numbers (https://example.org/large)"
    )
    elements = json.loads((folder / "spdx.json").read_text())["@graph"]
    (base,) = [element for element in elements if element.get("name") == taken.display_name]
    related = [(one["relationshipType"], one["to"]) for one in elements if one["type"] == "Relationship"]
    assert ("descendantOf", [base["spdxId"]]) in related
    (document,) = [element for element in elements if element["type"] == "SpdxDocument"]
    assert base["spdxId"] not in document["rootElement"], "not the result that this run delivers"


def test_run_without_a_model_delivers_its_corpora(run_folder: Run) -> None:
    for path in (run_folder.root / "provenance/records").glob("pretrain.*.json"):
        path.unlink()
    elements = json.loads((written(run_folder) / "spdx.json").read_text())["@graph"]
    assert not [element for element in elements if element["type"] == "ai_AIPackage"]
    (document,) = [element for element in elements if element["type"] == "SpdxDocument"]
    (corpus,) = [element for element in elements if element.get("name") == "corpus main"]
    assert document["rootElement"] == [corpus["spdxId"]]


def test_optimizer_and_z_loss_are_described(run_folder: Run) -> None:
    title, form = "Design of the training and what it optimises", "model-documentation-form"
    text = answer(written(run_folder), form, title)["text"]
    assert "(cross-entropy) with AdamW: learning rate" in text and "z-loss" not in text and "other sizes" not in text
    for step in ("250", "500"):
        name = f"provenance/records/pretrain.segment.base.{step}.json"
        record = run_folder.read(name)
        changed = {"optimizer": "muon", "z_loss": 0.0001, "load_balancing_loss": 0.01}
        record["settings"]["training"] |= {**changed, "ramp": [{"to_step": 3, "batch_size": 2}]}
        run_folder.write(name, record)
    text = answer(written(run_folder), form, title)["text"]
    assert "with Muon for the matrices of the blocks and AdamW for the rest: learning rate" in text
    assert "; the first 3 steps have batches or sequences of other sizes" in text
    assert "; the gradients include a z-loss of weight 0.0001" in text
    assert "; the gradients include a load-balancing loss of weight 0.01" in text, text


def test_compute_of_an_expert_model_counts_active_parameters(run_folder: Run) -> None:
    form = "model-documentation-form"
    title = "Amount of computation"
    before = answer(written(run_folder), form, title)["text"]
    for step in ("250", "500"):
        name = f"provenance/records/pretrain.segment.base.{step}.json"
        record = run_folder.read(name)
        record["counts"] |= {"active_parameters": record["counts"]["parameters"] // 4}
        run_folder.write(name, record)
    folder = written(run_folder)
    assert " of them used for each token" in answer(folder, form, "Number of parameters")["text"]
    texts = answer(folder, form, title)["text"], before
    small, large = (float(text.partition(": ")[2].split()[0]) for text in texts)
    assert 4 * small == pytest.approx(large, rel=0.01)


def test_energy_has_two_significant_digits_interval_and_label(run_folder: Run) -> None:
    folder = written(run_folder)
    total = run_folder.read("report/energy.json")["total"]
    text = answer(folder, "model-documentation-form", "Energy of training")["text"]
    value, low, high = (float(f"{total[key] / 3600:.1e}") for key in ("joules", "low_joules", "high_joules"))
    whole = text.split("the whole run, including lost attempts and idle nodes: ")[1]
    numbers = [float(number) for number in re.findall(r"\d[\d.]*", whole.replace("95 %", ""))[:4]]
    assert numbers == [value, float(f"{value / 1e6:.1e}"), low, high] and whole.startswith(f"{value:.0f} Wh (0.000")
    assert "89 % measured, 11 % estimated" in whole
    dutch = answer(folder, "model-documentation-form", DUTCH["Energy of training"], "nl")["text"]
    assert "720 Wh (0,00072 MWh; 95 %-interval 680 tot 760 Wh; 89 % gemeten, 11 % geschat)" in dutch


def test_provider_statement_is_shown_in_its_language(run_folder: Run) -> None:
    folder = written(
        run_folder, intended_use={"en": "for libraries", "nl": "voor bibliotheken"}, distribution="per post"
    )
    title = "Tasks that the model is intended to perform"
    assert answer(folder, "technical-documentation", title)["text"] == "for libraries"
    assert answer(folder, "technical-documentation", DUTCH[title], "nl")["text"] == "voor bibliotheken"
    for language, title in (("en", "Methods of distribution"), ("nl", "Manieren van verspreiding")):
        assert answer(folder, "technical-documentation", title, language)["text"] == "per post"


def test_self_assessment_counts_the_origins_of_each_paper(run_folder: Run) -> None:
    folder = written(run_folder, legal_basis="Article 6(1)(e)")
    for place, name in enumerate(DOCUMENT_NAMES[:3]):
        content = paper(folder, name)
        points = [point["answer"] for part in content["sections"] for point in part["points"]]
        stated = sum(point["key"] is not None and point["text"] is not None for point in points)
        missing = sum(point["text"] is None for point in points)
        text = paper(folder, "self-assessment")["sections"][place]["points"][0]["answer"]["text"]
        recorded = len(points) - stated - missing
        counted = f"{recorded} answered from records, {stated} stated by the provider, {missing} not stated"
        assert text == f"{len(points)} points: {counted}"
        assert all(point["origin"] or point["key"] for point in points), "every point names its origin"
        rows = paper(folder, "self-assessment")["sections"][place]["tables"][0]["rows"]
        assert sum(row[2] == "not stated" for row in rows) == missing and len(rows) == len(points)
        (file,) = paper(folder, "self-assessment")["sections"][place]["points"][0]["answer"]["origin"]
        assert (folder / file).is_file()
    number, missing = paper(folder, "self-assessment")["counted"]
    first = f"The papers have {number} points: {number - missing} answered, {missing} not stated."
    assert number > 100 and first in (folder / "self-assessment.en.md").read_text(encoding="utf-8")


def test_summary_tells_unused_sources_unsearched_harm_and_reserved_rights(run_folder: Run) -> None:
    name, harmful = "training-content-summary", "Documents removed as harmful"
    reserved = "Documents removed for a reservation, an opt-out or a license"
    statistics = run_folder.read("corpus/main/statistics.json")
    statistics["sources"]["tales"]["documents_out"] = 0
    statistics["totals"]["stages"][0]["removed"] |= {"opt_out": 7}
    run_folder.write("corpus/main/statistics.json", statistics)
    folder = written(run_folder)
    used = [
        point["answer"]["text"]
        for part in paper(folder, name)["sections"]
        for point in part["points"]
        if point["title"] == "Used"
    ]
    assert "read, but no document of theirs was used: tales" in used and "yes, text: laws" in used
    assert "no source is described as of this kind" in used
    assert (
        table(folder, name, harmful)[0][1].startswith("not searched for") and table(folder, name, harmful)[0][2] == "–"
    )
    assert table(folder, name, reserved)[0][2] == "7"
    curation = answer(folder, name, "Curation: what was removed")["text"]
    assert "368 removed by rules of language and quality, 7 because rights are reserved or unclear" in curation
    del statistics["totals"]["stages"][0]["removed"]["opt_out"]
    run_folder.write("corpus/main/statistics.json", statistics)
    (row,) = table(written(run_folder), name, reserved)
    assert row[1:] == ["none removed for this reason; no source has an opt-out list", "0"]
    statistics["flags"] = {"scheldwoorden": {"flagged": 2, "removed": 0, "kept": 2}}
    run_folder.write("corpus/main/statistics.json", statistics)
    run_folder.write("corpus/main/forgotten.json", PROOF)
    folder = written(run_folder)
    for title in (harmful, reserved):
        assert table(folder, name, title)[0][1:] == ["none removed for this reason", "0"]


@pytest.mark.parametrize(
    ("basis", "url", "stated", "section"),
    [
        ("public-domain", None, None, "2.6"),
        ("opt-in-agreement", None, None, "2.2"),
        ("license", "https://voorbeeld.nl/", None, "2.1"),
        ("license", "https://voorbeeld.nl/", "crawled", "2.3"),
        ("license", None, "third-party", "2.2"),
        ("license", None, "user", "2.4"),
        ("license", None, "synthetic", "2.5"),
    ],
)
def test_each_source_is_listed_in_one_section_by_rights_or_statement(
    run_folder: Run, basis: str, url: str | None, stated: str | None, section: str
) -> None:
    manifest = run_folder.read("sources/tales/manifest.json")
    manifest["source"]["rights"] = {"basis": basis, "holder": "the storytellers", "url": url}
    run_folder.write("sources/tales/manifest.json", manifest)
    folder = written(run_folder, **({"data_categories": {"tales": stated}} if stated else {}))
    content = paper(folder, "training-content-summary")
    tables = [(part["number"], t) for part in content["sections"] for t in part["tables"]]
    where = [
        number for number, t in tables if "Holder or publisher" in t["head"] for row in t["rows"] if row[0] == "tales"
    ]
    assert where == [section]
    rows = {
        row[0]: row
        for part in paper(folder, "training-content-summary", "nl")["sections"]
        for t in part["tables"]
        for row in t["rows"]
        if len(row) > 8  # of the tables of sources
    }
    assert rows["tales"][2].endswith(f"({manifest['source']['language']})")
    assert rows["tales"][4] == {"public-domain": "publiek domein", "license": "licentie"}.get(basis, basis)


def test_public_data_sets_above_the_template_share_are_listed_separately(run_folder: Run) -> None:
    manifest = run_folder.read("sources/tales/manifest.json")
    manifest["source"]["rights"]["url"] = "https://verhalen.nl/"
    for size, large in ((92_783, False), (92_784, True)):  # of 3,092,784 bytes 3 % are 92,783.5
        run_folder.write("sources/tales/manifest.json", {**manifest, "bytes": size})
        folder = written(run_folder)
        rows = table(
            folder, "training-content-summary", "Large ones: more than 3 % of the bytes of all public data sets"
        )
        assert [row[0] for row in rows] == (["laws", "tales"] if large else ["laws"])


def test_large_data_sets_table_is_empty_without_public_data_sets(run_folder: Run) -> None:
    folder = written(run_folder, data_categories={"tales": "licensed", "laws": "licensed"})
    name, title = "training-content-summary", "Large ones: more than 3 % of the bytes of all public data sets"
    assert table(folder, name, title) == []
    titles = {table["title"] for part in paper(folder, name)["sections"] for table in part["tables"]}
    assert "Licensed data sets" in titles and not titles & {"The others", "Crawled sources", "Synthetic sources"}


def test_largest_domains_of_crawled_sources_are_listed(run_folder: Run) -> None:
    largest = [[f"{number}.nl", 2, 1000 - number] for number in range(3)]
    domains = {"tales": {"domains": 21, "largest": largest}, "laws": {"domains": 1, "largest": [["wet.nl", 9, 9000]]}}
    run_folder.write("corpus/main/dataset.json", {"corpus": "main", "domains": domains})
    title = "Largest domains of the crawled sources"
    folder = written(run_folder, data_categories={"tales": "crawled"})
    rows = table(folder, "training-content-summary", title)
    assert rows == [["0.nl", "2", "1,000"], ["1.nl", "2", "999"], ["2.nl", "2", "998"]]  # a tenth of 21, rounded up
    text = answer(folder, "training-content-summary", "Most relevant domains")["text"]
    assert text.startswith("3 of 21 domains")
    folder = written(run_folder, data_categories={"tales": "crawled"}, small_provider=True)
    assert len(table(folder, "training-content-summary", title)) == 2  # a twentieth of 21, rounded up
    assert (
        answer(written(run_folder), "training-content-summary", "Most relevant domains")["text"]
        == "no source is described as crawled"
    )


def test_provider_lists_are_shown_and_an_empty_list_is_an_answer(run_folder: Run) -> None:
    day = datetime.date(2026, 5, 4)
    spin = Crawler(name="Spin", purpose="laws", behavior="asks first", first_day=day, last_day=day)
    title = "Crawlers, their purpose, behavior and period"
    folder = written(run_folder, crawlers=[spin])
    text = "Spin, 05/2026 to 05/2026: laws; asks first"
    assert answer(folder, "training-content-summary", title)["text"] == text
    folder = written(run_folder, crawlers=[])
    assert answer(folder, "training-content-summary", DUTCH[title], "nl")["text"] == "geen"


def test_run_without_models_has_papers(run_folder: Run) -> None:
    from pipeline.report.page import run

    arguments = run_folder.arguments(without=("models", "evaluation", "tokenizer", "tokens"))
    counts = run(run_folder.settings, **arguments)
    written = [paper(arguments["papers"], name) for name in DOCUMENT_NAMES if name != "self-assessment"]
    assert counts["points_of_papers"] == sum(one["points"] for one in written)
    assert counts["points_not_stated"] == sum(len(one["not_stated"]) for one in written) > 0
    text = answer(arguments["papers"], "technical-documentation", "Architecture", "en")["text"]
    assert text == "no model was trained"


def test_source_has_its_version_or_reading_date(run_folder: Run) -> None:
    manifest = run_folder.read("sources/laws/manifest.json")
    title = "Large ones: more than 3 % of the bytes of all public data sets"
    assert table(written(run_folder), "training-content-summary", title)[0][7] == "read on 01/03/2026 (1 March 2026)"
    manifest["source"]["dataset"] = {"name": "overheid/wetten", "revision": "a" * 40}
    run_folder.write("sources/laws/manifest.json", manifest)
    assert table(written(run_folder), "training-content-summary", title)[0][7] == "a" * 40


def test_day_of_the_last_reading_is_that_of_the_latest_source(run_folder: Run) -> None:
    name = "provenance/records/sources.fingerprint.laws.0.json"
    run_folder.write(name, {**run_folder.read(name), "ended": "2026-04-02T08:00:00.000+00:00"})
    title = "Day on which the files were read last"
    assert answer(written(run_folder), "training-content-summary", title)["text"] == "02/04/2026 (2 April 2026)"


SUMMARY = "training-content-summary"
STATUS = {"summary_version": "1.1", "summary_changed": "2026-08-01", "summary_url": "https://voorbeeld.nl/"}


def test_summary_says_that_it_is_the_newest_stated_version(run_folder: Run) -> None:
    title = "Whether this is the newest version"
    folder = written(run_folder, **STATUS)
    assert answer(folder, SUMMARY, title)["text"] == (
        "This is version 1.1, last changed on 01/08/2026 (1 August 2026). It is the newest version that the provider "
        "has stated. If https://voorbeeld.nl/ has a later one, that one replaces it."
    )
    dutch = answer(folder, SUMMARY, DUTCH[title], "nl")["text"]
    assert "versie 1.1, voor het laatst gewijzigd op 01/08/2026 (1 augustus 2026)" in dutch
    for left_out in STATUS:
        stated = {key: value for key, value in STATUS.items() if key != left_out}
        result = answer(written(run_folder, **stated), SUMMARY, title)
        assert (result["text"], result["key"]) == (None, f"disclosure.{left_out}")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        (SUMMARY, "Languages of the texts"),
        ("technical-documentation", "Scope: languages"),
        ("model-documentation-form", "Scope: languages"),
    ],
)
def test_languages_are_a_list_and_their_sizes_a_table(run_folder: Run, name: str, title: str) -> None:
    folder = written(run_folder)
    assert answer(folder, name, title)["text"] == "English (en), Dutch (nl)"
    assert table(folder, name, "Size by language") == [
        ["English (en)", "main", "555", "2,664,000"],
        ["Dutch (nl)", "main", "1,026", "4,924,800"],
    ]


def test_language_of_two_corpora_is_listed_once(run_folder: Run) -> None:
    statistics = run_folder.read("corpus/main/statistics.json")
    run_folder.write("corpus/other/statistics.json", {**statistics, "corpus": "other"})
    folder = written(run_folder)
    assert answer(folder, SUMMARY, "Languages of the texts")["text"] == "English (en), Dutch (nl)"
    assert [row[1] for row in table(folder, SUMMARY, "Size by language")] == ["main", "main", "other", "other"]


def test_size_is_counted_without_licenses_which_have_their_own_point(run_folder: Run) -> None:
    folder = written(run_folder)
    text = answer(folder, SUMMARY, "How the size is counted")["text"]
    assert "not compressed" in text and "tokenizer (the program" in text and "icense" not in text
    text = answer(folder, SUMMARY, "How licenses and publishers are known")["text"]
    assert text.startswith("Licenses and publishers are as the provider states them.")


def test_texts_have_their_length_and_years(run_folder: Run) -> None:
    title = "Length and years of the texts"
    mean = "corpus main: a text has 4,800 bytes on average (most letters take one)"  # 7,588,800 / 1,581
    assert answer(written(run_folder), SUMMARY, title)["text"] == mean
    content: dict[str, Any] = {"corpus": "main", "domains": {}, "years": {"not stated": {"documents": 1581}}}
    run_folder.write("corpus/main/dataset.json", content)
    assert answer(written(run_folder), SUMMARY, title)["text"] == f"{mean}; no text states its year"
    content["years"] |= {"2019": {"documents": 1000}, "1848": {"documents": 34}}
    content["lengths"] = {"en": [[18, 6], [19, 50]], "nl": [[18, 8], [19, 66]]}
    run_folder.write("corpus/main/dataset.json", content)
    middle = "half of the texts are shorter than a length between 724 and 1,024 characters"  # 2^9.5 to 2^10
    years = "1,034 texts state a year, from 1848 to 2019"
    assert answer(written(run_folder), SUMMARY, title)["text"] == f"{mean}; {middle}; {years}"
    statistics = run_folder.read("corpus/main/statistics.json")
    statistics["totals"]["documents_out"] = 0
    run_folder.write("corpus/main/statistics.json", statistics)
    assert answer(written(run_folder), SUMMARY, title)["text"] == "no document was used"


def test_middle_length_is_that_of_all_languages() -> None:
    assert find_middle_length({}) is None
    assert find_middle_length({"nl": [[4, 5], [6, 5]]}) == (4, 6)  # 5 of 10 are a half: from 2^2 to 2^2.5
    assert find_middle_length({"nl": [[6, 6]], "en": [[4, 5]]}) == (8, 11)  # 5 of 11 are less than a half


def test_kinds_of_text_are_those_of_used_sources(run_folder: Run) -> None:
    title = "Kinds of text that the sources name"
    assert answer(written(run_folder), SUMMARY, title)["text"] == "the kind of text is stated for no source"
    sources = {
        "a": {"genre": "drama", "documents": 3},
        "b": {"genre": "laws", "documents": 1},
        "c": {"genre": "web", "documents": 0},
        "d": {"genre": None, "documents": 9},
    }
    run_folder.write("corpus/main/dataset.json", {"corpus": "main", "domains": {}, "sources": sources})
    folder = written(run_folder)
    assert answer(folder, SUMMARY, title)["text"] == "laws; plays"
    assert answer(folder, SUMMARY, DUTCH[title], "nl")["text"] == "wetten; toneelstukken"


def test_model_is_named_with_its_address_and_the_hash_of_its_weights(run_folder: Run) -> None:
    base = "model base: tiny/base, with 3,412,224 parameters (numbers whose values come from the training)"
    assert answer(written(run_folder), SUMMARY, "Models")["text"] == base
    weights = {"name": "final", "path": "models/base/final/model.safetensors", "sha256": "3" * 64, "bytes": 9}
    more = {**weights, "path": "models/base/final/model-2.safetensors", "sha256": "4" * 64}
    run_folder.record("pretrain.export", {"model": "base"}, 9, outputs=[weights, more])
    result = answer(written(run_folder, model_documentation="https://voorbeeld.nl/m"), SUMMARY, "Models")
    explained = "sha256 (a number computed from the file of its weights, which only exact copies share)"
    assert result["text"] == f"{base}. {explained}: {'3' * 64}. Described at https://voorbeeld.nl/m"
    assert "provenance/records/pretrain.export.base.json" in result["origin"]


def test_public_data_sets_have_what_was_left_out_and_why(run_folder: Run) -> None:
    title = "Parts of these data sets that were selected, and why others were left out"
    assert table(written(run_folder), SUMMARY, title) == [
        [
            "laws",
            "files that the provider gave: 2",
            "1,026 of 1,200",
            "14 in another language, or in none that is recognized; "
            "151 by rules of quality, or because they are damaged; 9 because they repeat another document",
        ]
    ]
    manifest = run_folder.read("sources/laws/manifest.json")
    manifest["source"]["dataset"] = {"name": "overheid/wetten", "revision": "a" * 40, "split": "train"}
    run_folder.write("sources/laws/manifest.json", manifest)
    statistics = run_folder.read("corpus/main/statistics.json")
    (filtered, *_) = statistics["sources"]["laws"]["stages"]
    filtered["removed"] = {"opt_out": 1, "license_differs": 2, "language": 3, "mixed_language": 4}
    filtered["removed"] |= {"language_differs": 5, "url_blocked": 6, "url_not_allowed": 7, "harmful": 8, "other": 0}
    asked = {"stage": "decontaminate", "in": 9, "kept": 0, "removed": {"contaminated": 9}}
    statistics["sources"]["laws"]["stages"] = [filtered, asked]
    run_folder.write("corpus/main/statistics.json", statistics)
    (row,) = table(written(run_folder), SUMMARY, title)
    assert row[1] == "the part that its publisher calls train"
    assert row[3].split("; ") == [
        "3 because rights are reserved or unclear",
        "12 in another language, or in none that is recognized",
        "13 from websites that the provider's lists exclude",
        "8 flagged as harmful",
        "9 because they contain questions that the model is tested with",
    ]
    statistics["sources"]["laws"]["stages"] = []
    run_folder.write("corpus/main/statistics.json", statistics)
    assert table(written(run_folder), SUMMARY, title)[0][3] == "none"


def test_what_was_left_out_is_that_of_the_corpus_that_used_most(run_folder: Run) -> None:
    statistics = run_folder.read("corpus/main/statistics.json")
    statistics["sources"]["laws"] |= {"documents_in": 5, "documents_out": 3, "stages": []}
    run_folder.write("corpus/a/statistics.json", {**statistics, "corpus": "a"})
    title = "Parts of these data sets that were selected, and why others were left out"
    (row,) = table(written(run_folder), SUMMARY, title)
    assert row[2] == "1,026 of 1,200" and row[3].startswith("14 in another language")


def test_no_public_data_set_means_no_table_of_parts(run_folder: Run) -> None:
    folder = written(run_folder, data_categories={"tales": "licensed", "laws": "licensed"})
    titles = {table["title"] for part in paper(folder, SUMMARY)["sections"] for table in part["tables"]}
    assert not any(title.startswith("Parts of these data sets") for title in titles)


@pytest.mark.parametrize(
    ("title", "address", "expected"),
    [
        (None, "https://huggingface.co/datasets/overheid/wetten/tree/abc", "overheid/wetten"),
        ("My name", "https://huggingface.co/datasets/overheid/wetten/tree/abc", "overheid/wetten"),
        ("My name", "https://github.com/dracor-org/dutchdracor/tree/de93", "My name"),
        (None, "https://github.com/dracor-org/dutchdracor/tree/de93", "dracor-org/dutchdracor"),
        (None, "https://www.github.com/a/b.c", "a/b.c"),
        (None, "https://voorbeeld.nl/github.com/a/b", None),
        ("My name", None, "My name"),
        (None, None, None),
    ],
)
def test_data_set_has_the_name_that_its_address_shows(title: str | None, address: str | None, expected: str) -> None:
    description = SourceDescription(title=title, content="laws", collected="not known")
    assert find_title(description, address) == expected
    if title is None:
        assert find_title(None, address) == expected


def test_hub_data_set_is_linked_at_its_revision(run_folder: Run) -> None:
    manifest = run_folder.read("sources/laws/manifest.json")
    manifest["source"]["dataset"] = {"name": "overheid/wetten", "revision": "a" * 40, "split": "train"}
    run_folder.write("sources/laws/manifest.json", manifest)
    title = "Large ones: more than 3 % of the bytes of all public data sets"
    row = table(written(run_folder), SUMMARY, title)[0]
    assert (row[1], row[6]) == ("overheid/wetten", f"https://huggingface.co/datasets/overheid/wetten/tree/{'a' * 40}")


LICENSED = "Licensed by the holders of the rights or those who represent them"
NONE = "no source is described as of this kind"


@pytest.mark.parametrize(
    ("rights", "stated", "licensed", "crawled"),
    [
        # tales has no address: without a statement it may be of any kind
        ({}, {}, f"{NONE}; the kind of these is not described: tales", NONE),
        ({}, {"tales": "other"}, "No. All sources of this run (2) are of another kind.", NONE),
        ({"url": "https://verhalen.nl/"}, {}, "No. All sources of this run (2) are of another kind.", NONE),
        ({"basis": "opt-in-agreement"}, {}, "yes, text: tales", NONE),
        (
            {"basis": "opt-in-agreement", "url": "https://verhalen.nl/agreement"},
            {},
            f"{NONE}; the kind of these is not described: tales",
            NONE,
        ),
        ({}, {"tales": "other", "laws": "public"}, *2 * ["No. All sources of this run (2) are of another kind."]),
    ],
)
def test_plain_no_needs_the_kind_of_every_source(
    run_folder: Run, rights: dict[str, str], stated: dict[str, str], licensed: str, crawled: str
) -> None:
    manifest = run_folder.read("sources/tales/manifest.json")
    manifest["source"]["rights"] |= rights
    run_folder.write("sources/tales/manifest.json", manifest)
    folder = written(run_folder, data_categories=stated)
    assert answer(folder, SUMMARY, LICENSED)["text"] == licensed
    assert answer(folder, SUMMARY, "Sources that were crawled")["text"] == crawled


def test_descriptions_say_that_data_sets_are_text_in_a_language(run_folder: Run) -> None:
    title = "What their texts are, and when they were collected"
    described = {"laws": {"content": "laws of a kingdom.", "collected": "1990 to 2026"}}
    for language, text in (("nl", "in Dutch (nl)"), ("", "language not stated")):
        manifest = run_folder.read("sources/laws/manifest.json")
        manifest["source"]["language"] = language
        run_folder.write("sources/laws/manifest.json", manifest)
        sections = paper(written(run_folder, source_descriptions=described), SUMMARY)["sections"]
        (found,) = [p for s in sections if s["number"] == "2.1" for p in s["points"] if p["title"] == title]
        assert found["answer"]["text"] == f"laws: text, {text}. laws of a kingdom. Collected: 1990 to 2026"


def test_spdx_corpus_has_the_bytes_that_are_used_and_all_elements_one_creation(run_folder: Run) -> None:
    graph = json.loads((written(run_folder) / "spdx.json").read_text())["@graph"]
    (corpus,) = [element for element in graph if element.get("name") == "corpus main"]
    assert corpus["dataset_datasetSize"] == 7_588_800  # 1,581 documents of 4,800 bytes
    (creation,) = [element for element in graph if element["type"] == "CreationInfo"]
    assert creation["@id"].startswith("_:"), "a blank node, as JSON-LD writes it"
    assert {element["creationInfo"] for element in graph if element is not creation} == {creation["@id"]}
