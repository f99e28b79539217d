"""Scores do not depend on the tokens added by a tokenizer; the reference is plain Transformers, not lm-eval.

lm-eval predicts begin-of-text if a tokenizer adds it, and stops if a continuation has no own token.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, processors
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from pipeline.corpus.perplexity import PerplexityModel
from pipeline.evaluate import suites
from pipeline.evaluate.lm_eval_model import load_model
from pipeline.evaluate.settings import Evaluation, SuitesSettings
from pipeline.evaluate.task_file_reader import list_suite_files
from pipeline.evaluate.text_generator import TextGenerator
from pipeline.tokenizer import train
from pipeline.tokenizer.settings import TrainSettings
from tests.evaluate.test_request_tokenizer import ROLES, byte_level, fast
from tests.tokens.conftest import FRACTION, build, make_rows, write_documents

BEGIN, END, PAD = "<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"
TEMPLATES = {
    "begin": f"{BEGIN} $A",
    "begin_end": f"{BEGIN} $A {END}",
    "end": f"$A {END}",
    "none": None,
}
LENGTH = 48
SENTENCES = [
    {"text": "de molen werkt en de koe loopt over de dijk", "genre": "a"},
    {"text": "zij komt elke morgen", "genre": "b"},
    {"text": f"wie {END} schrijft, beëindigt niets", "genre": "a"},
    {"text": " ".join(["de man loopt en zij komen"] * 9), "genre": "b"},
]
PAIRS = [
    {"good": "de man loopt", "bad": "de man lopen snel"},
    {"good": "zij komen", "bad": "zij komt komen"},
    {"good": "de molen werkt hard", "bad": "de molen werken"},
]
ENDINGS = [
    {"stem": "de man werk", "endings": ["t", "en"], "right": 0},
    {"stem": "zij kom", "endings": ["t", " niet"], "right": 0},
    {"stem": "de koe loop", "endings": ["t", "x"], "right": 0},
]
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{prompt}"
doc_to_target: "{target}"
target_delimiter: "{delimiter}"
{more}
"""
CHOSEN = "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]"


