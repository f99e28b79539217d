"""Metrics of generated text that lm-eval lacks or has for one reference only, and the comparison of texts in NFC.

A task lists them in its `metric_list`; all of its metrics are then computed here.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from pipeline.core.unicode_normalization import normalize_nfc, normalize_nfc_recursively
from pipeline.evaluate.entity_scores import LEFT_OUT, count_entities
from pipeline.evaluate.instruction_checks import CHECKS, INSTRUCTION_METRICS, PROMPT_METRICS, check_instructions
from pipeline.evaluate.sandbox import EXECUTED, passes_tests
from pipeline.evaluate.simplification_metrics import READABILITY, SARI, SENTENCE_END, mean, tokenize_lowercase

if TYPE_CHECKING:
    from lm_eval.api.task import Task


Fields = Mapping[str, Any]
CLAIMS = "claims_found"
UNTESTED = (CLAIMS, *READABILITY)
"""Metrics that do not say whether an answer is right: models are not tested by them."""
GRADED = ("sari", "sari_13a", "chrf3pp", "rouge_l", "squad_f1", "answers_found", *UNTESTED)
"""Metrics with a number for each item; the others are binary."""
CORPUS_LEVEL = ("bleu", "chrf", "ter")
"""lm-eval's metrics of all pairs of references and text together."""
BOUNDS = {
    **dict.fromkeys((CLAIMS, "rouge_l", "squad_f1", "answers_found"), (0.0, 1.0)),
    **dict.fromkeys(("sari", "sari_13a", "chrf3pp"), (0.0, 100.0)),
}
"""The least and the largest score; intervals are clipped to them."""
CITATION_METRICS = ("exact_answer", "citation", "abstention")
ENTITY_METRICS = {"entity_f1_no_misc": LEFT_OUT, "entity_f1": None}
"""By the type of entities that a metric leaves out."""
FOLLOWED_METRICS = (*PROMPT_METRICS, *INSTRUCTION_METRICS)
OWN_METRICS = (
    *(*GRADED, *CITATION_METRICS, "squad_em", *ENTITY_METRICS, EXECUTED),
    *FOLLOWED_METRICS,
)
CITATION = re.compile(r"\[(\d+)\]")
CONTENT_WORD_LETTERS = 4  # the least letters of a content word; numbers count at any length
CLAIM_OVERLAP = 0.8  # the least share of a claim's words in one passage
ARTICLES = frozenset({"de", "het", "een", "the", "a", "an"})


def rouge_l(text: str, references: Sequence[str]) -> float:
    """Return ROUGE-L, from 0 to 1: F1 of the longest common subsequence of words (Lin, 2004), of the best reference."""

    def rouge_l_for_reference(reference: Sequence[str], words: Sequence[str]) -> float:
        longest = [0] * (len(words) + 1)
        for one in reference:
            before = longest
            longest = [0]
            for place, other in enumerate(words):
                longest.append(before[place] + 1 if one == other else max(before[place + 1], longest[place]))
        return 2 * longest[-1] / (len(reference) + len(words)) if longest[-1] else 0.0

    words = _words(text)
    return max(rouge_l_for_reference(_words(reference), words) for reference in references)


def chrf3pp(text: str, references: Sequence[str]) -> float:
    """Return chrF3++, from 0 to 100, with the best reference: chrF++ with recall three times as important."""
    return float(_chrf3pp_scorer().sentence_score(text, [*references]).score)


@cache
def _chrf3pp_scorer() -> Any:
    from sacrebleu import CHRF

    return CHRF(word_order=2, beta=3)


SQUAD_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def score_squad(text: str, answers: Sequence[str]) -> tuple[float, float]:
    """Return SQuAD's exact match and F1 of words, 0 to 1, with the best answer (Rajpurkar et al., 2016).

    In lower case, without ASCII punctuation and without English articles, in any language. As in version 2, an answer
    of which nothing remains counts only if there is no other.
    """

    def normalize(one: str) -> list[str]:
        plain = "".join(letter for letter in one.lower() if letter not in string.punctuation)
        return SQUAD_ARTICLES.sub(" ", plain).split()

    def f1(right: list[str]) -> float:
        shared = sum((Counter(words) & Counter(right)).values())
        return float(words == right) if not words or not right else 2 * shared / (len(words) + len(right))

    words, known = normalize(text), [one for answer in answers if (one := normalize(answer))] or [[]]
    return max(float(words == right) for right in known), max(map(f1, known))


def answers_found(text: str, answers: Sequence[str]) -> float:
    """Return the share of answers that a text contains, whatever its case: RULER's metric (Hsieh et al., 2024)."""
    return mean(normalize_nfc(answer).lower() in normalize_nfc(text).lower() for answer in answers)


