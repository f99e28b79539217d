"""Every removal reason has its threshold, and `corpus why` shows the origin of the threshold."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from datatrove.data import Document

from pipeline.corpus import documents
from pipeline.corpus.documents import RIGHTS_REASONS
from pipeline.corpus.filter import RULE_BLOCKS
from pipeline.corpus.removal_explanations import REASONS, explain_removal
from pipeline.corpus.rules.rule_block import FilterRule, MeasureBlock
from pipeline.corpus.rules.settings import LanguageRules
from pipeline.corpus.settings import Corpus, FilterSettings, FindDuplicatesSettings
from pipeline.sources.raw_documents import Unreadable
from tests.corpus.conftest import TEXTS

PIPELINE = Path(__file__).parents[2] / "pipeline"
SECTIONS: dict[str, Any] = {
    block.section: get_args(LanguageRules.model_fields[block.section].annotation)[0] for block in RULE_BLOCKS
}
MEASURING: list[Any] = [block for block in RULE_BLOCKS if issubclass(block, MeasureBlock)]
RULES = [(block, rule) for block in MEASURING for rule in block.filter_rules]
# These have no threshold.
WITHOUT_THRESHOLD = {
    *get_args(Unreadable),
    *RIGHTS_REASONS,
    *documents.STATED_REASONS,
    documents.EMPTY,
    documents.EXACT_DUPLICATE,
} - {"too_large"}
# Settings that change a measure of their section but are no thresholds.
NO_THRESHOLDS = {"stop_words", "repeated_stop_words", "short_line_length", "within_words"}
LISTS = {"word_lists": [{"name": "a", "path": "a", "minimum_hits": 2, "minimum_share": 0.5}]}
HARMFUL = LISTS | {"classifiers": [{"name": "b", "path": "b", "label": "x", "threshold": 0.75}]}
# Every rule, including those off by default.
EVERY: dict[str, Any] = {
    name: {key: 1 for key, field in section.model_fields.items() if field.default is None}
    for name, section in SECTIONS.items()
} | {"mixed_language": 0.3}
WRITTEN: dict[str, Any] = {
    "preset": "standard",
    "languages": {"nl": EVERY, "en": EVERY},
    "harmful": HARMFUL,
    "deduplication": {"passage_words": 50, "line_characters": 20, "line_documents": 5},
}
TEXT = "\n".join(
    [
        "- de een-twee; … # 12 …",
        "nu komt het nog eens.",
        "nu komt het nog eens.",
        *TEXTS["nl_water"].split(", "),
        "",
        TEXTS["nl_bakker"],
        "",
        "twee...",
        "",
        "twee...",
    ]
)


def explanation(stage: str, reason: str, value: str = "9", language: str = "nl", **changed: Any) -> str | None:
    """Return the explanation for a job with all rules."""
    corpus = Corpus.model_validate(WRITTEN)
    filtering = FilterSettings(
        source="s",
        languages=corpus.languages,
        harmful=corpus.harmful,
        personal_data=corpus.personal_data,
        broken_share=1,
    )
    settings = {
        "filter": filtering.model_dump(mode="json"),
        "deduplicate": FindDuplicatesSettings(deduplication=corpus.deduplication).model_dump(mode="json"),
        "decontaminate": {"minimum_overlap": 0.0},
    }
    row = {"reason": reason, "value": value, "language": language}
    given: dict[str, Any] = {"configuration": {}, "corpus": "main", "source": "s", "settings": settings[stage]}
    return explain_removal(stage, row, **given | changed)


def test_all_removal_reasons_are_declared() -> None:
    constants = {getattr(documents, name) for name in documents.__annotations__}
    declared = {rule.reason for _, rule in RULES}
    assert len(declared) == len(RULES), "two rules have one reason"
    known = {reason for reasons in REASONS.values() for reason in reasons}
    assert known == constants | declared | {*get_args(Unreadable)}


def test_steps_write_only_declared_reasons() -> None:
    results = []
    for path in (path for chapter in ("corpus", "opt_out") for path in (PIPELINE / chapter).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            written: list[ast.expr | None] = []
            if isinstance(node, ast.Tuple) and isinstance(node.elts[0] if node.elts else None, ast.Constant):
                first: Any = node.elts[0]
                written = [node.elts[1]] if first.value is False and len(node.elts) == 2 else []
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "removed" and len(node.args) > 1:
                written = [node.args[1]]
            elif isinstance(node, ast.Dict):
                names = [getattr(key, "value", None) for key in node.keys]
                written = [value for name, value in zip(names, node.values, strict=True) if name == "reason"]
            results += [ast.unparse(value) for value in written if value and isinstance(value, ast.Constant)]
    assert not results


@pytest.mark.parametrize(("stage", "reason"), [(stage, reason) for stage, known in REASONS.items() for reason in known])
def test_explanation_of_every_reason_has_its_threshold(stage: str, reason: str) -> None:
    lengths = {"top_{n}_gram": (2, 3, 4), "duplicate_{n}_grams": range(5, 11)}.get(reason, (0,))
    values = ["a: 2 hits", "b: 0.9"] if reason == documents.HARMFUL else ["9"]
    for text in [explanation(stage, reason.format(n=n), value) for n in lengths for value in values]:
        assert text is not None and text[0].isupper() and text.endswith("."), text
        assert ("; " in text) is (reason not in WITHOUT_THRESHOLD), text
        assert "None" not in text and "{" not in text and ".en." not in text
    if reason == documents.HARMFUL:
        assert "the least is 2 (harmful.word_lists.a.minimum_hits" in str(explanation(stage, reason, "a: 2 hits"))
        assert "0.5 (harmful.word_lists.a.minimum_share" in str(explanation(stage, reason, "a: 2 hits"))
        assert "the least is 0.75 (harmful.classifiers.b.threshold" in str(explanation(stage, reason, "b: 0.9"))


@pytest.mark.parametrize("block", MEASURING, ids=lambda block: str(block.section))
def test_every_threshold_setting_belongs_to_a_rule(block: Any) -> None:
    keys = {rule.least or rule.most for rule in block.filter_rules}
    assert keys == SECTIONS[block.section].model_fields.keys() - NO_THRESHOLDS


@pytest.mark.parametrize(("block", "rule"), RULES, ids=lambda value: getattr(value, "reason", ""))
def test_rule_removes_beyond_its_threshold_but_not_at_it(
    block: Any, rule: FilterRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "filter_rules", (rule,))
    key, section = rule.least or rule.most, SECTIONS[block.section]
    n = next(iter(getattr(section(), key))) if "{n}" in rule.reason else None
    changed = {"stop_words": ["de", "het", "niet"]} if block.section == "quality" else {}

    def rules(threshold: float) -> Any:
        return section().model_copy(update={**changed, key: threshold if n is None else {n: threshold}})

    def judge(threshold: float) -> tuple[Any, Document]:
        document = Document(text=TEXT, id="", metadata={"language": "nl"})
        return block({"nl": rules(threshold)}).filter(document), document

    strict = 1e9 if rule.least else -1.0
    decision, document = judge(strict)
    assert decision == (False, rule.reason.format(n=n))
    assert rule.measure.__doc__ is not None and rule.measure.__doc__.startswith("Return the ")
    value = rule.measure(block.measures(TEXT, rules(strict), "plain", "nl"), *([] if n is None else [n]))
    assert value > 0 and document.metadata["filter_value"] == (
        f"{value:.4g}" if isinstance(value, float) else f"{value}"
    )
    assert judge(value)[0] is True
    assert judge(value + (1e-6 if rule.least else -1e-6))[0] == decision


def test_explanation_names_the_origin_of_the_threshold() -> None:
    message = "The number of words that are not punctuation is 9; the least is 50 (languages.nl.quality.minimum_words, "
    for configuration, origin in [
        ({}, "from the preset standard"),
        ({"corpus": {"main": {"preset": "fineweb2"}}}, "from the preset fineweb2"),
        ({"corpus": {"main": {"preset": "gptnl", "languages": {"nl": {"quality": {"minimum_words": 50}}}}}}, "written"),
        (
            {"sources": [{"name": "s", "filters": {"nl": {"quality": {"minimum_words": 50}}}}]},
            "written in the configuration for s",
        ),
        (None, "from the settings of the job"),
        (
            {"corpus": {"main": {"preset": "genre"}}, "sources": [{"name": "s", "genre": "prose"}]},
            "from the preset prose)",
        ),
        (
            {"corpus": {"main": {"preset": "genre"}}, "sources": [{"name": "s"}], "genres": {"s": "prose"}},
            "from the preset prose, the genre by a sample)",
        ),
        ({"corpus": {"main": {"preset": "genre"}}, "sources": [{"name": "s"}]}, "from the preset genre)"),
        (
            {
                "corpus": {"main": {"preset": "genre", "genres": {"web": {"nl": {"quality": {"minimum_words": 50}}}}}},
                "sources": [{"name": "s", "genre": "web"}],
            },
            "written in the configuration)",
        ),
    ]:
        text = str(explanation("filter", "too_few_words", configuration=configuration))
        assert text.startswith(message + origin), text
    c4 = str(explanation("filter", documents.TOO_FEW_SENTENCES))
    assert c4.endswith("the least is 5 (languages.nl.c4.minimum_sentences, a default).")
    for written, origin in (({}, "a default"), ({"document_bytes": 20_000_000}, "written in the configuration")):
        text = str(explanation("filter", "too_large", configuration={"sources": [{"name": "s", **written}]}))
        assert text == f"Its size is 9 bytes; the largest is 20000000 (document_bytes, {origin})."
    overlap = {"corpus": {"main": {"decontamination": {"minimum_overlap": 0.0}}}}
    assert "written" in str(explanation("decontaminate", documents.CONTAMINATED, configuration=overlap))


def test_language_removal_explanation_lists_all_minimum_scores() -> None:
    text = str(explanation("filter", documents.LANGUAGE, "af 1.00", "af"))
    assert re.search(
        r"is af 1\.00; the least is 0\.65 \(languages\.en\.minimum_score, .*, 0\.689 \(languages\.nl\.", text
    )


def test_unknown_reason_has_no_explanation() -> None:
    assert explanation("filter", "something_else") is None


def test_known_score_of_a_model_is_not_attributed_to_the_configuration() -> None:
    model = {"path": "model.bin", "sha256": "0" * 64, "known_scores": "glotlid"}
    words = {"quality": {"stop_words": ["de", "fan"]}}
    corpus = Corpus.model_validate({"languages": {"fy": words}, "language_model": model})
    rules = corpus.languages["fy"].model_dump(mode="json")
    for own, origin in ((words, "the score that is known for glotlid"), ({**words, "minimum_score": 0.8}, "written")):
        configuration = {"corpus": {"main": {"languages": {"fy": own}, "language_model": model}}}
        changed = {"languages": {"fy": rules | {"minimum_score": own.get("minimum_score", 0.723)}}}
        text = str(
            explanation("filter", documents.LANGUAGE, "fy 0.5", "fy", configuration=configuration, settings=changed)
        )
        assert f"(languages.fy.minimum_score, {origin}" in text, text
