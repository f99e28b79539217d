"""Finds the positions in a text where personal data can begin, in one compiled pass; searches check only these.

Each condition is necessary for a match of its kind, and rarely true in normal text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.corpus.personal_data.spans import ALL_POSITIONS, Candidates
from pipeline.corpus.text.cached_numba_compilation import cached_njit

Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.int64]

_KINDS = len(Candidates._fields)
_AT, _SPELLED_AT, _AT_WORD, _IBAN, _CARD, _BSN, _VAT, _PASSPORT, _TELEPHONE, _KVK, _IPV4, _IPV6, *_LAST = range(_KINDS)
_POSTCODE, _STREET, _PLATE, _PLATE_WORD = _LAST

_DIGIT, _CAPITAL, _SMALL, _UNDERSCORE, _HEXADECIMAL, _GAP, _BRACKET = (1 << bit for bit in range(7))
_LETTER, _CODE, _ALPHANUMERIC = _CAPITAL | _SMALL, _CAPITAL | _DIGIT, _CAPITAL | _SMALL | _DIGIT
_WORD = _ALPHANUMERIC | _UNDERSCORE
_CLASSES = np.zeros(256, dtype=np.uint8)
_CLASSES[[*b"0123456789"]] = _DIGIT | _HEXADECIMAL
_CLASSES[[*b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]] = _CAPITAL
_CLASSES[[*b"abcdefghijklmnopqrstuvwxyz"]] = _SMALL
_CLASSES[[*b"_"]] = _UNDERSCORE
_CLASSES[[*b"ABCDEFabcdef"]] |= _HEXADECIMAL
_CLASSES[[*b" .-/()+"]] |= _GAP
_CLASSES[[*b"[({<"]] |= _BRACKET
_SPACE, _COMMA, _HYPHEN, _DOT, _PLUS, _COLON, _SIGN, _SLASH, _OPEN = (np.uint8(ord(mark)) for mark in " ,-.+:@/(")
_ZERO, _ONE, _TWO, _THREE = (np.uint8(ord(digit)) for digit in "0123")
# Ends of words before a number plate, with suffixes: kentekenbewijs, license plates.
_PLATE_WORDS = np.array(
    [
        [*(end + tail).encode()[-6:]]
        for end in ("enteken", "ummerbord", "ummerplaat", " plate")
        for tail in ("", "s", "nummer", "bewijs")
    ]
    + [[*b"ration"]],
    dtype=np.uint8,
)
_PLATE_ENDS = np.zeros(1 << 15, dtype=np.bool_)
_PLATE_ENDS[(_PLATE_WORDS[:, 3:].astype(np.int64) & 31) @ [1 << 10, 1 << 5, 1]] = True
# Last letters of the names of streets.
_STREET_ENDS = np.zeros(1 << 15, dtype=np.bool_)
for _one, _two, _three in (
    b"aat",
    b"tr.",
    b"weg",
    b"aan",
    b"ein",
    b"ade",
    b"cht",
    b"ijk",
    b"gel",
    b"eeg",
    b"eef",
    b"oen",
    b"ard",
):
    _STREET_ENDS[(_one & 31) << 10 | (_two & 31) << 5 | _three & 31] = True
_PADDING = 16  # bytes of padding before a text, and half of the padding after it, for reading around a position
_LONGEST_GAP = 20  # bytes between two digits of a telephone number


@cached_njit
def _may_be_unicode_digit(data: Bytes, place: int) -> bool:
    """Return whether a character that begins with a byte above 0xD8 can be one of Unicode's 700 other digits."""
    byte, second = data[place], data[place + 1]
    if byte == 0xEF:
        return bool(second == 0xBC)  # full-width forms; not variation selectors and the byte order mark
    if byte == 0xF0 and second == 0x9F:
        return bool(data[place + 2] == 0xAF)  # segmented digits; emoji are not
    return not 0xE2 <= byte <= 0xE9


@cached_njit
def _is_postcode(data: Bytes, place: int) -> bool:
    """Return whether four digits and the letters of a postcode begin here; small letters need a number after them."""
    for digit in range(1, 4):
        if not _CLASSES[data[place + digit]] & _DIGIT:
            return False
    place += 4
    for _ in range(2):
        place += data[place] == _SPACE
    one, two, after = _CLASSES[data[place]], _CLASSES[data[place + 1]], data[place + 2]
    if one & two & _CAPITAL:
        return not _CLASSES[after] & _WORD and after != _HYPHEN
    if not one & two & _SMALL or (after != _COMMA and after != _SPACE):
        return False
    behind = data[place + 3] if after == _SPACE else data[place + 4]
    return bool(behind == _SPACE or behind == 0x68 or behind == 0x6E or _CLASSES[behind] & _DIGIT)  # huisnummer, nr


