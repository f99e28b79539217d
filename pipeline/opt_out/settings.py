"""Settings of the opt-out steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import Field

from pipeline.core.settings import Settings
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.rules.settings import C4, LanguageRules
from pipeline.corpus.settings import Normalization, SignatureSettings, UnitSettings
from pipeline.corpus.text.word_tokenizers import Splitter


class LineRules(Settings):
    """Which lines the filter drops from a document of a language."""

    language: str
    words: Splitter
    c4: C4


class ReservedSettings(UnitSettings):
    """How a source is read, and what the filter changes in a text besides judging it."""

    broken_share: float = 1.0
    normalization: Normalization
    line_rules: list[LineRules] = Field(default=[], description="of all sources that may contain a copy")
    personal_data: PersonalData
    signatures: SignatureSettings


class ForgottenSettings(Settings):
    """The corpus that is searched, and how its documents are signed."""

    corpus: str
    signatures: SignatureSettings


def collect_line_rules(sources: Iterable[Mapping[str, LanguageRules]]) -> list[LineRules]:
    """Return the different rules on lines that sources, language to rules, apply, in an order of their own."""
    entries = {}
    for languages in sources:
        for language, rules in languages.items():
            if rules.c4 is not None and rules.c4.drop_lines:
                entry = LineRules(language=language, words=rules.words, c4=rules.c4)
                entries[entry.model_dump_json()] = entry
    return [entry for _, entry in sorted(entries.items())]


class RemainsSettings(Settings):
    """Signatures by corpus, the corpus of each token set, and the state of other runs."""

    run: str
    corpora: dict[str, SignatureSettings]
    tokens: dict[str, str]
    others: dict[str, str] = Field(description="a hash of the state of each other run and of each archive")
