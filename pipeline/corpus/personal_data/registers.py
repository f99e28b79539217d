"""Numbers that Dutch registers give out: BSN, KvK, passport and identity card."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stdnum.iso7064 import mod_97_10
from stdnum.nl import bsn, identiteitskaartnummer

from pipeline.corpus.personal_data.found import Found, around, before, numbers_a_thing, written_before, written_behind
from pipeline.corpus.personal_data.places import Places, matches

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
# Its word may be a sentence away, if that is not too long.
_SENTENCE_END = re.compile(r"[.!?][\"')]?\s+(?=[\"'(]?[A-Z])|\n[ \t\r]*\n")
_SENTENCES_AHEAD, _SENTENCES_BEHIND = 250, 150

# A number for VAT is NL, a fiscal number and B01, or B02 of a second firm; that of a person was the BSN until 2020. A
# company's begins with 00 or 8. Since 2020 that of a person is no BSN: it has check digits of mod 97, never 01.
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


def _named_bsn(text: str, start: int, end: int) -> bool:
    """Return whether a word for a BSN is near, or in the sentence of the number, or the one before or behind that."""
    if _BSN_CONTEXT.search(around(text, start, end, 60, 60)):
        return True
    ahead = _SENTENCE_END.split(written_before(text, start, _SENTENCES_AHEAD))[-2:]
    behind = _SENTENCE_END.split(written_behind(text, end, _SENTENCES_BEHIND))[:2]
    return bool(_BSN_CONTEXT.search(" . ".join([*ahead, *behind]).lower()))


def bsns(text: str, places: Places) -> Iterator[Found]:
    """Yield numbers that pass the eleven-test and have a word such as "burgerservicenummer" near them.

    Those within a number for VAT have none: NL, the BSN, B01.
    """
    for match in matches(_BSN, text, places.bsn):
        digits, groups = _NOT_DIGIT.sub("", match.group()), match.group().split(".")
        is_ip = len(groups) == 4 and all(int(group) < 256 for group in groups)
        if (
            bsn.is_valid(digits)
            and not is_ip
            and not numbers_a_thing(text, match.start())
            and _named_bsn(text, match.start(), match.end())
        ):
            yield Found(match.start(), match.end(), "bsn", digits)
    for end in matches(_VAT_END, text, places.vat):
        ahead = max(0, end.end() - _VAT_CHARACTERS)
        vat = _VAT.search(text[ahead : end.end()])
        if vat is None:
            continue
        digits, start = _NOT_DIGIT.sub("", vat["digits"]), ahead + vat.start("digits")
        named = vat["country"] or _VAT_CONTEXT.search(around(text, start, end.end(), 40, 25))
        since_2020 = end.group() != "01" and mod_97_10.is_valid(f"NL{digits}B{end.group()}")
        if named and bsn.is_valid(digits) and not digits.startswith(("00", "8")) and not since_2020:
            yield Found(start, ahead + vat.end("digits"), "bsn", digits)


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
