"""Metrics of what a model writes that lm-eval does not have, or only for one reference; what they need of an item.

A task asks for them in its `metric_list`; all of its metrics are then computed here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from pipeline.evaluate.simplicity import SENTENCE_END, flesch_douma, flesch_kincaid, lix, sari, tokens

Fields = Mapping[str, Any]
CLAIMS = "claims_found"
READABILITY: dict[str, Callable[[str], float]] = {
    "lix": lix,
    "flesch_douma": flesch_douma,
    "flesch_kincaid": flesch_kincaid,
}
UNTESTED = (CLAIMS, *READABILITY)
"""These say nothing of whether an answer is right: no model is better in them than another."""
GRADED = ("sari", "rouge_l", *UNTESTED)
"""Of each item a number, where the other metrics say whether it is right."""
OF_ALL = ("bleu", "chrf", "ter")
"""lm-eval makes one figure of all pairs of references and text."""
BOUNDS = {CLAIMS: (0.0, 1.0), "rouge_l": (0.0, 1.0), "sari": (0.0, 100.0)}
"""Between these a score lies, and so does its interval."""
CITED = ("exact_answer", "citation", "abstention")
OWN = (*GRADED, *CITED)
CITATION = re.compile(r"\[(\d+)\]")
TELLING = 4  # letters of a word that tells something; a number tells at any length
FOUND = 0.8  # the share of a claim's words that stand in one passage
ARTICLES = frozenset({"de", "het", "een", "the", "a", "an"})


def rouge_l(text: str, references: Sequence[str]) -> float:
    """Return ROUGE-L, from 0 to 1: F1 of the longest common subsequence of words (Lin, 2004), of the best reference."""

    def of_one(reference: Sequence[str], words: Sequence[str]) -> float:
        longest = [0] * (len(words) + 1)
        for one in reference:
            before = longest
            longest = [0]
            for place, other in enumerate(words):
                longest.append(before[place] + 1 if one == other else max(before[place + 1], longest[place]))
        return 2 * longest[-1] / (len(reference) + len(words)) if longest[-1] else 0.0

    words = _words(text)
    return max(of_one(_words(reference), words) for reference in references)


def _words(text: str) -> list[str]:
    return [token for token in tokens(text) if token[0].isalnum()]


def normalised(text: str) -> str:
    """Return an answer without citations, signs, articles and capitals: what two answers are compared by."""
    return " ".join(word for word in _words(CITATION.sub(" ", text)) if word not in ARTICLES)


def claims_found(text: str, passages: Sequence[str], abstention: str | None = None) -> float:
    """Return the share of claims that stand in one passage, from 0 to 1; NaN of a text that claims nothing.

    A claim is a sentence, without citations, that is not the abstention and has a number or a word of four letters or
    more. It is found where one passage has each of its numbers and four fifths of these words. What is copied is found,
    whatever was asked and whether it is true, and what is told in other words is not.
    """
    known = [{*_words(passage)} for passage in passages]
    claims = [_words(sentence) for sentence in SENTENCE_END.split(CITATION.sub(" ", text))]
    nothing = None if abstention is None else _words(abstention)
    told = [_told(claim) for claim in claims if claim != nothing]
    shares = [_is_found(numbers, words, known) for numbers, words in told if numbers or words]
    return sum(shares) / len(shares) if shares else math.nan


def _told(claim: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return what a sentence tells: its numbers, and its other words of four letters or more."""
    numbers = {word for word in claim if any(map(str.isdigit, word))}
    return numbers, {word for word in claim if len(word) >= TELLING} - numbers


def _is_found(numbers: Set[str], words: Set[str], passages: Sequence[Set[str]]) -> bool:
    return any(numbers <= passage and len(words & passage) >= FOUND * len(words) for passage in passages)


def _passages(fields: Fields) -> list[str]:
    """Return what an item is answered from."""
    return list(fields["passages"]) if "passages" in fields else [fields["text"]]


def _cited(text: str, fields: Fields, abstention: str) -> dict[str, float]:
    """Return 1 or 0 by metric: the answer is right, the right passage is named and no other, rightly (not) abstained.

    Of an item that no passage answers (`passage` 0) the fixed sentence is the right answer, and no passage is right.
    """
    is_abstained = normalised(text) == normalised(abstention)
    right = {normalised(abstention)} if not fields["passage"] else {normalised(one) for one in fields["answers"]}
    return {
        "exact_answer": float(normalised(text) in right),
        "citation": float({int(number) for number in CITATION.findall(text)} == {fields["passage"]} - {0}),
        "abstention": float(is_abstained == (not fields["passage"])),
    }


def score(text: str, fields: Fields, metrics: Iterable[str], metadata: Fields) -> dict[str, Any]:
    """Return what each metric of a task says of a text that answers an item."""
    found: dict[str, Any] = {}
    for metric in metrics:
        if metric in READABILITY:
            found[metric] = READABILITY[metric](text)
        elif metric == "sari":
            found[metric] = sari(fields["source"], text, fields["references"])
        elif metric == "rouge_l":
            found[metric] = rouge_l(text, fields["references"])
        elif metric in OF_ALL:
            found[metric] = (fields["references"], text)
        elif metric == CLAIMS:
            found[metric] = claims_found(text, _passages(fields), metadata.get("abstention"))
        else:
            found[metric] = _cited(text, fields, metadata["abstention"])[metric]
    return found


def problem(fields: Fields, metrics: Iterable[str], metadata: Fields) -> str | None:
    """Return what an item, or its task's metadata, lack for the metrics; None of what has all."""
    asked = {*metrics}
    if other := sorted(asked - {*OWN, *OF_ALL}):
        return f"the metric {other[0]} cannot stand beside {min(asked & {*OWN})}: write it in a task of its own"
    if asked & {*CITED}:
        if not isinstance(metadata.get("abstention"), str):
            return "metadata: {abstention: …} is missing: the sentence that says that no passage answers"
        if not isinstance(fields.get("passage"), int) or (fields["passage"] and not _texts(fields.get("answers"))):
            return "write `passage`, a number or 0, and `answers`, a list of texts"
    if asked & {"sari", "rouge_l", *OF_ALL} and not _texts(fields.get("references")):
        return "write `references`, a list of texts"
    if CLAIMS in asked and not (_texts(fields.get("passages")) or isinstance(fields.get("text"), str)):
        return "write `passages`, a list of texts, or `text`: where claims are looked for"
    if "sari" in asked and not isinstance(fields.get("source"), str):
        return "write `source`, the text that is simplified"
    return None


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) and one.strip() for one in value)
