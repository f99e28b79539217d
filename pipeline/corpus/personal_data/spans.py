"""Spans of personal data in text, the candidate positions for each search, and the words around a number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from re import Match, Pattern
from typing import NamedTuple


class PersonalDataSpan(NamedTuple):
    """Personal data at text[start:end]; `value` is its normal form, equal for different spellings."""

    start: int
    end: int
    kind: str
    value: str


# Hyphens and blanks of word processors and PDF: other hyphens, figure dashes, the minus sign, soft hyphens, and
# non-breaking blanks. Each is replaced by one character, so that positions stay the same.
_TYPESET = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\u00ad", "-"),
    **dict.fromkeys("\u00a0\u202f\u2007\u2009\u2060", " "),
}


def normalize_typography(text: str) -> str:
    """Return a text of the same length with ASCII hyphens and blanks, for the searches."""
    if text.isascii():
        return text
    for character, key in _TYPESET.items():
        text = text.replace(character, key)
    return text


# A number directly after one of these words is the number of an item.
_ITEM_WORDS = (
    r"order|bestel(?:ling)?s?|facturen?|factuur|invoice|artikel|article|item|klant|debiteur|"
    r"customer|client|zaak|case|dossier|file|kenmerk|betalings?kenmerk|reference|referentie|ref\.?|art\.|polis|policy|serie|"
    r"serial|product|onderdeel|onderdelen|part|ticket|track(?:ing)?|track (?:and|&|en) trace|volg|lid|member|"
    r"membership|isbn|issn|ean|gtin|imei|barcode|streepjescode|doi|formulier|form|model|type|versie|version|release|"
    r"build|lot|batch|partij|charge|zending|pakket|parcel|shipment|transactie|transaction|registratie|record|"
    r"catalogus|catalogue|inventaris|inventory|contract|offerte|quote|project|stuk|commit|revision|revisie|meter|"
    r"ecli|vat|btw|ondernemings|rsin|pmid|oclc|nur|patent|octrooi|coördinaat|coördinaten|coordinates?|rd"
)
_ITEM_NUMBER = re.compile(
    rf"(?<![^\W_])(?:{_ITEM_WORDS})[- ]?(?:nummers?|numbers?|nrs?\b\.?|no\b\.?|code|id|kenmerk|serie)?"
    r"(?:[ -]?(?:1[03]))?[ \t]*(?:is|was|van|of|met nummer|nummer|number|nr\.?|no\.?)?[ \t|]*[:=#]*[ \t]*[\"'(\[]?$"
)
_ITEM_WORD_CHARACTERS = 48


# A marker such as <TELEPHONE> is no word for a number, also if the window cuts it.
_MARKER = re.compile(r"(?:<|\A)[A-Z_]{2,}>|<[A-Z_]+\Z")


def _blank_markers(window: str) -> str:
    return _MARKER.sub(lambda marker: "." * len(marker.group()), window) if "<" in window or ">" in window else window


def raw_text_before(text: str, start: int, characters: int) -> str:
    """Return the characters before a position, with full stops for markers."""
    return _blank_markers(text[max(0, start - characters) : start])


def raw_text_after(text: str, end: int, characters: int) -> str:
    """Return the characters after a position, with full stops for markers."""
    return _blank_markers(text[end : end + characters])


def text_before(text: str, start: int, characters: int) -> str:
    """Return the characters before a position in lower case; case-insensitive patterns take three times as long."""
    return raw_text_before(text, start, characters).lower()


def text_around(text: str, start: int, end: int, ahead: int, behind: int) -> str:
    """Return the characters before and after text[start:end] in lower case, joined by a space."""
    return f"{text_before(text, start, ahead)} {raw_text_after(text, end, behind).lower()}"


def follows_account_word(text: str, start: int) -> bool:
    """Return whether the words directly before a number name a bank account."""
    return bool(_ACCOUNT_WORD.search(text_before(text, start, _ITEM_WORD_CHARACTERS)))


def passes_bank_eleven_test(written: str) -> bool:
    """Return whether nine or ten digits pass the eleven-test of Dutch banks, the last digit counting once."""
    digits = reversed(re.sub(r"\D", "", written))
    return sum(weight * int(digit) for weight, digit in enumerate(digits, 1)) % 11 == 0


def is_item_number(text: str, start: int) -> bool:
    """Return whether the words directly before a number name an item: an order, a book, an article, …"""
    return bool(_ITEM_NUMBER.search(text_before(text, start, _ITEM_WORD_CHARACTERS)))


# A Dutch account number of before 2014: nine digits, or ten from 0 as in an IBAN, in groups.
DUTCH_ACCOUNT = re.compile(
    r"[0-9](?<![\w.,/+-][0-9])(?:\d{8}|(?<=0)\d{9}|\d([ .])\d\d\1\d\d\1\d{3}|\d{3}([ .])\d\d\2\d{3}|"
    r"\d\d([ .])\d{3}\3\d{3}|(?<=0)\d{3}([ .])(?:\d{4}|\d\d\4\d\d)\4\d\d)(?![\w-]|[.,]\d)"
)
# Directly before a number, the number is that of a bank account: "rekeningnummer:", "giro".
_ACCOUNT_WORD = re.compile(
    r"\b(?:(?:(?:bank|giro|post|spaar|loon|tegen)?rekening|(?:bank|post)?giro|iban)(?:[- ]?(?:nummer|nr\.?|no\.?))?|"
    r"rek\.?[- ]?(?:nummer|nr\.?|no\.?)|(?:bank ?)?account (?:number|no\.?))"
    r"(?:[ ](?:is|was|nummer|nr\.?|number))?[ \t|]*[:=#]*[ \t]*[\"'(\[]?\Z"
)


class Candidates(NamedTuple):
    """The sorted positions in a text where each pattern can match; None for all positions."""

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
    street: list[int] | None
    number_plate: list[int] | None
    plate_word: list[int] | None


ALL_POSITIONS = Candidates(*[None] * len(Candidates._fields))


def match_at_positions(pattern: Pattern[str], text: str, candidates: Sequence[int] | None) -> Iterator[Match[str]]:
    """Yield the matches of a pattern at the candidate positions, without overlap."""
    if candidates is None:
        yield from pattern.finditer(text)
        return
    end = 0
    for place in candidates:
        match = pattern.match(text, place) if place >= end else None
        if match is not None:
            end = match.end()
            yield match
