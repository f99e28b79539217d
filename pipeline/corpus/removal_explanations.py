"""Explains why a document was removed, in one sentence: its value, the threshold, and the origin of the threshold.

No step imports this module, so editing a sentence changes no code version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pipeline.corpus import documents
from pipeline.corpus.filter import RULE_BLOCKS
from pipeline.corpus.rules.presets import MODEL_SCORES, PRESETS
from pipeline.corpus.rules.rule_block import FilterRule, MeasureBlock


class Reason(NamedTuple):
    """The explanation of a removal reason: a sentence with `{value}`, and words before the thresholds, `side`.

    `keys` locate the thresholds in the settings of the job: `{language}` is the language of the document, `{n}` the
    number in the reason, `{flag}` the list or classifier at the start of the value.
    """

    says: str
    side: str = ""
    keys: tuple[str, ...] = ()


C4 = "languages.{language}.c4."
_MINIMUM, _MAXIMUM, _RULE, _COMPARED_BY = "the least is", "the largest is", "the rule is", "compared by"


def _rule_reason(section: str, rule: FilterRule) -> Reason:
    measured = (rule.measure.__doc__ or "").splitlines()[0].removeprefix("Return ").removesuffix(".")
    key = f"languages.{{language}}.{section}.{rule.least or rule.most}{'.{n}' if '{n}' in rule.reason else ''}"
    return Reason(f"{measured} is {{value}}", _MINIMUM if rule.least else _MAXIMUM, (key,))


# By step and reason; {n} is the length of an n-gram.
REASONS: dict[str, dict[str, Reason]] = {
    "filter": {
        "broken_json": Reason("it is no valid JSON, {value}"),
        "broken_csv": Reason("it is no valid row of CSV, {value}"),
        "not_an_object": Reason("it is valid JSON but no object, {value}"),
        "invalid_utf8": Reason("it is not UTF-8, {value}"),
        "missing_text": Reason("its text is missing: {value}"),
        "too_large": Reason("its size is {value} bytes", _MAXIMUM, ("document_bytes",)),
        "no_main_text": Reason("no main text was found in the page, {value}"),
        "not_a_page": Reason("it is no web page but {value}"),
        "http_status": Reason("the server answered {value} and not 200"),
        "trailing_bytes": Reason("it is trailing data after the end of the archive, {value}"),
        documents.OPT_OUT: Reason("its rights holder opted out: {value}"),
        documents.RESERVED_BY_PAGE: Reason("its page reserves rights: {value}"),
        documents.LICENSE_NOT_STATED: Reason("the field for its license is empty"),
        documents.LICENSE_NOT_UNDERSTOOD: Reason("its license is not understood: {value}"),
        documents.LICENSE_NOT_ALLOWED: Reason("its own license is not allowed: {value}"),
        documents.LICENSE_DIFFERS: Reason("it states another license than its source: {value}"),
        documents.LANGUAGE_DIFFERS: Reason("it states another language than its source: {value}"),
        documents.URL_BLOCKED: Reason("its address is on a block list, {value}"),
        documents.URL_NOT_ALLOWED: Reason("its address is on no allow list: {value}"),
        documents.LANGUAGE: Reason(
            "its most probable language is {value}", _MINIMUM, ("languages.{language}.minimum_score",)
        ),
        documents.MIXED_LANGUAGE: Reason(
            "its most frequent other language, and the share of all others, is {value}",
            _MAXIMUM,
            ("languages.{language}.mixed_language",),
        ),
        documents.LOREM_IPSUM: Reason("the first line with lorem ipsum is {value}", _RULE, (C4 + "lorem_ipsum",)),
        documents.CURLY_BRACKET: Reason(
            "the first line with a curly bracket is {value}", _RULE, (C4 + "curly_bracket",)
        ),
        documents.TOO_FEW_SENTENCES: Reason(
            "the number of sentences in the lines that do not fail is {value}", _MINIMUM, (C4 + "minimum_sentences",)
        ),
        documents.EMPTY: Reason("no text is left of it"),
        **{
            rule.reason: _rule_reason(block.section, rule)
            for block in RULE_BLOCKS
            if issubclass(block, MeasureBlock)
            for rule in block.filter_rules
        },
        documents.HARMFUL: Reason(
            "it was flagged by {value}",
            _MINIMUM,
            (
                "harmful.word_lists.{flag}.minimum_hits",
                "harmful.word_lists.{flag}.minimum_share",
                "harmful.classifiers.{flag}.threshold",
            ),
        ),
    },
    "deduplicate": {
        documents.EXACT_DUPLICATE: Reason("its text equals that of the kept document {value}"),
        documents.NEAR_DUPLICATE: Reason(
            "its text is similar to that of the kept document {value}",
            _COMPARED_BY,
            ("deduplication.bands", "deduplication.rows", "deduplication.ngram"),
        ),
        documents.DUPLICATE_PARAGRAPHS: Reason(
            "all its paragraphs that are long enough occurred before", _MINIMUM, ("deduplication.paragraph_characters",)
        ),
        documents.REPEATED_PASSAGES: Reason(
            "nothing is left of it, and most of it are passages that other documents have",
            _MINIMUM,
            ("deduplication.passage_words",),
        ),
        documents.BOILERPLATE_LINES: Reason(
            "nothing is left of it, and most of it are lines that occur in other documents of its domain or source",
            _MINIMUM,
            ("deduplication.line_documents", "deduplication.line_characters"),
        ),
        documents.OPT_OUT: Reason("it is a copy of a reserved document: {value}"),
    },
    "decontaminate": {
        documents.CONTAMINATED: Reason(
            "it contains an item of an evaluation task, {value}",
            "the least share of the item's n-grams is",
            ("minimum_overlap",),
        ),
    },
}


def _get(settings: Any, path: Sequence[str]) -> Any:
    """Return the value at a path of nested settings, or None; list entries are found by their names."""
    for part in path:
        if isinstance(settings, list):
            settings = {entry["name"]: entry for entry in settings}
        settings = settings.get(part) if isinstance(settings, dict) else None
    return settings


def _threshold_origin(path: list[str], limit: Any, configuration: Any, corpus: str, source: str) -> str:
    """Return the origin of a threshold: the configuration of the run, a preset, known scores or a default."""
    if configuration is None:
        return "from the settings of the job"
    section, source_section = (
        _get(configuration, ["corpus", corpus]) or {},
        _get(configuration, ["sources", source]) or {},
    )
    sampled = _get(configuration, ["genres", source])
    genre = source_section.get("genre") or sampled
    if path[0] == "languages":
        if _get(source_section, ["filters", *path[1:]]) is not None:
            return f"written in the configuration for {source}"
        preset = section.get("preset", "standard")  # the default of runs whose snapshots state none
        by_genre = preset == "genre" and genre is not None
        preset = genre if by_genre else preset
        preset_rules = PRESETS.get(preset, {}).get(path[1])
        if preset_rules is not None and _get(preset_rules.model_dump(mode="json"), path[2:]) == limit:
            return f"from the preset {preset}{', the genre by a sample' if by_genre and genre == sampled else ''}"
        model = _get(section, ["language_model", "known_scores"])
        if path[2:] == ["minimum_score"] and limit == MODEL_SCORES.get(model, {}).get(path[1]):
            return f"the score that is known for {model}"
    of_genre = {"languages": _get(section, ["genres", genre or ""])}
    written = (source_section, section, of_genre, section.get("decontamination"))
    return "written in the configuration" if any(_get(part, path) is not None for part in written) else "a default"


def _thresholds(reason: Reason, row: dict[str, Any], settings: dict[str, Any]) -> Iterator[tuple[list[str], Any]]:
    """Yield paths and values of the thresholds that applied; for a language outside the corpus, those of all."""
    languages, language = settings.get("languages") or {}, row.get("language")
    number = re.search(r"\d+", row["reason"])
    for key in reason.keys:
        for code in [language] if "{language}" not in key or language in languages else sorted(languages):
            flag = str(row["value"]).partition(":")[0]
            path = key.format(language=code, n=number and number[0], flag=flag).split(".")
            limit = _get(settings, path)
            if limit is not None:
                yield path, limit


def explain_removal(
    step: str, row: dict[str, Any], settings: dict[str, Any], configuration: Any, corpus: str, source: str
) -> str | None:
    """Return why a document was removed: its value, the thresholds, and their origin.

    Args:
        row: at least the columns `reason` and `value` of REMOVED_SCHEMA.
        settings: the settings of the job; empty if its record is missing.
        configuration: the configuration of the run when the job was planned; None if unknown.

    Returns:
        The sentence, or None for a reason that this version does not know.
    """
    step_reasons = REASONS[step]
    reason = step_reasons.get(row["reason"]) or step_reasons.get(re.sub(r"\d+", "{n}", row["reason"]))
    if reason is None:
        return None
    limits = [
        f"{limit} ({'.'.join(path)}, {_threshold_origin(path, limit, configuration, corpus, source)})"
        for path, limit in _thresholds(reason, row, settings)
    ]
    said = reason.says.format(value=row["value"])
    ruled = f"; {reason.side} {', '.join(limits)}" if limits else ""
    return f"{said[0].upper()}{said[1:]}{ruled}."
