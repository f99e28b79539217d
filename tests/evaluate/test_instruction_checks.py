"""IFEval: the verdicts of lm-eval's own functions, on rows of our own in the layout of its data set."""

from __future__ import annotations

import itertools
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from pipeline.evaluate import instruction_checks
from pipeline.evaluate.instruction_checks import CHECKS, check_instructions, count_sentences, is_in_language
from pipeline.evaluate.settings import KNOWN_SUITES
from pipeline.evaluate.text_metrics import find_missing_field
from tests.evaluate.test_public_suites import scored, tasks_of, write_data_set

# Arguments of each instruction, and texts near the border of following it.
CASES: dict[str, list[tuple[dict[str, Any], list[str]]]] = {
    "keywords:existence": [({"keywords": ["boat", "big river"]}, ["A Boat on the BIG RIVER", "boats", "big river"])],
    "keywords:frequency": [
        ({"keyword": " boat ", "frequency": 2, "relation": "at least"}, ["boat", "Boat boats", "b o a t"]),
        ({"keyword": "boat", "frequency": 2, "relation": "less than"}, ["boat", "Boat boats", "x"]),
    ],
    "keywords:forbidden_words": [({"forbidden_words": ["boat", "sea"]}, ["boats", "a Boat.", "seaboat", "the SEA"])],
    "keywords:letter_frequency": [
        ({"letter": "q", "let_frequency": 2, "let_relation": "at least"}, ["q", "Qq", "quite"]),
        ({"letter": "Q", "let_frequency": 2, "let_relation": "less than"}, ["q", "Qq", "none"]),
    ],
    "language:response_language": [
        (
            {"language": "de"},
            ["Das ist ein schöner Tag, und wir gehen heute in den Wald.", "This is English text.", "12"],
        ),
        ({"language": "hi"}, ["यह एक अच्छा दिन है और हम बाजार जा रहे हैं।", "Das ist gut."]),
    ],
    "length_constraints:number_sentences": [
        ({"num_sentences": 2, "relation": "at least"}, ["One. Two.", "One, two.", "Dr. Jones came. He left!", "No"]),
        ({"num_sentences": 2, "relation": "less than"}, ["One. Two.", "It is 3.5 e.g. here", "What?\n\nThat", ""]),
    ],
    "length_constraints:number_paragraphs": [
        ({"num_paragraphs": 2}, ["a *** b", "a\n***\nb", "*** a *** b ***", "a ****** b", "a *** *** b", "a", "***"])
    ],
    "length_constraints:number_words": [
        ({"num_words": 3, "relation": "at least"}, ["a b", "a b c", "it's so", "a-b_c"]),
        ({"num_words": 3, "relation": "less than"}, ["a b", "a b c", "..."]),
    ],
    "length_constraints:nth_paragraph_first_word": [
        (
            {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Boat"},
            [
                "a\n\nboat b",
                "a\n\n'\"Boat, b",
                "a\n\nboats",
                "a\n\nb",
                "boat",
                "a\n\n\n\nboat",
                "a\n\nboat\n\n",
                "a\n\n.boat",
            ],
        ),
        ({"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "x"}, ["x", "X.", "\n\nx", "\"'x", "x\n\n y"]),
    ],
    "detectable_content:number_placeholders": [
        ({"num_placeholders": 2}, ["[a] [b]", "[a]", "[[a]]", "[] [\n]", "[a]]["])
    ],
    "detectable_content:postscript": [
        ({"postscript_marker": "P.S."}, ["x\nP.S. y", "p. s. y", "ps", "P.P.S", "p.s"]),
        ({"postscript_marker": "P.P.S"}, ["x P.P.S y", "p. p. s", "P.S.", "pps"]),
        ({"postscript_marker": " NB "}, ["nb x", "n b"]),
    ],
    "detectable_format:number_bullet_lists": [
        ({"num_bullets": 2}, ["* a\n* b", "- a\n* b", " - a\n\n* b\n**c**", "*a\n*b", "-\n-", "* a\n* b\n- c", "a * b"])
    ],
    "detectable_format:constrained_response": [({}, ["So: My answer is no. Yes", "my answer is no.", "My answer is"])],
    "detectable_format:number_highlighted_sections": [
        ({"num_highlights": 2}, ["*a* *b*", "**a**", "**a** *b*", "* *", "*a\nb*", "**a** ** **", "***a***"])
    ],
    "detectable_format:multiple_sections": [
        ({"section_spliter": "Day", "num_sections": 2}, ["Day 1 a Day 2 b", "Day1 Day\n2", "day 1 day 2", "Day 1 Day"])
    ],
    "detectable_format:json_format": [
        ({}, ['{"a": 1}', "```json\n[1]\n```", "```\n1```", "{a}", "``` JSON 1", "x", "NaN"])
    ],
    "detectable_format:title": [({}, ["<<a>>", "<<>>", "<< >>", "<<a\nb>>", "x <<<a>> b>>", "<a>"])],
    "combination:two_responses": [
        (
            {},
            [
                "a ****** b",
                "a ****** a",
                "****** a ****** b ******",
                "a ****** ****** b",
                "a",
                "******",
                "a******b\n\n",
            ],
        )
    ],
    "combination:repeat_prompt": [({"prompt_to_repeat": "Say a. "}, [" say A. yes", "a. Say a.", "Say a"])],
    "startend:end_checker": [({"end_phrase": " The End. "}, ["x the end.", '"The End."', "The End. x", "The End"])],
    "startend:quotation": [({}, ['"a"', ' "a" ', '"', '""', "'a'", '"a" b'])],
    "change_case:capital_word_frequency": [
        ({"capital_frequency": 2, "capital_relation": "at least"}, ["A B", "AB, C.", "Ab C", "I'M U.S. A1 1"]),
        ({"capital_frequency": 2, "capital_relation": "less than"}, ["A B", "it DOESN'T", "AND. Then OR."]),
    ],
    "change_case:english_capital": [
        ({}, ["THIS IS A LONG ENGLISH SENTENCE.", "THIS is", "DAS IST EIN SATZ, UND GUT.", "1"])
    ],
    "change_case:english_lowercase": [
        ({}, ["this is a long english sentence.", "This is", "dit is een zin van ons", "1"])
    ],
    "punctuation:no_comma": [({}, ["a, b", "a b", "、"])],
}


@pytest.fixture(scope="module")
def lm_eval_scores() -> Any:
    """lm-eval's scores of an item, with Polder's languages and sentences for those that need packages and downloads."""
    detect = ModuleType("langdetect")

    def language_of(text: str) -> str:
        if not any(map(str.isalpha, text)):
            raise detect.LangDetectException
        return next((one for one in sorted(instruction_checks.LANGUAGES) if is_in_language(text, one)), "other")

    detect.LangDetectException = type("LangDetectException", (Exception,), {})  # type: ignore[attr-defined]
    detect.detect = language_of  # type: ignore[attr-defined]
    fixed = ModuleType("immutabledict")
    fixed.immutabledict = dict  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "langdetect", detect)
        patch.setitem(sys.modules, "immutabledict", fixed)
        patch.setattr("nltk.data.find", lambda _: None)
        import nltk
        from lm_eval.tasks.ifeval import instructions_util, utils

        patch.setattr(instructions_util, "count_sentences", count_sentences)
        patch.setattr(nltk, "word_tokenize", partial(nltk.word_tokenize, preserve_line=True))
        yield utils


