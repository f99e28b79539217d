"""Finds BSNs and numbers of companies, passports, bank accounts, payment cards and number plates."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stdnum import iban, luhn
from stdnum.iso7064 import mod_97_10
from stdnum.nl import bsn, identiteitskaartnummer

from pipeline.corpus.personal_data.spans import (
    DUTCH_ACCOUNT,
    Candidates,
    PersonalDataSpan,
    follows_account_word,
    is_item_number,
    match_at_positions,
    passes_bank_eleven_test,
    raw_text_after,
    raw_text_before,
    text_around,
    text_before,
)

_BSN = re.compile(
    r"[0-9](?<![\w.-][0-9])(?<!\d,[0-9])(?<![€$£] [0-9])(?<!31 [0-9])(?<!\(0\)[0-9])"
    r"(?:\d{8}|\d{3}([ .-])\d{2}\1\d{3}|\d{2}([ .-])\d{3}\2\d{3}|"
    r"\d([ .-])\d{3}\3\d{2}\3\d{2}|\d{2}([ .-])\d{2}\4\d{2}\4\d{2}|\d([ .-])\d{2}\5\d{2}\5\d{3})"
    r"(?![\w-]|[.,]\d|[ ](?:euro|EUR|gulden|dollar|miljoen|€))"
)
_BSN_CONTEXT = re.compile(
    r"(?<![^\W_])(?:bsn|b\. ?s\. ?n|burger[ -]?service[ -]?(?:nummer|nr|no)|sofi(?:[- ]?(?:nummer|nr))?|persoonsnummer|"
    r"sociaal[- ]fiscaal nummer|fiscaal nummer|(?:citizen|burger)(?:'s)? service (?:number|no)|"
    r"dutch social security (?:number|no))(?:s|'s|[- ]?nummers?|[- ]?nr)?(?![^\W_])"
)
_NOT_DIGIT = re.compile(r"\D")
# A word for a BSN may be one sentence away.
_SENTENCE_END = re.compile(r"[.!?][\"')]?\s+(?=[\"'(]?[A-Z])|\n[ \t\r]*\n")
_SENTENCES_AHEAD, _SENTENCES_BEHIND = 250, 150

# A VAT number is NL, a fiscal number and B01, or B02 for a second company. For a person the fiscal number was the BSN
# until 2020. A company's begins with 00 or 8. Since 2020 a person's number has check digits mod 97, never 01.
_VAT_END = re.compile(r"0(?:(?<=[Bb]0)|(?<=[Bb][ .]0))[1-9](?!\w)")
_VAT = re.compile(
    r"(?:(?P<country>(?<!\w)NL[ .:-]{0,2})|(?<![\w-]))"
    r"(?P<digits>\d{9}|\d{4}([ .-])\d\d\3\d{3}|\d{3}([ .-])\d{3}\4\d{3})[ .-]{0,2}B[ .]?0\d\Z",
    re.I,
)
_VAT_CHARACTERS = 24
_VAT_CONTEXT = re.compile(r"\bbtw|\bb\.t\.w|omzetbelasting|\bob[- ]?n|\bvat\b")

_KVK = re.compile(
    r"[0-9](?<![\w.,/+-][0-9])(?<!(?<!\d)\d{4} [0-9])(?:\d{7}|\d{3}[. ]\d{4}|\d \d{3} \d{3}|\d([. ])\d\d(?:\1\d\d){2})"
    r"(?![\w/-]|[.,]\d|[ ]\d{4}(?!\d))"
)
_DATE_DIGITS = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")
# Words for the file of a company in the trade register.
_REGISTER_WORD = re.compile(r"(?:dossier|registratie|registration|inschrijf)[^\d,;]*\Z")
_KVK_CONTEXT = re.compile(
    r"\bkvk|k\.v\.k|kamers? van koophandel|handelsregister|chambers? of commerce|"
    r"(?:trade|commercial|business) register|\bcoc\b|dossiernummer kamer"
)

# Two letters, six letters or digits, a digit; no letter O, no check digit (RvIG; stdnum.nl.identiteitskaartnummer).
_PASSPORT = re.compile(r"[0-9](?<=[A-Z]{2}[0-9A-Z]{6}[0-9])(?<!\w[A-Z]{2}[0-9A-Z]{6}\d)(?![\w-])")
_PASSPORT_CONTEXT = re.compile(
    r"pas(?:poort|sport)|\bpas(?:je)?\b|identiteits?(?:kaart|bewijs)|\bid[- ]?(?:kaart|card|bewijs)|"
    r"identity (?:card|document)|document(?:nummer|nr)|identiteitsdocument|id[- ]?(?:nummer|number)|"
    r"document (?:number|no)|reisdocument|travel document|legitimatie"
)


def _has_bsn_word_nearby(text: str, start: int, end: int) -> bool:
    """Return whether a word for a BSN is within 60 characters, or in the same, previous or next sentence."""
    if _BSN_CONTEXT.search(text_around(text, start, end, 60, 60)):
        return True
    ahead = _SENTENCE_END.split(raw_text_before(text, start, _SENTENCES_AHEAD))[-2:]
    behind = _SENTENCE_END.split(raw_text_after(text, end, _SENTENCES_BEHIND))[:2]
    return bool(_BSN_CONTEXT.search(" . ".join([*ahead, *behind]).lower()))


def find_bsns(text: str, places: Candidates) -> Iterator[PersonalDataSpan]:
    """Yield numbers that pass the eleven-test and have a word such as "burgerservicenummer" nearby.

    A BSN in a VAT number (NL, the BSN, B01) needs no such word.
    """
    for match in match_at_positions(_BSN, text, places.bsn):
        digits, groups = _NOT_DIGIT.sub("", match.group()), match.group().split(".")
        is_ip = len(groups) == 4 and all(int(group) < 256 for group in groups)
        if (
            bsn.is_valid(digits)
            and not is_ip
            and not is_item_number(text, match.start())
            and _has_bsn_word_nearby(text, match.start(), match.end())
        ):
            yield PersonalDataSpan(match.start(), match.end(), "bsn", digits)
    for end in match_at_positions(_VAT_END, text, places.vat):
        ahead = max(0, end.end() - _VAT_CHARACTERS)
        vat = _VAT.search(text[ahead : end.end()])
        if vat is None:
            continue
        digits, start = _NOT_DIGIT.sub("", vat["digits"]), ahead + vat.start("digits")
        named = vat["country"] or _VAT_CONTEXT.search(text_around(text, start, end.end(), 40, 25))
        since_2020 = end.group() != "01" and mod_97_10.is_valid(f"NL{digits}B{end.group()}")
        if named and bsn.is_valid(digits) and not digits.startswith(("00", "8")) and not since_2020:
            yield PersonalDataSpan(start, ahead + vat.end("digits"), "bsn", digits)


def find_kvk_numbers(text: str, places: Candidates) -> Iterator[PersonalDataSpan]:
    """Yield numbers of eight digits near a mention of the trade register; they have no check digit."""
    for match in match_at_positions(_KVK, text, places.kvk):
        start = match.start()
        # A possible date (20240131) needs the word directly before it.
        if _DATE_DIGITS.fullmatch(match.group()):
            near = text_before(text, start, 35).rpartition("\n")[2]
        else:
            near = text_around(text, start, match.end(), 50, 25)
        named = _KVK_CONTEXT.search(near)
        other = is_item_number(text, start) and not _REGISTER_WORD.search(text_before(text, start, 30))
        if named and not other:
            yield PersonalDataSpan(start, match.end(), "kvk", _NOT_DIGIT.sub("", match.group()))


def find_passports(text: str, places: Candidates) -> Iterator[PersonalDataSpan]:
    """Yield numbers of Dutch passports and identity cards near a word for one."""
    for match in match_at_positions(_PASSPORT, text, places.passport):
        start, end = match.end() - 9, match.end()
        number = text[start:end]
        named = identiteitskaartnummer.is_valid(number) and _PASSPORT_CONTEXT.search(
            text_around(text, start, end, 60, 30)
        )
        if named and not is_item_number(text, start):
            yield PersonalDataSpan(start, end, "passport", number)


# An IBAN in groups of any size, with any separators.
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


def find_ibans(text: str, places: Candidates) -> Iterator[PersonalDataSpan]:
    """Yield account numbers with the length of their country and correct check digits.

    The longest valid prefix of a match counts, because following words may look like part of it: NL… 00 EUR. A Dutch
    account number that is no IBAN must pass the eleven-test and follow a word such as "rekeningnummer".
    """
    for match in match_at_positions(_IBAN, text, places.iban):
        start = match.start() - (3 if text[match.start() - 1] == " " else 2)
        written = text[start : match.end()]
        while len(value := _SEPARATORS.sub("", written).upper()) >= 15:
            if iban.is_valid(value, check_country=False):
                yield PersonalDataSpan(start, start + len(written), "iban", value)
                break
            shorter = _LAST_GROUP.sub("", written)
            if shorter == written:
                break
            written = shorter
    possible = None if places.bsn is None else sorted({*places.bsn, *(places.telephone or ())})
    for match in match_at_positions(DUTCH_ACCOUNT, text, possible):
        if passes_bank_eleven_test(match.group()) and follows_account_word(text, match.start()):
            yield PersonalDataSpan(match.start(), match.end(), "iban", _NOT_DIGIT.sub("", match.group()))


def _is_issued_card(digits: str) -> bool:
    """Return whether an issuer uses these first digits and this length (ISO/IEC 7812)."""
    two, four, length = int(digits[:2]), int(digits[:4]), len(digits)
    return (
        (digits[0] == "4" and length in (13, 16, 19))
        or (length == 16 and (51 <= two <= 55 or 2221 <= four <= 2720))
        or (length == 15 and two in (34, 37))
        or (length == 14 and (two in (36, 38, 39) or 300 <= four // 10 <= 305 or four == 3095))
        or (length == 16 and (two == 62 or four == 6011 or 3528 <= four <= 3589))
        or (12 <= length <= 19 and (two == 50 or 56 <= two <= 59 or 63 <= two <= 69))
    )


def find_credit_cards(text: str, places: Candidates) -> Iterator[PersonalDataSpan]:
    """Yield card numbers of a known issuer with a correct check digit (Luhn).

    Lengths other than 15 and 16, and Maestro's wide ranges, need a word such as "creditcard" nearby, because one in ten
    random numbers of this form passes.
    """
    for match in match_at_positions(_CARD, text, places.credit_card):
        digits = _NOT_ALPHANUMERIC.sub("", match.group())
        if not luhn.is_valid(digits) or not _is_issued_card(digits) or is_item_number(text, match.start()):
            continue
        near = text_around(text, match.start(), match.end(), 40, 25)
        alone = len(digits) in (15, 16) and digits[:2] not in _MAESTRO
        if alone or _CARD_CONTEXT.search(near):
            yield PersonalDataSpan(match.start(), match.end(), "credit_card", digits)


# The sidecodes of number plates since 1951, in the road authority's notation: groups of letters (X) or digits (9).
_SIDECODES = {
    *("XX-99-99", "99-99-XX", "99-XX-99", "XX-99-XX", "XX-XX-99", "99-XX-XX"),
    *("99-XXX-9", "9-XXX-99", "XX-999-X", "X-999-XX", "XXX-99-X", "X-99-XXX", "9-XX-999", "999-XX-9"),
}
_RECENT_SIDECODES = {code for code in _SIDECODES if "999" in code or "XXX" in code}
# Since sidecode 4 the road authority (RDW) uses no vowels, except a first O for semi-trailers, no C and Q, and none of
# these abbreviations. A plate with them needs a word for a vehicle nearby.
_UNISSUED_LETTERS = re.compile(r"[AEIOUCQ]|^(?:GVD|KKK|NSB|PKK|PSV|PVV|SGP|TBS|VVD)$")
_HYPHENATED_PLATE = re.compile(r"-(?<=[A-Z0-9]-)(?:[A-Z]{1,3}|\d{1,3})-(?:[A-Z]{1,3}|\d{1,3})(?![\w-]|[./]\w)")
_FIRST_PLATE_GROUP = re.compile(r"(?:\A|(?<![\w./:#-]))(?:[A-Z]{1,3}|\d{1,3})\Z")
_PLATE_CONTEXT = re.compile(
    r"kenteken|nummerbord|nummerplaat|(?:number|licence|license) ?plate|registration|\bplaten?\b|\bplates?\b|"
    r"\b(?:auto|wagen|bus|busje|bestelbus|motor|motorfiets|scooter|voertuig|aanhanger|vrachtwagen|caravan|oplegger|"
    r"car|lorry|truck|motorcycle|vehicle|trailer|taxi|brommer|bromfiets|tractor|driver|bestuurder|chauffeur)s?\b|"
    r"geparkeerd|\bparked|\brijdt\b|\breed\b|\bdrove\b|\brdw\b|\bapk\b"
)
# Without hyphens a plate looks like any code, so it must directly follow a word for one.
_PLATE_NOUNS = (
    "[Kk]enteken",
    "KENTEKEN",
    "[Nn]ummerbord",
    "[Nn]ummerplaat",
    "[Ll]icen[cs]e [Pp]late",
    "[Nn]umber [Pp]late",
)
_AFTER_PLATE_NOUN = "|".join(f"(?<={name}{tail})" for name in _PLATE_NOUNS for tail in ("", "s", "nummer", "bewijs"))
_NAMED_PLATE = re.compile(
    rf"(?![A-Za-z])(?:(?:{_AFTER_PLATE_NOUN})(?: number| plate)?|(?<=[Rr]egistration) (?:number|plate))"
    r"(?: (?:is|was|van|met|of|with|nummer|number))?[ \t]*[:=]?[ \t]*[\"'(\[]?"
    r"(?P<plate>(?:[A-Za-z]{1,3}|\d{1,3})([ ]?[-·]?[ ]?)(?:[A-Za-z]{1,3}|\d{1,3})\2(?:[A-Za-z]{1,3}|\d{1,3}))(?![\w-])"
)
_PLATE_WITHOUT_HYPHENS = re.compile(
    "|".join(sorted({code.replace("-", "") for code in _SIDECODES})).replace("X", "[A-Z]").replace("9", r"\d")
)


def _sidecode(groups: list[str]) -> str:
    return "-".join("9" * len(group) if group.isdigit() else "X" * len(group) for group in groups)


def find_number_plates(text: str, places: Candidates) -> Iterator[PersonalDataSpan]:
    """Yield number plates.

    A plate with hyphens needs a word for a vehicle nearby, or a recent sidecode (a group of three) in issued letters. A
    plate without hyphens must follow a word for one. Neither may follow a word such as "type".
    """
    for match in match_at_positions(_HYPHENATED_PLATE, text, places.number_plate):
        first = _FIRST_PLATE_GROUP.search(text[max(0, match.start() - 4) : match.start()])
        if first is None:
            continue
        start = match.start() - len(first.group())
        groups = text[start : match.end()].split("-")
        code = _sidecode(groups)
        if code not in _SIDECODES:
            continue
        letters = "".join(group for group in groups if group.isalpha())
        recent = code in _RECENT_SIDECODES and not _UNISSUED_LETTERS.search(letters)
        named = recent or _PLATE_CONTEXT.search(text_around(text, start, match.end(), 60, 40))
        if named and not is_item_number(text, start):
            yield PersonalDataSpan(start, match.end(), "number_plate", "".join(groups))
    for named in match_at_positions(_NAMED_PLATE, text, places.plate_word):
        value = re.sub("[ ·-]", "", named["plate"]).upper()
        if _PLATE_WITHOUT_HYPHENS.fullmatch(value):
            yield PersonalDataSpan(named.start("plate"), named.end("plate"), "number_plate", value)
