"""Dutch addresses: a postcode with the number of a house, which together are one household."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stdnum.nl import postcode

from pipeline.corpus.personal_data.found import Found, written_before
from pipeline.corpus.personal_data.sieve import Places, matches

_POSTCODE = re.compile(
    r"[1-9](?:(?<=NL-[1-9])|(?<![\w.,/+-][1-9]))\d{3}[ \u00a0]?"
    r"(?:[A-Z]{2}|[a-z]{2}(?=,?[ ](?:nr\.?|huis\w+)?[ ]?\d))(?![\w-])"
)
_HOUSE = (
    r"[1-9]\d{0,4}(?:[ -]?(?:[A-Za-z]|bis|hs|huis|rood|zwart|I{2,3})(?!\w)|[ -]\d{1,4}(?!\w))?(?:[ ]?[-/][ ]?\d{1,4})?"
)
# The number behind: 1234 AB 12, 1234 AB, nr. 12, 1234AB huisnummer 12-a.
_NUMBER_BEHIND = re.compile(
    rf"(?:,?[ \t]*(?:(?:en[ ])?(?:het[ ])?huis(?:nummer|nr\.?)|nr\.?|nummer|house number|number|no\.?)[ :]*|,?[ ]|/|-)"
    rf"(?P<house>{_HOUSE})(?!\w|[.,]\d|[ ]?(?:%|€|euro\b|km\b|kg\b|uur\b|jaar\b|m2\b))",
    re.I,
)
# The number in front, with its street: Kerkstraat 12, 1234 AB.
_WORD = r"(?:[A-ZÀ-Ý'’][\w'’.-]*|[a-z]+(?:straat|str\.|weg|laan|plein|kade|gracht|dijk|singel|hof|pad|steeg))"
_PARTICLE = r"(?:van|de|der|den|het|ter|ten|te|op|aan|in|bij|'t|’t|en|la|du)"
_HOUSE_IN_FRONT = re.compile(
    rf"[ ](?:nr\.?[ ])?(?P<house>{_HOUSE})[ ]?(?:(?:,|[ ](?:te|in))[ ](?:{_WORD}[ ]?){{1,3}})?"
    rf"(?:[,;|]?[ ]?\r?\n?|[ ]-[ ]|,?[ ](?:te|in)[ ]|[ ]?\()(?:NL-)?\Z"
)
_STREET_IN_FRONT = re.compile(
    rf"(?P<street>(?:{_WORD}[ ](?:{_PARTICLE}[ ]){{0,3}}){{0,4}}{_WORD}(?:[ ]19\d\d)?){_HOUSE_IN_FRONT.pattern}"
)
_FRONT_CHARACTERS = 90
_BOX = re.compile(r"(?:postbus|p\.? ?o\.? ?box|antwoordnummer)[ ]*(?:nr\.?[ ]*)?[\d.]+[ ]?[,;|(]?[ ]?\n?\Z")
_NO_STREET = re.compile(
    r"(?:artikel(?:en)?|art\.|lid|leden|stb\.?|stcrt\.?|trb\.?|pb\.?|richtlijn|verordening|besluit|article|section|"
    r"table|tabel|bijlage|annex|hoofdstuk|chapter|figuur|figure|nr\.?|januari|februari|maart|april|mei|juni|juli|"
    r"augustus|september|oktober|november|december|january|february|march|may|june|july|august|october)",
    re.I,
)
_ADDRESS = re.compile(r"(?:\badres|address|postcode|postal code|\bwoon|\blive)\w*[^\d.]{0,20}\Z")
# The street behind, after the town: 1234 AB Tiel, Kerkstraat 12.
_STREET_BEHIND = re.compile(
    rf"(?:[ ]{_WORD}){{1,3}},[ ](?:{_WORD}[ ](?:{_PARTICLE}[ ]){{0,3}}){{1,4}}(?P<house>{_HOUSE})(?!\w|[.,]\d)"
)
# A year with letters that law and history write behind years.
_YEAR = re.compile(r"(?:1\d|20)\d\d[ ]?(?:AB|AD|BC|BW|CE|EC|EG|EU|EN|EK|NJ|NR|NV|OM|RV|TK|VN|VS|WO|UN|US|IN)\Z")


def addresses(text: str, places: Places) -> Iterator[Found]:
    """Yield the street, house number and postcode, or the postcode and house number; a post office box is none."""
    last = 0
    for match in matches(_POSTCODE, text, places.postcode):
        start, end = match.span()
        if start < last or not postcode.is_valid(match.group().replace("\u00a0", " ")):
            continue
        front = written_before(text, start, _FRONT_CHARACTERS)
        street = _STREET_IN_FRONT.search(front) if _HOUSE_IN_FRONT.search(front) else None
        if _BOX.search(front.lower()):
            continue
        capital = match.group()[-1].isupper()
        if capital and street and not _NO_STREET.fullmatch(street["street"].split(" ")[-1]):
            start -= len(front) - street.start()
            end += front[-1] == "(" and text[end : end + 1] == ")"
        else:
            behind = _NUMBER_BEHIND.match(text, end) or _STREET_BEHIND.match(text, end)
            unsure = not capital or _YEAR.match(match.group())
            if behind is None or (unsure and not _ADDRESS.search(front.lower())):
                continue
            end = behind.end("house")
        last = end
        yield Found(start, end, "address", re.sub("[ \u00a0]", "", match.group()).upper())
