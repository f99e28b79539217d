"""The places in a text where personal data can begin, by the pattern that is tried there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from re import Match, Pattern
from typing import NamedTuple


class Places(NamedTuple):
    """For each pattern the places in a text, in order, where it can match; None for everywhere."""

    at_sign: list[int] | None
    spelled_at_sign: list[int] | None
    at_word: list[int] | None
    iban: list[int] | None
    credit_card: list[int] | None
    bsn: list[int] | None
    vat: list[int] | None
    passport: list[int] | None
    telephone: list[int] | None
    kvk: list[int] | None
    ipv4: list[int] | None
    ipv6: list[int] | None
    postcode: list[int] | None
    number_plate: list[int] | None
    plate_word: list[int] | None


EVERYWHERE = Places(*[None] * len(Places._fields))


def matches(pattern: Pattern[str], text: str, candidates: Sequence[int] | None) -> Iterator[Match[str]]:
    """Yield what a pattern finds in a text, of which only these places have to be tried."""
    if candidates is None:
        yield from pattern.finditer(text)
        return
    end = 0
    for place in candidates:
        match = pattern.match(text, place) if place >= end else None
        if match is not None:
            end = match.end()
            yield match
