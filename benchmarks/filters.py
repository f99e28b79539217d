"""Speed, memory and agreement of the filters, against datatrove's.

    python benchmarks/filters.py DATA [--preset standard] [--every 1]
    python benchmarks/filters.py --agreement DATA [--every 1]

DATA is a folder of *.jsonl.gz with `text`; every N-th document is read. Both sides read the same file with the same
language model and thresholds, each in its own process on one core. Datatrove splits words with spaCy, its default, and
writes JSON lines; Polder masks ten kinds of personal data and writes Parquet.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from datatrove.data import Document  # noqa: E402
from datatrove.pipeline.filters.base_filter import BaseFilter  # noqa: E402
from datatrove.pipeline.formatters import FTFYFormatter, PIIFormatter  # noqa: E402
from datatrove.pipeline.readers import JsonlReader  # noqa: E402
from datatrove.pipeline.writers import JsonlWriter  # noqa: E402

from benchmarks.comparison import measured, peak_bytes, texts  # noqa: E402
from pipeline.corpus.filter import KeptDocumentCollector, build_filter_pipeline, run_blocks  # noqa: E402
from pipeline.corpus.raw_file_quarantine import RawFiles  # noqa: E402
from pipeline.corpus.rules.presets import PRESETS  # noqa: E402
from pipeline.corpus.settings import Corpus, FilterSettings  # noqa: E402
from pipeline.corpus.text.word_tokenizers import Splitter  # noqa: E402
from tests.corpus.rules.peers import KEYS, LANGUAGES, agreement, our_decisions, stock, their_decisions  # noqa: E402


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

            from pipeline.corpus.text.language_identification import NEIGHBORS

            self.model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
            self.model.set_languages(sorted(NEIGHBORS | set(self.minimum_scores)))
        language, score = self.model.classify(doc.text)
        doc.metadata["language"] = language
        return bool(score >= self.minimum_scores.get(language, 2.0))


def our_filter(preset: str, file: Path, documents: Path) -> int:
    """Filter the texts of a file with this package's blocks, write the documents, and return their number."""
    corpus = Corpus.model_validate({"preset": preset})
    unit = FilterSettings(
        source="s",
        languages=corpus.languages,
        personal_data=corpus.personal_data,
        broken_share=1.0,
    )
    reader, *_, collect = run_blocks(
        [*build_filter_pipeline(unit, RawFiles("s", [(file.name, file)], broken_share=1.0)), KeptDocumentCollector()]
    )
    counts = {"documents_in": reader.records_in, "bytes_in": reader.bytes_in}
    collect.documents.write(documents, {"source": "s", "unit": 0, "stage": "filter", **counts})
    return int(collect.kept)


def stock_filter(preset: str, file: Path, folder: Path) -> int:
    """Filter the texts of a file with datatrove's blocks, write JSON lines, and return the number of documents."""
    rules = PRESETS[preset]
    theirs = {code: stock(rules[code], LANGUAGES[code]) for code in LANGUAGES}
    keys = [key for key in KEYS if any(key in b for b in theirs.values())]
    ran: Any = run_blocks(
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


def speed(results: list[str], preset: str) -> None:
    """Print megabytes per second and core, and peak memory, of both sides."""
    megabytes = sum(len(text.encode()) for text in results) / 1e6
    rates = {}
    for side, result in measured(__file__, preset, results):
        rates[side] = megabytes / result["seconds"]
        print(
            f"{side:6} {rates[side]:6.2f} MB/s/core  {result['kept']:6} of {len(results)} documents kept  "
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
    result = texts(options.data, options.every)
    if not options.agreement:
        speed(result, options.preset)
        return
    from pipeline.corpus.text.language_identification import load_identifier
    from pipeline.corpus.text.text_cleaning import TextCleaner

    judge, normalise = load_identifier(LANGUAGES), TextCleaner()
    documents = [(text, judge.identify(text)[0]) for text in map(normalise.format, result) if text]
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
