"""Estimates the genre of a source from a sample of its documents, by properties that a person can check.

Each document gets the first genre whose criteria it meets; the most frequent one is the genre of the source.
`benchmarks/genre_presets.py --genres` measures how often the estimate is right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple, get_args

from pipeline.core.settings import Settings
from pipeline.sources.settings import Genre

READ_CHARACTERS = 20_000
"""Characters at the beginning of a document that are measured."""
LEAST_WORDS = 20
"""Documents with fewer words say nothing of the genre, where there are longer ones."""
GENTLEST: Genre = "web"
"""The genre whose rules keep most of every other one's text, and remove menus, code and markup all the same."""
CLEAR_SHARE = 0.5
"""Least share of the documents that must have the most frequent genre."""
CLEAR_LEAD = 0.15
"""Least difference of the shares of the two most frequent genres."""

_WORD = re.compile(r"[^\W\d_]+")
_STRUCTURE = re.compile(
    r"\s*(?:#{1,6} |[-*+•] |\(?\d{1,2}[.)] |[a-z][.)] |\||`{3}|> |\.\. |[=~^-]{3,}|:::)| {4}\s*\S|\t|.*`"
)
_SPEAKER = re.compile(r"([A-Z][\w' ]{1,20}[.:])\s")
_LEGAL_TERMS = (
    "artikel artikelen lid leden onderdeel onderdelen bedoeld bedoelde krachtens ingevolge besluit besluiten wet "
    "verordening regeling minister staatsblad staatscourant treedt inwerkingtreding vaststelling vastgesteld "
    "bepaalde bepalingen toepassing shall pursuant section subsection paragraph subparagraph act article hereby "
    "thereof thereto herein provisions amended regulation statute"
)
_PERIOD_SPELLINGS = (
    "ende ofte oft vande vanden aende metten sulcx sulcke alsoo sijn sijne sijnen wy gy ghy ghij myn myne zyn zyne syn "
    "uyt oock nae naer maer aen daer waer haer haere soo dese desen deselve sal sullen soude souden hadde welcke "
    "gelijck ick hy wt vnto vpon vs hath hast doth dost thou thee thy hee shee haue doe owne selfe ſhall ſo theſe firſt"
)
_FILLERS = "uh uhm eh ehm hm hmm mhm huh yeah"


class DocumentProperties(NamedTuple):
    """What is measured of a document; shares are of its words, or of its lines that are not blank."""

    words: int
    words_per_line: float
    structured_lines: float
    speaker_lines: float
    legal_terms: float
    fillers: float
    period_spellings: float


class GenreCriterion(NamedTuple):
    """The bounds of a property, both included, and how a sentence shows its value."""

    measured: str
    says: str
    least: float = 0.0
    most: float = float("inf")

    def is_met(self, properties: DocumentProperties) -> bool:
        return self.least <= float(getattr(properties, self.measured)) <= self.most


# In the order in which they are asked. A play in old spelling is a play, and an old law historical.
CRITERIA: dict[Genre, tuple[GenreCriterion, ...]] = {
    "speech": (GenreCriterion("fillers", "{:.1%} of the words are fillers such as eh or uh", least=0.005),),
    "drama": (
        GenreCriterion("speaker_lines", "{:.0%} of the lines name a speaker", least=0.06),
        GenreCriterion("structured_lines", "{:.0%} of them are headings, items, tables or code", most=0.1),
        GenreCriterion("words_per_line", "a line has {:.0f} words", most=20),
    ),
    "historical": (
        GenreCriterion("period_spellings", "{:.1%} of the words are function words such as ende or hath", least=0.015),
    ),
    "laws": (
        GenreCriterion("legal_terms", "{:.1%} of the words are legal terms such as artikel or pursuant", least=0.025),
    ),
    "documentation": (
        GenreCriterion("structured_lines", "{:.0%} of the lines are headings, items, tables or code", least=0.2),
    ),
    "prose": (
        GenreCriterion("words_per_line", "a line has {:.0f} words", least=25),
        GenreCriterion("words", "a document has {:,.0f} words", least=250),
    ),
    "web": (
        GenreCriterion("words", "a document has {:,.0f} words"),
        GenreCriterion("words_per_line", "a line has {:.0f} words, and nothing marks another genre"),
    ),
}