def row(names: list[str], arguments: list[dict[str, Any]], prompt: str = "Do it.") -> dict[str, Any]:
    """Return an item; as in a table, each `kwargs` has the names of all arguments."""
    every = sorted({name for each in arguments for name in each} | {"other"})
    kwargs = [{name: each.get(name) for name in every} for each in arguments]
    return {"key": 1, "prompt": prompt, "instruction_id_list": names, "kwargs": kwargs}


def assert_equal_scores(theirs: Any, item: dict[str, Any], text: str) -> None:
    expected = theirs.process_results(item, [text])
    scores = check_instructions(text, item["instruction_id_list"], item["kwargs"])
    for kind in ("strict", "loose"):
        followed = expected[f"inst_level_{kind}_acc"]
        assert scores[f"inst_level_{kind}_acc"] == (sum(followed), len(followed)), (kind, item, text)
        assert scores[f"prompt_level_{kind}_acc"] == expected[f"prompt_level_{kind}_acc"], (kind, item, text)


def test_checks_equal_those_of_lm_eval(lm_eval_scores: Any) -> None:
    assert CASES.keys() == CHECKS.keys() == lm_eval_scores.instructions_registry.INSTRUCTION_DICT.keys()
    for name, cases in CASES.items():
        verdicts = set()
        for arguments, texts in cases:
            for text in texts:
                for version in (text, "Sure:\n" + text, f"**{text}**", f"{text}\nBye", ""):
                    item = row([name], [arguments])
                    assert_equal_scores(lm_eval_scores, item, version)
                    verdicts.add(check_instructions(version, [name], item["kwargs"])["prompt_level_strict_acc"])
        assert verdicts == {0.0, 1.0}, name
    every = [(name, arguments, text) for name, cases in CASES.items() for arguments, texts in cases for text in texts]
    for one, other in zip(every, every[7:], strict=False):
        for text in (one[2], other[2], f"{one[2]}\n{other[2]}"):
            assert_equal_scores(lm_eval_scores, row([one[0], other[0]], [one[1], other[1]]), text)


