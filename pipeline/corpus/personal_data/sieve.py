"""Tells in one pass over a text which kinds of personal data it can hold at all, so that only these are searched for.

Each condition is necessary for what the search for that kind matches, and seldom true of ordinary text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.corpus.compiled import compiled
from pipeline.corpus.personal_data.number_plate import WORDS

Bytes = npt.NDArray[np.uint8]

EMAIL, IBAN, CREDIT_CARD, BSN, PASSPORT, TELEPHONE, KVK, IP, ADDRESS, NUMBER_PLATE = (1 << bit for bit in range(10))
BITS = {
    "email": EMAIL,
    "iban": IBAN,
    "credit_card": CREDIT_CARD,
    "bsn": BSN,
    "passport": PASSPORT,
    "telephone": TELEPHONE,
    "kvk": KVK,
    "ip": IP,
    "address": ADDRESS,
    "number_plate": NUMBER_PLATE,
}
_BSN_KVK, _SOME_DIGIT, _EVERYTHING = BSN | KVK, 1 << 10, (1 << 11) - 1

_DIGIT, _CAPITAL, _SMALL, _HEXADECIMAL, _GAP, _BRACKET = 1, 2, 4, 8, 16, 32
_LETTER, _CODE = _CAPITAL | _SMALL, _CAPITAL | _DIGIT
_CLASSES = np.zeros(256, dtype=np.uint8)
_CLASSES[[*b"0123456789"]] = _DIGIT | _HEXADECIMAL
_CLASSES[[*b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]] = _CAPITAL
_CLASSES[[*b"abcdefghijklmnopqrstuvwxyz"]] = _SMALL
_CLASSES[[*b"ABCDEFabcdef"]] |= _HEXADECIMAL
_CLASSES[[*b" .-/()+", *"\xa0–".encode()]] |= _GAP
_CLASSES[[*b"[({"]] |= _BRACKET
_SPACE, _COMMA, _HYPHEN, _DOT, _PLUS, _COLON, _AT, _ZERO, _CLOSED = (np.uint8(ord(mark)) for mark in " ,-.+:@0)")
_BEFORE = 8  # bytes of padding on both sides of a text: what is looked at around a place


@compiled
def _can_be_address(data: Bytes, place: int) -> bool:
    """Return whether what begins behind four digits can be the letters of a postcode and, of small ones, a number."""
    if data[place] == _SPACE:
        place += 1
    elif data[place] == 0xC2 and data[place + 1] == 0xA0:
        place += 2
    one, two, after = _CLASSES[data[place]], _CLASSES[data[place + 1]], data[place + 2]
    if one & two & _CAPITAL:
        return not _CLASSES[after] & (_LETTER | _DIGIT)
    if not one & two & _SMALL or (after != _COMMA and after != _SPACE):
        return False
    behind = data[place + 3] if after == _SPACE else data[place + 4]
    return bool(behind == _SPACE or behind == 0x68 or behind == 0x6E or _CLASSES[behind] & _DIGIT)  # huisnummer, nr


@compiled
def _possible(data: Bytes) -> int:
    """Return the bits of the kinds that a padded text in UTF-8 can hold; all where it may have digits beyond ASCII."""
    found = 0
    digits = np.full(16, -100)  # the places of the last digits
    number = group = code = dots = 0  # digits; those in a row, capitals and digits in a row; dots between digits
    called = -1  # digits since what can begin a telephone number
    for place in range(_BEFORE, len(data) - 2 * _BEFORE):
        byte = data[place]
        kind = _CLASSES[byte]
        if kind & _SMALL:
            group, code, dots, called = 0, 0, 0, -1
            continue
        before = _CLASSES[data[place - 1]]
        if kind & _DIGIT:
            found |= _SOME_DIGIT
            group, code = group + 1, code + 1
            if group == 1 and (byte == _ZERO or data[place - 1] == _PLUS):
                called = max(called, 0)
            called += called >= 0
            number += 1
            digits[number & 15] = place
            if place - digits[(number - 7) & 15] <= 10:
                found |= _BSN_KVK
            if place - digits[(number - 11) & 15] <= 13:
                found |= CREDIT_CARD
            if called >= 7:
                found |= TELEPHONE
            if code == 9 and _CLASSES[data[place - 8]] & _CLASSES[data[place - 7]] & _CAPITAL:
                found |= PASSPORT
            dots += group == 1 and data[place - 1] == _DOT and _CLASSES[data[place - 2]] & _DIGIT != 0
            if dots >= 3:
                found |= IP
            if group == 2 and _CLASSES[data[place - 2]] & _LETTER and _CLASSES[data[place - 3]] & _LETTER:
                found |= IBAN
            if group == 4 and not _CLASSES[data[place + 1]] & _DIGIT and _can_be_address(data, place + 1):
                found |= ADDRESS
            continue
        if kind & _CAPITAL:
            group, dots, called = 0, 0, -1
            code += 1
            continue
        if byte >= 0xD9 and byte != 0xE2:
            return _EVERYTHING
        if group == 3 and byte in (_HYPHEN, _DOT, _CLOSED):  # as (415) 555-2671
            called = max(called, 3)
        if byte != _DOT:
            dots = 0
        if not kind & _GAP:
            called = -1
        group = code = 0
        if byte == _AT or (kind & _BRACKET and data[place + 1] & 0xDF == 0x41):  # [at], (AT), {apenstaartje}
            found |= EMAIL
        elif byte == _HYPHEN and before & _CODE:
            for behind in range(2, 5):
                if data[place + behind] == _HYPHEN:
                    found |= NUMBER_PLATE
        elif byte == _COLON and before & _CLASSES[data[place - 2]] & _CLASSES[data[place - 3]] & _HEXADECIMAL:
            behind = data[place + 1]
            found |= IP if behind == _COLON or _CLASSES[behind] & _HEXADECIMAL else 0
    return found


def possible(text: str) -> int:
    """Return the bits of the kinds that a text can hold."""
    padded = b"\n" * _BEFORE + text.encode("utf-8", "surrogatepass") + b"\n" * 2 * _BEFORE
    found = int(_possible(np.frombuffer(padded, dtype=np.uint8)))
    if found & _SOME_DIGIT and any(word in text for word in WORDS):
        found |= NUMBER_PLATE
    return found
