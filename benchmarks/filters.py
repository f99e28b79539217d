"""The filters against those of datatrove: their speed and memory, or how often they decide alike.

    python benchmarks/filters.py DATA [--preset standard] [--every 1]
    python benchmarks/filters.py --agreement DATA [--every 1]

DATA is a folder of *.jsonl.gz with `text`; of its documents every N-th is taken. Both sides read the same file, use the
same language model and thresholds and run in a process of their own on one core; datatrove splits words with spaCy,
which is its default, and writes JSON lines, ours masks ten kinds of personal data and writes Parquet.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from datatrove.data import Document  # noqa: E402
from datatrove.pipeline import filters  # noqa: E402
from datatrove.pipeline.filters import (  # noqa: E402
    c4_filters,
    fineweb_quality_filter,
    gopher_quality_filter,
    gopher_repetition_filter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter  # noqa: E402
from datatrove.pipeline.formatters import FTFYFormatter, PIIFormatter  # noqa: E402
from datatrove.pipeline.readers import JsonlReader  # noqa: E402
from datatrove.pipeline.writers import JsonlWriter  # noqa: E402

from benchmarks.sides import measured, peak_bytes, texts  # noqa: E402
from pipeline.corpus.execute import execute  # noqa: E402
from pipeline.corpus.filter import Collect, blocks, rule_blocks  # noqa: E402
from pipeline.corpus.rules.presets import PRESETS  # noqa: E402
from pipeline.corpus.rules.settings import C4, FineWeb, LanguageRules  # noqa: E402
from pipeline.corpus.settings import Corpus, FilterSettings  # noqa: E402
from pipeline.corpus.text.splitters import Splitter  # noqa: E402
from pipeline.corpus.text.words import split, word_tokenize  # noqa: E402

LANGUAGES = {"nl": "nld", "en": "eng"}


def stock(rules: LanguageRules, language: str) -> dict[str, BaseFilter]:
    """Return datatrove's blocks with the same thresholds, by the key of their rules, in the order of ours."""
    found: dict[str, BaseFilter] = {}
    if (c4 := rules.c4) is not None:
        found["c4"] = filters.C4QualityFilter(
            remove_citations=c4.citations,
            filter_no_terminal_punct=c4.terminal_punctuation,
            min_num_sentences=c4.minimum_sentences or -1,
            min_words_per_line=c4.minimum_words_per_line or -1,
            max_word_length=c4.maximum_word_length or -1,
            filter_lorem_ipsum=c4.lorem_ipsum,
            filter_javascript=c4.javascript,
            filter_curly_bracket=c4.curly_bracket,
            filter_policy=c4.policy,
            language=language,
        )
    if (repetition := rules.repetition) is not None:
        found["repetition"] = filters.GopherRepetitionFilter(
            dup_line_frac=repetition.duplicate_lines,
            dup_para_frac=repetition.duplicate_paragraphs,
            dup_line_char_frac=repetition.duplicate_line_characters,
            dup_para_char_frac=repetition.duplicate_paragraph_characters,
            top_n_grams=tuple(repetition.top_n_grams.items()),
            dup_n_grams=tuple(repetition.duplicate_n_grams.items()),
            language=language,
        )
    if (quality := rules.quality) is not None:
        found["quality"] = filters.GopherQualityFilter(
            min_doc_words=quality.minimum_words,
            max_doc_words=quality.maximum_words,
            min_avg_word_length=quality.minimum_mean_word_length,
            max_avg_word_length=quality.maximum_mean_word_length,
            max_symbol_word_ratio=quality.symbol_ratio,
            max_bullet_lines_ratio=quality.bullet_lines,
            max_ellipsis_lines_ratio=quality.ellipsis_lines,
            max_non_alpha_words_ratio=quality.alphabetic_words,
            min_stop_words=quality.minimum_stop_words,
            stop_words=quality.stop_words,
            language=language,
        )
    if (fineweb := rules.fineweb) is not None:
        never = 1e9
        found["fineweb"] = filters.FineWebQualityFilter(
            line_punct_thr=fineweb.punctuated_lines or 0.0,
            short_line_thr=never if fineweb.short_lines is None else fineweb.short_lines,
            short_line_length=fineweb.short_line_length,
            char_duplicates_ratio=(
                never if fineweb.duplicate_line_characters is None else fineweb.duplicate_line_characters
            ),
            new_line_ratio=never if fineweb.new_lines is None else fineweb.new_lines,
            language=language,
        )
    return found


