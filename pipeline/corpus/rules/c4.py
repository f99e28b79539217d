"""The datatrove block with C4's rules (Raffel et al. 2020, section 2.2): it judges lines, then what is left of them."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from datatrove.data import Document

from pipeline.corpus.removal import CURLY_BRACKET, LOREM_IPSUM, TOO_FEW_SENTENCES
from pipeline.corpus.rules.rule_block import RuleBlock, removed
from pipeline.corpus.rules.settings import C4
from pipeline.corpus.text.words import remember, split

_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_TERMINAL = (".", "?", "!", '"', "'")


def _phrases(text: str, rules: C4) -> dict[str, list[str]]:
    """Return the phrases for which lines fail, by reason, of those that the text has at all."""
    lower = (_CITATION.sub("", text) if rules.citations else text).lower()
    listed = {
        LOREM_IPSUM: ["lorem ipsum"] * rules.lorem_ipsum,
        "javascript": ["javascript"] * rules.javascript,
        CURLY_BRACKET: ["{"] * rules.curly_bracket,
        "policy": rules.policy_phrases * rules.policy,
    }
    found = {reason: [phrase for phrase in phrases if phrase in lower] for reason, phrases in listed.items()}
    return {reason: phrases for reason, phrases in found.items() if phrases}


def _failure(line: str, words: int, rules: C4, phrases: dict[str, list[str]]) -> str | None:
    """Return why a line fails, the first reason that datatrove would give; None where it does not."""
    longest = rules.maximum_word_length
    if longest is not None and len(line) > longest and any(len(word) > longest for word in line.split()):
        return "long_word"
    if rules.citations and "[" in line:
        line = _CITATION.sub("", line)
    if rules.terminal_punctuation and (not line.endswith(_TERMINAL) or line.endswith("...")):
        return "no_terminal_punctuation"
    if rules.minimum_words_per_line is not None and words < rules.minimum_words_per_line:
        return "too_few_words"
    if phrases:
        lower = line.lower()
        for reason, listed in phrases.items():
            if any(phrase in lower for phrase in listed):
                return reason
    return None


class C4Quality(RuleBlock[C4]):
    """Drops the lines of a document that are no sentences, and removes it where too little is left.

    Decides, and edits, as datatrove's C4QualityFilter does at the same thresholds and sentences. What was dropped is
    counted by reason in `dropped_lines` of the metadata.
    """

    name = "C4 quality"
    section = "c4"

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Return whether the document is kept, or False and the reason."""
        language = doc.metadata["language"]
        rules = self.rules[language]
        if rules is None:
            return True
        splitter = self.splitters.get(language, "plain")
        words = split(doc.text, splitter, language)
        lines = [line.strip() for line in words.lines]
        kept_L = np.zeros(len(lines), dtype=bool)
        phrases = _phrases(doc.text, rules)
        dropped: Counter[str] = Counter()
        for place, (line, number) in enumerate(zip(lines, words.pretokens_L.tolist(), strict=True)):
            failure = _failure(line, number, rules, phrases)
            if failure in (LOREM_IPSUM, CURLY_BRACKET):
                return removed(doc, str(failure), f"line {place + 1}")
            if failure is None:
                kept_L[place] = True
            else:
                dropped[failure] += 1
        sentences = int(words.sentences_L()[kept_L].sum())
        if rules.minimum_sentences is not None and sentences < rules.minimum_sentences:
            return removed(doc, TOO_FEW_SENTENCES, sentences)
        if rules.drop_lines:
            doc.metadata["dropped_lines"] = dict(dropped)
            for reason, count in dropped.items():
                self.stat_update(f"dropped_line_{reason}", value=count)
            kept = [line for line, chosen in zip(lines, kept_L.tolist(), strict=True) if chosen]
            text = "\n".join(kept)
            doc.text = (_CITATION.sub("", text) if rules.citations else text).strip()
            if doc.text == text:  # nothing was cut out of a line, so the words of the lines are still theirs
                remember(text, words.kept(kept, kept_L), splitter, language)
        return True