def _words(text: str) -> list[str]:
    return [token for token in tokenize_lowercase(text) if token[0].isalnum()]


def normalize_answer(text: str) -> str:
    """Return an answer without citations, punctuation, articles and capitals, for comparison."""
    return " ".join(word for word in _words(CITATION.sub(" ", text)) if word not in ARTICLES)


def supported_claims_share(text: str, passages: Sequence[str], abstention: str | None = None) -> float:
    """Return the share of claims that a passage supports, from 0 to 1; NaN for a text without claims.

    A claim is a sentence, without citations, that is not the abstention and has a number or a word of four letters or
    more. It is supported if one passage has each of its numbers and four fifths of these words. Copied text is
    supported whether or not it answers the question or is true; paraphrases are not.
    """
    known = [{*_words(passage)} for passage in passages]
    claims = [_words(sentence) for sentence in SENTENCE_END.split(CITATION.sub(" ", text))]
    nothing = None if abstention is None else _words(abstention)
    contents = [_content_words(claim) for claim in claims if claim != nothing]
    shares = [_is_supported(numbers, words, known) for numbers, words in contents if numbers or words]
    return sum(shares) / len(shares) if shares else math.nan


def _content_words(claim: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return the numbers of a sentence, and its other words of four letters or more."""
    numbers = {word for word in claim if any(map(str.isdigit, word))}
    return numbers, {word for word in claim if len(word) >= CONTENT_WORD_LETTERS} - numbers


def _is_supported(numbers: Set[str], words: Set[str], passages: Sequence[Set[str]]) -> bool:
    return any(numbers <= passage and len(words & passage) >= CLAIM_OVERLAP * len(words) for passage in passages)


def _score_cited_answer(text: str, fields: Fields, abstention: str) -> dict[str, float]:
    """Return 1 or 0 by metric: the answer, the cited passage and the decision to abstain are right.

    If no passage answers an item (`passage` 0), the abstention is the right answer, and no citation is right.
    """
    is_abstained = normalize_answer(text) == normalize_answer(abstention)
    right = (
        {normalize_answer(abstention)}
        if not fields["passage"]
        else {normalize_answer(one) for one in fields["answers"]}
    )
    return {
        "exact_answer": float(normalize_answer(text) in right),
        "citation": float({int(number) for number in CITATION.findall(text)} == {fields["passage"]} - {0}),
        "abstention": float(is_abstained == (not fields["passage"])),
    }


def rename_fields(fields: Fields, metadata: Fields) -> Fields:
    """Return an item with the fields that metrics read, from those that `metadata.fields` names.

    A name may have a part after a dot, as in `answers.text`; a single text for `references` or `answers` is a list.
    """
    renamed_fields = dict(fields)
    for name, place in (metadata.get("fields") or {}).items():
        value: Any = fields
        for part in str(place).split("."):
            value = value[part]
        renamed_fields[name] = [value] if name in ("references", "answers") and isinstance(value, str) else value
    return renamed_fields


def score_text(text: str, fields: Fields, metrics: Iterable[str], metadata: Fields) -> dict[str, Any]:
    """Return the values of a task's metrics for a text that answers an item."""
    scores: dict[str, Any] = {}
    for metric in metrics:
        if metric in READABILITY:
            scores[metric] = READABILITY[metric](text)
        elif metric in SARI:
            scores[metric] = SARI[metric](fields["source"], text, fields["references"])
        elif metric == "chrf3pp":
            scores[metric] = chrf3pp(text, fields["references"])
        elif metric == "rouge_l":
            scores[metric] = rouge_l(text, fields["references"])
        elif metric in ("squad_em", "squad_f1"):
            scores[metric] = score_squad(text, fields["answers"])[metric == "squad_f1"]
        elif metric == "answers_found":
            scores[metric] = answers_found(text, fields["answers"])
        elif metric in CORPUS_LEVEL:
            scores[metric] = (fields["references"], text)
        elif metric in ENTITY_METRICS:
            scores[metric] = count_entities(text, fields, metadata["entities"], ENTITY_METRICS[metric])
        elif metric == EXECUTED:
            scores[metric] = float(passes_tests(render_program(text, fields, metadata["program"])))
        elif metric in FOLLOWED_METRICS:
            scores[metric] = check_instructions(text, fields["instruction_id_list"], fields["kwargs"])[metric]
        elif metric == CLAIMS:
            passages = fields["passages"] if "passages" in fields else [fields["text"]]
            scores[metric] = supported_claims_share(text, passages, metadata.get("abstention"))
        else:
            scores[metric] = _score_cited_answer(text, fields, metadata["abstention"])[metric]
    return scores


def render_program(text: str, fields: Fields, template: str) -> str:
    """Return the program of an answer and the tests of its item, by a task's template."""
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    return environment.from_string(template).render(**fields, answer=text)


@cache
def register_aggregations() -> None:
    """Make Polder's metrics of all texts together known to lm-eval."""
    from lm_eval.api.registry import register_aggregation

    def entity_f1(items: Sequence[Any]) -> float:
        """Return F1 of right, written and real entities of all items."""
        right, written, real = map(sum, zip(*items, strict=True))
        return 2 * right / (written + real) if written + real else 0.0

    def instruction_share(items: Sequence[Any]) -> float:
        """Return the share of followed instructions, from their numbers and those of all instructions of an item."""
        followed, count = map(sum, zip(*items, strict=True))
        return followed / count if count else 0.0

    register_aggregation("entity_f1")(entity_f1)
    register_aggregation("instruction_share")(instruction_share)


def find_missing_field(fields: Fields, metrics: Iterable[str], metadata: Fields) -> str | None:
    """Explain what an item or its task's metadata lack for the metrics; None if they are complete."""
    asked = {*metrics}
    if other := sorted(asked - {*OWN_METRICS, *CORPUS_LEVEL}):
        return f"the metrics {other[0]} and {min(asked & {*OWN_METRICS})} exclude each other: use a task for each"
    if asked & {*CITATION_METRICS}:
        if not isinstance(metadata.get("abstention"), str):
            return "metadata: {abstention: …} is missing: the sentence that says that no passage answers"
        if not isinstance(fields.get("passage"), int) or (
            fields["passage"] and not _is_text_list(fields.get("answers"))
        ):
            return "write `passage`, a number or 0, and `answers`, a list of texts"
    if asked & {*ENTITY_METRICS}:
        if not isinstance(metadata.get("entities"), Mapping):
            return "metadata: {entities: {NAME: TYPE, …}} is missing: the names of kinds of entities in prompts"
        if not (isinstance(fields.get("tokens"), list) and isinstance(fields.get("labels"), list)):
            return "write `tokens` and `labels`, lists of texts"
        if len(fields["tokens"]) != len(fields["labels"]):
            return "write a label for each of the `tokens`"
    if asked & {*FOLLOWED_METRICS}:
        names: Any = fields.get("instruction_id_list")
        arguments = fields.get("kwargs")
        if not (_is_text_list(names) and isinstance(arguments, list) and len(names) == len(arguments)):
            return "write `instruction_id_list`, a list of texts, and `kwargs`, the arguments of each"
        if unknown := sorted({*names} - CHECKS.keys()):
            return f"the instruction {unknown[0]} is not one that can be checked: leave the item out"
    if EXECUTED in asked and not isinstance(metadata.get("program"), str):
        return "metadata: {program: TEMPLATE} is missing: the `answer` with the tests of the item"
    if asked & {"squad_em", "squad_f1", "answers_found"} and not _is_text_list(fields.get("answers")):
        return "write `answers`, a list of texts"
    if asked & {*SARI, "chrf3pp", "rouge_l", *CORPUS_LEVEL} and not _is_text_list(fields.get("references")):
        return "write `references`, a list of texts"
    if CLAIMS in asked and not (_is_text_list(fields.get("passages")) or isinstance(fields.get("text"), str)):
        return "write `passages`, a list of texts, or `text`: the source of the claims"
    if asked & {*SARI} and not isinstance(fields.get("source"), str):
        return "write `source`, the text that is simplified"
    return None


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) and one.strip() for one in value)


