"""The auditor's page and the two documents: complete, safe, and reproducible."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from pipeline.core.display_text import is_invisible
from pipeline.core.errors import InputError
from pipeline.evaluate.checkpoint_and_baseline_answers import EvaluatedCheckpoint
from pipeline.evaluate.differences import add_corrected_p_values, compare_binary_metrics
from pipeline.report.page import SECTIONS, run
from pipeline.report.translator import translator
from tests.report.example import HOSTILE, Run, task

VOID = {"meta", "br", "wbr"}


class Outline(HTMLParser):
    """Collect the tags and attributes of a page, its text, and whether its tags nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.text += " " if tag in {"td", "th", "tr", "dt", "dd", "p", "caption"} else ""

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def outline(page: Path) -> Outline:
    parser = Outline()
    parser.feed(page.read_text(encoding="utf-8"))
    parser.close()
    assert parser.open == []
    parser.text = re.sub(r"\s+", " ", parser.text)
    return parser


def made(run_folder: Run, **changes: Any) -> dict[str, Any]:
    arguments = run_folder.arguments()
    run(run_folder.settings.model_copy(update=changes), **arguments)
    return arguments


def test_page_has_every_section_and_well_formed_tables(run_folder: Run) -> None:
    page = outline(made(run_folder)["page"])
    identifiers = [attributes["id"] for attributes in page.all("section")]
    assert identifiers == [name for name, _ in SECTIONS]
    addresses = [str(link["href"]) for link in page.all("a")]
    contents = addresses.index("#summary")
    assert addresses[contents : contents + len(SECTIONS)] == [f"#{name}" for name in identifiers]
    assert len(page.all("caption")) == len(page.all("table")) > 10
    assert all(image["role"] == "img" and image["aria-label"] for image in page.all("svg"))
    assert all("scope" in header for header in page.all("th"))


def test_page_runs_no_script_and_fetches_nothing(run_folder: Run) -> None:
    arguments = made(run_folder)
    page = outline(arguments["page"])
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"img", "link", "iframe", "object", "embed", "b"}
    text = arguments["page"].read_text(encoding="utf-8")
    assert not re.search(r"url\(|@import", text)
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv")]
    assert policy and policy.startswith("default-src 'none';") and "unsafe" not in policy
    for tag in ("script", "style"):  # only the one that the policy allows by its hash
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy and len(page.all(tag)) == 1
    for _, attributes in page.tags:
        assert not any(name.startswith("on") or name == "src" for name in attributes)
    addresses = {link["href"] for link in page.all("a")}
    assert "https://wetten.overheid.nl/" in addresses
    folder = arguments["page"].parent
    papers = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert all(
        address and (address.split("#")[0] in papers or address.startswith(("#", "../", "https://")))
        for address in addresses
    )
    assert HOSTILE in page.text


def test_page_card_and_papers_show_hidden_characters_in_names(run_folder: Run) -> None:
    name = "bestand\u202egnp.exe\u200b\x1b[2K\u2028\x85"
    manifest = run_folder.root / "sources/laws/manifest.json"
    manifest.write_text(manifest.read_text().replace("Kingdom of the Netherlands", json.dumps(name)[1:-1]))
    arguments = made(run_folder, provider=name, configuration=f"run: x  # {name}", carbon_intensity_source=name)
    written = [path for path in arguments["page"].parent.rglob("*") if path.suffix in (".html", ".md")]
    assert len(written) > 8
    for path in written:
        assert not any(map(is_invisible, path.read_text(encoding="utf-8"))), path.name
    page = arguments["page"].read_text(encoding="utf-8")
    assert page.count("bestand\\u202egnp.exe\\u200b\\x1b[2K\\u2028\\u0085") >= 3
    assert "bestand\\\\u202egnp.exe" not in arguments["model_card"].read_text(encoding="utf-8")