def write_suite(folder: Path) -> None:
    tasks = {
        "pairs": ("pairs.jsonl", "multiple_choice", "", "1", "", 'doc_to_choice: "{{[bad, good]}}"\n' + CHOSEN),
        "endings": (
            *("endings.jsonl", "multiple_choice", "{{stem}}", "{{right}}", ""),
            'doc_to_choice: "{{endings}}"\n' + CHOSEN,
        ),
        "questions": (
            *("pairs.jsonl", "multiple_choice", "Zin: {{bad}}\\nBeter: ", "1", ""),
            'doc_to_choice: "{{[bad, good]}}"\n' + CHOSEN,
        ),
        "written": (
            *("endings.jsonl", "generate_until", "{{stem}}", "{{endings[0]}}", ""),
            "generation_kwargs: {max_gen_toks: 5}\n"
            "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]",
        ),
    }
    folder.mkdir()
    for name, (data, kind, prompt, target, delimiter, more) in tasks.items():
        text = TASK.format(
            name=name, data=data, kind=kind, prompt=prompt, target=target, delimiter=delimiter, more=more
        )
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    for name, rows in (("pairs", PAIRS), ("endings", ENDINGS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def with_template(folder: Path, template: str | None) -> None:
    """Replace the post-processor of a model folder's tokenizer, or remove it."""
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = template and processors.TemplateProcessing(
        single=template, special_tokens=[(BEGIN, 0), (END, 1)]
    )
    content = json.loads(tokenizer.to_str())
    path.write_text(json.dumps(content), encoding="utf-8")


class Run:
    """A model, its tokens, a suite of each kind, and its results under a tokenizer with a template."""

    def __init__(self, folder: Path) -> None:
        rows = make_rows(60, "nl")
        for row in rows:
            row["text"] = f"{row['text']} de man werkt komt loopt" * 5
        documents = [write_documents(folder / "documents.parquet", rows)]
        self.folder, self.model = folder, folder / "milestone/huggingface"
        self.model.mkdir(parents=True)
        train.run(
            TrainSettings(vocabulary_size=340, validation_fraction=FRACTION),
            documents=documents,
            tokenizer=self.model / "tokenizer.json",
            configuration=self.model / "tokenizer_config.json",
        )
        self.index = build(folder / "tokens", documents, self.model / "tokenizer.json", 2)
        torch.manual_seed(5)
        shape = LlamaConfig(
            vocab_size=340,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=LENGTH,
            initializer_range=0.4,
            bos_token_id=0,
            eos_token_id=1,
        )
        LlamaForCausalLM(shape).save_pretrained(self.model)
        self.tokenizer = AutoTokenizer.from_pretrained(self.model)
        self.network = AutoModelForCausalLM.from_pretrained(self.model)
        write_suite(folder / "suite")
        with gzip.open(folder / "ruler.jsonl.gz", "wt", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in SENTENCES)
        self.evaluation = Evaluation.model_validate(
            {
                "suites": [{"name": "own", "language": "nl", "folder": str(folder / "suite")}],
                "texts": {"ruler": {"language": "nl", "path": "{data}/ruler.jsonl.gz"}},
            }
        )

    def evaluate(self, template: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        with_template(self.model, template)
        asked = self.evaluation.resolve_suites(str(self.folder))
        suites.run(
            SuitesSettings.model_validate(
                {"model": "base", "step": 7, "suites": [suite.model_dump() for suite in asked]}, extra="ignore"
            ),
            milestone=self.model.parent,
            tasks=[file for suite in asked for file in list_suite_files(suite)],
            index=self.index,
            baselines=[],
            results=self.folder / "results.json",
            answers=self.folder / "items.parquet",
        )
        results: dict[str, Any] = json.loads((self.folder / "results.json").read_text(encoding="utf-8"))
        return results, pq.read_table(self.folder / "items.parquet").to_pylist()

    def tokens(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    @torch.no_grad()
    def nats(self, before: list[int], tokens: list[int]) -> float:
        """Return the log-probability of tokens in windows of the model's length, the last one also full."""
        row, total = [*before, *tokens], 0.0
        for place in range(len(before), len(row)):
            read = place - len(before)
            is_in_last = len(tokens) - read // LENGTH * LENGTH < LENGTH
            first = len(row) - 1 - LENGTH if is_in_last else len(before) + read // LENGTH * LENGTH - 1
            first = 0 if read < LENGTH else first
            logits = self.network(torch.tensor([row[first:place]])).logits[0, -1].double()
            total += float(torch.log_softmax(logits, -1)[row[place]])
        return total


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def evaluations(run: Run) -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    return {name: run.evaluate(template) for name, template in TEMPLATES.items()}


def of_task(result: dict[str, Any], task: str) -> list[dict[str, Any]]:
    return [item for item in result["begin"][1] if item["task"] == task]


def test_scores_do_not_depend_on_tokens_added_by_the_tokenizer(evaluations: dict[str, Any]) -> None:
    results, items = evaluations["begin"]
    assert {row["task"] for row in results["tasks"]} == {"pairs", "endings", "questions", "written", "ruler"}
    assert results["not_asked"] == []
    for other in ("begin_end", "end", "none"):
        assert evaluations[other] == (results, items), other


def test_texts_and_sentences_are_predicted_after_one_begin_of_text(run: Run, evaluations: dict[str, Any]) -> None:
    with_template(run.model, TEMPLATES["begin"])
    texts = [row["text"] for row in SENTENCES]
    expected = [run.nats([0], run.tokens(text)) for text in texts]
    ruler = of_task(evaluations, "ruler")
    assert [item["log_probabilities"][0] for item in ruler] == pytest.approx(expected, abs=1e-3)
    assert [item["tokens"][0] for item in ruler] == [len(run.tokens(text)) for text in texts]
    surprise = PerplexityModel(run.model, LENGTH).compute(texts[:3])
    lengths = [len(run.tokens(text)) for text in texts[:3]]
    own = [math.exp(-nats / size) for nats, size in zip(expected, lengths, strict=False)]
    assert own == pytest.approx(surprise.tolist(), rel=1e-4), "perplexity is computed over the same tokens"
    for item, pair in zip(of_task(evaluations, "pairs"), PAIRS, strict=True):
        both = [run.tokens(pair[key]) for key in ("bad", "good")]
        assert item["tokens"] == [*map(len, both)]
        assert item["log_probabilities"] == pytest.approx([run.nats([0], tokens) for tokens in both], abs=1e-3)


def test_word_baselines_and_slor_count_the_same_tokens(run: Run, evaluations: dict[str, Any]) -> None:
    shards = [pa.ipc.open_stream(path).read_all() for path in sorted((run.index.parent / "train").iterdir())]
    documents = [tokens for shard in shards for tokens in shard["tokens"].to_pylist()]
    once, after = Counter(t for d in documents for t in d), Counter(p for d in documents for p in pairwise(d))

    def unigram(token: int) -> float:
        return (once[token] + 1) / (sum(once.values()) + 340)

    def bigram(tokens: list[int]) -> float:
        followed = Counter(token for document in documents for token in document[:-1])
        row = pairwise([0, *tokens])
        return sum(
            math.log(0.7 * after[a, b] / followed[a] + 0.3 * unigram(b) if followed[a] else unigram(b)) for a, b in row
        )

    rows = {(row["task"], row["metric"]): row for row in evaluations["begin"][0]["tasks"]}
    right, bits = [], {"unigram": 0.0, "bigram": 0.0}
    for item, pair in zip(of_task(evaluations, "pairs"), PAIRS, strict=True):
        both = [run.tokens(pair[key]) for key in ("bad", "good")]
        frequencies = [sum(math.log(unigram(token)) for token in tokens) for tokens in both]
        assert item["unigram_log_probabilities"] == pytest.approx(frequencies)
        bad, good = (
            (run.nats([0], tokens) - frequency) / len(tokens)
            for tokens, frequency in zip(both, frequencies, strict=True)
        )
        right.append(good > bad)
        bits["unigram"] -= frequencies[1] / math.log(2)
        bits["bigram"] -= bigram(both[1]) / math.log(2)
    size = sum(len(pair["good"].encode()) for pair in PAIRS)
    baselines = rows["pairs", "answer_bits_per_byte"]["baselines"]
    assert baselines == pytest.approx({name: value / size for name, value in bits.items()})
    assert rows["pairs", "acc_slor"]["value"] == sum(right) / len(right)
    texts = [run.tokens(row["text"]) for row in SENTENCES]
    total = -sum(map(bigram, texts)) / math.log(2) / sum(len(row["text"].encode()) for row in SENTENCES)
    assert rows["ruler", "bits_per_byte"]["baselines"]["bigram"] == pytest.approx(total)


def test_ending_that_merges_with_its_stem_is_encoded_separately(run: Run, evaluations: dict[str, Any]) -> None:
    stems = [run.tokens(str(row["stem"])) for row in ENDINGS]
    for row, stem in zip(ENDINGS, stems, strict=True):
        left = run.tokens(f"{row['stem']}{row['endings'][0]}")[len(stem) :]
        assert run.tokenizer.decode(left) != row["endings"][0], "lm-eval would request this"
    for item, row, stem in zip(of_task(evaluations, "endings"), ENDINGS, stems, strict=True):
        expected = [run.nats([0, *stem], run.tokens(ending)) for ending in row["endings"]]
        assert item["log_probabilities"] == pytest.approx(expected, abs=1e-3)
        assert item["tokens"] == [len(run.tokens(ending)) for ending in row["endings"]]
    for item, pair in zip(of_task(evaluations, "questions"), PAIRS, strict=True):
        context = [0, *run.tokens(f"Zin: {pair['bad']}\nBeter:")]
        expected = [run.nats(context, run.tokens(f" {pair[key]}")) for key in ("bad", "good")]
        assert item["log_probabilities"] == pytest.approx(expected, abs=1e-3), "a space belongs to the following word"
        assert item["bytes"] == len(f" {pair['good']}".encode())


def test_generation_starts_after_begin_of_text_and_prompt(run: Run, evaluations: dict[str, Any]) -> None:
    for item, row in zip(of_task(evaluations, "written"), ENDINGS, strict=True):
        tokens = [0, *run.tokens(str(row["stem"]))]
        written: list[int] = []
        while len(written) < 5 and 1 not in written:
            with torch.no_grad():
                written.append(int(run.network(torch.tensor([[*tokens, *written]])).logits[0, -1].argmax()))
        assert item["written"] == run.tokenizer.decode(written, skip_special_tokens=True)
    for template in TEMPLATES.values():
        with_template(run.model, template)
        assert TextGenerator(run.model).request_tokenizer.encode_prompt("de koe") == [0, *run.tokens("de koe")]


def test_empty_choice_is_named(run: Run, tmp_path: Path) -> None:
    write_suite(tmp_path / "suite")
    data = tmp_path / "suite/endings.jsonl"
    rows = [ENDINGS[0], ENDINGS[1] | {"endings": ["t", ""]}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (suite,) = Evaluation.model_validate(
        {"suites": [{"name": "own", "language": "nl", "folder": str(tmp_path / "suite")}]}
    ).resolve_suites(None)
    settings = SuitesSettings(model="base", step=7, suites=[suite])
    asked = suites.answer_suites(settings, load_model(run.model, 4), list_suite_files(suite))
    assert {one.task for one in asked.measured} == {"pairs", "questions", "written"}
    (left_out,) = asked.not_asked
    assert "endings, line 2 of its data: the choice 1 is empty" in left_out["reason"]


def test_choices_of_one_item_use_the_same_encoding(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`a'` + `t` is `a` and `'t`, so `sa` is encoded separately, too; in another item it is `s` and `a`."""
    model = load_model(run.model, 4)
    model.request_tokenizer = fast(byte_level([("s", "a"), ("'", "t")]), **ROLES)
    asked: list[Any] = []
    monkeypatch.setattr(model, "_loglikelihood_tokens", lambda requests, *_: asked.extend(requests))
    choices = [("t", 0), ("sa", 0), ("sa", 1)]
    model.loglikelihood(
        [Instance("loglikelihood", {}, ("a'", text), n, ("quiz", item, 1)) for n, (text, item) in enumerate(choices)]
    )
    assert [len(tokens) for _, _, tokens in asked] == [1, 1, 2]


def of_llama(run: Run, folder: Path) -> Path:
    return run.model


def of_gpt2(run: Run, folder: Path) -> Path:
    torch.manual_seed(1)
    shape = GPT2Config(vocab_size=340, n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=1)
    GPT2LMHeadModel(shape).save_pretrained(folder)
    AutoTokenizer.from_pretrained(run.model).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("folder_of", [of_llama, of_gpt2])
def test_empty_continuation_stops_the_evaluation(
    run: Run, folder_of: Callable[[Run, Path], Path], tmp_path: Path
) -> None:
    with_template(run.model, TEMPLATES["begin_end"])
    model = load_model(folder_of(run, tmp_path), 3)
    asked = [("zij kom", "t"), ("zij kom", ""), ("", ""), ("  ", ""), ("zij ", " "), ("", " "), ("\n", "komt")]
    answers = model.loglikelihood([Instance("loglikelihood", {}, text, n) for n, text in enumerate(asked)])
    assert [answers[n] for n in (1, 2)] == [(0.0, True)] * 2, "nothing is certain"
    network = AutoModelForCausalLM.from_pretrained(folder_of(run, tmp_path))
    for (context, continuation), (output, _) in zip(asked, answers, strict=True):
        stem = context.rstrip()
        before, after = [0, *run.tokens(stem)], run.tokens(context[len(stem) :] + continuation)
        with torch.no_grad():
            logits = network(torch.tensor([[*before, *after]])).logits[0].double()
        scores = torch.log_softmax(logits, -1)
        expected = sum(float(scores[len(before) - 1 + n, token]) for n, token in enumerate(after))
        assert output == pytest.approx(expected, abs=1e-4), (context, continuation)
    plain = HFLM(str(run.model), backend="causal", device="cpu", batch_size=3)
    with pytest.raises((AssertionError, IndexError)):
        HFLM.loglikelihood(plain, [Instance("loglikelihood", {}, ("", ""), 0)])
