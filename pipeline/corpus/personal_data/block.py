"""Finds and replaces personal data in a text, and the datatrove block that does so in documents."""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from pipeline.corpus.personal_data.address import addresses
from pipeline.corpus.personal_data.bank import credit_cards, ibans
from pipeline.corpus.personal_data.found import Found, typed
from pipeline.corpus.personal_data.network import emails, ip_addresses
from pipeline.corpus.personal_data.number_plate import number_plates
from pipeline.corpus.personal_data.places import Places
from pipeline.corpus.personal_data.public import PublicBodies
from pipeline.corpus.personal_data.registers import bsns, kvk_numbers, passports
from pipeline.corpus.personal_data.sieve import places
from pipeline.corpus.personal_data.telephone import check_regions, telephone_numbers
from pipeline.corpus.settings import PersonalData

# Where two overlap the first counts: those with a check digit before those that only have a form.
_SEARCHES: dict[str, Callable[[str, Places, PersonalData], Iterable[Found]]] = {
    "email": lambda text, where, kinds: emails(text, where),
    "iban": lambda text, where, kinds: ibans(text, where),
    "credit_card": lambda text, where, kinds: credit_cards(text, where),
    "bsn": lambda text, where, kinds: bsns(text, where),
    "passport": lambda text, where, kinds: passports(text, where),
    "telephone": lambda text, where, kinds: telephone_numbers(text, where, kinds.telephone_regions),
    "kvk": lambda text, where, kinds: kvk_numbers(text, where),
    "ip": lambda text, where, kinds: ip_addresses(text, where),
    "address": lambda text, where, kinds: addresses(text, where),
    "number_plate": lambda text, where, kinds: number_plates(text, where),
}
KINDS = tuple(_SEARCHES)


@cache
def _public(entries: tuple[str, ...], known: bool) -> PublicBodies:
    return PublicBodies(entries, known)


def _model(kinds: PersonalData) -> Any:
    """Return the model of names, or None; the library is loaded only for those who name one."""
    if kinds.names is None:
        return None
    from pipeline.corpus.personal_data.names import load

    return load(kinds.names, kinds.names_sha256)


def find(text: str, kinds: PersonalData) -> list[Found]:
    """Return the personal data of a text in the order of their places, without overlap and without what is public."""
    public = _public(tuple(kinds.public_bodies), kinds.known_public_bodies)
    taken: list[Found] = []

    def take(candidates: Iterable[Found]) -> None:
        for found in candidates:
            place = bisect(taken, found)
            free_before = place == 0 or taken[place - 1].end <= found.start
            if free_before and (place == len(taken) or found.end <= taken[place].start):
                taken.insert(place, found)

    read = typed(text)
    where = places(read)
    for kind, search in _SEARCHES.items():
        if getattr(kinds, kind):
            take(search(read, where, kinds))
    model = _model(kinds)
    if model is not None:
        from pipeline.corpus.personal_data.names import names

        take(names(text, model))
    return [found for found in taken if not public.holds(found)]


def mask(text: str, kinds: PersonalData) -> tuple[str, dict[str, int]]:
    """Return the text with personal data replaced, and how often, by kind.

    By markers such as <EMAIL>, or by synthetic values, which are drawn from the text: copies of a document stay copies,
    and nobody who has not the text can try which value it was.
    """
    everything = find(text, kinds)
    synthetic = kinds.replacement == "synthetic"
    if synthetic and everything:
        from pipeline.corpus.personal_data.synthetic import is_synthetic, replacement

        everything = [found for found in everything if not is_synthetic(found)]
    seed = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() if synthetic else b""
    pieces: list[str] = []
    last = 0
    for found in everything:
        put = replacement(found, seed) if synthetic else f"<{found.kind.upper()}>"
        pieces += [text[last : found.start], put]
        last = found.end
    return "".join([*pieces, text[last:]]), dict(Counter(found.kind for found in everything))


class MaskPersonalData(PipelineStep):  # type: ignore[misc]
    """Replaces personal data and counts it, per document in `personal_data` of the metadata; values are kept nowhere.

    Numbers with check digits pass them (BSN, IBAN, payment card), telephone numbers are of the numbering plans; a BSN,
    a KvK number and a passport number have a word for it near. What belongs to public bodies stays.
    """

    type = "🔒 - PERSONAL DATA"
    name = "Mask personal data"

    def __init__(self, kinds: PersonalData) -> None:
        super().__init__()
        check_regions(kinds.telephone_regions)
        _model(kinds)  # may need torch, so that it is loaded before spaCy's words are, without
        self.kinds = kinds

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        """Yield every document, masked."""
        for document in data:
            with self.track_time():
                document.text, counts = mask(document.text, self.kinds)
                document.metadata["personal_data"] = counts
                for kind, number in counts.items():
                    self.stat_update(kind, value=number)
            yield document