def test_text_from_data_is_escaped_in_markdown(run_folder: Run) -> None:
    arguments = made(run_folder, provider="# A | B\n\n<img src=x>[a](b)")
    for path in (arguments["model_card"], *sorted(arguments["papers"].glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        assert "<script" not in text and "<img" not in text
        assert "](javascript" not in text.replace("\\](", "")
        shown = path.name.startswith(("model", "training"))  # the others do not name the provider
        assert ("\\# A \\| B &lt;img src=x&gt;\\[a\\](b)" in text) is shown
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            assert re.fullmatch(r"[|: -]+", table.splitlines()[1]), "every table has its head"
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


def test_links_point_to_files_of_the_run(run_folder: Run) -> None:
    page = made(run_folder)["page"]
    later = {"../ro-crate-metadata.json"}
    links = {str(link["href"]) for link in outline(page).all("a") if str(link["href"]).startswith("../")} - later
    assert len(links) > 15
    assert all((page.parent / unquote(link)).exists() for link in links)


def test_input_order_does_not_change_the_bytes(run_folder: Run) -> None:
    first, second = run_folder.arguments("report"), run_folder.arguments("second")
    run(run_folder.settings, **first)
    lists = {key: value[::-1] for key, value in second.items() if isinstance(value, list)}
    run(run_folder.settings, **{**second, **lists})
    for name in ("page", "jobs", "model_card", "energy", "figures"):
        assert first[name].read_bytes() == second[name].read_bytes()
    for path in first["papers"].iterdir():
        assert path.read_bytes() == (second["papers"] / path.name).read_bytes()


def test_counts_include_lost_attempts_and_checks(run_folder: Run) -> None:
    counts = run(run_folder.settings, **run_folder.arguments())
    assert counts["attempts_lost"] == 2 and counts["checks_failed"] == 0 and counts["checks"] > 20


def test_replaced_attempt_counts_as_lost(run_folder: Run) -> None:
    path = "provenance/records/tokens.shard.main.0.json"
    record = run_folder.read(path)
    run_folder.write(path, {**record, "attempt": "tokens.shard.main.0.later.json"})
    assert run(run_folder.settings, **run_folder.arguments())["attempts_lost"] == 3
    page = (run_folder.root / "report/index.html").read_text()
    assert "finished, replaced by a later one" in page


def test_first_screen_names_replaced_results_as_no_failure(run_folder: Run) -> None:
    path = "provenance/records/tokens.shard.main.0.json"
    record = run_folder.read(path)
    run_folder.write(path, {**record, "attempt": "tokens.shard.main.0.later.json"})
    run(run_folder.settings, **run_folder.arguments())
    summary = (run_folder.root / "report/index.html").read_text().split("What went wrong?")[1].split("</section>")[0]
    assert "No failure: 1 finished result is not used any more" in summary
    failures = summary.split("Lost attempts")[1].split("</li>")[0]
    assert "failed 1" in failures and "replaced" not in failures
    for attempt in (run_folder.root / "provenance/attempts").glob("*.json"):
        if json.loads(attempt.read_text())["status"] != "finished":
            attempt.unlink()
    run(run_folder.settings, **run_folder.arguments("second"))
    summary = (run_folder.root / "second/index.html").read_text().split("What went wrong?")[1].split("</section>")[0]
    assert "No recorded attempt failed" in summary and "No failure: 1 finished result" in summary


def test_lost_document_and_broken_chain_are_shown(run_folder: Run) -> None:
    statistics = run_folder.read("corpus/main/statistics.json")
    statistics["sources"]["laws"]["stages"][0]["kept"] -= 1
    run_folder.write("corpus/main/statistics.json", statistics)
    record = run_folder.read("provenance/records/tokens.shard.main.0.json")
    record["inputs"][0]["sha256"] = "0" * 64
    run_folder.write("provenance/records/tokens.shard.main.0.json", record)
    arguments = run_folder.arguments()
    assert run(run_folder.settings, **arguments)["checks_failed"] == 3
    text = outline(arguments["page"]).text
    assert len(outline(arguments["jobs"]).all("section")) == 2
    assert "✗ 3 of 35 consistency checks fail." in text and "3 = 4 ✗ no" in text
    assert "3 consistency checks of the run fail" in arguments["model_card"].read_text()


def test_bytes_of_removed_passages_are_shown(run_folder: Run) -> None:
    statistics = run_folder.read("corpus/main/statistics.json")
    statistics["totals"]["stages"][1]["cut"] = {"repeated_passages": {"documents": 3, "bytes": 4321}}
    run_folder.write("corpus/main/statistics.json", statistics)
    text = outline(made(run_folder)["page"]).text
    assert "shortened: repeated_passages 3 " in text and "by 4.32 kB of text in all" in text


def test_evaluation_marks_scores_better_than_every_baseline(run_folder: Run) -> None:
    text = outline(made(run_folder)["page"]).text
    measures, share = "right answers (acc ↑), nl", "unigram 0.5400"
    assert f"completion {measures} 0.6200 (0.5600 to 0.6800) ✓ yes 0.1213 200 {share}" in text
    assert f"grammar {measures} 0.5500 (0.4900 to 0.6100) no 0.1213 200 (3 more too long to read) {share}" in text
    assert "text bits to encode a byte of the text (bits_per_byte ↓), nl 1.3100 no baseline – 200 –" in text
    assert "Task Step 250 Step 500" in text
    assert "completion acc ↑ 0.6200 above" in text, "earlier ones are in the figure with their intervals"
    assert "acc: right answers" not in text, "the table above describes it"
    assert text.count("0.6200 (0.5600 to 0.6800)") == 1


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ("Comparisons: 2; real differences: 1.", "0.3191 to 0.7718", "A is better")),
        (
            "nl",
            ("Vergelijkingen: 2; echte verschillen: 1.", "0,3191 tot 0,7718", "A is beter"),
        ),
    ],
)
def test_checkpoint_differences_are_listed_with_significant_ones_first(
    run_folder: Run, language: str, sentences: tuple[str, ...]
) -> None:
    def answers(right: int) -> dict[tuple[str, str, int, str], bool]:
        return {
            ("s", task, n, f"{n}"): n < right for task, right in ((HOSTILE, right), ("alike", 6)) for n in range(20)
        }

    one, other = (
        EvaluatedCheckpoint("base", 1000, {"acc": answers(16)}, {}, {}),
        EvaluatedCheckpoint("base", 500, {"acc": answers(4)}, {}, {}),
    )
    rows = [*compare_binary_metrics(one, other)][::-1]
    add_corrected_p_values(rows)
    run_folder.write("evaluation/differences.json", {"comparisons": rows})
    page = made(run_folder, language=language)["page"]
    text = outline(page).text
    assert all(sentence in text for sentence in sentences)
    assert re.search(r" 0[.,]6000 \(", text) and "klopt in" not in text and "holds in" not in text
    assert " 0.0000 (" not in text, "insignificant ones are in the file"


