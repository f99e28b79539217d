"""Documents and bytes that each preset keeps of each source, or a sample for a blind reading.

    python benchmarks/genre_presets.py CONFIG [data=DATA]
    python benchmarks/genre_presets.py CONFIG [data=DATA] --genres
    python benchmarks/genre_presets.py CONFIG [data=DATA] --draw SEED FOLDER [--leave-out REGEX]

The benchmark judges raw sources of JSON lines as a whole, with py3langid's language model; the last column is the
corpus `main`. With --genres it compares the genre that each source states with that of a sample of its text, and the
documents that `standard` and the rules of both genres keep. With --draw it writes 100 kept and 100 removed documents of
`main`, mixed, to FOLDER/texts.txt, without the sources that match the regular expression; FOLDER/verdicts.csv holds the
decisions.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from datatrove.data import Document

from benchmarks.decontaminate import texts_of
from pipeline.config.configuration import Config, parse_configuration
from pipeline.config.genre_estimation_from_samples import sample_texts
from pipeline.corpus.filter import rule_blocks
from pipeline.corpus.rules.presets import PRESETS
from pipeline.corpus.rules.settings import LanguageRules
from pipeline.corpus.text.language_identification import load_identifier
from pipeline.corpus.text.source_genre_estimate import estimate_genre
from pipeline.corpus.text.text_cleaning import TextCleaner
from pipeline.sources.settings import Source

DRAWN = 100
MAIN = "main"


class Text(NamedTuple):
    """A text with its source, the language that was identified and its probability."""

    source: str
    text: str
    language: str
    score: float


class Judge:
    """Judges texts by the rules of some languages."""

    def __init__(self, rules: Mapping[str, LanguageRules]) -> None:
        self.rules, self.blocks = rules, rule_blocks(rules)

    def reason(self, text: Text) -> str | None:
        """Return why a text is removed, None where it is kept."""
        if text.language not in self.rules or text.score < self.rules[text.language].minimum_score:
            return "language"
        document = Document(text=text.text, id="", metadata={"language": text.language})
        decisions = (block.filter(document) for block in self.blocks)
        return next((decision[1] for decision in decisions if decision is not True), None)


def read(config: Config, source: Source) -> list[Text]:
    """Return the texts of a source as the filter normalizes them."""
    normalise, languages = (
        TextCleaner(config.corpus[MAIN].normalization),
        load_identifier(config.corpus[MAIN].languages),
    )
    texts = (normalise.format(text) for path in config.raw_files(source.name).values() for text in texts_of(path))
    return [Text(source.name, text, *languages.identify(text)[:2]) for text in texts if text.strip()]


def table(config: Config) -> None:
    """Print the share of bytes that each preset keeps of each source, and why documents went from the corpus."""
    judges = {preset: Judge(rules) for preset, rules in PRESETS.items() if preset != "genre"}
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    print(f"| source | genre | MB | documents | {' | '.join(judges)} | main, documents | main |")
    print(f"|---|---|{'---:|' * (len(judges) + 4)}")
    for source in config.sources:
        texts = read(config, source)
        sizes = [len(text.text.encode()) for text in texts]
        results = {preset: [judge.reason(text) for text in texts] for preset, judge in judges.items()}
        own = Judge(config.corpus[MAIN].rules_for(source))
        results[MAIN] = [own.reason(text) for text in texts]
        shares = [
            sum(size for size, reason in zip(sizes, gone, strict=True) if reason is None) / max(1, sum(sizes))
            for gone in results.values()
        ]
        kept = f"{results[MAIN].count(None)}"
        cells = [*(f"{share:.1%}" for share in shares[:-1]), kept, f"{shares[-1]:.1%}"]
        print(f"| {source.name} | {source.genre} | {sum(sizes) / 1e6:.2f} | {len(texts)} | {' | '.join(cells)} |")
        for reason in filter(None, results[MAIN]):
            reasons[reason][source.name] += 1
    for reason, counts in sorted(reasons.items()):
        print(f"{reason}: {', '.join(f'{name} {number}' for name, number in counts.most_common())}")


def compare_genres(config: Config) -> None:
    """Print the genre that each source states, that of a sample, and the documents that are kept by their rules."""
    judges = {preset: Judge(PRESETS[preset]) for preset in PRESETS if preset != "genre"}
    right = total = 0
    kept_by: Counter[str] = Counter()
    print("| source | stated | by sample | genres of its documents | documents | standard | stated | by sample |")
    print("|---|---|---|---|---:|---:|---:|---:|")
    for source in config.sources:
        result = estimate_genre(sample_texts(config.source_units(source.name)))
        shown = result.genre if result.is_clear else f"none clear: {result.genre}"
        texts = read(config, source)
        presets = {"standard": "standard", "stated": str(source.genre), "by sample": result.genre}
        kept = {name: sum(judges[preset].reason(text) is None for text in texts) for name, preset in presets.items()}
        counts = ", ".join(f"{number} {genre}" for genre, number in result.genres.items())
        cells = (source.name, source.genre, shown, counts, len(texts), *kept.values())
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        right, total = right + (result.genre == source.genre), total + 1
        kept_by.update({**kept, "documents": len(texts)})
    print(f"{right} of {total} sources get the genre that they state; kept: {dict(kept_by)}")


def excerpt(text: str) -> str:
    """Return a text, of a long one its beginning, something of its middle and its end."""
    half = len(text) // 2
    return text if len(text) < 900 else f"{text[:400]}\n[...]\n{text[half : half + 220]}\n[...]\n{text[-130:]}"


def draw(config: Config, seed: int, folder: Path, leave_out: str) -> None:
    """Write the documents that are to be read, and apart from them what became of each."""
    judged: list[tuple[str, str, str]] = []
    for source in config.sources:
        if not re.search(leave_out, source.name):
            judge = Judge(config.corpus[MAIN].rules_for(source))
            judged += [(text.source, judge.reason(text) or "", text.text) for text in read(config, source)]
    chance = random.Random(seed)
    kept, gone = ([entry for entry in judged if bool(entry[1]) is removed] for removed in (False, True))
    drawn = [*chance.sample(kept, min(DRAWN, len(kept))), *chance.sample(gone, min(DRAWN, len(gone)))]
    chance.shuffle(drawn)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "verdicts.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("number", "source", "reason"), *((n, *e[:2]) for n, e in enumerate(drawn))])
    shown = (f"##### {n} ({len(text)} characters)\n{excerpt(text)}\n" for n, (*_, text) in enumerate(drawn))
    (folder / "texts.txt").write_text("\n".join(shown), encoding="utf-8")


def main() -> None:
    """Print the table, or draw."""
    parser = argparse.ArgumentParser()
    parser.add_argument("configuration", type=Path)
    parser.add_argument("pairs", nargs="*", help="key=value")
    parser.add_argument("--draw", nargs=2, metavar=("SEED", "FOLDER"))
    parser.add_argument("--genres", action="store_true")
    parser.add_argument("--leave-out", default=r"^(noise|de|fr|fy)_")
    options = parser.parse_args()
    given = dict(pair.split("=", 1) for pair in options.pairs)
    config = parse_configuration({**yaml.safe_load(options.configuration.read_text()), **given})
    if options.draw:
        draw(config, int(options.draw[0]), Path(options.draw[1]), options.leave_out)
    elif options.genres:
        compare_genres(config)
    else:
        table(config)


if __name__ == "__main__":
    main()
