"""Decisions of the mixed-language rule on Dutch documents with inserted English, and on unchanged documents.

    python benchmarks/mixed_languages.py DATA [--every 4] [--largest 0.3]

DATA is a folder of *.jsonl.gz with `text`; file names begin with the language (nl_…, en_…). Whole lines of an English
document are inserted into a Dutch one, in one place, until they reach a given share of its bytes.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from datatrove.data import Document

from benchmarks.comparison import texts
from pipeline.corpus.text.language_identification import LanguageFilter

SHARES = (0.0, 0.1, 0.2, 0.25, 0.35, 0.4, 0.5)
CHARACTERS = 6000
DOCUMENTS = 150


def mixed(dutch: str, english: str, share: float, place: float) -> str | None:
    """Return the Dutch text with lines of the English one at a place (a share of its lines), or None: too short."""
    lines, wanted = dutch.split("\n"), share * len(dutch.encode()) / (1 - share)
    added: list[str] = []
    size = 0
    for line in english.split("\n"):
        if size >= wanted:
            break
        added.append(line[: int(wanted - size) + 1])
        size += len(added[-1].encode())
    at = int(place * len(lines))
    return "\n".join([*lines[:at], *added, *lines[at:]]) if size >= 0.9 * wanted else None


def judged(block: LanguageFilter, results: list[str]) -> Counter[str]:
    """Return how many texts are kept, and removed for which reason."""
    decisions = (block.filter(Document(text=text, id="")) for text in results)
    return Counter("kept" if decision is True else decision[1] for decision in decisions)  # type: ignore[index]


def main() -> None:
    """Print what becomes of the documents, by share and by file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--largest", type=float, default=0.3)
    options = parser.parse_args()
    languages = ("nl", "en")
    block = LanguageFilter(dict.fromkeys(languages, 0.65), None, dict.fromkeys(languages, options.largest))
    chance = random.Random(1)
    long = {
        language: [
            text for text in texts(options.data, options.every, f"{language}_*.jsonl.gz") if len(text) > CHARACTERS
        ]
        for language in languages
    }
    plain = judged(block, long["nl"])
    dutch = [text for text in long["nl"] if judged(block, [text])["kept"]]
    print(f"Dutch documents of more than {CHARACTERS} characters as they are: {dict(plain)}")
    chance.shuffle(dutch)
    for share in SHARES:
        made = [mixed(text, chance.choice(long["en"]), share, chance.random()) for text in dutch[:DOCUMENTS]]
        print(f"{share:.2f} English: {dict(judged(block, [text for text in made if text is not None]))}")
    for path in sorted(options.data.glob("*.jsonl.gz")):
        print(f"{path.name}: {dict(judged(block, texts(options.data, options.every, path.name)))}", flush=True)


if __name__ == "__main__":
    main()
