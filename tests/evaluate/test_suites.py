from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.core.errors import InputError
from pipeline.evaluate.checkpoint_and_baseline_answers import BaselineAnswers, read_checkpoint_answers
from pipeline.evaluate.item_results import ANSWER_BITS, ItemAnswers, MeasuredTask, TaskItem, collect_items
from pipeline.evaluate.lm_eval_scoring import _answer_bits_row
from pipeline.evaluate.settings import Suite, SuitesSettings
from pipeline.evaluate.suites import run
from pipeline.evaluate.task_file_reader import list_suite_files

CONFIG = Path(__file__).parents[2] / "config" / "tasks"
QUESTIONS = [
    {"question": f"Hoeveel is {n} plus {n}?", "choices": ["een", "twee", "drie", "vier"], "answer": n % 4}
    for n in range(12)
]
PAIRS = [{"good": f"Zij loopt {n} meter.", "bad": f"Zij lopen loopt {n} meter."} for n in range(8)]


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """The project's two Dutch task files with a few lines of data."""
    folder = tmp_path / "dutch"
    folder.mkdir()
    for name, rows in (("polder_nl_kennis", QUESTIONS), ("polder_nl_grammatica", PAIRS)):
        shutil.copy(CONFIG / "dutch" / f"{name}.yaml", folder)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Suite(name="dutch", language="nl", folder=str(folder))


def evaluate(
    milestone: Path,
    results: Path,
    *suites: Suite,
    platform: str | None = None,
    baselines: Sequence[Path] = (),
    files: Sequence[Path] | None = None,
    scratch: Path | None = None,
    versions: Sequence[str] = ("code", "environment"),
    **settings: Any,
) -> dict[str, Any]:
    files = [file for suite in suites for file in list_suite_files(suite)] if files is None else [*files]
    counts = run(
        SuitesSettings(model="base", step=7, suites=list(suites), **settings),
        milestone=milestone,
        tasks=files,
        index=milestone / "tokens/index.json",
        baselines=[*baselines],
        results=results,
        answers=results.with_suffix(".parquet"),
        platform=platform,
        scratch=scratch,
        versions=[*versions],
    )
    assert counts["deterministic"] == settings.get("deterministic", True), "its record has the applied limit"
    return json.loads(results.read_text(encoding="utf-8"))


