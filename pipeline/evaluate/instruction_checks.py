"""Check whether a text follows instructions that a program can verify: IFEval (Zhou et al., arXiv 2311.07911, 2023).

The checks are those of lm-eval's task `ifeval`, version 4, which are the authors' with corrections. Two of its tools
are others here, because they need packages or downloads: languages are identified as those of documents are, and
sentences are split by Punkt with the abbreviations below instead of its English model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

PROMPT_METRICS = ("prompt_level_strict_acc", "prompt_level_loose_acc")
INSTRUCTION_METRICS = ("inst_level_strict_acc", "inst_level_loose_acc")
LANGUAGES = frozenset(
    {
        *("ar", "bg", "bn", "de", "en", "es", "fa", "fi", "fr", "gu", "he", "hi", "it", "ja", "kn", "ko", "ml", "mr"),
        *("ne", "pa", "pl", "pt", "ru", "sw", "ta", "te", "th", "uk", "ur", "vi"),
    }
)
"""In which IFEval asks for answers."""
ABBREVIATIONS = frozenset(
    {
        *("dr", "mr", "mrs", "ms", "prof", "st", "jr", "sr", "gen", "col", "lt", "capt", "sen", "rep", "inc", "ltd"),
        *("co", "corp", "vs", "etc", "e.g", "i.e", "u.s", "u.k", "u.n", "a.m", "p.m", "ph.d", "approx", "dept", "fig"),
        *("no", "jan", "feb", "mar", "apr", "aug", "sept", "oct", "nov", "dec"),
    }
)
OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
POSTSCRIPTS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}

Arguments = Mapping[str, Any]


def _compare(count: int, threshold: int, relation: str) -> bool:
    return count < threshold if relation == "less than" else count >= threshold


def is_in_language(text: str, language: str) -> bool:
    """Return whether a text is in a language, among those that IFEval asks for; a text without letters is in each."""
    from pipeline.corpus.text.language_identification import BayesIdentifier

    if not any(map(str.isalpha, text)):
        return True
    return BayesIdentifier.cached_identifier(LANGUAGES).identify(text)[0] == language


@cache
def _sentence_tokenizer() -> Any:
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    parameters = PunktParameters()
    parameters.abbrev_types = {*ABBREVIATIONS}
    return PunktSentenceTokenizer(parameters)


def count_sentences(text: str) -> int:
    """Return the number of English sentences (Kiss and Strunk, Computational Linguistics 32, 2006)."""
    return len(_sentence_tokenizer().tokenize(text))


def _count_capital_words(text: str) -> int:
    from nltk.tokenize import NLTKWordTokenizer

    return sum(word.isupper() for word in NLTKWordTokenizer().tokenize(text))


def _has_paragraphs(text: str, count: int) -> bool:
    """Return whether `***` separates so many paragraphs; an empty one may be the first or the last alone."""
    first, *others = re.split(r"\s?\*\*\*\s?", text)
    *between, last = others or [""]
    return all(one.strip() for one in between) and count == len(between) + sum(
        bool(one.strip()) for one in (first, last)
    )


def _nth_paragraph_starts_with(text: str, first_word: str, num_paragraphs: int, nth_paragraph: int) -> bool:
    paragraphs = text.split("\n\n")
    count = sum(bool(one.strip()) for one in paragraphs)
    words = paragraphs[nth_paragraph - 1].split() if nth_paragraph <= count else []
    if not words:
        return False
    word = re.split("""[.,?!'"]""", words[0].lstrip("'").lstrip('"').lower())[0]
    return count == num_paragraphs and word == first_word.lower()


def _count_highlights(text: str) -> int:
    single = [one.strip("*") for one in re.findall(r"\*[^\n*]*\*", text)]
    double = [one[2:-2] for one in re.findall(r"\*\*[^\n*]*\*\*", text)]
    return sum(bool(one.strip()) for one in single + double)


def _has_postscript(text: str, marker: str) -> bool:
    return bool(re.search(POSTSCRIPTS.get(marker.strip(), marker.strip().lower()), text.lower()))


def _is_json(text: str) -> bool:
    text = text.strip()
    for start in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(start)
    try:
        json.loads(text.removesuffix("```").strip())
    except ValueError:
        return False
    return True


def _has_two_responses(text: str) -> bool:
    first, *others = text.split("******")
    *between, last = others or [""]
    responses = [one.strip() for one in (first, *between, last) if one.strip()]
    return all(one.strip() for one in between) and len(responses) == 2 and responses[0] != responses[1]


def _is_quoted(text: str) -> bool:
    return len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"'


CHECKS: dict[str, Callable[[str, Arguments], bool]] = {
    "keywords:existence": lambda text, a: all(re.search(one, text, re.IGNORECASE) for one in a["keywords"]),
    "keywords:frequency": lambda text, a: _compare(
        len(re.findall(a["keyword"].strip(), text, re.IGNORECASE)), a["frequency"], a["relation"]
    ),
    "keywords:forbidden_words": lambda text, a: (
        not any(re.search(rf"\b{one}\b", text, re.IGNORECASE) for one in a["forbidden_words"])
    ),
    "keywords:letter_frequency": lambda text, a: _compare(
        text.lower().count(a["letter"].strip().lower()), a["let_frequency"], a["let_relation"]
    ),
    "language:response_language": lambda text, a: is_in_language(text, a["language"]),
    "length_constraints:number_sentences": lambda text, a: _compare(
        count_sentences(text), a["num_sentences"], a["relation"]
    ),
    "length_constraints:number_paragraphs": lambda text, a: _has_paragraphs(text, a["num_paragraphs"]),
    "length_constraints:number_words": lambda text, a: _compare(
        len(re.findall(r"\w+", text)), a["num_words"], a["relation"]
    ),
    "length_constraints:nth_paragraph_first_word": lambda text, a: _nth_paragraph_starts_with(text, **a),
    "detectable_content:number_placeholders": lambda text, a: (
        len(re.findall(r"\[.*?\]", text)) >= a["num_placeholders"]
    ),
    "detectable_content:postscript": lambda text, a: _has_postscript(text, a["postscript_marker"]),
    "detectable_format:number_bullet_lists": lambda text, a: (
        len(re.findall(r"^\s*(?:\*[^*].*|-.*)$", text, re.MULTILINE)) == a["num_bullets"]
    ),
    "detectable_format:constrained_response": lambda text, a: any(one in text for one in OPTIONS),
    "detectable_format:number_highlighted_sections": lambda text, a: _count_highlights(text) >= a["num_highlights"],
    "detectable_format:multiple_sections": lambda text, a: (
        len(re.findall(rf"\s?{a['section_spliter'].strip()}\s?\d+\s?", text)) >= a["num_sections"]
    ),
    "detectable_format:json_format": lambda text, a: _is_json(text),
    "detectable_format:title": lambda text, a: any(
        one.lstrip("<").rstrip(">").strip() for one in re.findall(r"<<[^\n]+>>", text)
    ),
    "combination:two_responses": lambda text, a: _has_two_responses(text),
    "combination:repeat_prompt": lambda text, a: text.strip().lower().startswith(a["prompt_to_repeat"].strip().lower()),
    "startend:end_checker": lambda text, a: text.strip().strip('"').lower().endswith(a["end_phrase"].strip().lower()),
    "startend:quotation": lambda text, a: _is_quoted(text),
    "change_case:capital_word_frequency": lambda text, a: _compare(
        _count_capital_words(text), a["capital_frequency"], a["capital_relation"]
    ),
    "change_case:english_capital": lambda text, a: text.isupper() and is_in_language(text, "en"),
    "change_case:english_lowercase": lambda text, a: text.islower() and is_in_language(text, "en"),
    "punctuation:no_comma": lambda text, a: "," not in text,
}
"""By the ids of the data set; the arguments are its `kwargs`."""


def check_instructions(text: str, names: Sequence[str], arguments: Sequence[Arguments]) -> dict[str, Any]:
    """Return IFEval's metrics of a text: 1 if it follows all instructions, and the numbers of followed ones and of all.

    The loose metrics also try the text without its first or last line or both, and each without asterisks.

    Raises:
        KeyError: an instruction is unknown or lacks an argument.
    """
    lines = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    loose = [version for one in cut for version in (one, one.replace("*", ""))]
    scores: dict[str, Any] = {}
    for metrics, versions in (
        (("prompt_level_strict_acc", "inst_level_strict_acc"), [text]),
        (("prompt_level_loose_acc", "inst_level_loose_acc"), loose),
    ):
        followed = [
            any(one.strip() and CHECKS[name](one, _given(each)) for one in versions)
            for name, each in zip(names, arguments, strict=True)
        ]
        scores |= {metrics[0]: float(all(followed)), metrics[1]: (float(sum(followed)), float(len(followed)))}
    return scores


def _given(arguments: Arguments) -> Arguments:
    """Return the arguments of an instruction: in a table, each row has those of all."""
    return {name: value for name, value in arguments.items() if value is not None}
