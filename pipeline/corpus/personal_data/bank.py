"""Numbers of bank accounts (IBAN) and of payment cards."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stdnum import iban, luhn

from pipeline.corpus.personal_data.found import Found, around, numbers_a_thing
from pipeline.corpus.personal_data.places import Places, matches

# In fours, at once, or in any groups: what stands between them is no part of the number, and neither is how many.
_IBAN = re.compile(
    r"[0-9](?:(?<=[A-Za-z]{2}[0-9])(?<!\w[A-Za-z]{2}[0-9])|(?<=[A-Z]{2} [0-9])(?<!\w[A-Z]{2} [0-9]))\d"
    r"(?:[ .-]{0,3}[A-Za-z0-9]){11,30}(?!\w)"
)
_SEPARATORS = re.compile(r"[ .-]+")
_LAST_GROUP = re.compile(r"[ .-]+[A-Za-z0-9]+\Z")
_NOT_ALPHANUMERIC = re.compile(r"[\W_]")

_CARD = re.compile(
    r"[2-6](?<![\w.,/+-][2-6])(?<!(?<!\d)\d{4} [2-6])"
    r"(?:\d{11,18}|\d{3}(?P<four>[ .-])\d{4}(?P=four)\d{4}(?P=four)\d{1,4}(?:(?P=four)\d{3})?|"
    r"\d{3}(?P<six>[ -])\d{6}(?P=six)\d{4,5})(?![\w-]|[.,]\d|[ ]\d{4})"
)
_CARD_CONTEXT = re.compile(
    r"credit ?card|creditcard|kaartnummer|card ?(?:number|no)|betaalkaart|pinpas|visa|mastercard|amex|american express|"
    r"maestro|diners|geldig t|expires|valid (?:until|thru)|\bkaart\b|\bcard\b|\bpas\b"
)


_MAESTRO = {"50", "56", "57", "58", "59", "61", "63", "66", "67", "68", "69"}


def ibans(text: str, places: Places) -> Iterator[Found]:
    """Yield account numbers with the length of their country and right check digits.

    Of a match the longest valid number counts: the next words may look like more of it, as in NL… 00 EUR.
    """
    for match in matches(_IBAN, text, places.iban):
        start = match.start() - (3 if text[match.start() - 1] == " " else 2)
        written = text[start : match.end()]
        while len(value := _SEPARATORS.sub("", written).upper()) >= 15:
            if iban.is_valid(value, check_country=False):
                yield Found(start, start + len(written), "iban", value)
                break
            shorter = _LAST_GROUP.sub("", written)
            if shorter == written:
                break
            written = shorter


def _issued(digits: str) -> bool:
    """Return whether an issuer gives out cards with these first digits and this length (ISO/IEC 7812)."""
    two, four, length = int(digits[:2]), int(digits[:4]), len(digits)
    return (
        (digits[0] == "4" and length in (13, 16, 19))
        or (length == 16 and (51 <= two <= 55 or 2221 <= four <= 2720))
        or (length == 15 and two in (34, 37))
        or (length == 14 and (two in (36, 38, 39) or 300 <= four // 10 <= 305 or four == 3095))
        or (length == 16 and (two == 62 or four == 6011 or 3528 <= four <= 3589))
        or (12 <= length <= 19 and (two == 50 or 56 <= two <= 59 or 63 <= two <= 69))
    )


def credit_cards(text: str, places: Places) -> Iterator[Found]:
    """Yield card numbers of a known issuer with a right check digit (Luhn).

    Lengths other than 15 and 16, and Maestro's wide ranges, need a word such as "creditcard" near: a random number of
    this form passes in one of ten cases.
    """
    for match in matches(_CARD, text, places.credit_card):
        digits = _NOT_ALPHANUMERIC.sub("", match.group())
        if not luhn.is_valid(digits) or not _issued(digits) or numbers_a_thing(text, match.start()):
            continue
        near = around(text, match.start(), match.end(), 40, 25)
        alone = len(digits) in (15, 16) and digits[:2] not in _MAESTRO
        if alone or _CARD_CONTEXT.search(near):
            yield Found(match.start(), match.end(), "credit_card", digits)