@cached_njit
def _is_iban(data: Bytes, place: int) -> bool:
    """Return whether an account number can begin at a digit after two letters: two digits, eleven characters."""
    if not _CLASSES[data[place + 1]] & _DIGIT:
        return False
    place += 2
    signs = gap = 0
    while signs < 11 and gap <= 3:
        byte = data[place]
        place += 1
        if _CLASSES[byte] & _ALPHANUMERIC:
            signs, gap = signs + 1, 0
        elif byte in (_SPACE, _DOT, _HYPHEN):
            gap += 1
        else:
            break
    return signs == 11


@cached_njit
def _is_bracketed_at(data: Bytes, place: int) -> bool:
    """Return whether a bracket is followed by at or ap: [at], (AT), { at }, <apenstaartje>."""
    place += 2 if data[place + 1] == _SPACE else 1
    return bool(data[place] & 0xDF == 0x41 and data[place + 1] & 0xDF in (0x54, 0x50))


@cached_njit
def _is_spelled_at(data: Bytes, place: int) -> bool:
    """Return whether a space is followed by "at", a word and "dot" or "punt", or by "apenstaart"."""
    second = data[place + 2] & 0xDF
    if data[place + 1] & 0xDF != 0x41 or second not in (0x54, 0x50):
        return False
    if second == 0x50:
        return bool(data[place + 3] & 0xDF == 0x45)
    if data[place + 3] != _SPACE:
        return False
    place += 4
    while data[place] > _SPACE:
        place += 1
    first, last = data[place + 1] & 0xDF, data[place + 3] & 0xDF
    dot_or_punt = (first == 0x44 and last == 0x54) or (first == 0x50 and last == 0x4E)
    return bool(data[place] == _SPACE and dot_or_punt)


@cached_njit
def _is_ipv4(data: Bytes, place: int) -> bool:
    for part in range(4):
        digits = 0
        while _CLASSES[data[place]] & _DIGIT:
            digits, place = digits + 1, place + 1
        if digits == 0 or digits > 3 or (part < 3 and data[place] != _DOT):
            return False
        place += 1
    return True


@cached_njit
def _classify_number(data: Bytes, place: int) -> tuple[bool, bool, bool]:
    """Return whether the digits here, with single spaces, dots or hyphens, can be a BSN, a KvK number or a card."""
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


@cached_njit
def _count_telephone_digits(data: Bytes, place: int) -> int:
    """Return the number of digits, at most 8, of a possible telephone number with separators."""
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


@cached_njit
def _is_north_american(data: Bytes, place: int) -> bool:
    """Return whether two groups of three digits begin here, each followed by a hyphen or dot."""
    for digit in (1, 2, 4, 5, 6):
        if not _CLASSES[data[place + digit]] & _DIGIT:
            return False
    first, second = data[place + 3], data[place + 7]
    return bool((first in (_HYPHEN, _DOT)) and (second in (_HYPHEN, _DOT)))


@cached_njit
def _last_letters(data: Bytes, place: int) -> int:
    """Return the three letters before a position as a number of 15 bits, without case."""
    one, two, three = np.int64(data[place - 3]), np.int64(data[place - 2]), np.int64(data[place - 1])
    return int((one & 31) << 10 | (two & 31) << 5 | three & 31)


@cached_njit
def _follows_plate_word(data: Bytes, place: int) -> bool:
    """Return whether a word for a number plate ends before a position, in any case: kenteken, nummerbord, …"""
    if _PLATE_ENDS[_last_letters(data, place)]:
        for row in range(len(_PLATE_WORDS)):
            column = 0
            while column < 6 and _PLATE_WORDS[row, column] == data[place - 6 + column] | 0x20:
                column += 1
            if column == 6:
                return True
    return False


