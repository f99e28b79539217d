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
from pipeline.report.papers.write import DOCUMENT_NAMES
from pipeline.report.settings import Crawler, Disclosure
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
    assert "4.19e+13 floating-point operations: 6 for each parameter and each of 2,048,000 tokens" in compute
    assert "(5.59e+13 if 8 are counted" in compute and "this is 1 / 2,400,000,000 of that" in compute
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
    first = f"The papers have {number} points: {number - missing} are answered, {missing} are not stated."
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
    where = [
        part["number"] for part in content["sections"] for t in part["tables"] for row in t["rows"] if row[0] == "tales"
    ]
    assert where == [section]
    rows = {
        row[0]: row
        for part in paper(folder, "training-content-summary", "nl")["sections"]
        for t in part["tables"]
        for row in t["rows"]
    }
    assert rows["tales"][1].endswith(f"({manifest['source']['language']})")
    assert rows["tales"][3] == {"public-domain": "publiek domein", "license": "licentie"}.get(basis, basis)


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
    run(run_folder.settings, **arguments)
    text = answer(arguments["papers"], "technical-documentation", "Architecture", "en")["text"]
    assert text == "no model was trained"


def test_source_has_its_version_or_reading_date(run_folder: Run) -> None:
    manifest = run_folder.read("sources/laws/manifest.json")
    title = "Large ones: more than 3 % of the bytes of all public data sets"
    assert table(written(run_folder), "training-content-summary", title)[0][6] == "read on 2026-03-01"
    manifest["source"]["dataset"] = {"name": "overheid/wetten", "revision": "a" * 40}
    run_folder.write("sources/laws/manifest.json", manifest)
    assert table(written(run_folder), "training-content-summary", title)[0][6] == "a" * 40


def test_day_of_the_last_reading_is_that_of_the_latest_source(run_folder: Run) -> None:
    name = "provenance/records/sources.fingerprint.laws.0.json"
    run_folder.write(name, {**run_folder.read(name), "ended": "2026-04-02T08:00:00.000+00:00"})
    title = "Day on which the files were read last"
    assert answer(written(run_folder), "training-content-summary", title)["text"] == "2026-04-02"