@pytest.mark.parametrize(
    ("language", "expected_text"),
    [("en", "; holds in 88 of 100 simulations)"), ("nl", "; klopt in 88 van 100 simulaties)")],
)
def test_interval_of_few_items_shows_its_simulated_coverage(run_folder: Run, language: str, expected_text: str) -> None:
    tasks = [
        task("few", 0.6, 0.05, None, simulated_coverage=0.88),
        task("few", 0.4, 0.05, None, metric="acc_norm", simulated_coverage=0.88),
        task("many", 0.7, 0.05, None, simulated_coverage=0.94),
    ]
    run_folder.write(
        "evaluation/base/500/results.json", {"model": "base", "step": 500, "tasks": tasks, "not_asked": []}
    )
    arguments = made(run_folder, language=language)
    text = outline(arguments["page"]).text
    assert text.count(expected_text) == 1 and "94 of" not in text and "94 van" not in text
    assert re.search(r"few acc_norm ↑ – 0[.,]4000 \(0[.,]3000 \w+ 0[.,]5000 †\)", text), "and others have a sign"
    assert "0.5000 to 0.7000 (simulated: holds in 88 of 100)" in arguments["model_card"].read_text(encoding="utf-8")


def test_training_section_shows_utilization_mfu_and_each_group(run_folder: Run) -> None:
    page = made(run_folder)["page"]
    text = outline(page).text
    assert "Device: NVIDIA H100 80GB HBM3, 4 processes; its peak is 989.4 TFLOP/s. Kernels are not" in text
    assert "Device utilization: share of time in which anything ran 98.0 %" in text
    assert "Model FLOPs utilization (MFU): useful arithmetic over the peak 41.0 %" in text
    assert "during the step, 90 % measured, 10 % estimated" in text
    assert "Waiting for data per step 400 µs" in text
    assert "language nl 500 2.635 0.8501" in text and f"source {HOSTILE} 500" in text
    assert "500 started again: rank 3 <died> 1" in text and "500 batches left out 2" in text
    assert "<died>" not in page.read_text() and "path.series-6" in page.read_text()


