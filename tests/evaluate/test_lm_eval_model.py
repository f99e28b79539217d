"""The scorer equals plain lm-eval on every shipped suite, and the model itself."""

from __future__ import annotations

import gzip
import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from pipeline.core.errors import InputError
from pipeline.evaluate.dataset_mirror import _expand_task
from pipeline.evaluate.lm_eval_model import (
    LmEvalModel,
    RequestRow,
    build_batches,
    load_model,
    merge_requests_by_context,
    truncate_context,
)
from pipeline.evaluate.lm_eval_scoring import run_lm_eval, seed_fewshot_sampling
from pipeline.evaluate.settings import KNOWN_SUITES, Suite, SuiteSettings
from pipeline.evaluate.task_file_reader import list_suite_files
from pipeline.evaluate.task_loader import find_task_sources
from tests.evaluate.mirrored import write_mirror

TOPICS = ["wetenschap", "reizen", "politiek", "sport", "gezondheid", "cultuur", "aardrijkskunde"]
EXAMPLES = 6
WRITTEN = 24  # tokens: some tasks request thousands
OPEN: dict[str, Any] = {
    **{
        name: lambda n: {"text": f"De trein naar {n} rijdt vandaag niet.", "label": TOPICS[n % 7], "choices": TOPICS}
        for name in ("sib200_nl", "sib200_en")
    },
    **{
        name: lambda n: {
            "good": f"Zij loopt {n} meter.",
            "bad": f"Zij lopen loopt {n} meter.",
            **dict.fromkeys(("paradigm", "term", "corruption"), f"{n % 2}"),
        }
        for name in ("scala_style_nl_lassy", "scala_style_en_ewt", "blimp_en")
    },
    "piqa_en_valid": lambda n: {
        "goal": f"To wash {n} cups,",
        "choices": ["use warm water.", "use sand."],
        "label": n % 2,
    },
    "gsm8k_en_test": lambda n: {"question": f"What is {n} plus {n}?", "final": str(2 * n)},
    "tatoeba_nl_en": lambda n: {"nl": f"Ik heb {n} katten.", "en": f"I have {n} cats."},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of the open suites, and a mirror for the shipped ones, in their formats."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "eval").mkdir()
    write_mirror(folder / "mirror", EXAMPLES)
    for name, row in OPEN.items():
        lines = "".join(json.dumps(row(number)) + "\n" for number in range(EXAMPLES))
        (folder / "eval" / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


# Others read mirrored data sets: test_public_suites.py, test_code_tasks.py, test_instruction_checks.py.
OTHERS = ("euroeval", "olmes", "code", "instructions")


@pytest.mark.parametrize("name", [name for name in KNOWN_SUITES if not name.startswith(OTHERS)])
def test_every_suite_is_scored_as_by_plain_lm_eval(
    long_milestone: Path, data: Path, name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISABLE_MULTIPROC", "1")  # lm-eval's pool forks a process with threads, which may hang
    from lm_eval import evaluator
    from lm_eval.models.huggingface import HFLM

    known = KNOWN_SUITES[name]
    # For a group, such as the 84 of blimp_nl, the first task.
    known = known.model_copy(update={"tasks": [next(iter(_expand_task(one)))[1]["task"] for one in known.tasks]})
    suite = Suite.model_validate({**known.model_dump(), "data": known.data and known.data.format(data=data)})
    settings = SuiteSettings.model_validate(suite.model_dump())

    files = [file.absolute() for file in list_suite_files(suite)]

    def tasks() -> dict[str, Any]:
        return {key: task for one in find_task_sources(settings, files, tmp_path) for key, task in one.load().items()}

    own, others = tasks(), tasks()
    drawn = {key: random.Random(key).sample(range(len(task.eval_docs)), EXAMPLES) for key, task in own.items()}
    for task in others.values():
        seed_fewshot_sampling(task, 42)
    for task in (*own.values(), *others.values()):
        if task.config.generation_kwargs:
            task.set_config("generation_kwargs", {"max_gen_toks": WRITTEN}, update=True)
    plain = HFLM(str(long_milestone / "huggingface"), backend="causal", device="cpu", batch_size=4)
    expected = evaluator.evaluate(
        lm=plain,
        task_dict={"tasks": others, "groups": {}, "group_map": {}},
        samples=drawn,
        bootstrap_iters=10,
        log_samples=True,
    )
    result = run_lm_eval(load_model(long_milestone / "huggingface", 4), settings, own, drawn, 42)
    assert sorted(one.task for one in result) == sorted(own) != []
    for one in result:
        samples = {sample["doc_id"]: sample for sample in expected["samples"][one.task]}
        for item in one.items:
            answers = samples[item.number]["filtered_resps"] if item.choices else []
            assert [*item.log_probabilities] == pytest.approx([answer[0] for answer in answers], abs=1e-4)
            draws = (own[one.task].config.generation_kwargs or {}).get("do_sample")
            if item.written is not None and not draws:
                assert item.written == samples[item.number]["resps"][0][0]
        for row in one.rows if not draws else ():
            metric, _, kind = row["metric"].partition(",")
            theirs = expected["results"][one.task][f"{metric},{kind or 'none'}"]
            assert row["value"] == (None if math.isnan(theirs) else pytest.approx(theirs))


def test_long_texts_and_contexts_are_truncated_as_by_lm_eval(milestone: Path) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    def of_kind(kind: str, asked: list[Any]) -> list[Instance]:
        return [Instance(kind, {}, arguments, number) for number, arguments in enumerate(asked)]

    folder = str(milestone / "huggingface")
    plain = HFLM(folder, backend="causal", device="cpu", batch_size=4)
    without_begin = HFLM(folder, backend="causal", device="cpu", batch_size=4, add_bos_token=False)
    ours = load_model(milestone / "huggingface", 4)
    words = [
        f"{number * number} " for number in range(700)
    ]  # without repetition, because plain lm-eval confuses equal windows
    texts = [("".join(words[:size]),) for size in (1, 7, 100, 120, 300, 600)]
    rolling = of_kind("loglikelihood_rolling", texts)
    assert ours.loglikelihood_rolling(rolling) == pytest.approx(without_begin.loglikelihood_rolling(rolling), abs=1e-3)
    assert ours.loglikelihood_rolling(rolling) != pytest.approx(plain.loglikelihood_rolling(rolling), abs=1e-3), (
        "lm-eval predicts begin-of-text, too, if a tokenizer adds it"
    )
    asked = of_kind(
        "loglikelihood", [(text * 2, choice) for (text,) in texts for choice in (" a", " no", " a", " " * 400)]
    )
    answers, expected = ours.loglikelihood(asked), plain.loglikelihood(asked)
    assert [one[0] for one in answers] == pytest.approx([one[0] for one in expected], abs=1e-3)
    assert [one[1] for one in answers] == [one[1] for one in expected]
    assert [round(one[0], 6) for one in answers[::4]] == [round(one[0], 6) for one in answers[2::4]]


def test_greedy_continuation_is_recognized(milestone: Path) -> None:
    ours = load_model(milestone / "huggingface", 4)
    context = ours.tok_encode("Zij loopt")
    written: list[int] = []
    for _ in range(3):
        with torch.no_grad():
            written.append(int(ours.model(torch.tensor([[*context, *written]])).logits[0, -1].argmax()))
    other = [*written[:2], (written[2] + 1) % 250]
    answers = ours._loglikelihood_tokens([(None, context, written), (None, context, other)])
    assert [is_likeliest for _, is_likeliest in answers] == [True, False]


@pytest.mark.parametrize("window", [None, 4])
def test_qwen3_without_a_window_uses_the_llama_path(
    window: int | None, milestone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    shape: dict[str, Any] = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 24, "head_dim": 8}
    layers: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    seen: dict[str, Any] = {"use_sliding_window": window is not None, "sliding_window": window, "max_window_layers": 0}
    Qwen3ForCausalLM(Qwen3Config(**shape, **layers, **seen, initializer_range=0.5)).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(milestone / "huggingface").save_pretrained(tmp_path)
    model = load_model(tmp_path, 2)
    asked: list[int] = []
    answers = LmEvalModel._answer_batch
    monkeypatch.setattr(LmEvalModel, "_answer_batch", lambda *given: (asked.append(1), answers(*given))[1])
    context, choices = [*range(5, 25)], ([8, 9], [4], [8, 7, 6])
    result = model._loglikelihood_tokens([(None, context, choice) for choice in choices])
    assert bool(asked) == (window is None)
    for choice, (log_probability, _) in zip(choices, result, strict=True):
        with torch.no_grad():
            message = torch.log_softmax(model.model(torch.tensor([[*context, *choice]])).logits[0], dim=-1)
        expected = sum(float(message[len(context) - 1 + place, token]) for place, token in enumerate(choice))
        assert log_probability == pytest.approx(expected, abs=1e-4)


def test_model_of_another_architecture_is_scored_by_lm_eval(milestone: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    folder = milestone / "huggingface"
    torch.manual_seed(1)
    shape = GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2, n_positions=128, bos_token_id=0, eos_token_id=1)
    GPT2LMHeadModel(shape).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    model = load_model(tmp_path, 2)
    context, continuation = [5, 6, 7], [8, 9]
    (result, _), *_ = model._loglikelihood_tokens([(None, context, continuation), (None, context, [4])])
    with torch.no_grad():
        message = torch.log_softmax(model.model(torch.tensor([[*context, *continuation]])).logits[0], dim=-1)
    assert result == pytest.approx(float(message[2, 8] + message[3, 9]), abs=1e-5)


Requests = st.lists(
    st.tuples(
        st.none(),
        st.lists(st.integers(0, 2), min_size=1, max_size=9),
        st.lists(st.integers(0, 2), min_size=1, max_size=6),
    )
)


@given(Requests, st.integers(6, 12), st.integers(1, 40))
def test_each_request_is_evaluated_once_in_rows_and_batches_that_fit(
    requests: list[tuple[None, list[int], list[int]]], longest: int, most: int
) -> None:
    rows = merge_requests_by_context(requests, longest)
    asked = [(row.context, continuation) for row in rows for continuation in row.continuations]
    assert len(set(asked)) == len(asked)
    assert {*asked} == {(truncate_context(before, after, longest), tuple(after)) for _, before, after in requests}
    assert all(row.length <= longest for row in rows)
    batches = build_batches(rows, most)
    assert sorted(row for batch in batches for row in batch) == sorted(rows)
    assert all(len(batch) == 1 or len(batch) * batch[0].length <= most for batch in batches)
    assert all(row.length <= batch[0].length for batch in batches for row in batch)
    assert build_batches(rows[::-1], most) == batches


def test_choices_of_one_question_share_a_row() -> None:
    rows = merge_requests_by_context([(None, [1, 2, 3], [4, 5]), (None, [1, 2, 3], [6]), (None, [1, 2], [6])], 10)
    assert rows == [RequestRow((1, 2, 3), ((4, 5), (6,))), RequestRow((1, 2), ((6,),))]
    assert [row.length for row in rows] == [4, 2], "nothing follows the last token of a choice"


def test_model_without_an_end_of_text_token_is_refused(milestone: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(milestone / "huggingface", tmp_path / "model")
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    del tokenizer_config["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    with pytest.raises(InputError, match=r"model has no eos_token: name it in tokenizer_config\.json"):
        load_model(folder, 4)


def test_sampling_depends_on_the_seed_and_not_on_earlier_samples(milestone: Path) -> None:
    model = load_model(milestone / "huggingface", batch_size=2)
    how = {"until": ["\n"], "max_gen_toks": 12, "do_sample": True, "temperature": 1.0}
    requests = [
        Instance("generate_until", {}, (f"Zin {number}: " * (1 + number // 2), how), number) for number in range(6)
    ]
    first = model.generate_until(requests)
    assert model.generate_until(requests[2:4]) == first[2:4], "as another process computes its share"
    model.seed += 1
    assert model.generate_until(requests) != first


def test_prompts_of_equal_kind_and_length_are_generated_in_one_batch(
    milestone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval generates prompts with equal endings in one batch: a mixed batch would be two half ones."""
    model = load_model(milestone / "huggingface", batch_size=2)
    kinds: list[dict[str, Any]] = [{"until": ["\n"], "max_gen_toks": 4}, {"until": ["."], "max_gen_toks": 6}]
    prompts = [("De " * (number + 1), kinds[number % 2]) for number in range(6)]
    requests = [Instance("generate_until", {}, asked, number) for number, asked in enumerate(prompts)]
    plain = HFLM.generate_until(model, requests)
    batches: list[list[int]] = []

    def written(self: HFLM, batch: list[Instance], disable_tqdm: bool = False) -> list[str]:
        batches.append([one.idx for one in batch])
        return [plain[one.idx] for one in batch]

    monkeypatch.setattr(HFLM, "generate_until", written)
    assert model.generate_until(requests) == plain
    assert batches == [[4, 2], [0], [5, 3], [1]]