@contextlib.contextmanager
def our_words_in_datatrove() -> Iterator[None]:
    """Give datatrove's blocks the plain words and sentences of this package."""

    def sentences(text: str, language: str) -> list[str]:
        return [""] * int(split(text).sentences_L().sum())

    places = [
        (gopher_quality_filter, "split_into_words", lambda text, language: word_tokenize(text)),
        (gopher_repetition_filter, "split_into_words", lambda text, language: word_tokenize(text)),
        (fineweb_quality_filter, "split_into_words", lambda text, language: word_tokenize(text)),
        (c4_filters, "split_into_sentences", sentences),
    ]
    before = [getattr(module, name) for module, name, _ in places]
    for module, name, words in places:
        setattr(module, name, words)
    try:
        yield
    finally:
        for (module, name, _), words in zip(places, before, strict=True):
            setattr(module, name, words)


KEYS = ("c4", "repetition", "quality", "fineweb")
Decisions = dict[str, list[tuple[bool, int]]]


def agreement_rules(splitter: Splitter) -> dict[str, LanguageRules]:
    """Return the thresholds that are compared: those of `standard`, with those of C4 and FineWeb."""
    rules = {
        code: PRESETS["standard"][code].model_copy(update={"words": splitter, "c4": C4(), "fineweb": FineWeb()})
        for code in LANGUAGES
    }
    return rules | {"nl": rules["nl"].model_copy(update={"fineweb": PRESETS["fineweb2"]["nl"].fineweb})}


def our_decisions(documents: list[tuple[str, str]], splitter: Splitter) -> Decisions:
    """Return for each block whether it keeps each document, and a hash of the text that it leaves."""
    found: Any = zip(KEYS, rule_blocks(agreement_rules(splitter)), strict=True)
    return _decisions(documents, [(key, dict.fromkeys(LANGUAGES, block)) for key, block in found])


def their_decisions(documents: list[tuple[str, str]], splitter: Splitter) -> Decisions:
    """Return the same of datatrove's blocks, with these words."""
    theirs = {code: stock(rules, LANGUAGES[code]) for code, rules in agreement_rules(splitter).items()}
    with our_words_in_datatrove() if splitter == "plain" else contextlib.nullcontext():
        return _decisions(documents, [(key, {code: theirs[code][key] for code in LANGUAGES}) for key in KEYS])


def _decisions(documents: list[tuple[str, str]], found: list[tuple[str, dict[str, BaseFilter]]]) -> Decisions:
    """Let every block judge every text as it is given."""
    decisions: Decisions = {key: [] for key, _ in found}
    for text, language in documents:
        for key, by_language in found:
            document = Document(text=text, id="", metadata={"language": language})
            kept = by_language[language].filter(document) is True
            decisions[key].append((kept, hash(document.text)))
    return decisions


def agreement(ours: Decisions, theirs: Decisions) -> dict[str, tuple[int, int]]:
    """Return for each kind of rules how many decisions are the same, and how many there are; and C4's texts."""
    same = {key: [mine[0] == other[0] for mine, other in zip(ours[key], theirs[key], strict=True)] for key in KEYS} | {
        "c4 text": [mine == other for mine, other in zip(ours["c4"], theirs["c4"], strict=True)]
    }
    return {key: (sum(equal), len(equal)) for key, equal in same.items()}


class PerLanguage(BaseFilter):  # type: ignore[misc]
    """Lets the filter of a document's language decide."""

    name = "Per language"

    def __init__(self, by_language: dict[str, BaseFilter]) -> None:
        super().__init__()
        self.by_language = by_language

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """Return what that filter returns."""
        return self.by_language[doc.metadata["language"]].filter(doc) if self.by_language else True


class StockLanguage(BaseFilter):  # type: ignore[misc]
    """py3langid as anybody would call it."""

    name = "py3langid"

    def __init__(self, minimum_scores: dict[str, float]) -> None:
        super().__init__()
        self.minimum_scores = minimum_scores
        self.model: Any = None

    def filter(self, doc: Document) -> bool:
        """Return whether the language is wanted."""
        if self.model is None:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier

            from pipeline.corpus.text.language_bayes import NEIGHBOURS

            self.model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
            self.model.set_languages(sorted(NEIGHBOURS | set(self.minimum_scores)))
        language, score = self.model.classify(doc.text)
        doc.metadata["language"] = language
        return bool(score >= self.minimum_scores.get(language, 2.0))


