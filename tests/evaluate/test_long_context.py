"""RULER's tasks without downloads: their items, and the prompts and scores of lm-eval for the same items."""

from __future__ import annotations

import json
import random
import re
import sys
from math import gcd
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import yaml
from lm_eval.api.task import ConfigurableTask, Task

from pipeline.evaluate.settings import KNOWN_SUITES
from pipeline.evaluate.task_file_reader import list_suite_files
from pipeline.evaluate.task_loader import find_task_sources
from pipeline.evaluate.text_metrics import answers_found

FOLDER = Path("config/tasks/long_context")
LINES = (8, 16, 32, 64, 128, 256, 512, 1024)
ITEMS = 25  # of each length
NOISE_WORDS, NEEDLE_WORDS = 19, 10  # of a line
FIRST_NUMBER, NUMBERS, NUMBER_STEP = 1_000_000, 9_000_000, 5_915_587
WORDS = [
    words.split()
    for words in re.findall("'([a-z\\s]+)'.split", (FOLDER / "ruler_niah_multikey_2.yaml").read_text(encoding="utf-8"))
]
"""Adjectives and nouns of the template."""


def keys_of(stride: int, offset: int, count: int) -> list[str]:
    """Return different keys: an adjective and a noun each."""
    adjectives, nouns = WORDS
    places = ((offset + stride * n) % (len(adjectives) * len(nouns)) for n in range(count))
    return [f"{adjectives[place // len(nouns)]}-{nouns[place % len(nouns)]}" for place in places]


def numbers_of(start: int, count: int) -> list[str]:
    return [str(FIRST_NUMBER + (start + NUMBER_STEP * n) % NUMBERS) for n in range(count)]


def make_items(name: str) -> list[dict[str, Any]]:
    """Make the items of a task by its name alone."""
    draw = random.Random(name)
    rows = []
    for lines in LINES:
        for _ in range(ITEMS):
            place, start, offset = draw.randrange(lines), draw.randrange(NUMBERS), draw.randrange(1600)
            stride = next(n for n in iter(lambda: draw.randrange(1600), None) if gcd(n, 1600) == 1)
            row: dict[str, Any] = {"words": f"{lines * NOISE_WORDS:05}", "lines": lines}
            if name == "ruler_niah_single_1":
                row |= {"place": place, "key": keys_of(stride, offset, 1)[0], "value": numbers_of(start, 1)[0]}
            elif name == "ruler_niah_multikey_2":
                row |= {"words": f"{lines * NEEDLE_WORDS:05}", "place": place, "start": start}
                row |= {"stride": stride, "offset": offset}
                row |= {"key": keys_of(stride, offset, lines)[place], "value": numbers_of(start, lines)[place]}
            else:
                places = sorted(draw.sample(range(lines), 5))
                names = draw.sample([f"{a}{b}" for a in "ABCDEFGHIJ" for b in "KLMNOPQRST"], 5)
                names = [f"{one}{draw.choice('UVWXYZ')}{draw.choice('AEIOU')}{draw.choice('BCDFG')}" for one in names]
                row |= {"places": places, "variables": names, "value": str(draw.randrange(10_000, 100_000))}
            rows.append(row)
    return rows


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    suite = KNOWN_SUITES["long_context"]
    given = [path.absolute() for path in list_suite_files(suite)]
    scratch = tmp_path_factory.mktemp("scratch")
    return {source.name: source.load()[source.name] for source in find_task_sources(suite, given, scratch)}


def prompt_of(task: Task, doc: dict[str, Any]) -> str:
    return str(task.fewshot_context(doc, num_fewshot=task.get_config("num_fewshot") or 0))


def test_items_are_made_by_the_names_of_their_tasks(tasks: dict[str, Task]) -> None:
    assert {*tasks} == {"ruler_niah_single_1", "ruler_niah_multikey_2", "ruler_vt"}
    for name in tasks:
        items = [json.loads(line) for line in (FOLDER / f"{name}.jsonl").open(encoding="utf-8")]
        assert items == make_items(name), f"write {name}.jsonl again: python -m tests.evaluate.test_long_context"


def test_answer_is_once_in_the_text(tasks: dict[str, Task]) -> None:
    for name, task in tasks.items():
        for doc in task.eval_docs:
            prompt = prompt_of(task, doc)
            if name == "ruler_vt":
                assert all(prompt.count(f"VAR {one} = ") == 1 for one in doc["variables"])
                assert prompt.count(f"= {doc['value']}") == 1 and len({*doc["variables"]}) == 5
                continue
            assert prompt.count(f"for {doc['key']} is: {doc['value']}.") == 1
            assert prompt.count(doc["key"]) == 3 and prompt.count(doc["value"]) == 1
            assert int(doc["words"]) < len(prompt.split()) < int(doc["words"]) + 90


@pytest.fixture
def ruler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """lm-eval's modules of RULER, whose list of words needs a package that they import and these tests do not."""
    words = ModuleType("wonderwords")
    categories = {"nouns": ["x"], "adjectives": ["y"], "verbs": []}
    words.RandomWord = lambda: SimpleNamespace(_categories=categories)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wonderwords", words)
    monkeypatch.setattr("nltk.data.find", lambda _: None)
    from lm_eval.tasks.ruler import common_utils, niah_utils, prepare_niah, vt_utils

    return SimpleNamespace(scores=common_utils, niah=niah_utils, prepare=prepare_niah, vt=vt_utils)


