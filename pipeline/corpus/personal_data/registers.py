"""Numbers that Dutch registers give out: BSN, KvK, passport and identity card."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stdnum.nl import bsn, identiteitskaartnummer

from pipeline.corpus.personal_data.found import Found, around, before, numbers_a_thing
from pipeline.corpus.personal_data.sieve import Places, matches

_BSN = re.compile(
    r"[0-9](?<![\w.,-][0-9])(?<![€$£] [0-9])(?:\d{8}|\d{3}\.\d{2}\.\d{3}|\d{2}([ .-])\d{3}\1\d{3}|\d{3} \d{2} \d{3})"
    r"(?![\w-]|[.,]\d|[ ](?:euro|EUR|gulden|dollar|miljoen|€))"
)
_BSN_CONTEXT = re.compile(
    r"(?<![^\W_])(?:bsn|burger[ -]?service[ -]?(?:nummer|nr|no)|sofi(?:[- ]?(?:nummer|nr))?|persoonsnummer|"
    r"sociaal[- ]fiscaal nummer|fiscaal nummer|(?:citizen|burger)(?:'s)? service (?:number|no)|"
    r"dutch social security (?:number|no))(?:s|'s|[- ]?nummers?|[- ]?nr)?(?![^\W_])"
)
_NOT_DIGIT = re.compile(r"\D")

_KVK = re.compile(
    r"[0-9](?<![\w.,/+-][0-9])(?<!(?<!\d)\d{4} [0-9])(?:\d{7}|\d{3} \d{4}|\d \d{3} \d{3}|\d([. ])\d\d(?:\1\d\d){2})"
    r"(?![\w/-]|[.,]\d|[ ]\d{4}(?!\d))"
)
_DAY = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")
# In the trade register every company has a file.
_FILE = re.compile(r"(?:dossier|registratie|registration|inschrijf)[^\d,;]*\Z")
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


def bsns(text: str, places: Places) -> Iterator[Found]:
    """Yield numbers that pass the eleven-test and have a word such as "burgerservicenummer" near them."""
    for match in matches(_BSN, text, places.bsn):
        digits = _NOT_DIGIT.sub("", match.group())
        if (
            bsn.is_valid(digits)
            and _BSN_CONTEXT.search(around(text, match.start(), match.end(), 60, 60))
            and not numbers_a_thing(text, match.start())
        ):
            yield Found(match.start(), match.end(), "bsn", digits)


def kvk_numbers(text: str, places: Places) -> Iterator[Found]:
    """Yield numbers of eight digits with the trade register named near them: they carry no check digit."""
    for match in matches(_KVK, text, places.kvk):
        start = match.start()
        # What may be a day (20240131) has its word right before it.
        if _DAY.fullmatch(match.group()):
            near = before(text, start, 35).rpartition("\n")[2]
        else:
            near = around(text, start, match.end(), 50, 25)
        named = _KVK_CONTEXT.search(near)
        other = numbers_a_thing(text, start) and not _FILE.search(before(text, start, 30))
        if named and not other:
            yield Found(start, match.end(), "kvk", _NOT_DIGIT.sub("", match.group()))


def passports(text: str, places: Places) -> Iterator[Found]:
    """Yield numbers of Dutch passports and identity cards with a word for one near them."""
    for match in matches(_PASSPORT, text, places.passport):
        start, end = match.end() - 9, match.end()
        number = text[start:end]
        named = identiteitskaartnummer.is_valid(number) and _PASSPORT_CONTEXT.search(around(text, start, end, 60, 30))
        if named and not numbers_a_thing(text, start):
            yield Found(start, end, "passport", number)
