"""A stated key raises the summary score by the announced gain; nothing is lost if all is stated."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.application import main
from pipeline.core.errors import InputError
from pipeline.report.papers.content_summary_rubric import GROUPS, Criterion, SummaryScore, read_criteria, score_summary
from tests.report.example import Run, entry
from tests.report.papers.test_papers import written

STATED: dict[str, Any] = {
    "summary_version": "1.0",
    "summary_changed": "2026-08-01",
    "summary_url": "https://voorbeeld.nl/samenvatting",
    "summary_changes": "this is the first version",
    "summary_notices": "on the page of the models",
    "placed_on_market": "2026-08-02",
    "authorized_representative": "none is needed: the provider is established in the Netherlands",
    "model_documentation": "https://voorbeeld.nl/model",
    "content_types": "laws and tales",
    "latest_data": "2026-02-03",
    "continuous_training": "no",
    "regions_and_groups": "the Netherlands; no group of people stands out",
    "data_selection": "Both data sets were read whole, for their plain language. Rules left out some of their texts.",
    "source_descriptions": {
        "laws": {
            "title": "Basiswettenbestand",
            "content": "laws of the Netherlands in Dutch",
            "collected": "1990 to 2026",
        },
        "tales": {"content": "tales in English", "collected": "not known"},
    },
    "crawlers": [],
    "synthetic_data": [],
    "user_data": "none",
    "user_interactions": "none",
    "code_of_practice": "no",
    "reservations": "Nothing was crawled, so robots.txt (a website's wishes) does not apply. Opt-outs are obeyed.",
    "removal": "Write to the contact. The text is left out of the next version.",
    "illegal_content": "Texts of known illegal websites are left out.",
}
# Sums of the rubric's weights over the metrics that apply to texts without optional comments, by hand from its table.
POSSIBLE = {
    "The document": (11, 4, 7, 5, 10, 9),
    "General information": (53, 89, 8, 27, 5, 14),
    "Publicly available data sets": (92, 146, 23, 23, 20, 19),
    "Data processing": (24, 19, 3, 37, 15, 69),
}


def score(run_folder: Run, folder: Path, **disclosed: Any) -> SummaryScore:
    papers = folder / "report/papers"
    shutil.rmtree(papers, ignore_errors=True)
    shutil.copytree(written(run_folder, **disclosed), papers)
    return score_summary(folder)


@pytest.fixture
def contact(run_folder: Run) -> Run:
    run_folder.settings = run_folder.settings.model_copy(update={"contact": "teksten@voorbeeld.nl"})
    set_version(run_folder, "a" * 40)
    sources = {"laws": {"genre": "laws", "documents": 1026}, "tales": {"genre": "prose", "documents": 555}}
    years = {"1990": {"documents": 26}, "2026": {"documents": 1000}, "not stated": {"documents": 555}}
    lengths = {"en": [[23, 555]], "nl": [[24, 1026]]}
    content = {"corpus": "main", "domains": {}, "sources": sources, "years": years, "lengths": lengths}
    run_folder.write("corpus/main/dataset.json", content)
    weights = entry("final", "models/base/final/model.safetensors")
    run_folder.record("pretrain.export", {"model": "base"}, 9, outputs=[weights])
    return run_folder


def set_version(run_folder: Run, revision: str | None, source: str = "laws") -> None:
    manifest = run_folder.read(f"sources/{source}/manifest.json")
    manifest["source"]["dataset"] = {"name": "overheid/wetten", "revision": revision, "split": "train"}
    run_folder.write(f"sources/{source}/manifest.json", manifest)


def test_complete_plain_summary_has_the_full_score(contact: Run, tmp_path: Path) -> None:
    full = score(contact, tmp_path, **STATED, data_categories={"laws": "public", "tales": "other"})
    assert [entry.advice for entry in full.improvements] == []
    assert (full.percent("transparency"), full.percent("usefulness")) == (100, 100)
    for title, points in POSSIBLE.items():
        assert tuple(full.possible[title, dimension] for dimension in GROUPS) == points


@pytest.mark.parametrize("left_out", sorted(STATED))
def test_missing_key_costs_the_score_that_its_advice_promises(contact: Run, tmp_path: Path, left_out: str) -> None:
    less = score(contact, tmp_path, **{key: value for key, value in STATED.items() if key != left_out})
    assert {entry.key for entry in less.improvements} == {f"disclosure.{left_out}"}
    for group in ("transparency", "usefulness"):
        gain = sum(entry.gain.get(group, 0) for entry in less.improvements)
        assert less.percent(group) + gain == pytest.approx(100)
    assert less.percent("transparency") + less.percent("usefulness") < 200


@pytest.mark.parametrize(
    ("key", "text", "advice"),
    [
        (
            "removal",
            f"A text is removed {'and again ' * 12}when you ask us.",
            "sentence of 32 words: make it 25 or fewer",
        ),
        ("removal", "See gone.json for the list.", "has the file name gone.json"),
        ("regions_and_groups", "By perplexity none stands out", "does not explain perplexity"),
        ("illegal_content", "A hash of each text is compared.", "does not explain hash"),
        ("summary_notices", "Per epoch, on the page.", "does not explain epoch"),
        ("summary_notices", "After both epochs, on the page.", "does not explain epochs"),
        ("summary_notices", "With new CORPORA, on the page.", "does not explain CORPORA"),
        ("summary_notices", "With other hashes, on the page.", "does not explain hashes"),
    ],
)
def test_technical_wording_is_named(contact: Run, tmp_path: Path, key: str, text: str, advice: str) -> None:
    result = score(contact, tmp_path, **{**STATED, key: text})
    assert result.improvements and all(entry.key == f"disclosure.{key}" for entry in result.improvements)
    assert advice in result.improvements[0].advice
    assert result.percent("usefulness") < 100 == result.percent("transparency")


def test_measures_without_robots_txt_are_incomplete(contact: Run, tmp_path: Path) -> None:
    result = score(contact, tmp_path, **{**STATED, "reservations": "Every opt-out is obeyed."})
    (entry,) = result.improvements
    assert entry.advice == "also say how robots.txt is respected (robots.txt)" and entry.metrics == ("F3.1.b.1",)
    assert entry.gain == {"usefulness": pytest.approx(100 - result.percent("usefulness"))}


def test_category_criteria_count_only_if_the_category_is_used(contact: Run, tmp_path: Path) -> None:
    crawled = score(contact, tmp_path, **STATED, data_categories={"tales": "crawled"})
    assert crawled.possible["Crawled and scraped data", "clarity"] == 129, "as the rubric counts without comments"
    lost = {metric for entry in crawled.improvements for metric in entry.metrics}
    assert {"F2.3.b.1", "F2.3.h.1"} <= lost, "crawlers and domains of crawled data are missing"
    assert score(contact, tmp_path, **STATED).possible["Crawled and scraped data", "clarity"] == 0


def test_each_metric_belongs_to_one_criterion() -> None:
    metrics = Counter(
        metric for part in read_criteria().sections.values() for one in part.criteria for metric in one.of
    )
    assert len(metrics) == 207 and max(metrics.values()) == 1


def test_default_texts_score_as_not_understandable(contact: Run, tmp_path: Path) -> None:
    bare = score(contact, tmp_path)
    lost = {metric for entry in bare.improvements for metric in entry.metrics}
    assert {"D4", "F2.1.d.8", "F3.2.a.2"} <= lost and bare.reached["The document", "comprehension"] == 0
    crawled = score(contact, tmp_path, data_categories={"tales": "crawled", "laws": "third-party"})
    lost = {metric for entry in crawled.improvements for metric in entry.metrics}
    assert {"F2.3.c.3", "F2.2.2.d.7"} <= lost
    advice = {entry.key: entry.advice for entry in bare.improvements}
    assert advice["disclosure"].startswith("state a text of your own, so that the summary is understood")
    dated = score(contact, tmp_path, summary_version="1.0", latest_data="2026-02-03", continuous_training="no")
    assert dated.reached["The document", "comprehension"] == 0, "a version, a date and a no are not texts"
    one = score(contact, tmp_path, content_types="laws and tales")
    assert one.reached["The document", "comprehension"] == 6, "all stated texts are understood"


def test_large_data_sets_need_urls_and_versions(contact: Run, tmp_path: Path) -> None:
    set_version(contact, None)
    unversioned = score(contact, tmp_path, **STATED)
    (entry,) = unversioned.improvements
    assert (entry.key, entry.metrics) == ("sources", ("F2.1.c.5",)) and set(entry.gain) == {"transparency"}
    assert entry.advice == "state the version of each large one (rights.version, or dataset.revision): laws"
    manifest = contact.read("sources/laws/manifest.json")
    manifest["source"]["rights"]["version"] = "2026-01"
    contact.write("sources/laws/manifest.json", manifest)
    assert not score(contact, tmp_path, **STATED).improvements
    del manifest["source"]["rights"]["version"]
    contact.write("sources/laws/manifest.json", manifest)
    manifest = contact.read("sources/tales/manifest.json")
    del manifest["source"]["rights"]["url"]
    contact.write("sources/tales/manifest.json", manifest)
    unaddressed = score(contact, tmp_path, **STATED, data_categories={"tales": "public"})
    lost = {metrics: entry.advice for entry in unaddressed.improvements for metrics in entry.metrics}
    assert lost["F2.1.c.3"] == "state the address of each large one (rights.url): tales"
    assert lost["F2.1.c.5"].endswith(": laws, tales") and "F2.1.c.1" not in lost
    title = "the name of each large one at its address (disclosure.source_descriptions.SOURCE.title)"
    assert lost["F2.1.c.4"] == f"state {title}: tales", "laws has a title of its own"


def test_status_needs_version_date_and_address(contact: Run, tmp_path: Path) -> None:
    less = score(contact, tmp_path, **{**STATED, "summary_changed": None})
    assert "D16" in {metric for entry in less.improvements for metric in entry.metrics}


def test_criterion_with_an_unknown_answer_or_no_effect_is_refused() -> None:
    with pytest.raises(ValueError, match=r"D1: the summary has no table sources\.large"):
        Criterion(of=["D1"], weights={"clarity": 1}, table="sources.large", column="Address")
    with pytest.raises(ValueError, match=r"D1: the summary has no answer disclosure\.limitations"):
        Criterion(of=["D1"], weights={"clarity": 1}, answer="disclosure.limitations")
    with pytest.raises(ValueError, match="D1: nothing decides it"):
        Criterion(of=["D1"], weights={"clarity": 1}, asks="a thing")


def test_command_prints_scores_and_improvements(
    contact: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    less = score(contact, tmp_path, **{**STATED, "removal": None})
    capsys.readouterr()
    assert main(["papers", "check", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"transparency 100.0 of 100, usefulness {less.percent('usefulness'):.1f} of 100" in printed
    assert "disclosure.removal: state how somebody has a text removed later (F3.1.b.3)" in printed
    assert main(["papers", "check", str(tmp_path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["scores"]["usefulness"] == less.percent("usefulness") and len(content["improvements"]) == 1


def test_run_without_a_current_summary_is_refused(run_folder: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"training-content-summary\.en\.json is missing: finish the run first"):
        score_summary(tmp_path)
    score(run_folder, tmp_path)
    path = tmp_path / "report/papers/training-content-summary.en.json"
    text = path.read_text()
    for *place, last in (
        ["sections", 0, "points", 0],
        ["sections", 3],
        ["sections", 4, "tables", 0, "title"],
        ["sections", 4, "tables", 0, "head", 7],
    ):
        content: Any = json.loads(text)
        part = content
        for key in place:
            part = part[key]
        if last in ("title", 7):
            part[last] = "other"
        else:
            del part[last]
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match="has other points or columns than this version"):
            score_summary(tmp_path)


def test_damaged_summary_is_refused_with_a_remedy(run_folder: Run, tmp_path: Path) -> None:
    score(run_folder, tmp_path)
    path = tmp_path / "report/papers/training-content-summary.en.json"
    whole = path.read_bytes()
    for damaged in (whole[:100], b"\xff" + whole, whole.replace(b'"sections"', b'"parts"')):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"en\.json is damaged: remove .*papers and write it again, polder run"):
            score_summary(tmp_path)


def test_largest_gain_is_first(run_folder: Run, tmp_path: Path) -> None:
    gains = [sum(entry.gain.values()) for entry in score(run_folder, tmp_path).improvements]
    assert gains == sorted(gains, reverse=True) and len(gains) > 20


def test_each_source_of_a_category_must_be_described(contact: Run, tmp_path: Path) -> None:
    set_version(contact, "b" * 40, "tales")
    half = {"laws": STATED["source_descriptions"]["laws"]}
    result = score(contact, tmp_path, **{**STATED, "source_descriptions": half}, data_categories={"tales": "public"})
    assert {entry.key for entry in result.improvements} == {"disclosure.source_descriptions"}


def test_term_needs_one_explanation(contact: Run, tmp_path: Path) -> None:
    changes = {"summary_changes": "a hash (a short name of a text) of each text", "removal": "By its hash."}
    assert score(contact, tmp_path, **{**STATED, **changes}).improvements == []


def test_all_that_is_unclear_in_a_text_is_advised_at_once(contact: Run, tmp_path: Path) -> None:
    (entry,) = score(contact, tmp_path, **{**STATED, "removal": "Send list.json with its hash later."}).improvements
    name, word = (
        "has the file name list.json: say what it is",
        "does not explain hash: explain it in brackets behind it",
    )
    assert (entry.key, entry.advice) == ("disclosure.removal", f"3.1.3 {name}; 3.1.3 {word}")