def lm_eval_prompt(row: dict[str, Any]) -> str:
    """Return the prompt of lm-eval's configuration for a row that its code has made."""
    import lm_eval.tasks.ruler as folder

    text = (Path(next(iter(folder.__path__))) / "niah_single_1.yaml").read_text()
    kept = {"output_type", "test_split", "doc_to_text", "doc_to_target", "gen_prefix", "target_delimiter"}
    known = {key: value for key, value in yaml.load(text, _Loader).items() if key in kept}
    from datasets import Dataset

    rows = {"test": Dataset.from_list([row])}
    task = ConfigurableTask(config={**known, "task": "theirs", "custom_dataset": lambda **_: rows})
    return str(task.fewshot_context(row, num_fewshot=0, gen_prefix=task.doc_to_prefix(row)))


class _Loader(yaml.SafeLoader):
    pass


_Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))


def test_needle_prompts_equal_those_of_lm_eval(ruler: Any, tasks: dict[str, Task]) -> None:
    for name, haystack in (("ruler_niah_single_1", "repeat"), ("ruler_niah_multikey_2", "needle")):
        task = tasks[name]
        for doc in [*task.eval_docs][::37]:
            drawn = [doc["key"], doc["value"]]
            count = doc["lines"]
            if haystack == "needle":  # the needle is one of our lines, and goes into a haystack of the others
                count -= 1
                keys = keys_of(doc["stride"], doc["offset"], doc["lines"])
                pairs = [*zip(keys, numbers_of(doc["start"], doc["lines"]), strict=True)]
                drawn += [one for place, pair in enumerate(pairs) if place != doc["place"] for one in pair]
            with (
                mock.patch.object(ruler.prepare, "generate_random", side_effect=drawn),
                mock.patch.object(ruler.prepare.random, "sample", side_effect=[[doc["place"]], [0]]),
            ):
                text, answers, query = ruler.prepare.generate_input_output(
                    count,
                    ruler.prepare.get_haystack(haystack),
                    type_haystack=haystack,
                    num_needle_k=1,
                    type_needle_k="words",
                    num_needle_v=1,
                    type_needle_v="numbers",
                    template=ruler.niah.TEMPLATE,
                )
            assert answers == [doc["value"]]
            prefix = f"The special magic number for {query} mentioned in the provided text is"
            expected = lm_eval_prompt({"input": text, "outputs": answers, "gen_prefix": prefix})
            assert prompt_of(task, doc) == expected, name
        assert task.config.generation_kwargs == {"until": [], "max_gen_toks": 128, "do_sample": False}


def test_variable_prompts_equal_those_of_lm_eval(ruler: Any, tasks: dict[str, Task]) -> None:
    task = tasks["ruler_vt"]
    (shown,) = task.config.fewshot_config.samples

    def input_of(row: dict[str, Any]) -> str:
        chain = [f"VAR {row['variables'][0]} = {row['value']}"]
        chain += [f"VAR {new} = VAR {old} " for old, new in zip(row["variables"], row["variables"][1:], strict=False)]
        with (
            mock.patch.object(ruler.vt, "generate_chains", return_value=([row["variables"]], [chain])),
            mock.patch.object(ruler.vt.random, "sample", return_value=row["places"]),
        ):
            text, answers = ruler.vt.generate_input_output(row["lines"], 1, 4)
        assert answers == row["variables"]
        return str(text)

    example = f"{input_of(shown)} {' '.join(shown['variables'])}\n\n"
    for doc in [*task.eval_docs][::37]:
        whole = input_of(doc)
        cut = whole.rfind(" Answer: According to the chain(s) of variable assignment")
        row = {"input": f"{example}\n\n{whole[:cut]}", "outputs": doc["variables"], "gen_prefix": whole[cut:].strip()}
        assert prompt_of(task, doc) == lm_eval_prompt(row)
    assert task.config.generation_kwargs == {"until": [], "max_gen_toks": 30, "do_sample": False}


def test_scores_equal_those_of_lm_eval(ruler: Any) -> None:
    for text in ("ABC and  def", "abc", "", "x\x00Def ABCD", "AB C"):
        for answers in (["ABC", "DEF"], ["abc"], ["ABCD", "x", "nothing"]):
            theirs = ruler.scores.process_results({"max_length": 4096, "outputs": answers}, [text])["4096"]
            assert answers_found(text, answers) == pytest.approx(theirs)


def test_rules_without_understanding_find_little(tasks: dict[str, Task]) -> None:
    from pipeline.evaluate.checkpoint_and_baseline_answers import score_rule_baselines

    scores = {
        name: {rule: one.scores["answers_found"] for rule, one in score_rule_baselines(task, [*task.eval_docs]).items()}
        for name, task in tasks.items()
    }
    assert scores["ruler_niah_single_1"] == {"nothing": 0.0}
    assert scores["ruler_vt"] == {"the first variable": pytest.approx(0.2)}
    assert 0 <= scores["ruler_niah_multikey_2"]["the first number"] < 0.1
    assert all(re.fullmatch(r"\d{5}", doc["words"]) for task in tasks.values() for doc in task.eval_docs)


if __name__ == "__main__":
    for one in ("ruler_niah_single_1", "ruler_niah_multikey_2", "ruler_vt"):
        lines = "".join(json.dumps(row) + "\n" for row in make_items(one))
        (FOLDER / f"{one}.jsonl").write_text(lines, encoding="utf-8")