LIKELIHOOD_TASKS = ("loglikelihood", "loglikelihood_rolling")
"""Types of tasks without comparison of texts: bytes and words are counted in the text that the model reads."""


class _NfcFilter:
    """A filter of answers that normalizes them and the items to NFC before."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.filter = make()

    def apply(self, resps: Sequence[Any], docs: Sequence[Any]) -> Any:
        return self.filter.apply(normalize_nfc_recursively([*resps]), normalize_nfc_recursively([*docs]))


def normalize_task_unicode(task: Task) -> None:
    """Make a task compare answers, references, choices and patterns in the composed form of Unicode (NFC)."""
    if task.OUTPUT_TYPE in LIKELIHOOD_TASKS:
        return
    process, filters = task.process_results, getattr(task, "_filters", [])
    task.process_results = lambda doc, results: process(
        normalize_nfc_recursively(doc), normalize_nfc_recursively(results)
    )
    for settings in getattr(task, "_metric_fn_kwargs", {}).values():
        settings.update(normalize_nfc_recursively(settings))
    if task.OUTPUT_TYPE == "generate_until":
        for ensemble in filters:
            made = [
                partial(make.func, *make.args, **normalize_nfc_recursively(make.keywords)) for make in ensemble.filters
            ]
            ensemble.filters = [partial(_NfcFilter, make) for make in made]