def test_validation_shows_its_sample_uncertainty_and_missing_sources(run_folder: Run) -> None:
    *lines, last = (run_folder.root / "models/base/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    bounds = {"validation_loss_low": 2.1, "validation_loss_high": 2.6, "validation_bits_per_byte_low": 0.7}
    place = "/language/nl"
    line = json.loads(last) | bounds | {f"{key}{place}": value + 0.5 for key, value in bounds.items()}
    line |= {f"validation_bits_per_byte_high{name}": 0.9 for name in ("", place)}
    run_folder.write("models/base/metrics.jsonl", "\n".join([*lines, json.dumps(line)]) + "\n")
    record = run_folder.read("provenance/records/pretrain.segment.base.500.json")
    record["inputs"].append({"name": "index", "path": "tokens/main/index.json", "sha256": "0" * 64, "bytes": 1})
    seen = {"documents": 40, "tokens": 30_000, "bytes": 190_000, "of_documents": 81, "of_tokens": 60_000}
    seen["unigram_loss"] = 6.7
    record["counts"]["validation"] = seen
    record["settings"]["training"] |= {"sequence_length": 2048, "sampling": {"mask_documents": False}}
    run_folder.write("provenance/records/pretrain.segment.base.500.json", record)
    index = run_folder.read("tokens/main/index.json")
    groups = [{"source": name, "language": "nl", "tokens": 1, "documents": 1} for name in ("laws", HOSTILE)]
    index["train"]["groups"], index["validation"]["groups"] = groups, groups[:1]
    run_folder.write("tokens/main/index.json", index)
    page = made(run_folder)["page"]
    text = outline(page).text
    assert "all 500 2.435 (2.100 to 2.600) 0.7856 (0.7000 to 0.9000)" in text
    assert "language nl 500 2.635 (2.600 to 3.100) 0.8501 (1.200 to 0.9000)" in text
    assert "sees the same 40 of 81 held-out documents: 30,000 tokens, 190,000 bytes of text. They are the same" in text
    assert "token frequencies (unigram) 6.700" in text
    assert "in rows of 2,048 tokens. Each token is predicted from all earlier tokens in its row" in text
    record["settings"]["training"]["sampling"]["mask_documents"] = True
    run_folder.write("provenance/records/pretrain.segment.base.500.json", record)
    masked = outline(made(run_folder)["page"]).text
    assert "Each token is predicted from the earlier tokens of its own document." in masked
    assert text.count(f"No text of {HOSTILE} is held out: the validation does not cover it.") == 2
    assert "<script>alert" not in page.read_text(encoding="utf-8")


NAMED = "Loss of trivial baselines: guessing 9.011, token frequencies (unigram)"


@pytest.mark.parametrize(
    ("unigram", "bigram", "verdict", "card"),
    [
        (6.7, 5.465, "The model is better than each of these.", "6.700 | 5.465 | yes |"),
        (6.7, 2.25, "The model is worse than the bigram baseline.", "6.700 | 2.250 | no: bigram is |"),
        (2.25, 2.3, "The model is worse than the unigram baseline.", "| no: unigram is |"),
    ],
)
def test_validation_loss_is_compared_with_the_best_ngram_baseline(
    run_folder: Run, unigram: float, bigram: float, verdict: str, card: str
) -> None:
    path = "provenance/records/pretrain.segment.base.500.json"
    record = run_folder.read(path)
    record["inputs"].append({"name": "index", "path": "tokens/main/index.json", "sha256": "0" * 64, "bytes": 1})
    counted = {"counted_tokens": 1_540_000, "of_training_tokens": 1_540_000}
    seen = {"documents": 40, "tokens": 30_000, "bytes": 190_000, "of_documents": 81, "of_tokens": 60_000} | counted
    record["counts"]["validation"] = seen | {"unigram_loss": unigram, "bigram_loss": bigram}
    run_folder.write(path, record)
    arguments = made(run_folder)
    first, _, rest = outline(arguments["page"]).text.partition("2. Sources and rights")
    expected_text = f"{NAMED} {unigram:.3f}, token pairs (bigram) {bigram:.3f}."
    for part in (first, rest):
        assert f"{expected_text} {verdict}" in part and "were counted in" not in part
    assert card in arguments["model_card"].read_text() and "were counted in" not in arguments["model_card"].read_text()
    dutch = outline(made(run_folder, language="nl")["page"]).text
    sentence = verdict.replace("bigram", "%(best)s").replace("unigram", "%(best)s")
    assert dutch.count(translator("nl").gettext(sentence)[:22]) >= 2


def test_worse_than_baseline_and_sampled_counts_are_shown(run_folder: Run) -> None:
    path = "provenance/records/pretrain.segment.base.500.json"
    record, index = run_folder.read(path), run_folder.read("tokens/main/index.json")
    run_folder.write("tokens/main/index.json", index | {"vocabulary_size": 5})
    record["inputs"].append({"name": "index", "path": "tokens/main/index.json", "sha256": "0" * 64, "bytes": 1})
    seen = {"documents": 81, "tokens": 60_000, "bytes": 190_000, "of_documents": 81, "of_tokens": 60_000}
    seen |= {"counted_tokens": 20_000_001, "of_training_tokens": 3_000_000_000}
    record["counts"]["validation"] = seen | {"unigram_loss": 6.7, "bigram_loss": 5.465}
    run_folder.write(path, record)
    arguments = made(run_folder)
    text = outline(arguments["page"]).text
    assert text.count("The model is worse than the guessing baseline.") == 2
    assert text.count("counted in a sample of 20,000,001 of the 3,000,000,000 training tokens") == 2
    card = arguments["model_card"].read_text()
    assert "no: guessing is |" in card
    assert "Unigram and bigram of base were counted in 20,000,001 of the 3,000,000,000 training tokens." in card


def test_loss_interval_that_covers_the_best_baseline_is_inconclusive(run_folder: Run) -> None:
    lines = (run_folder.root / "models/base/metrics.jsonl").read_text().splitlines()
    results = [json.loads(line) for line in lines]
    results[-1] |= {"validation_loss": 2.4, "validation_loss_low": 2.1, "validation_loss_high": 2.6}
    (run_folder.root / "models/base/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in results))
    path = "provenance/records/pretrain.segment.base.500.json"
    record = run_folder.read(path)
    seen = {"documents": 81, "tokens": 60_000, "bytes": 190_000, "of_documents": 81, "of_tokens": 60_000}
    apart = "not distinguishable from"
    for bigram, expected_text in ((2.5, apart), (2.25, apart), (2.7, "better than each"), (2.0, "is worse")):
        record["counts"]["validation"] = seen | {"unigram_loss": 6.7, "bigram_loss": bigram}
        run_folder.write(path, record)
        text = outline(made(run_folder)["page"]).text
        assert {words for words in (apart, "better than each", "is worse") if words in text} == {expected_text}


def test_loss_has_no_verdict_without_a_bigram_baseline(run_folder: Run) -> None:
    path = "provenance/records/pretrain.segment.base.500.json"
    record = run_folder.read(path)
    seen = {"documents": 81, "tokens": 60_000, "bytes": 190_000, "of_documents": 81, "of_tokens": 60_000}
    record["counts"]["validation"] = seen | {"unigram_loss": 0.1}
    run_folder.write(path, record)
    arguments = made(run_folder)
    text = outline(arguments["page"]).text
    assert "token frequencies (unigram) 0.1000." in text
    assert "The model is worse" not in text and "better than each of these" not in text
    assert "| – | 0.1000 | – | – |" in arguments["model_card"].read_text()


def test_metrics_with_only_a_loss_make_a_page(run_folder: Run) -> None:
    lines = [{"step": step, "tokens_seen": step, "loss": 2.0, "learning_rate": 0.1} for step in (1, 2)]
    run_folder.write("models/base/metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    text = outline(made(run_folder)["page"]).text
    assert "Model FLOPs utilization, median not known" in text and "Last validation" not in text


def test_model_card_front_matter_is_valid(run_folder: Run) -> None:
    yaml = pytest.importorskip("yaml")
    text = made(run_folder)["model_card"].read_text(encoding="utf-8")
    front = yaml.safe_load(text.split("---")[1])
    assert front["language"] == ["en", "nl"] and "license" not in front
    assert front["co2_eq_emissions"]["emissions"] == pytest.approx(231.9)


def test_model_card_has_the_document_languages_of_its_models(run_folder: Run) -> None:
    yaml = pytest.importorskip("yaml")
    content = run_folder.read("corpus/main/statistics.json")
    left, none = {"documents": 5, "bytes": 90}, {"documents": 0, "bytes": 0}
    run_folder.write("corpus/main/statistics.json", content | {"languages": {"nl": left, "de": none}})
    run_folder.write("corpus/other/statistics.json", content | {"corpus": "other", "languages": {"fr": left}})
    for corpora, expected in (({"base": "main"}, ["nl"]), ({"base": "other"}, ["fr"]), ({}, ["fr", "nl"])):
        text = made(run_folder, corpora=corpora)["model_card"].read_text(encoding="utf-8")
        assert yaml.safe_load(text.split("---")[1])["language"] == expected


def test_unknown_commit_has_its_reason_on_the_page(run_folder: Run) -> None:
    run_folder.record("plan.estimate", {}, hour=9, git={"commit": None, "dirty": None, "reason": "there is no git <b>"})
    run_folder.record("plan.other", {}, hour=9, git={"commit": "c0ffee", "dirty": None, "reason": "no git either"})
    text = outline(made(run_folder)["jobs"]).text
    assert "commit not known: there is no git <b>" in text
    assert "commit c0ffee, uncommitted changes not known: no git either" in text


def test_run_without_models_has_a_page(run_folder: Run) -> None:
    arguments = run_folder.arguments(without=("models", "evaluation", "tokenizer", "tokens"))
    run(run_folder.settings, **arguments)
    assert "No model was trained in this run." in outline(arguments["page"]).text


def test_invalid_file_is_named(run_folder: Run) -> None:
    run_folder.write("tokens/main/index.json", "{")
    with pytest.raises(InputError, match=r"index\.json"):
        run(run_folder.settings, **run_folder.arguments())


def test_flags_and_evaluation_items_are_listed(run_folder: Run) -> None:
    content = run_folder.read("corpus/main/statistics.json")
    counts = {"items": 40, "searched": 12, "not_searched": 28, "found": 2, "documents": 5, "sources": {"web": 5}}
    chance = {"found": 1, "bytes": 2_000_000, "expected": 1.5, "bytes_in_known_languages": 3_000_000}
    counts |= {"items_with_common_n_grams": 3, "by_chance": chance}
    content |= {"flags": {"insults": {"flagged": 3, "removed": 1, "kept": 2}}, "contamination": {"a_task": counts}}
    run_folder.write("corpus/main/statistics.json", content)
    later = {"corpus": "main", "contamination": {"b_task": counts | {"by_chance": None}}}
    run_folder.write("corpus/main/later_suites.json", later)
    arguments = made(run_folder)
    text = outline(arguments["page"]).text
    assert "insults: 3 flagged, 1 removed, 2 in the result" in text
    expected_text = "about 1.5 in 3.00 MB: 1 in 2.00 MB that cannot hold any"
    assert f"a_task 40 12 28 3 2 {expected_text} 5 removed web 5" in text
    assert "b_task 40 12 28 3 2 not estimated 5 kept web 5" in text
    summary = (arguments["papers"] / "training-content-summary.en.md").read_text()
    assert "insults 3 documents (1 removed, 2 used)" in summary
