"""Finds in one pass over a text the places where personal data can begin, so that only these are looked at closely.

Each condition is necessary for what the pattern of that kind matches there, and seldom true of ordinary text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from re import Match, Pattern
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.corpus.text.compiled import compiled

Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.int64]


class Places(NamedTuple):
    """For each pattern the places in a text, in order, where it can match; None for everywhere."""

    at_sign: list[int] | None
    spelled_at_sign: list[int] | None
    iban: list[int] | None
    credit_card: list[int] | None
    bsn: list[int] | None
    passport: list[int] | None
    telephone: list[int] | None
    kvk: list[int] | None
    ipv4: list[int] | None
    ipv6: list[int] | None
    postcode: list[int] | None
    number_plate: list[int] | None


_KINDS = len(Places._fields)
EVERYWHERE = Places(*[None] * _KINDS)
_AT, _SPELLED_AT, _IBAN, _CARD, _BSN, _PASSPORT, _TELEPHONE, _KVK, _IPV4, _IPV6, _POSTCODE, _PLATE = range(_KINDS)

_DIGIT, _CAPITAL, _SMALL, _UNDERSCORE, _HEXADECIMAL, _GAP, _BRACKET = (1 << bit for bit in range(7))
_LETTER, _CODE, _ALPHANUMERIC = _CAPITAL | _SMALL, _CAPITAL | _DIGIT, _CAPITAL | _SMALL | _DIGIT
_WORD = _ALPHANUMERIC | _UNDERSCORE
_CLASSES = np.zeros(256, dtype=np.uint8)
_CLASSES[[*b"0123456789"]] = _DIGIT | _HEXADECIMAL
_CLASSES[[*b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]] = _CAPITAL
_CLASSES[[*b"abcdefghijklmnopqrstuvwxyz"]] = _SMALL
_CLASSES[[*b"_"]] = _UNDERSCORE
_CLASSES[[*b"ABCDEFabcdef"]] |= _HEXADECIMAL
_CLASSES[[*b" .-/()+", *"\xa0–".encode()]] |= _GAP
_CLASSES[[*b"[({"]] |= _BRACKET
_SPACE, _COMMA, _HYPHEN, _DOT, _PLUS, _COLON, _SIGN, _SLASH, _OPEN = (np.uint8(ord(mark)) for mark in " ,-.+:@/(")
_ZERO, _ONE, _TWO, _THREE = (np.uint8(ord(digit)) for digit in "0123")
_BEFORE = 8  # bytes of padding before a text, and half of those behind it: what is looked at around a place
_LONGEST_GAP = 20  # bytes between two digits of a telephone number


@compiled
def _is_beyond(data: Bytes, place: int) -> bool:
    """Return whether a character that begins with a byte over 0xD8 can be a digit, as 700 of Unicode are."""
    byte, second = data[place], data[place + 1]
    if byte == 0xEF:
        return bool(second == 0xBC)  # wide forms; the selectors and the mark at a file's start are not
    if byte == 0xF0 and second == 0x9F:
        return bool(data[place + 2] == 0xAF)  # segmented digits; emoji are not
    return not 0xE2 <= byte <= 0xE9


@compiled
def _is_postcode(data: Bytes, place: int) -> bool:
    """Return whether four digits can be followed by the letters of a postcode and, where these are small, a number."""
    for digit in range(1, 4):
        if not _CLASSES[data[place + digit]] & _DIGIT:
            return False
    place += 4
    if data[place] == _SPACE:
        place += 1
    elif data[place] == 0xC2 and data[place + 1] == 0xA0:
        place += 2
    one, two, after = _CLASSES[data[place]], _CLASSES[data[place + 1]], data[place + 2]
    if one & two & _CAPITAL:
        return not _CLASSES[after] & _WORD and after != _HYPHEN
    if not one & two & _SMALL or (after != _COMMA and after != _SPACE):
        return False
    behind = data[place + 3] if after == _SPACE else data[place + 4]
    return bool(behind == _SPACE or behind == 0x68 or behind == 0x6E or _CLASSES[behind] & _DIGIT)  # huisnummer, nr


@compiled
def _is_iban(data: Bytes, place: int) -> bool:
    """Return whether a digit behind two letters can be the first of an account number."""
    if _CLASSES[data[place - 3]] & _WORD or not _CLASSES[data[place + 1]] & _DIGIT:
        return False
    place += 2
    if data[place] == 0xC2:
        place += 2
    elif data[place] == _SPACE or data[place] == _DOT or data[place] == _HYPHEN:
        place += 1
    first, second, third, last = data[place], data[place + 1], data[place + 2], data[place + 3]
    pair = _CLASSES[first] & _ALPHANUMERIC and _CLASSES[second] & _ALPHANUMERIC
    return bool(pair and _CLASSES[third] & _ALPHANUMERIC and _CLASSES[last] & _ALPHANUMERIC)


@compiled
def _is_ipv4(data: Bytes, place: int) -> bool:
    """Return whether four numbers of at most three digits begin here, with dots between."""
    for part in range(4):
        digits = 0
        while _CLASSES[data[place]] & _DIGIT:
            digits, place = digits + 1, place + 1
        if digits == 0 or digits > 3 or (part < 3 and data[place] != _DOT):
            return False
        place += 1
    return True


@compiled
def _number(data: Bytes, place: int) -> tuple[bool, bool, bool]:
    """Return whether the digits that begin here, with one space, dot or hyphen between, can be BSN, KvK or a card."""
    is_bsn = is_kvk = is_card = hyphen = False
    digits = 0
    while digits < 20:
        byte = data[place]
        place += 1
        if _CLASSES[byte] & _DIGIT:
            digits += 1
            continue
        if not _CLASSES[byte] & _WORD and byte != _HYPHEN:
            is_bsn |= digits == 9
            is_kvk |= digits == 8 and not hyphen and byte != _SLASH
            is_card |= digits >= 12
        hyphen |= byte == _HYPHEN
        joined = byte in (_SPACE, _DOT, _HYPHEN)
        if not joined or not _CLASSES[data[place]] & _DIGIT:
            break
    return is_bsn, is_kvk, is_card


@compiled
def _digits(data: Bytes, place: int) -> int:
    """Return the number of digits, at most 8, that follow with what may stand between those of a telephone number."""
    digits = gap = 0
    while digits < 8 and gap <= _LONGEST_GAP:
        kind = _CLASSES[data[place]]
        place += 1
        if kind & _DIGIT:
            digits, gap = digits + 1, 0
        elif kind & _GAP:
            gap += 1
        else:
            break
    return digits


@compiled
def _is_american(data: Bytes, place: int) -> bool:
    """Return whether two groups of three digits begin here, with a hyphen or dot behind each."""
    for digit in (1, 2, 4, 5, 6):
        if not _CLASSES[data[place + digit]] & _DIGIT:
            return False
    first, second = data[place + 3], data[place + 7]
    return bool((first in (_HYPHEN, _DOT)) and (second in (_HYPHEN, _DOT)))


@compiled
def _candidates(data: Bytes) -> Codes:
    """Return place × kinds + kind, in order, of a padded text; one of -1 where it may have digits beyond ASCII."""
    codes, number = np.empty(64, dtype=np.int64), 0
    code = 0  # capitals and digits in a row
    character = -_KINDS  # the place in the text, in characters, times the number of kinds
    for place in range(_BEFORE, len(data) - 2 * _BEFORE):
        byte = data[place]
        if byte & 0xC0 == 0x80:  # within a character
            code = 0
            continue
        character += _KINDS
        kind = _CLASSES[byte]
        if kind & _SMALL:
            code = 0
            continue
        if kind & _CAPITAL:
            code += 1
            continue
        last = data[place - 1]
        before = _CLASSES[last]
        if number + _KINDS > len(codes):
            grown = np.empty(2 * len(codes), dtype=np.int64)
            grown[:number] = codes[:number]
            codes = grown
        if kind & _DIGIT:
            code += 1
            if (
                code == 9
                and _CLASSES[data[place - 8]] & _CLASSES[data[place - 7]] & _CAPITAL
                and not _CLASSES[data[place - 9]] & _WORD
                and not _CLASSES[data[place + 1]] & _WORD
            ):
                codes[number] = character + _PASSPORT
                number += 1
            if before & _DIGIT:
                continue
            if before & _LETTER:
                if _CLASSES[data[place - 2]] & _LETTER and _is_iban(data, place):
                    codes[number] = character + _IBAN
                    number += 1
                continue
            if before & _UNDERSCORE:
                continue
            joined = last in (_DOT, _HYPHEN)
            in_number = joined or last in (_COMMA, _SLASH, _PLUS)
            if not joined and last != _COMMA:
                is_bsn, is_kvk, is_card = _number(data, place)
                if is_bsn:
                    codes[number] = character + _BSN
                    number += 1
                if is_kvk and not in_number:
                    codes[number] = character + _KVK
                    number += 1
                if is_card and not in_number:
                    codes[number] = character + _CARD
                    number += 1
            if not joined and _is_ipv4(data, place):
                codes[number] = character + _IPV4
                number += 1
            if (
                (byte in (_TWO, _THREE))
                and last != _DOT
                and last != _COLON
                and data[place + 4] == _COLON
                and _CLASSES[data[place + 1]] & _CLASSES[data[place + 2]] & _CLASSES[data[place + 3]] & _HEXADECIMAL
            ):
                codes[number] = character + _IPV6
                number += 1
            if (not in_number or last == _HYPHEN) and byte != _ZERO and _is_postcode(data, place):
                codes[number] = character + _POSTCODE
                number += 1
            if last in (_HYPHEN, _SLASH, _PLUS):
                continue
            if _digits(data, place) == 8 if byte == _ZERO else byte > _ONE and _is_american(data, place):
                codes[number] = character + _TELEPHONE
                number += 1
            continue
        code = 0
        if byte >= 0xD9 and _is_beyond(data, place):
            codes[0] = -1
            return codes[:1]
        if byte in (_PLUS, _OPEN):
            after = data[place + 1]
            if (_CLASSES[after] & _DIGIT or after == _PLUS) and not before & _WORD and _digits(data, place) >= 7:
                codes[number] = character + _TELEPHONE
                number += 1
        if byte == _SIGN:
            codes[number] = character + _AT
            number += 1
        elif kind & _BRACKET and data[place + 1] & 0xDF == 0x41:  # [at], (AT), {apenstaartje}
            codes[number] = character + _SPELLED_AT
            number += 1
        elif byte == _HYPHEN and before & _CODE and _CLASSES[data[place + 1]] & _CODE:
            for behind in range(2, 5):
                if data[place + behind] == _HYPHEN:
                    codes[number] = character + _PLATE
                    number += 1
                    break
    return codes[:number]


def places(text: str) -> Places:
    """Return where in a text personal data can begin."""
    padded = b"\n" * _BEFORE + text.encode("utf-8", "surrogatepass") + b"\n" * 2 * _BEFORE
    found = Places([], [], [], [], [], [], [], [], [], [], [], [])
    for code in _candidates(np.frombuffer(padded, dtype=np.uint8)).tolist():
        if code < 0:
            return EVERYWHERE
        place, kind = divmod(code, _KINDS)
        found[kind].append(place)  # type: ignore[union-attr]
    return found


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