class GenreEstimate(Settings):
    """The genre of a source by a sample of its documents, and why.

    `genres` has the number of documents of each genre; `is_clear` is false where none is frequent enough, or there is
    no document: then `genre` is GENTLEST.
    """

    genre: Genre
    is_clear: bool
    documents: int
    genres: dict[Genre, int] = {}
    reasons: list[str] = []

    def explain_estimate(self, source: str) -> str:
        """Return a sentence for a user: the rules that the source gets, why, and the line to write."""
        if self.is_clear:
            evidence = f"{self.genres[self.genre]} of {self.documents} sampled documents have the genre {self.genre}"
            rules = f"source {source}: {evidence} ({'; '.join(self.reasons)}), so the rules of {self.genre} apply: "
            return f"{rules}write `genre: {self.genre}` into the source to state it, or another genre"
        counts = ", ".join(f"{number} {genre}" for genre, number in self.genres.items())
        evidence = (
            f"{self.documents} sampled documents fit no genre clearly ({counts})" if counts else "no text to sample"
        )
        others = ", ".join(sorted({*get_args(Genre)} - {self.genre}))
        rules = f"source {source}: {evidence}, so the gentlest rules apply, those of {self.genre}"
        return f"{rules}: if it is {others}, write that as its `genre`"


def _share(number: int, of: int) -> float:
    return number / max(1, of)


def _share_of_words(words: list[str], terms: str) -> float:
    counted = frozenset(terms.split())
    return _share(sum(word in counted for word in words), len(words))


def measure_document(text: str) -> DocumentProperties:
    text = text[:READ_CHARACTERS]
    lines = [line for line in text.split("\n") if line.strip()]
    words = [word.lower() for word in _WORD.findall(text)]
    speakers: Counter[str] = Counter()
    for line in map(str.strip, lines):
        if len(line.split()) <= 4:
            speakers[line] += line[-1] in ".:" or line.isupper()
        elif match := _SPEAKER.match(line):
            speakers[match[1]] += 1
    return DocumentProperties(
        words=len(words),
        words_per_line=_share(len(words), len(lines)),
        structured_lines=_share(sum(bool(_STRUCTURE.match(line)) for line in lines), len(lines)),
        speaker_lines=_share(sum(number for number in speakers.values() if number > 1), len(lines)),
        legal_terms=_share_of_words(words, _LEGAL_TERMS),
        fillers=_share_of_words(words, _FILLERS),
        period_spellings=_share_of_words(words, _PERIOD_SPELLINGS),
    )


def identify_genre(properties: DocumentProperties) -> Genre:
    """Return the first genre whose criteria a document meets."""
    return next(genre for genre, criteria in CRITERIA.items() if all(one.is_met(properties) for one in criteria))


def estimate_genre(texts: Sequence[str]) -> GenreEstimate:
    """Return the genre of a source by a sample of its documents."""
    all_measured = [measure_document(text) for text in texts]
    measured = [properties for properties in all_measured if properties.words >= LEAST_WORDS] or all_measured
    genres = [identify_genre(properties) for properties in measured]
    counts = dict(Counter(genres).most_common())
    first, second = [*counts.values(), 0, 0][:2]
    documents = len(measured)
    if not documents or first < CLEAR_SHARE * documents or first - second < CLEAR_LEAD * documents:
        return GenreEstimate(genre=GENTLEST, is_clear=False, documents=documents, genres=counts)
    genre = next(iter(counts))
    members = [properties for properties, one in zip(measured, genres, strict=True) if one == genre]
    reasons = [one.says.format(median(getattr(member, one.measured) for member in members)) for one in CRITERIA[genre]]
    return GenreEstimate(genre=genre, is_clear=True, documents=documents, genres=counts, reasons=reasons)