def test_languages_and_sentences() -> None:
    texts = {
        "en": "The weather is nice today and we will go for a walk in the woods.",
        "de": "Das Wetter ist heute schön und wir gehen im Wald spazieren.",
        "fi": "Sää on tänään kaunis ja menemme kävelylle metsään.",
        "ko": "오늘은 날씨가 좋아서 숲으로 산책을 갈 것입니다.",
        "sw": "Hali ya hewa ni nzuri leo na tutakwenda kutembea msituni.",
    }
    for language, other in itertools.product(texts, repeat=2):
        assert is_in_language(texts[language], other) is (language == other)
    assert is_in_language(texts["en"].upper(), "en")
    assert not is_in_language("Het weer is mooi vandaag en we gaan wandelen in het bos.", "en")
    assert [
        count_sentences(text) for text in ("", "a", "One. Two! Three?", "Mr. A. Jones, Ph.D. saw 3.5.", "A\n\nb")
    ] == [*(0, 1, 3, 1, 1)]


def test_item_with_an_unknown_instruction_is_refused() -> None:
    metrics = ["prompt_level_strict_acc", "inst_level_loose_acc"]
    good = row(["punctuation:no_comma"], [{}])
    assert find_missing_field(good, metrics, {}) is None
    assert "`instruction_id_list`" in str(find_missing_field(good | {"kwargs": []}, metrics, {}))
    assert "`instruction_id_list`" in str(find_missing_field({"prompt": "x"}, metrics, {}))
    unknown = good | {"instruction_id_list": ["punctuation:no_dot"]}
    assert "the instruction punctuation:no_dot" in str(find_missing_field(unknown, metrics, {}))
    with pytest.raises(KeyError, match="num_words"):
        check_instructions("x", ["length_constraints:number_words"], [{"relation": "at least"}])


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [
        row(
            ["punctuation:no_comma", "startend:quotation"],
            [{}, {}],
            "Say yes without commas in quotation marks, please.",
        ),
        row(["keywords:existence"], [{"keywords": ["boat"]}], "Name a boat."),
        row(["length_constraints:number_words"], [{"num_words": 4, "relation": "less than"}], "Write under 4 words."),
    ]
    write_data_set(tmp_path / "mirror", "google/IFEval", {"train": rows})
    return tmp_path / "mirror"


def test_suite_is_scored_with_intervals_and_baselines(mirror: Path, long_milestone: Path, tmp_path: Path) -> None:
    suite = KNOWN_SUITES["instructions"].model_copy(update={"data": str(mirror)})
    with mock.patch(
        "lm_eval.models.huggingface.HFLM.generate_until",
        lambda _, requests: [ANSWERS[request.doc["instruction_id_list"][0]] for request in requests],
    ):
        content = scored(suite, long_milestone, tmp_path)
    assert content["not_asked"] == []
    rows = {one["metric"]: one for one in content["tasks"]}
    assert {metric: one["value"] for metric, one in rows.items()} == {
        "prompt_level_strict_acc": pytest.approx(1 / 3),
        "inst_level_strict_acc": 0.5,
        "prompt_level_loose_acc": pytest.approx(2 / 3),
        "inst_level_loose_acc": 0.75,
    }
    assert [*rows] == [one["metric"] for one in content["tasks"]]
    for metric, one in rows.items():
        assert {*one["baselines"]} == {"copy", "one sentence"}, metric
        assert one["verdict"] is not None and one["low"] is not None, metric
    assert rows["inst_level_strict_acc"]["baselines"] == {"copy": 0.25, "one sentence": 0.75}
    assert rows["prompt_level_strict_acc"]["protocol"]["version"] == 1.0


ANSWERS = {
    "punctuation:no_comma": 'Sure:\n"yes"',
    "keywords:existence": "A boat",
    "length_constraints:number_words": "one two three four",
}


def test_prompt_is_that_of_lm_eval(mirror: Path, tmp_path: Path) -> None:
    (task,) = tasks_of("instructions", mirror, tmp_path).values()
    assert [task.fewshot_context(doc, num_fewshot=0) for doc in task.eval_docs] == [
        doc["prompt"] for doc in task.eval_docs
    ]
    assert task.config.generation_kwargs == {"until": [], "max_gen_toks": 1280, "do_sample": False}