def our_filter(preset: str, file: Path, documents: Path) -> int:
    """Filter the texts of a file with this package's blocks, write the documents, and return their number."""
    corpus = Corpus.model_validate({"preset": preset})
    unit = FilterSettings(
        source="s",
        license="CC0-1.0",
        languages=corpus.languages,
        personal_data=corpus.personal_data,
        broken_share=1.0,
    )
    reader, *_, collect = execute([*blocks(unit, [file.name], [file]), Collect()])
    counts = {"documents_in": reader.records_in, "bytes_in": reader.bytes_in}
    collect.documents.write(documents, {"source": "s", "unit": 0, "stage": "filter", **counts})
    return int(collect.kept)


def stock_filter(preset: str, file: Path, folder: Path) -> int:
    """Filter the texts of a file with datatrove's blocks, write JSON lines, and return the number of documents."""
    rules = PRESETS[preset]
    theirs = {code: stock(rules[code], LANGUAGES[code]) for code in LANGUAGES}
    keys = [key for key in ("c4", "repetition", "quality", "fineweb") if any(key in b for b in theirs.values())]
    ran: Any = execute(
        [
            JsonlReader(str(file.parent), glob_pattern=file.name),
            FTFYFormatter(),
            StockLanguage({code: rules[code].minimum_score for code in rules}),
            *(PerLanguage({code: b.get(key, PerLanguage({})) for code, b in theirs.items()}) for key in keys),
            PIIFormatter(),
            JsonlWriter(str(folder)),
        ]
    )
    return int(ran[-1].stats["total"].total)


def run_one(side: str, preset: str, file: Path, folder: Path) -> None:
    """Run one side in this process, then print seconds, documents kept and peak memory as JSON."""
    start = time.process_time()
    kept = (our_filter if side == "ours" else stock_filter)(preset, file, folder / "out")
    print(json.dumps({"seconds": time.process_time() - start, "kept": kept, "peak_bytes": peak_bytes()}))


def speed(found: list[str], preset: str) -> None:
    """Print megabytes per second and core, and peak memory, of both sides."""
    megabytes = sum(len(text.encode()) for text in found) / 1e6
    rates = {}
    for side, result in measured(__file__, preset, found):
        rates[side] = megabytes / result["seconds"]
        print(
            f"{side:6} {rates[side]:6.2f} MB/s/core  {result['kept']:6} of {len(found)} documents kept  "
            f"peak {result['peak_bytes'] / 1e6:5.0f} MB"
        )
    print(f"{preset}: {megabytes:.1f} MB, {rates['ours'] / rates['stock']:.1f} times stock datatrove")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--agreement", action="store_true")
    parser.add_argument("--preset", default="standard", choices=PRESETS)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--side", choices=["ours", "stock"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        with tempfile.TemporaryDirectory() as folder:
            run_one(options.side, options.preset, options.data, Path(folder))
        return
    found = texts(options.data, options.every)
    if not options.agreement:
        speed(found, options.preset)
        return
    from pipeline.corpus.text.language import identifier
    from pipeline.corpus.text.normalise import Normalise

    judge, normalise = identifier(LANGUAGES), Normalise()
    documents = [(text, judge.identify(text)[0]) for text in map(normalise.format, found) if text]
    documents = [(text, language) for text, language in documents if language in LANGUAGES]
    print(f"{len(documents)} documents, {sum(len(text.encode()) for text, _ in documents) / 1e6:.1f} MB")
    splitters: tuple[Splitter, ...] = ("plain", "spacy")
    ours = {splitter: our_decisions(documents, splitter) for splitter in splitters}
    theirs = {splitter: their_decisions(documents, splitter) for splitter in splitters}
    for mine, other in (("plain", "plain"), ("spacy", "spacy"), ("plain", "spacy")):
        for key, (same, total) in agreement(ours[mine], theirs[other]).items():
            print(f"{key:11} ours {mine:5} datatrove {other:5} {same} of {total} {same / total:.3%}", flush=True)


if __name__ == "__main__":
    main()