def log_likelihoods(milestone: Path, sentences: list[str]) -> list[float]:
    """Score sentences after begin-of-text with the model itself, without lm-eval."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(milestone / "huggingface")
    tokenizer = AutoTokenizer.from_pretrained(milestone / "huggingface")
    scores = []
    for sentence in sentences:
        tokens = torch.tensor([[tokenizer.bos_token_id, *tokenizer.encode(sentence, add_special_tokens=False)]])
        with torch.no_grad():
            predicted = torch.log_softmax(model(tokens[:, :-1]).logits.float(), dim=-1)
        scores.append(float(predicted.gather(-1, tokens[:, 1:, None]).sum()))
    return scores


def test_answer_bits_equal_those_of_the_model(milestone: Path, suite: Suite, tmp_path: Path) -> None:
    """No verdict: wrong answers may be as likely."""
    result = evaluate(milestone, tmp_path / "results.json", suite)
    rows = {row["task"]: row for row in result["tasks"] if row["metric"] == ANSWER_BITS}
    prompts = [f"Vraag: {one['question']}\nAntwoord:" for one in QUESTIONS]
    answers = [f" {one['choices'][one['answer']]}" for one in QUESTIONS]
    both = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    whole, alone = (log_likelihoods(milestone, texts) for texts in (both, prompts))
    nats = {
        "polder_nl_kennis": sum(whole) - sum(alone),
        "polder_nl_grammatica": sum(log_likelihoods(milestone, [pair["good"] for pair in PAIRS])),
    }
    texts = {"polder_nl_kennis": answers, "polder_nl_grammatica": [pair["good"] for pair in PAIRS]}
    for task, row in rows.items():
        size = sum(len(text.encode()) for text in texts[task])
        assert row["value"] == pytest.approx(-nats[task] / math.log(2) / size, abs=1e-4)
        assert row["low"] < row["value"] < row["high"] and not row["higher_is_better"]
        assert set(row["baselines"]) == {"unigram", "bigram"} and row["verdict"] is None is row["p_value"]
        assert row["baselines"][row["hardest_baseline"]] == min(row["baselines"].values())
    assert len(rows) == 2
    one = read_checkpoint_answers(_moved(tmp_path / "results.parquet", tmp_path / "base/7/items.parquet"))
    assert {len(each) for each in one.likely.values()} == {20} and [*one.likely] == [ANSWER_BITS]
    (kennis, grammatica) = sorted({key[1] for key in one.likely[ANSWER_BITS]}, reverse=True)
    sums = {
        task: sum(n for key, (n, _) in one.likely[ANSWER_BITS].items() if key[1] == task)
        for task in (kennis, grammatica)
    }
    assert sums == pytest.approx(nats, abs=1e-3)


def _moved(path: Path, to: Path) -> Path:
    to.parent.mkdir(parents=True)
    return path.rename(to)


def test_results_equal_those_of_the_model(milestone: Path, suite: Suite, tmp_path: Path):
    result = evaluate(milestone, tmp_path / "results.json", suite)
    assert (result["model"], result["step"], result["lm_eval_version"]) == ("base", 7, "0.4.13")
    rows = {(row["task"], row["metric"]): row for row in result["tasks"]}
    assert sorted(rows) == [
        ("polder_nl_grammatica", "acc"),
        ("polder_nl_grammatica", "acc_slor"),
        ("polder_nl_grammatica", "answer_bits_per_byte"),
        ("polder_nl_kennis", "acc"),
        ("polder_nl_kennis", "acc_norm"),
        ("polder_nl_kennis", "answer_bits_per_byte"),
    ]
    pairs = rows["polder_nl_grammatica", "acc"]
    good = log_likelihoods(milestone, [pair["good"] for pair in PAIRS])
    bad = log_likelihoods(milestone, [pair["bad"] for pair in PAIRS])
    assert pairs["value"] == sum(g > b for g, b in zip(good, bad, strict=True)) / len(PAIRS)
    assert (pairs["chance_level"], pairs["examples"], pairs["language"], pairs["suite"]) == (0.5, 8, "nl", "dutch")
    answers = pq.read_table(tmp_path / "results.parquet").to_pylist()
    assert [
        len({row["item"] for row in answers if row["task"] == task})
        for task in ("polder_nl_grammatica", "polder_nl_kennis")
    ] == [8, 12]
    assert len({row["prompt_sha256"] for row in answers}) == 20, "pairs have no prompt and are distinguished"
    for (task, metric), row in rows.items():
        if metric == ANSWER_BITS:
            continue
        own = [answer for answer in answers if answer["task"] == task]
        assert sum(answer[metric] for answer in own) / len(own) == row["value"]
        assert set(row["baselines"]) == {
            *("chance", "majority answer", "longest answer", "shortest answer", "unigram", "bigram"),
        }
        assert row["verdict"] in {"better", "not better"} and row["p_value"] <= row["p_value_corrected"]
        assert 0 <= row["low"] < row["value"] + 1e-9 and row["value"] - 1e-9 < row["high"] <= 1
    scored = {
        (answer["item"], number): value
        for answer in answers
        if answer["task"] == "polder_nl_grammatica"
        for number, value in enumerate(answer["log_probabilities"])
    }
    assert [scored[n, 0] for n in range(8)] == pytest.approx(bad, abs=1e-4)
    assert [scored[n, 1] for n in range(8)] == pytest.approx(good, abs=1e-4)
    knowledge = rows["polder_nl_kennis", "acc"]
    value, count = knowledge["value"], knowledge["examples"]
    assert (knowledge["chance_level"], count, knowledge["higher_is_better"]) == (0.25, 12, True)
    assert math.isclose(knowledge["standard_error"], math.sqrt(value * (1 - value) / (count - 1)))


def test_scores_do_not_depend_on_batch_size_or_data_folder(milestone: Path, suite: Suite, tmp_path: Path):
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    evaluate(milestone, first, suite, batch_size=3)
    moved = tmp_path / "moved"
    moved.mkdir()
    for data in Path(str(suite.folder)).glob("*.jsonl"):
        data.rename(moved / data.name)
    evaluate(milestone, second, suite.model_copy(update={"data": str(moved)}), batch_size=8)
    scores, bits = [], []
    for path in (first, second):
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = content.pop("tasks")
        scores.append(content | {"rows": [row for row in rows if row["metric"] != ANSWER_BITS]})
        bits.append([row["value"] for row in rows if row["metric"] == ANSWER_BITS])
    assert scores[0] == scores[1] and bits[0] == pytest.approx(bits[1], abs=1e-6)
    assert str(tmp_path) not in first.read_text(encoding="utf-8")


def test_environment_variables_of_the_platform_are_set(milestone: Path, suite: Suite, tmp_path: Path):
    with mock.patch.dict(os.environ, {"USER": "ada", "SLURM_JOB_ID": "7"}):
        evaluate(milestone, tmp_path / "results.json", suite, platform="lumi")
        assert os.environ["MIOPEN_USER_DB_PATH"] == "/tmp/ada-miopen-7"


def test_limited_sample_covers_the_whole_file_by_seed(milestone: Path, suite: Suite, tmp_path: Path):
    limited = suite.model_copy(update={"limit": 4})
    result = evaluate(milestone, tmp_path / "a.json", limited, seed=1)
    assert {row["examples"] for row in result["tasks"]} == {4}
    assert result == evaluate(milestone, tmp_path / "b.json", limited, seed=1, deterministic=False)
    other_seed = evaluate(milestone, tmp_path / "d.json", limited, seed=2)
    whole = [evaluate(milestone, tmp_path / f"whole-{seed}.json", suite, seed=seed) for seed in (1, 2)]
    first, second, *unlimited = (
        next(row["protocol"]["sha256"] for row in each["tasks"] if row["task"] == "polder_nl_kennis")
        for each in (result, other_seed, *whole)
    )
    assert unlimited[0] == unlimited[1], "all items are evaluated, without few-shot examples drawn by a seed"
    assert len({first, second, unlimited[0]}) == 3, "other items of the same data are another protocol"
    few = suite.model_copy(update={"limit": 1})
    (row, *_) = evaluate(milestone, tmp_path / "c.json", few)["tasks"]
    assert row["standard_error"] is None  # one item has no variance


def test_item_with_an_answer_longer_than_the_context_is_excluded(milestone: Path, suite: Suite, tmp_path: Path):
    data = Path(suite.folder or "") / "polder_nl_grammatica.jsonl"
    fitting = evaluate(milestone, tmp_path / "fitting.json", suite)["tasks"]
    with data.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"good": "Zij loopt.", "bad": "lang " * 120}) + "\n")
    result = evaluate(milestone, tmp_path / "results.json", suite)["tasks"]
    assert [row["examples_too_long"] for row in fitting] == [0] * 6
    protocols, earlier = ({row["task"]: row.pop("protocol") for row in rows} for rows in (result, fitting))
    assert result == [{**row, "examples_too_long": int(row["task"] == "polder_nl_grammatica")} for row in fitting]
    assert protocols["polder_nl_kennis"] == earlier["polder_nl_kennis"]
    assert protocols["polder_nl_grammatica"]["sha256"] != earlier["polder_nl_grammatica"]["sha256"], (
        "it has one more item"
    )
    assert protocols["polder_nl_grammatica"]["examples_available"] == 9
    data.write_text(json.dumps({"good": "Zij loopt.", "bad": "lang " * 120}) + "\n", encoding="utf-8")
    none = evaluate(milestone, tmp_path / "none.json", suite)
    assert {row["task"] for row in none["tasks"]} == {"polder_nl_kennis"}, "others are evaluated"
    asked = {"suite": "dutch", "task": "polder_nl_grammatica", "tokens_needed": 602, "sequence_length": 512}
    assert none["not_asked"] == [asked]


def test_shipped_task_reads_a_local_mirror_of_its_data_set(milestone: Path, tmp_path: Path):
    data_set = tmp_path / "mirror" / "facebook" / "belebele"
    (data_set / "data").mkdir(parents=True)
    (data_set / "README.md").write_text(
        "---\nconfigs:\n- config_name: nld_Latn\n  data_files:\n  - split: test\n    path: data/nld_Latn.parquet\n---\n"
    )
    rows = [
        {
            "flores_passage": "De kat zit op de mat.",
            "question": f"Waar zit de kat? ({n})",
            **{f"mc_answer{k}": word for k, word in enumerate(["mat", "stoel", "bed", "tafel"], start=1)},
            "correct_answer_num": str(1 + n % 4),
        }
        for n in range(6)
    ]
    pq.write_table(pa.Table.from_pylist(rows), data_set / "data" / "nld_Latn.parquet")
    suite = Suite(name="belebele", language="nl", tasks=["belebele_nld_Latn"], data=str(tmp_path / "mirror"))
    result = evaluate(milestone, tmp_path / "results.json", suite)
    assert [(row["task"], row["metric"]) for row in result["tasks"]] == [
        ("belebele_nld_Latn", "acc"),
        ("belebele_nld_Latn", "acc_norm"),
        ("belebele_nld_Latn", "answer_bits_per_byte"),
    ]
    assert {(row["examples"], row["chance_level"]) for row in result["tasks"][:2]} == {(6, 0.25)}
    assert result["data_sets"] == {}
    files = {path.relative_to(data_set).as_posix(): path.read_bytes() for path in data_set.rglob("*.*")}
    listed = {name: {"bytes": len(it), "sha256": hashlib.sha256(it).hexdigest()} for name, it in files.items()}
    data_sets = {"facebook/belebele": {"revision": "5a24", "license": "cc-by-sa-4.0", "files": listed}}
    (tmp_path / "mirror" / "mirror.json").write_text(json.dumps({"data_sets": data_sets}))
    again = evaluate(milestone, tmp_path / "again.json", suite)
    assert again == {**result, "data_sets": {"facebook/belebele": "5a24"}}
    with pytest.raises(InputError, match="did you mean 'belebele_nld_Latn'"):
        evaluate(milestone, tmp_path / "x.json", suite.model_copy(update={"tasks": ["belebele_nld_Latin"]}))
    with pytest.raises(InputError, match="the data of blimp_nl do not load"):
        evaluate(milestone, tmp_path / "x.json", suite.model_copy(update={"tasks": ["blimp_nl"]}))
    assert not (tmp_path / "x.json").exists()
    both = suite.model_copy(update={"tasks": ["blimp_nl", "belebele_nld_Latn"]})
    partly = evaluate(milestone, tmp_path / "partly.json", both)
    (left_out,) = partly["not_asked"]
    assert left_out["task"] == "blimp_nl" and partly["tasks"] == again["tasks"]


def test_invalid_data_are_named_and_other_tasks_are_evaluated(milestone: Path, suite: Suite, tmp_path: Path):
    data = Path(str(suite.folder)) / "polder_nl_kennis.jsonl"
    data.write_text(json.dumps(QUESTIONS[0]) + "\n" + json.dumps(QUESTIONS[1] | {"answer": 4}) + "\n")
    result = evaluate(milestone, tmp_path / "x.json", suite)
    (left_out,) = result["not_asked"]
    assert (left_out["suite"], left_out["task"]) == ("dutch", "polder_nl_kennis")
    assert "line 2 of its data: the answer 4 is not the index of one of its 4 choices" in left_out["reason"]
    assert {row["task"] for row in result["tasks"]} == {"polder_nl_grammatica"}
    data.write_text(json.dumps({"vraag": "Wat?", "choices": ["a", "b"], "answer": 0}) + "\n")
    (left_out,) = evaluate(milestone, tmp_path / "x.json", suite)["not_asked"]
    assert "polder_nl_kennis.yaml does not fit its data file" in left_out["reason"]
    data.with_name("polder_nl_grammatica.jsonl").write_text("{}")
    (tmp_path / "x.json").unlink()
    with pytest.raises(InputError, match=r"polder_nl_grammatica\.yaml does not fit its data file"):
        evaluate(milestone, tmp_path / "x.json", suite)
    assert not (tmp_path / "x.json").exists(), "no task remains"


def test_data_file_that_is_not_configured_is_refused(milestone: Path, suite: Suite, tmp_path: Path):
    settings = SuitesSettings(model="base", step=7, suites=[suite])
    yamls = [path for path in list_suite_files(suite) if path.suffix == ".yaml"]
    others = {"index": milestone / "tokens/index.json", "baselines": [], "answers": tmp_path / "x.parquet"}
    with pytest.raises(InputError, match="is not among the inputs"):
        run(settings, milestone=milestone, tasks=yamls, results=tmp_path / "x.json", **others)
    with pytest.raises(InputError, match="no task file of"):
        run(settings, milestone=milestone, tasks=[], results=tmp_path / "x.json", **others)


def test_unloadable_model_is_refused(milestone: Path, suite: Suite, tmp_path: Path):
    with pytest.raises(InputError, match=r"has no config\.json"):
        evaluate(tmp_path, tmp_path / "x.json", suite)
    broken = tmp_path / "milestone"
    shutil.copytree(milestone, broken)
    (broken / "huggingface" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="does not load"):
        evaluate(broken, tmp_path / "x.json", suite)


def test_metric_named_as_an_item_column_is_refused():
    task: Any = SimpleNamespace(config=SimpleNamespace(task="quiz", metadata=None), OUTPUT_TYPE="generate_until")
    sample = {"doc_id": 0, "doc": {}, "metrics": ["written"], "filter": "none", "written": 1.0}
    with pytest.raises(InputError, match=r"task quiz: a metric is called written, as a column of items\.parquet is"):
        collect_items(task, [sample])


def choosing(number: int, texts: tuple[tuple[str, str], ...]) -> TaskItem:
    return TaskItem(number, str(number), ("a", "b"), texts, frozenset({1}), (-1.0, -2.0), {"acc": False})


def test_choices_with_equal_endings_have_no_answer_bits() -> None:
    similar = [choosing(n, (("Vraag: ", "nee"), ("Vraag: ", "zeker"))) for n in range(3)]
    equal_endings = [choosing(n, (("De kat ", "slaapt"), ("De hond ", "slaapt"))) for n in range(3)]
    row = {"task": "quiz", "metric": "acc"}
    result = _answer_bits_row(MeasuredTask("s", "quiz", [row], similar))
    assert result is not None and result["value"] == pytest.approx(2.0 / math.log(2) / len("zeker"))
    assert _answer_bits_row(MeasuredTask("s", "quiz", [row], equal_endings)) is None


def test_answer_bits_have_other_models_as_baselines() -> None:
    item = choosing(0, (("Vraag: ", "nee"), ("Vraag: ", "zeker")))
    key = ("s", "quiz", 0, "0")
    likely = {ANSWER_BITS: {key: (-2.0, 5)}}
    answers = BaselineAnswers(ItemAnswers({}, {key: (-1.0, -2.0)}, likely, {}, {}), {})
    assert answers.credits(ANSWER_BITS, [item], [key]).tolist() == [-2.0]
    assert np.isnan(answers.credits(ANSWER_BITS, [item], [("s", "quiz", 1, "1")])).all()
