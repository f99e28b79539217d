"""The first page: who, what, sources, size, quality, problems, signature, and evidence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.report import energy_accounting, template_context
from pipeline.report.key_figures import ConservationCheck, list_conservation_checks
from tests.report.account_example import make_accounting
from tests.report.example import HOSTILE, Run
from tests.report.test_page import made, outline
from tests.report.test_translator import dutch_catalogue

FIGURE_KEYS = {"figure", "label", "value", "unit", "how", "from", "command"}


def figures(arguments: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {figure["figure"]: figure for figure in json.loads(arguments["figures"].read_text(encoding="utf-8"))}


def test_questions_are_answered_before_the_sections(run_folder: Run) -> None:
    text = outline(made(run_folder)["page"]).text
    questions = ("What was made", "From what", "How much it took", "How good it is", "What is missing", "1. Summary")
    more = ("Who made it?", "Who signed it?", "What went wrong?", "2. Sources and rights")
    places = [text.index(words) for words in (*questions, *more)]
    assert places == sorted(places)
    assert "Provider: Example & Co." in text and "3,412,224 parameters" in text
    assert "base Dutch (nl) 17 (9 to 25) 1 of 2 tasks" in text
    assert "failed 1, killed 1." in text
    assert "segment up to step 500: batches left out 2." in text


def test_first_screen_begins_with_the_contents_and_names_what_is_missing(
    run_folder: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = outline(made(run_folder)["page"]).text.partition("1. Summary")[0]
    assert first.index("Sources and rights") < first.index("What was made")
    assert "Corpus main: 1,581 of 2,000 documents were kept (" in first
    assert "Energy measurement: meters saw 90.0 % of the time on nodes (problems: 1)." in first
    assert re.search(r"The provider has answered 1 of \d+ questions of the legal documents\.", first)

    for measured, sentence in (
        (0.0, "No energy was measured: meters saw 0.0 % of the time on nodes (section 8)."),
        (1.0, "Energy measurement: meters saw 0.0 % of the time on nodes (problems: 1)."),
    ):

        def change_accounting(*given: Any, share: float = measured) -> dict[str, Any]:
            content = make_accounting(*given)
            content["coverage"]["measured_node_seconds"] = 0.0
            joules = content["total"]["joules"]
            content["total"] |= {"measured_joules": share * joules, "estimated_joules": (1 - share) * joules}
            return content

        monkeypatch.setattr(energy_accounting, "_compute_accounting", change_accounting)
        assert sentence in outline(made(run_folder)["page"]).text.partition("1. Summary")[0]


def test_only_used_sources_are_named_and_all_are_counted(run_folder: Run) -> None:
    path = "corpus/main/statistics.json"
    content = run_folder.read(path)
    text = outline(made(run_folder)["page"]).text
    assert "Sources in use: 2 of 2. Licenses: CC0-1.0, CC-BY-4.0." in text
    content["sources"]["tales"]["documents_out"] = 0
    run_folder.write(path, content)
    text = outline(made(run_folder)["page"]).text
    assert "Sources in use: 1 of 2. Licenses: CC0-1.0." in text
    content["sources"]["laws"]["documents_out"] = 0
    run_folder.write(path, content)
    assert "Sources in use: 0 of 2. All sources" in outline(made(run_folder)["page"]).text


def test_first_screen_shows_tasks_not_better_than_baselines_and_failed_attempts(run_folder: Run) -> None:
    sentence = "No model is shown to be better in any task than every trivial baseline"
    first = outline(made(run_folder)["page"]).text.partition("1. Summary")[0]
    assert "1 of 2 tasks" in first and sentence not in first
    assert "Attempts without a valid result: 2 (failed 1, killed 1)" in first
    path = "evaluation/base/500/results.json"
    results = run_folder.read(path)
    tasks = [task | ({"verdict": "not better"} if task["verdict"] else {}) for task in results["tasks"]]
    run_folder.write(path, results | {"tasks": tasks})
    assert sentence in outline(made(run_folder)["page"]).text.partition("1. Summary")[0]


def test_model_with_its_own_seed_shows_it(run_folder: Run) -> None:
    path = "provenance/records/pretrain.segment.base.500.json"
    record = run_folder.read(path)
    for seed, sentence in ((42, "Seed 42."), (20261125, "Seed 42; model base 20261125.")):
        record["settings"] |= {"seed": seed}
        run_folder.write(path, record)
        text = outline(made(run_folder)["page"]).text
        assert sentence in text.partition("Who signed it?")[0]
        assert f"As recorded by the last segment Setting Value seed {seed} " in text.partition("6. Training")[2]


def test_active_parameters_of_an_expert_model_are_shown(run_folder: Run) -> None:
    path = "provenance/records/pretrain.segment.base.500.json"
    record = run_folder.read(path)
    assert "used for each token" not in outline(made(run_folder)["page"]).text
    record["counts"] |= {"active_parameters": 1_234_567}
    run_folder.write(path, record)
    arguments = made(run_folder)
    assert "1,234,567 of them used for each token; 2,048,000 tokens" in outline(arguments["page"]).text
    assert figures(arguments)["model.base.active_parameters"]["value"] == 1_234_567


def test_early_signals_have_no_verdict_and_are_only_in_section_7(run_folder: Run) -> None:
    path = "evaluation/base/500/results.json"
    content = run_folder.read(path)
    before = len(content["tasks"])
    sign = content["tasks"][0] | {"metric": "answer_bits_per_byte", "verdict": None, "higher_is_better": False}
    run_folder.write(path, content | {"tasks": [sign, *content["tasks"]]})
    first, _, rest = outline(made(run_folder)["page"]).text.partition("2. Sources and rights")
    assert "answer_bits_per_byte" not in first and "answer_bits_per_byte" in rest
    assert "17 (9 to 25)" in first and before < 8, "it does not count in the mean"


def test_run_without_a_key_is_called_unsigned(run_folder: Run) -> None:
    assert "Unsigned. Nobody vouches for these files" in outline(made(run_folder)["page"]).text


def test_signer_is_named_but_not_verified(run_folder: Run) -> None:
    signer = {"owner": HOSTILE, "algorithm": "ed25519", "key_sha256": "ab" * 32, "timestamp": None}
    run_folder.write("provenance/signer.json", signer)
    text = outline(made(run_folder)["page"]).text
    assert f"{HOSTILE}, with key {'ab' * 32} (ed25519)." in text and "Unsigned" not in text
    assert "polder verify results/tiny --key OWNER.pub checks the signature" in text


def test_every_key_figure_of_the_page_is_in_the_figures_file_with_evidence(run_folder: Run) -> None:
    arguments = made(run_folder)
    page, key_figures = outline(arguments["page"]), figures(arguments)
    shown = {link["id"]: link["href"] for link in page.all("a") if link.get("class") == "figure"}
    assert len(shown) > 15
    anchors = {"figure-" + name.replace(".", "-"): figure for name, figure in key_figures.items()}
    assert {str(name) for name in shown} <= anchors.keys()
    identifiers = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(identifiers) == len(set(identifiers))
    for name, address in shown.items():
        assert address == f"../{anchors[str(name)]['from'][0]}"
    for figure in key_figures.values():
        assert figure.keys() == FIGURE_KEYS
        assert figure["how"] in {"measured", "estimated", "stated", "counted", "computed"}
        assert figure["from"] and all((run_folder.root / path).exists() for path in figure["from"]), figure
    assert key_figures["model.base.parameters"]["value"] == 3_412_224
    assert (
        key_figures["corpus.main.documents_out"]["value"] == 1581
        and key_figures["tokens.main.train"]["unit"] == "tokens"
    )
    assert key_figures["energy.total"]["how"] == "estimated", "partly estimated values are not called measured"
    accounting = json.loads(arguments["energy"].read_text())
    assert key_figures["energy.total"]["value"] == accounting["total"]["joules"]
    assert key_figures["energy.facility"]["value"] == pytest.approx(1.2 * accounting["total"]["joules"], rel=1e-12)
    assert key_figures["score.base.500.completion.acc"]["value"] == 0.62
    assert key_figures["run.attempts_lost"]["value"] == len(key_figures["run.attempts_lost"]["from"]) == 2


def test_time_sums_all_attempts_except_the_stages_named_in_its_label(run_folder: Run) -> None:
    for hour, step in ((20, "report.page"), (21, "provenance.crate")):
        run_folder.record(step, {}, hour, wall_seconds=7.0, cpu_seconds=5.0)
    arguments = made(run_folder)
    attempts = [json.loads(path.read_text()) for path in run_folder.root.glob("provenance/attempts/*.json")]
    counted = [one for one in attempts if one["step"].split(".")[0] not in ("report", "provenance")]
    assert len(attempts) == len(counted) + 2
    key_figures = figures(arguments)
    assert key_figures["time.wall"]["value"] == pytest.approx(sum(one["wall_seconds"] for one in counted))
    assert key_figures["time.processor"]["value"] == pytest.approx(sum(one["cpu_seconds"] for one in counted))
    for name, what in (("time.wall", "time in jobs"), ("time.processor", "processor time")):
        assert key_figures[name]["label"] == f"{what}, all attempts but those of the stages report and provenance"
    assert "count all attempts of every stage but report and provenance" in outline(arguments["page"]).text


@pytest.mark.parametrize("keep", [0, 1, 40, 400])
def test_truncated_records_and_attempts_are_named_and_the_rest_is_shown(run_folder: Run, keep: int) -> None:
    cut = ["provenance/records/tokens.shard.main.0.json"]
    cut += [
        str(path.relative_to(run_folder.root)) for path in run_folder.root.glob("provenance/attempts/corpus.filter*")
    ]
    run_folder.write("provenance/accounting/1.json", "{}")
    for path in cut:
        file = run_folder.root / path
        file.write_bytes(file.read_bytes()[:keep])
    arguments = made(run_folder)
    page = outline(arguments["page"])
    assert "3 files cannot be read and are left out:" in page.text
    links = {link["href"] for link in page.all("a")}
    assert {f"../{path}" for path in cut} <= links
    assert "finished, but its record cannot be read 1" in page.text
    assert (
        "3,412,224 parameters" in page.text and "corpus.filter" not in page.text.split("9. Jobs and machines")[1][:400]
    )
    assert figures(arguments)["run.unreadable"]["value"] == 3


def test_truncated_signer_file_is_reported(run_folder: Run) -> None:
    run_folder.write("provenance/signer.json", '{"owner": "A')
    text = outline(made(run_folder)["page"]).text
    assert "Unsigned." in text and "provenance/signer.json" in text and "1 file cannot be read" in text


def test_papers_next_to_the_page_are_linked(run_folder: Run) -> None:
    run_folder.write("report/model-documentation.html", "<p>a paper</p>")
    links = {link["href"] for link in outline(made(run_folder)["page"]).all("a")}
    assert {"model-documentation.html", "model-card.md", "energy.json", "figures.json"} <= links


def test_dutch_page_has_the_same_structure(run_folder: Run) -> None:
    english = outline(made(run_folder)["page"])
    dutch = outline(made(run_folder, language="nl")["page"])
    assert dutch.all("html") == [{"lang": "nl"}] and english.all("html") == [{"lang": "en"}]
    assert [tag for tag, _ in dutch.tags] == [tag for tag, _ in english.tags]
    for words in (
        "Wie heeft het gemaakt?",
        "Wat er ontbreekt",
        "Niet ondertekend.",
        "3.412.224 parameters",
        "Beter dan elke triviale baseline",
        "Verlies",
    ):
        assert words in dutch.text
    jobs = outline(run_folder.root / "report/jobs.html")
    assert "corpus main, alle bronnen: erin = behouden + verwijderd, stap filter" in jobs.text
    assert re.search(r"behouden: [\d.]+ van [\d.]+", dutch.text)
    assert "corpus.deduplicate, afgemaakt: 2026-03-01" in dutch.text and "finished: 2026" not in dutch.text
    for words in ("Who made it?", "Processor time", "How it is known", "estimated"):
        assert words in english.text and words not in dutch.text.split("8. ")[0]
    assert HOSTILE in dutch.text, "data text is unchanged"


def test_every_check_has_its_dutch_sentence(run_folder: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[ConservationCheck] = []

    def keep(*given: Any) -> list[ConservationCheck]:
        results.extend(list_conservation_checks(*given))
        return results

    monkeypatch.setattr(template_context, "list_conservation_checks", keep)
    made(run_folder)
    names = re.compile(r"{\w+}")
    translated = {check.sentence: dutch_catalogue()[check.sentence] for check in results}
    assert len(translated) > 20
    for sentence, dutch in translated.items():
        assert names.findall(sentence) == names.findall(dutch)


def test_table_of_more_than_a_hundred_jobs_has_one_row_each_and_is_searchable(run_folder: Run) -> None:
    for number in range(101):
        run_folder.record("corpus.filter", {"corpus": "main", "unit": str(number)}, 9)
    page = outline(made(run_folder)["jobs"])
    assert [table.get("data-rows") for table in page.all("table") if table.get("class") == "long"] == ["101"]
    assert Path(run_folder.root / "provenance/records/corpus.filter.main.100.json").exists()
    assert "../provenance/records/corpus.filter.main.100.json" in {link["href"] for link in page.all("a")}