@cached_njit
def _kinds_at_digit(data: Bytes, place: int) -> int:
    byte, last, two = data[place], data[place - 1], data[place - 2]
    before, kinds = _CLASSES[last], 0
    if byte == _ZERO and (two if last in (_SPACE, _DOT) else last) & 0xDF == 0x42:  # B01, b 01, B.01
        kinds |= 1 << _VAT
    if before & _LETTER:
        if _CLASSES[two] & _LETTER and not _CLASSES[data[place - 3]] & _WORD and _is_iban(data, place):
            kinds |= 1 << _IBAN
        return kinds
    if (
        last == _SPACE
        and _CLASSES[two] & _CLASSES[data[place - 3]] & _CAPITAL
        and not _CLASSES[data[place - 4]] & _WORD
        and _is_iban(data, place)
    ):
        kinds |= 1 << _IBAN
    if before & _UNDERSCORE:
        return kinds
    joined = last in (_DOT, _HYPHEN)
    in_number = joined or last in (_COMMA, _SLASH, _PLUS)
    if not joined and not (last == _COMMA and _CLASSES[two] & _DIGIT):
        is_bsn, is_kvk, is_card = _classify_number(data, place)
        kinds |= is_bsn << _BSN
        if not in_number:
            kinds |= is_kvk << _KVK | is_card << _CARD
    if not joined and _is_ipv4(data, place):
        kinds |= 1 << _IPV4
    if (
        (byte in (_TWO, _THREE))
        and last != _DOT
        and last != _COLON
        and data[place + 4] == _COLON
        and _CLASSES[data[place + 1]] & _CLASSES[data[place + 2]] & _CLASSES[data[place + 3]] & _HEXADECIMAL
    ):
        kinds |= 1 << _IPV6
    if last not in (_DOT, _PLUS) and byte != _ZERO and _is_postcode(data, place):
        kinds |= 1 << _POSTCODE
    if last == _SPACE and byte != _ZERO and _STREET_ENDS[_last_letters(data, place - 1)]:
        kinds |= 1 << _STREET
    if last not in (_HYPHEN, _SLASH, _PLUS) and (
        _count_telephone_digits(data, place) == 8 if byte == _ZERO else byte > _ONE and _is_north_american(data, place)
    ):
        kinds |= 1 << _TELEPHONE
    return kinds


@cached_njit
def _kinds_at_sign(data: Bytes, place: int) -> int:
    byte, before, after = data[place], _CLASSES[data[place - 1]], data[place + 1]
    if byte in (_PLUS, _OPEN) and (_CLASSES[after] & _DIGIT or after == _PLUS) and not before & _WORD:
        kinds = int(_count_telephone_digits(data, place) >= 7) << _TELEPHONE
    else:
        kinds = 0
    if byte == _SIGN:
        kinds |= 1 << _AT
    elif _CLASSES[byte] & _BRACKET and _is_bracketed_at(data, place):
        kinds |= 1 << _SPELLED_AT
    elif byte == _HYPHEN and before & _CODE and _CLASSES[after] & _CODE:
        for behind in range(2, 5):
            if data[place + behind] == _HYPHEN:
                kinds |= 1 << _PLATE
    return kinds


@cached_njit
def _find_candidate_codes(data: Bytes) -> Codes:
    """Return position × kinds + kind, in order, for a padded text; [-1] if it may have digits beyond ASCII."""
    codes, number = np.empty(64, dtype=np.int64), 0
    code = 0  # capitals and digits in a row
    character = -_KINDS  # the place in the text, in characters, times the number of kinds
    for place in range(_PADDING, len(data) - 2 * _PADDING):
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
        before = _CLASSES[data[place - 1]]
        kinds = int(before & _LETTER and _follows_plate_word(data, place)) << _PLATE_WORD
        if byte == _SPACE:
            code = 0
            kinds |= int(_is_spelled_at(data, place)) << _AT_WORD
        elif kind & _DIGIT:
            code += 1
            if (
                code == 9
                and _CLASSES[data[place - 8]] & _CLASSES[data[place - 7]] & _CAPITAL
                and not _CLASSES[data[place - 9]] & _WORD
                and not _CLASSES[data[place + 1]] & _WORD
            ):
                kinds |= 1 << _PASSPORT
            if not before & _DIGIT:
                kinds |= _kinds_at_digit(data, place)
        else:
            code = 0
            if byte >= 0xD9 and _may_be_unicode_digit(data, place):
                codes[0] = -1
                return codes[:1]
            kinds |= _kinds_at_sign(data, place)
        if kinds == 0:
            continue
        if number + _KINDS > len(codes):
            grown = np.empty(2 * len(codes), dtype=np.int64)
            grown[:number] = codes[:number]
            codes = grown
        for one in range(_KINDS):
            if kinds >> one & 1:
                codes[number] = character + one
                number += 1
    return codes[:number]


def find_candidates(text: str) -> Candidates:
    """Return the positions in a text where personal data can begin, by kind."""
    padded = b"\n" * _PADDING + text.encode("utf-8", "surrogatepass") + b"\n" * 2 * _PADDING
    candidates = Candidates(*([] for _ in range(_KINDS)))
    for code in _find_candidate_codes(np.frombuffer(padded, dtype=np.uint8)).tolist():
        if code < 0:
            return ALL_POSITIONS
        place, kind = divmod(code, _KINDS)
        candidates[kind].append(place)  # type: ignore[union-attr]
    return candidates
